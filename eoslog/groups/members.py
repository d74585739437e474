"""The members of a group: what each reads, in which generation, and how that changes.

A member *holds* what it may be reading. What it is *assigned* it holds; what it holds besides, it
has to give up, and does so at its next poll. Every change of the assignment makes a new generation
of the group. A member goes on with its own, older one until it polls: no other member has what it
holds until then.

Invariants: no partition is held by two members, and no instance id is that of two. A member is
assigned nothing that it does not hold. A member's generation is never above the group's, which
never goes down. All functions here are pure: the caller writes the result to the log, or nothing
has changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from eoslog.common.config import SESSION_TIMEOUT_MS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InconsistentGroupProtocolError
from eoslog.groups.assignors import ASSIGNORS

NOTHING: frozenset[TopicPartition] = frozenset()
NO_GENERATION_YET = -1

# How many partitions each topic has; topics that do not exist are left out.
PartitionCounts = Mapping[str, int]


class Member(NamedTuple):
    """One consumer of a group.

    `slot` is that of its process; `strategies` are the assignors that it knows, the preferred one
    first. A static member has an `instance_id`; for `session_timeout_ms` its place is kept for its
    successor, which has the same.
    """

    member_id: str
    client_id: str
    client_host: str
    max_poll_interval_ms: int
    topics: tuple[str, ...]
    strategies: tuple[str, ...]
    slot: bytes = b""
    generation: int = NO_GENERATION_YET
    assigned: frozenset[TopicPartition] = NOTHING
    held: frozenset[TopicPartition] = NOTHING
    instance_id: str | None = None
    session_timeout_ms: int = SESSION_TIMEOUT_MS

    @property
    def to_give_up(self) -> frozenset[TopicPartition]:
        """Partitions that it holds and must give up."""
        return self.held - self.assigned


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """A group with its members, in the order in which they joined; the first is Kafka's leader."""

    generation: int = 0
    strategy: str | None = None
    members: tuple[Member, ...] = ()
    state_timestamp_ms: int = -1
    _by_id: dict[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_id = {member.member_id: member for member in self.members}
        object.__setattr__(self, "_by_id", by_id)

    def get(self, member_id: str) -> Member | None:
        """The member with this id; None if there is none."""
        return self._by_id.get(member_id)

    def of_instance(self, instance_id: str | None) -> Member | None:
        """The static member of this instance; None if there is none."""
        if instance_id is None:
            return None
        return next((one for one in self.members if one.instance_id == instance_id), None)

    @property
    def topics(self) -> frozenset[str]:
        """Topics that any member reads."""
        return frozenset(topic for member in self.members for topic in member.topics)

    @property
    def state(self) -> str:
        """State in Kafka's words: Empty, Stable, or PreparingRebalance while a member has yet to
        acknowledge the generation.
        """
        if not self.members:
            return "Empty"
        settled = all(
            member.generation == self.generation and not member.to_give_up
            for member in self.members
        )
        return "Stable" if settled else "PreparingRebalance"


def with_member(group: GroupMembers, joining: Member, counts: PartitionCounts) -> GroupMembers:
    """The group with a new member, or with one that reads other topics now. A static member takes
    the place of the one of its instance: all that this was assigned, in the same generation.

    Raises InconsistentGroupProtocolError if its strategies and those of the others have none in
    common.
    """
    known = group.get(joining.member_id)
    before = group.of_instance(joining.instance_id) if known is None else None
    gone = joining.member_id if before is None else before.member_id
    others = [one for one in group.members if one.member_id != gone]
    if before is not None:
        # It reads nothing yet, so it has nothing to give up.
        successor = joining._replace(
            generation=group.generation, assigned=before.assigned, held=before.assigned
        )
        members = tuple(successor if one is before else one for one in group.members)
    elif known is None:
        members = (*group.members, joining)
    else:
        members = _replaced(group.members, known._replace(topics=joining.topics))
    if others and common_strategy((*others, joining)) is None:
        raise InconsistentGroupProtocolError(
            f"the member knows {', '.join(joining.strategies)}; the group has "
            f"{group.strategy}: no assignor is known to all members"
        )
    if before is not None and _asks_the_same(before, joining):
        return replace(group, members=members)
    return _reassigned(group, members, counts)


def _asks_the_same(before: Member, successor: Member) -> bool:
    """True if nothing is to be assigned again where a static member takes another's place."""
    same = (before.topics, before.strategies) == (successor.topics, successor.strategies)
    return same and not before.to_give_up


def without_members(
    group: GroupMembers, leaving: Iterable[str], counts: PartitionCounts
) -> GroupMembers:
    """The group without some members: what they held is free."""
    gone = frozenset(leaving)
    members = tuple(one for one in group.members if one.member_id not in gone)
    if len(members) == len(group.members):
        return group
    return _reassigned(group, members, counts)


def acknowledged(
    group: GroupMembers,
    member_id: str,
    held: frozenset[TopicPartition],
    counts: PartitionCounts,
) -> GroupMembers:
    """The group after a member, which reads `held`, has acknowledged it.

    Of what it has to give up it holds only that still; the rest goes to others. The same group if
    it is no member any more.
    """
    member = group.get(member_id)
    if member is None:
        return group
    still = member.assigned | (member.held & held)
    members = _replaced(group.members, member._replace(held=still, generation=group.generation))
    if still == member.held:
        return replace(group, members=members)
    changed = _reassigned(group, members, counts)
    return _noted_by(changed, member_id)


def rebalanced(group: GroupMembers, counts: PartitionCounts) -> GroupMembers:
    """The group where topics have come, gone or grown; the same one if nothing has to change."""
    changed = _reassigned(group, group.members, counts)
    if [one.assigned for one in changed.members] == [one.assigned for one in group.members]:
        return group
    return changed


def covers(group: GroupMembers, topics: Iterable[str], counts: PartitionCounts) -> bool:
    """True if all partitions of these topics are held, and none is assigned that does not exist."""
    found: dict[str, set[int]] = {topic: set() for topic in topics}
    for member in group.members:
        for topic, partition in member.held:
            if topic in found and partition < counts.get(topic, 0):
                found[topic].add(partition)
        for topic, partition in member.assigned:
            if topic in found and partition >= counts.get(topic, 0):
                return False
    return all(len(held) == counts.get(topic, 0) for topic, held in found.items())


def common_strategy(members: Iterable[Member]) -> str | None:
    """The strategy that all members know, preferred by the first one; None if there is none."""
    listed = [member.strategies for member in members]
    if not listed:
        return None
    shared = set(listed[0]).intersection(*listed[1:])
    return next((one for one in listed[0] if one in shared), None)


def _reassigned(
    group: GroupMembers, members: tuple[Member, ...], counts: PartitionCounts
) -> GroupMembers:
    """A new generation with these members, each with what it gets now."""
    generation = group.generation + 1
    strategy = common_strategy(members)
    if strategy is None:
        return GroupMembers(generation, None, members)
    wanted = ASSIGNORS[strategy](
        {one.member_id: one.topics for one in members},
        counts,
        {one.member_id: one.assigned for one in members},
    )
    holders = {where: one.member_id for one in members for where in one.held}
    given = []
    for member in members:
        assigned = frozenset(
            where
            for where in wanted[member.member_id]
            if holders.get(where, member.member_id) == member.member_id
        )
        given.append(member._replace(assigned=assigned, held=member.held | assigned))
    return GroupMembers(generation, strategy, tuple(given))


def _noted_by(group: GroupMembers, member_id: str) -> GroupMembers:
    member = group.get(member_id)
    if member is None:
        return group
    noted = member._replace(generation=group.generation)
    return replace(group, members=_replaced(group.members, noted))


def _replaced(members: tuple[Member, ...], changed: Member) -> tuple[Member, ...]:
    return tuple(changed if one.member_id == changed.member_id else one for one in members)
