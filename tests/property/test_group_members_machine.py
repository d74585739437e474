"""A group through all that can happen to it: nobody ever reads what another reads.

The model is what each consumer reads: it knows only what the group said at its own last poll, and
gives up and takes over only then. The dead and the expelled go on reading what they had, unaware.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from eoslog.groups.members import (
    GroupMembers,
    Member,
    acknowledged,
    covers,
    rebalanced,
    with_member,
    without_members,
)
from eoslog.groups.records import decode_members_value, encode_members_value

TOPICS = st.sets(st.sampled_from(["a", "b", "c"]), min_size=1).map(lambda one: tuple(sorted(one)))
STRATEGIES = st.sampled_from([("range",), ("cooperative-sticky",), ("range", "cooperative-sticky")])


@dataclass
class Consumer:
    name: str
    reads: set = field(default_factory=set)
    generation: int = -1


class GroupMembersMachine(RuleBasedStateMachine):
    consumers = Bundle("consumers")

    def __init__(self):
        super().__init__()
        self.group = GroupMembers()
        self.counts = {"a": 3}
        self.strategies = None
        self.alive = {}
        self.joined = 0
        self.generation = 0

    def changed(self, group):
        if group != self.group:
            assert group.generation >= self.group.generation
        assigned_before = [(one.member_id, one.assigned) for one in self.group.members]
        if [(one.member_id, one.assigned) for one in group.members] != assigned_before:
            assert group.generation > self.group.generation
        # It goes through a record each time.
        self.group = decode_members_value(encode_members_value(group))
        assert self.group == group

    @rule(target=consumers, topics=TOPICS, strategies=STRATEGIES)
    def join(self, topics, strategies):
        self.joined += 1
        name = f"m{self.joined}"
        if self.strategies is None or not self.group.members:
            self.strategies = strategies
        member = Member(name, "c", "h", 1000, topics, self.strategies, bytes(16))
        self.changed(with_member(self.group, member, self.counts))
        self.alive[name] = Consumer(name)
        return self.alive[name]

    @rule(consumer=consumes(consumers))
    def leave(self, consumer):
        consumer.reads.clear()
        self.alive.pop(consumer.name)
        self.changed(without_members(self.group, [consumer.name], self.counts))

    @rule(some=st.lists(consumes(consumers), min_size=1, max_size=3, unique_by=id))
    def die(self, some):
        """They are taken out: whatever they still read, their commits are refused."""
        for consumer in some:
            self.alive.pop(consumer.name)
        names = [one.name for one in some]
        self.changed(without_members(self.group, names, self.counts))
        assert not any(self.group.get(name) for name in names)

    @rule(consumer=consumers)
    def poll(self, consumer):
        self.polls(consumer)

    def polls(self, consumer):
        for _ in range(10):
            member = self.group.get(consumer.name)
            gone = consumer.reads - member.assigned
            consumer.reads -= gone
            consumer.generation = member.generation
            if gone or member.to_give_up or member.generation != self.group.generation:
                held = frozenset(consumer.reads)
                self.changed(acknowledged(self.group, consumer.name, held, self.counts))
            elif not covers(self.group, member.topics, self.counts):
                self.changed(rebalanced(self.group, self.counts))
            else:
                consumer.reads |= member.assigned
                return
        raise AssertionError("a member's poll does not come to an end")

    @rule(consumer=consumers, topics=TOPICS)
    def subscribe(self, consumer, topics):
        member = self.group.get(consumer.name)
        changed = member._replace(topics=topics)
        self.changed(with_member(self.group, changed, self.counts))

    @rule(topic=st.sampled_from(["a", "b", "c"]), count=st.integers(0, 5))
    def topic_changes(self, topic, count):
        """It is made, grows, or is deleted, and maybe made anew with fewer partitions."""
        self.counts = {**self.counts, topic: count}
        if count == 0:
            del self.counts[topic]

    @rule()
    def settle(self):
        """When all poll in turn, the group comes to rest, and everything is read."""
        for _ in range(5):
            for consumer in self.alive.values():
                self.polls(consumer)
        if not self.alive:
            assert self.group.state == "Empty"
            return
        assert self.group.state == "Stable"
        read = sorted(where for one in self.alive.values() for where in one.reads)
        topics = self.group.topics
        assert read == sorted(
            (topic, number)
            for topic, count in self.counts.items()
            if topic in topics
            for number in range(count)
        )

    @invariant()
    def nobody_reads_what_another_reads(self):
        read = [where for one in self.alive.values() for where in one.reads]
        assert len(read) == len(set(read))
        held = [where for one in self.group.members for where in one.held]
        assert len(held) == len(set(held))
        for member in self.group.members:
            assert member.assigned <= member.held
            assert member.generation <= self.group.generation
            assert self.alive[member.member_id].reads <= member.held


TestGroupMembersMachine = GroupMembersMachine.TestCase
