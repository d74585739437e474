"""Consumers that share topics: who reads what, who may commit, and what happens when one goes."""

import gc
import os
import pickle
import re
import threading
import time

import pytest
from harness.crew import Member
from harness.fork import in_child

import eoslog
from eoslog import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from eoslog.errors import (
    CommitFailedError,
    ConcurrentAccessError,
    ForkedProcessError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    IllegalStateError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    InvalidTopicError,
    LogClosedError,
    NonEmptyGroupError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.membership import GroupMembership
from eoslog.store.store import abandon, parts_of

T = [TopicPartition("t", number) for number in range(4)]
STICKY = {"partition.assignment.strategy": "cooperative-sticky"}
MINUTE = {"max.poll.interval.ms": 60_000}


@pytest.fixture
def topic(store):
    """Four partitions with 10 records each."""
    store.create_topic("t", partitions=4)
    producer = store.producer()
    for number in range(4):
        producer.append("t", number, [b"%d:%d" % (number, offset) for offset in range(10)])
    return store


class Told:
    """What a consumer was told, in order."""

    def __init__(self):
        self.calls = []

    def __call__(self, kind):
        def note(consumer, partitions):
            self.calls.append((kind, [where.partition for where in partitions]))

        return note

    def functions(self):
        return {name: self(name) for name in ("on_assigned", "on_revoked", "on_lost")}


def member(store, group="g", topics=("t",), config=None, polled=True, **arguments):
    consumer = store.consumer(group=group, config=config)
    consumer.subscribe(topics, **arguments)
    if polled:
        consumer.poll(timeout=0)
    return consumer


def settle(*consumers):
    """All poll until nothing moves any more; what they were handed out."""
    records = []
    for _ in range(3):
        for consumer in consumers:
            records += consumer.poll(timeout=0)
    return records


def numbers(consumer):
    return sorted(where.partition for where in consumer.assignment())


def polled_last(store, consumer, ago_s):
    """Have the consumer's last poll be so long ago, for all that look at it."""
    member_id = consumer.group_metadata().member_id
    at_ns = time.monotonic_ns() - int(ago_s * 1e9)
    os.utime(heartbeats(store).path_of(member_id), ns=(at_ns, at_ns))


def heartbeats(store):
    return parts_of(store).files.group_members.heartbeats


def now(store, group="g"):
    return store.describe_group(group)


# Joining and leaving.


def test_one_member_reads_everything_at_its_first_poll(topic):
    consumer = member(topic, polled=False)
    assert consumer.assignment() == []
    assert consumer.subscription() == ["t"]
    assert len(consumer.poll(timeout=0)) == 40
    assert numbers(consumer) == [0, 1, 2, 3]
    assert now(topic).state == "Stable"


def test_members_share_the_partitions_and_each_record_is_read_once(topic):
    first, second = member(topic, polled=False), member(topic, polled=False)
    records = first.poll(timeout=0, max_records=7)
    first.commit()
    seen = [(one.partition, one.offset) for one in records]
    for _ in range(20):
        for consumer in (second, first):
            records = consumer.poll(timeout=0, max_records=3)
            seen += [(one.partition, one.offset) for one in records]
            consumer.commit()
    assert len(numbers(first)) == len(numbers(second)) == 2
    assert not set(numbers(first)) & set(numbers(second))
    # What the first had read of what it gave up was committed: nothing comes twice.
    assert sorted(seen) == [(number, offset) for number in range(4) for offset in range(10)]


def test_nothing_is_given_to_another_before_it_is_given_up(topic):
    first = member(topic)
    second = member(topic)
    assert (numbers(first), numbers(second)) == ([0, 1, 2, 3], [])
    state = now(topic)
    assert state.state == "PreparingRebalance"
    assert [len(one.giving_up) for one in state.members] == [2, 0]
    second.poll(timeout=0)
    assert numbers(second) == []
    first.poll(timeout=0)
    assert len(numbers(first)) == 2
    second.poll(timeout=0)
    assert len(numbers(second)) == 2
    assert now(topic).state == "Stable"


def test_who_leaves_leaves_at_once(topic):
    first, second = member(topic), member(topic)
    settle(first, second)
    second.close()
    first.poll(timeout=0)
    assert numbers(first) == [0, 1, 2, 3]
    first.unsubscribe()
    assert first.assignment() == first.subscription() == []
    assert now(topic).state == "Empty"
    first.assign([T[1]])
    assert numbers(first) == [1]


def test_a_waiting_member_is_woken_by_a_change(topic):
    first, second = member(topic), member(topic)
    settle(first, second)
    timer = threading.Timer(0.2, second.close)
    timer.start()
    began_s = time.monotonic()
    while len(numbers(first)) < 4 and time.monotonic() - began_s < 60:
        first.poll(timeout=60)
    assert time.monotonic() - began_s < 30
    timer.join()


def test_a_consumer_that_nobody_has_any_more_leaves(topic):
    first, second = member(topic), member(topic)
    settle(first, second)
    del second
    gc.collect()
    parts_of(topic).files.group_members.look_after_members()
    first.poll(timeout=0)
    assert numbers(first) == [0, 1, 2, 3]


def test_closing_the_store_leaves_an_empty_group(open_store):
    store = open_store()
    store.create_topic("t")
    consumer = member(store)
    store.close()
    for call in (consumer.poll, consumer.unsubscribe, lambda: consumer.subscribe(["t"])):
        with pytest.raises(LogClosedError):
            call()
    consumer.close()
    store = open_store()
    assert (now(store).state, now(store).members) == ("Empty", ())


@pytest.mark.parametrize("lmdb", [True, False])
def test_members_of_before_a_crash_are_dead(open_store, store_path, lmdb):
    store = open_store()
    store.create_topic("t", partitions=4)
    member(store)
    if lmdb:
        parts_of(store).files.group_offsets.log.persist_all()
    abandon(store)
    store = open_store()
    assert now(store).members == ()
    consumer = member(store)
    assert numbers(consumer) == [0, 1, 2, 3]
    assert now(store).generation > 1


def test_a_sticky_group_moves_little(topic):
    first = member(topic, config=STICKY)
    second = member(topic, config=STICKY)
    settle(first, second)
    kept = numbers(first)
    third = member(topic, config=STICKY)
    settle(first, second, third)
    assert sorted(len(numbers(one)) for one in (first, second, third)) == [1, 1, 2]
    assert set(numbers(first)) <= set(kept)
    assert now(topic).strategy == "cooperative-sticky"


def test_members_agree_on_a_strategy_or_are_refused(topic):
    member_of_both = member(topic)
    assert now(topic).strategy == "range"
    sticky = member(topic, config=STICKY)
    assert now(topic).strategy == "cooperative-sticky"
    member_of_range = topic.consumer(group="g", config={"partition.assignment.strategy": "range"})
    member_of_range.subscribe(["t"])
    with pytest.raises(InconsistentGroupProtocolError, match="cooperative-sticky"):
        member_of_range.poll(timeout=0)
    sticky.close()
    assert len(settle(member_of_range, member_of_both)) <= 40
    assert now(topic).strategy == "range"


def test_a_waiting_member_hears_of_the_stores_end_and_joins_no_more(open_store):
    store = open_store()
    store.create_topic("t")
    consumer = member(store)
    errors = []

    def wait():
        try:
            consumer.poll(timeout=30)
        except LogClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    store.close()
    waiting.join(30)
    assert len(errors) == 1
    with open_store() as store:
        assert now(store).state == "Empty"


def test_groups_do_not_know_of_each_other(topic):
    one, other = member(topic, "g"), member(topic, "h")
    assert numbers(one) == numbers(other) == [0, 1, 2, 3]


# Topics that come, grow and go.


def test_a_topic_may_come_later(store):
    consumer = member(store, topics=["later"])
    assert consumer.assignment() == []
    store.create_topic("later", partitions=2)
    consumer.poll(timeout=0)
    assert len(consumer.assignment()) == 2


@pytest.mark.parametrize("compiled", [True, False])
def test_patterns_follow_the_topics_that_there_are(topic, compiled):
    pattern = re.compile(r"t\d*$") if compiled else r"t\d*$"
    consumer = topic.consumer(group="g")
    consumer.subscribe(pattern=pattern)
    consumer.poll(timeout=0)
    assert consumer.subscription() == ["t"]
    topic.create_topic("t1")
    topic.create_topic("tx")
    consumer.poll(timeout=0)
    assert consumer.subscription() == ["t", "t1"]
    assert len(consumer.assignment()) == 5
    consumer.subscribe(["^tx", "t"])
    consumer.poll(timeout=0)
    assert consumer.subscription() == ["t", "tx"]
    assert {where.topic for where in consumer.assignment()} == {"t", "tx"}


def test_a_topic_that_is_deleted_is_read_no_more(topic):
    topic.create_topic("u")
    consumer = member(topic, topics=["t", "u"])
    assert len(consumer.assignment()) == 5
    threading.Timer(0.1, topic.delete_topic, ["u"]).start()
    began_s = time.monotonic()
    while len(consumer.assignment()) > 4:
        consumer.poll(timeout=5)
        assert time.monotonic() - began_s < 60
    topic.producer().append("t", 0, [b"more"])
    assert [one.value for one in consumer.poll(timeout=0)] == [b"more"]
    topic.create_topic("u", partitions=2)
    consumer.poll(timeout=0)
    assert len(consumer.assignment()) == 6


def test_subscribing_again_replaces_the_topics(topic):
    topic.create_topic("u", partitions=2)
    told = Told()
    consumer = member(topic, **told.functions())
    consumer.subscribe(["u"], **told.functions())
    consumer.poll(timeout=0)
    assert {where.topic for where in consumer.assignment()} == {"u"}
    assert told.calls == [
        ("on_assigned", [0, 1, 2, 3]),
        ("on_revoked", [0, 1, 2, 3]),
        ("on_assigned", [0, 1]),
    ]
    assert len(now(topic).members) == 1
    consumer.subscribe([])
    assert now(topic).members == ()


def test_members_may_read_different_topics(topic):
    topic.create_topic("u", partitions=2)
    first, second = member(topic, topics=["t", "u"]), member(topic, topics=["u"])
    settle(first, second)
    assert {where.topic for where in second.assignment()} == {"u"}
    assert len(first.assignment()) == 5


# What a consumer is told.


def test_what_is_told_and_when(topic):
    told = Told()
    first = member(topic, **told.functions())
    assert told.calls == [("on_assigned", [0, 1, 2, 3])]
    second = member(topic)
    settle(first, second)
    gone = sorted(set(range(4)) - set(numbers(first)))
    assert told.calls[1:] == [("on_revoked", gone)]
    second.close()
    first.poll(timeout=0)
    assert told.calls[2:] == [("on_assigned", gone)]
    first.close()
    assert told.calls[3:] == [("on_revoked", [0, 1, 2, 3])]


def test_a_new_member_without_partitions_is_told_once(topic):
    told = Told()
    with member(topic):
        second = member(topic, **told.functions())
        second.poll(timeout=0)
        assert told.calls == [("on_assigned", [])]


def test_a_subscription_that_was_given_nothing_waits(topic):
    with member(topic), topic.consumer(group="g") as idle:
        idle.subscribe(["to-come"])
        assert idle.poll(timeout=0.05) == []
        assert idle.poll_arrow(timeout=0.05).num_rows == 0


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_a_poll_whose_function_unsubscribes_ends(topic, name):
    consumer = member(topic, polled=False)
    functions = {name: lambda consumer, _: consumer.unsubscribe()}
    consumer.subscribe(["t"], **functions)
    if name == "on_revoked":
        consumer.poll(timeout=0)
        consumer.subscribe(["another"], **functions)
    with pytest.raises(IllegalStateError, match="call assign"):
        consumer.poll(timeout=1e9)


@pytest.mark.parametrize("read", ["poll", "poll_arrow", "iteration"])
@pytest.mark.parametrize("change", ["join", "rebalance", "unsubscribe", "close"])
def test_a_function_that_is_told_of_a_change_cannot_read(topic, read, change):
    calls = []

    def reads(consumer, partitions):
        calls.append(len(partitions))
        with pytest.raises(ConcurrentAccessError, match="on_assigned, on_revoked"):
            next(iter(consumer)) if read == "iteration" else getattr(consumer, read)(timeout=0)

    name = "on_assigned" if change == "join" else "on_revoked"
    consumer = member(topic, polled=False, **{name: reads})
    assert len(consumer.poll(timeout=0)) == 40
    if change == "rebalance":
        other = member(topic)
        settle(consumer, other)
    elif change != "join":
        getattr(consumer, change)()
    assert calls == [2 if change == "rebalance" else 4]
    if change in ("join", "rebalance"):
        assert consumer.poll(timeout=0) == []


def test_a_topic_that_was_given_as_the_group_is_named(topic):
    with pytest.raises(IllegalStateError, match=r"'t' is its group: did you mean subscribe"):
        topic.consumer("t").poll(timeout=0)
    with pytest.raises(IllegalStateError, match=r"subscribe\(\) first$"):
        topic.consumer("g").poll(timeout=0)


def test_a_topic_that_does_not_exist_is_warned_of_once(topic, caplog):
    def warned():
        return [one.args[1] for one in caplog.records if "does not exist" in one.getMessage()]

    consumer = topic.consumer(group="g")
    consumer.subscribe(["t"], pattern="nothing.*")
    assert warned() == []
    consumer.subscribe(["t", "one", "two"])
    assert warned() == ["one", "two"]
    consumer.subscribe(["one", "three"])
    consumer.poll(timeout=0)
    consumer.unsubscribe()
    consumer.subscribe(["one"])
    assert warned() == ["one", "two", "three"]
    assert {one.levelname for one in caplog.records} == {"WARNING"}
    topic.create_topic("one")
    another = topic.consumer(group="g")
    another.subscribe(["one", "two"])
    assert warned() == ["one", "two", "three", "two"]


def test_a_listener_as_kafka_python_has_it(topic):
    class Listener:
        calls = []  # noqa: RUF012

        def on_partitions_assigned(self, assigned):
            self.calls.append(("assigned", len(assigned)))

        def on_partitions_revoked(self, revoked):
            self.calls.append(("revoked", len(revoked)))

    with member(topic, listener=Listener()):
        pass
    assert Listener.calls == [("assigned", 4), ("revoked", 4)]


def test_positions_can_be_committed_when_they_are_given_up(topic):
    committed = []

    def commit(consumer, partitions):
        consumer.commit()
        committed.extend(partitions)

    first = member(topic, polled=False, on_revoked=commit)
    first.poll(timeout=0, max_records=40)
    second = member(topic)
    assert settle(first, second) == []
    assert len(committed) == 2
    assert [second.position(where) for where in second.assignment()] == [10, 10]


def test_a_new_member_can_seek_when_it_is_told(topic):
    def seek(consumer, partitions):
        for where in partitions:
            consumer.seek(where, 8)

    consumer = member(topic, polled=False, on_assigned=seek)
    assert {one.offset for one in consumer.poll(timeout=0)} == {8, 9}


@pytest.mark.parametrize("when", ["on_assigned", "on_revoked"])
def test_what_a_function_raises_is_raised_and_the_change_stands(topic, when):
    def fail(consumer, partitions):
        if partitions:
            raise ValueError("told")

    first = member(topic, polled=False, **{when: fail})
    if when == "on_assigned":
        with pytest.raises(ValueError, match="told"):
            first.poll(timeout=0)
        assert len(first.poll(timeout=0)) == 40
        return
    first.poll(timeout=0)
    second = member(topic)
    with pytest.raises(ValueError, match="told"):
        first.poll(timeout=0)
    settle(first, second)
    assert len(numbers(first)) == len(numbers(second)) == 2


def test_an_interrupt_of_a_rebalance_is_made_good_by_the_next_poll(topic):
    def interrupt(consumer, partitions):
        raise KeyboardInterrupt

    first = member(topic, on_revoked=interrupt)
    second = member(topic)
    with pytest.raises(KeyboardInterrupt):
        first.poll(timeout=0)
    settle(first, second)
    assert sorted(numbers(first) + numbers(second)) == [0, 1, 2, 3]


# Who may commit.


def test_a_member_commits_in_its_own_generation_only(topic):
    first = member(topic)
    before = first.group_metadata()
    assert (before.group_id, before.generation_id > 0, before.member_id > "") == ("g", True, True)
    second = member(topic)
    # The group has moved on, but the first has not: what it reads is still its own.
    first.commit({T[3]: 5})
    first.poll(timeout=0)
    after = first.group_metadata()
    assert after.generation_id > before.generation_id
    assert after.member_id == before.member_id
    for wrong in (before.generation_id, after.generation_id + 1):
        who = ConsumerGroupMetadata("g", wrong, after.member_id)
        with pytest.raises(IllegalGenerationError, match=f"generation {wrong}"):
            parts_of(topic).files.group_offsets.commit(who, {T[0]: 7})
    own = first.assignment()[0]
    first.commit({own: 7})
    assert topic.groups()["g"][own] == OffsetAndMetadata(7)
    second.close()


def test_who_is_no_member_commits_nothing(topic):
    first = member(topic)
    zombie = first.group_metadata()
    first.close()
    second = member(topic)
    with pytest.raises(UnknownMemberIdError, match="not a member"):
        parts_of(topic).files.group_offsets.commit(zombie, {T[0]: 7})
    # Kafka's rule for those that have partitions assigned by hand.
    by_hand = topic.consumer(group="g")
    with pytest.raises(UnknownMemberIdError, match="by hand"):
        by_hand.commit({T[0]: 7})
    not_yet = member(topic, polled=False)
    with pytest.raises(UnknownMemberIdError, match="poll first"):
        not_yet.commit({T[0]: 7})
    assert topic.groups() == {"g": {}}
    second.close()
    by_hand.commit({T[0]: 7})
    with pytest.raises(UnknownMemberIdError, match="no members"):
        parts_of(topic).files.group_offsets.commit(zombie, {T[0]: 8})


def transaction_of(store, name="copy"):
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("t", 0, [b"out"])
    return producer


def test_a_zombies_transaction_is_refused_and_aborted(topic):
    first = member(topic)
    zombie = first.group_metadata()
    second = member(topic)
    settle(first, second)
    producer = transaction_of(topic)
    # An own name for Kafka's CommitFailedException.
    assert issubclass(IllegalGenerationError, CommitFailedError)
    with pytest.raises(IllegalGenerationError) as caught:
        producer.send_offsets_to_transaction({T[0]: 7}, zombie)
    assert caught.value.abortable
    producer.abort_transaction()
    first.close()
    producer.begin_transaction()
    with pytest.raises(UnknownMemberIdError):
        producer.send_offsets_to_transaction({T[0]: 7}, zombie)
    producer.abort_transaction()
    assert topic.groups() == {"g": {}}
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T[0]: 7}, second.group_metadata())
    producer.commit_transaction()
    assert topic.groups() == {"g": {T[0]: OffsetAndMetadata(7)}}
    # Without the member's name only the transactional id fences.
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T[0]: 8}, "g")
    producer.commit_transaction()
    assert topic.groups() == {"g": {T[0]: OffsetAndMetadata(8)}}


def refused_in_a_transaction(store, metadata):
    producer = transaction_of(store)
    with pytest.raises(UnknownMemberIdError):
        producer.send_offsets_to_transaction({T[0]: 3}, metadata)
    producer.abort_transaction()


def test_who_left_claims_to_be_who_it_was(topic):
    """In a transaction metadata without a claim are accepted."""
    first, second = member(topic), member(topic)
    settle(first, second)
    claim = first.group_metadata()
    first.unsubscribe()
    assert first.group_metadata() == claim
    refused_in_a_transaction(topic, first.group_metadata())
    first.subscribe(["t"])
    refused_in_a_transaction(topic, first.group_metadata())
    first.unsubscribe()  # Of a subscription that never joined.
    refused_in_a_transaction(topic, first.group_metadata())
    first.subscribe(["t"])
    settle(first, second)
    assert first.group_metadata() != claim
    first.unsubscribe()
    first.assign(T[:1])
    assert first.group_metadata().member_id == ""


def test_who_closes_meanwhile_claims_to_be_who_it_was(topic, monkeypatch):
    """Another thread may close a consumer at any moment."""
    first = member(topic)
    claim = first.group_metadata()
    left = []
    coordinator = parts_of(topic).files.group_members
    leave = coordinator.leave

    def noted(*arguments):
        leave(*arguments)
        left.append(first.group_metadata())

    monkeypatch.setattr(type(coordinator), "leave", lambda self, *arguments: noted(*arguments))
    subscribed = first._subscription.member
    subscribed.leave(report=False)
    left.append(first.group_metadata())
    assert left == [claim, claim]
    monkeypatch.undo()
    member(topic)
    refused_in_a_transaction(topic, left[1])


def test_who_was_taken_out_and_cannot_join_again_commits_nothing(store):
    store.create_topic("t", partitions=4)
    first = member(store, config=STICKY | MINUTE)
    assert first.group_metadata().member_id
    polled_last(store, first, 61)
    second = member(store, config={"partition.assignment.strategy": "range"})
    assert numbers(second) == [0, 1, 2, 3]
    with pytest.raises(InconsistentGroupProtocolError):
        first.poll(timeout=0)
    refused_in_a_transaction(store, first.group_metadata())


def test_what_another_member_reads_by_now_is_not_committed(topic):
    """Though the generation is the newest: Kafka would take it, and both have processed it."""
    first = member(topic, polled=False)
    assert len(first.poll(timeout=0)) == 40
    second = member(topic)
    settle(first, second)
    theirs, own = second.assignment()[0], first.assignment()[0]
    with pytest.raises(IllegalGenerationError, match=rf"{theirs} is read by .* has given it up"):
        first.commit({theirs: 5, own: 5})
    producer = transaction_of(topic)
    with pytest.raises(IllegalGenerationError, match="not committed now"):
        producer.send_offsets_to_transaction({theirs: 5}, first.group_metadata())
    producer.abort_transaction()
    with pytest.raises(IllegalGenerationError), staged_commit(topic, {theirs: 5}, first):
        pass
    assert topic.groups() == {"g": {}}
    first.commit({own: 5})
    # What nobody reads may be committed by any member, as in Kafka.
    topic.create_topic("else")
    first.commit({TopicPartition("else", 0): 0})
    assert set(topic.groups()["g"]) == {own, TopicPartition("else", 0)}


def staged_commit(store, offsets, consumer):
    return parts_of(store).files.group_offsets.committing_all({consumer.group_metadata(): offsets})


def test_a_topic_that_is_deleted_before_a_member_gives_it_up(topic):
    """The member learns of both at once; what it keeps of other topics it goes on to read."""
    topic.create_topic("u", partitions=2)
    producer = topic.producer()
    for number in range(2):
        producer.append("u", number, [b"%d" % number])
    first = member(topic, topics=("t", "u"), polled=False)
    assert len(first.poll(timeout=0)) == 42
    second = member(topic, topics=("t", "u"))
    topic.delete_topic("t")
    settle(first, second)
    assert {*first.assignment(), *second.assignment()} == {("u", 0), ("u", 1)}
    assert len(first.assignment()) == len(second.assignment()) == 1
    for number in range(2):
        producer.append("u", number, [b"new"])
    assert sorted(one.partition for one in settle(first, second) if one.value == b"new") == [0, 1]


def test_a_topic_that_is_made_again_is_read_once_the_member_was_told(topic):
    consumer = member(topic, polled=False)
    assert len(consumer.poll(timeout=0)) == 40
    consumer.commit()
    topic.delete_topic("t")
    topic.create_topic("t", partitions=4)
    topic.producer().append("t", 0, [b"new"])
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
        consumer.poll(timeout=0)
    assert [one.value for one in consumer.poll(timeout=0)] == [b"new"]
    consumer.commit()
    assert topic.groups()["g"][T[0]] == OffsetAndMetadata(1)


def test_several_groups_are_checked_and_held_at_once(topic):
    consumers = [member(topic, f"g{number}") for number in range(4)]
    metadata = [consumer.group_metadata() for consumer in consumers]
    left = []
    leaver = threading.Thread(target=lambda: (consumers[2].close(), left.append(True)))
    with parts_of(topic).files.group_offsets.committing_all(
        dict.fromkeys([*metadata, "g0", "whoever"], T)
    ):
        leaver.start()
        leaver.join(0.1)
        assert left == []
    leaver.join(30)
    assert left == [True]
    with (
        pytest.raises(UnknownMemberIdError, match="g2"),
        parts_of(topic).files.group_offsets.committing_all(dict.fromkeys(metadata, T)),
    ):
        raise AssertionError("not reached")


def test_the_next_reader_waits_for_a_transaction_of_the_one_before(topic):
    first = member(topic, polled=False)
    assert len(first.poll(timeout=0)) == 40
    producer = transaction_of(topic)
    producer.send_offsets_to_transaction(dict.fromkeys(T, 10), first.group_metadata())
    first.close()
    second = member(topic)
    assert numbers(second) == [0, 1, 2, 3]
    assert second.poll(timeout=0.05) == []
    threading.Timer(0.1, producer.commit_transaction).start()
    assert second.poll(timeout=30)[0].value == b"out"
    assert second.position(T[3]) == 10


def test_a_member_that_does_not_poll_is_taken_out(topic):
    told = Told()
    slow = member(topic, config=MINUTE, **told.functions())
    metadata = slow.group_metadata()
    polled_last(topic, slow, 61)
    quick = member(topic)
    assert numbers(quick) == [0, 1, 2, 3]
    with pytest.raises(UnknownMemberIdError):
        slow.commit({T[0]: 1})
    assert slow.group_metadata() == metadata
    slow.poll(timeout=0)
    assert told.calls[:2] == [("on_assigned", [0, 1, 2, 3]), ("on_lost", [0, 1, 2, 3])]
    assert slow.group_metadata().member_id != metadata.member_id
    settle(quick, slow)
    assert len(numbers(slow)) == len(numbers(quick)) == 2


def test_a_member_that_waits_polls(topic):
    waiting = member(topic, config=MINUTE)
    metadata = waiting.group_metadata()
    thread = threading.Thread(target=waiting.poll, kwargs={"timeout": 60})
    thread.start()
    for _ in range(2):
        polled_last(topic, waiting, 50)
        began_s = time.monotonic()
        while heartbeats(topic).age_ms(metadata.member_id) > 40_000:
            assert time.monotonic() - began_s < 30, "it does not count as polling"
            time.sleep(0.01)
    # it is still a member, so who joins has half of the partitions at most: none yet, or
    # two where the thread has given them up meanwhile
    assert len(numbers(member(topic))) in (0, 2)
    assert waiting.group_metadata().member_id == metadata.member_id
    for number in range(4):
        topic.producer().append("t", number, [b"at last"])
    thread.join(30)
    assert not thread.is_alive()


def test_the_background_look_takes_the_slow_out(topic):
    polled_last(topic, member(topic, config=MINUTE), 61)
    parts_of(topic).files.group_members.look_after_members()
    assert parts_of(topic).files.group_members.look("g")[0].members == ()


def test_a_commit_by_hand_takes_the_slow_out(topic):
    slow = member(topic, config=MINUTE)
    by_hand = topic.consumer(group="g")
    with pytest.raises(UnknownMemberIdError, match="by hand"):
        by_hand.commit({T[0]: 4})
    polled_last(topic, slow, 61)
    by_hand.commit({T[0]: 4})
    with pytest.raises(UnknownMemberIdError):
        slow.commit({T[0]: 1})
    slow.poll(timeout=0)
    assert slow.committed(T[0]) == 4


@pytest.mark.parametrize("written", [True, False])
def test_an_interrupt_while_joining_leaves_no_second_member(topic, monkeypatch, written):
    log = parts_of(topic).files.group_offsets.log
    whole = log.append

    def append(*arguments, **options):
        monkeypatch.undo()
        if written:
            whole(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "append", append)
    consumer = member(topic, polled=False)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(timeout=0)
    assert consumer.group_metadata() == ConsumerGroupMetadata("g")
    assert len(consumer.poll(timeout=0)) == 40
    (found,) = now(topic).members
    assert found.member_id == consumer.group_metadata().member_id


@pytest.mark.parametrize("written", [True, False])
def test_an_interrupt_while_leaving_leaves_all_the_same(topic, monkeypatch, written):
    log = parts_of(topic).files.group_offsets.log
    whole = log.append
    first, second = member(topic), member(topic)
    settle(first, second)

    def append(*arguments, **options):
        monkeypatch.undo()
        if written:
            whole(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "append", append)
    with pytest.raises(KeyboardInterrupt):
        second.close()
    assert second.closed
    parts_of(topic).files.group_members.look_after_members()
    first.poll(timeout=0)
    assert numbers(first) == [0, 1, 2, 3]


def test_a_forked_child_takes_nothing_of_its_parents_membership(topic):
    consumer = member(topic)

    def use():
        nonlocal consumer
        for call in ("poll", "commit", "unsubscribe", "assignment"):
            with pytest.raises(ForkedProcessError):
                getattr(consumer, call)()
        consumer.close()
        consumer = None  # The child lets go of its copy.
        gc.collect()

    in_child(use)
    parts_of(topic).files.group_members.look_after_members()
    assert consumer.poll(timeout=0) == []
    assert numbers(consumer) == [0, 1, 2, 3]
    consumer.commit()
    assert len(now(topic).members) == 1


# What goes, and what is kept.


def test_a_group_with_members_is_not_deleted(topic):
    consumer = member(topic)
    consumer.commit({T[0]: 3})
    with pytest.raises(NonEmptyGroupError, match="1 members"):
        topic.delete_group("g")
    consumer.close()
    topic.delete_group("g")
    assert topic.groups() == {}
    with pytest.raises(GroupIdNotFoundError):
        topic.describe_group("g")
    with pytest.raises(GroupIdNotFoundError):
        topic.delete_group("g")


def test_offsets_of_topics_that_members_read_are_not_deleted(topic):
    other = TopicPartition("other", 0)
    topic.create_topic("other")
    consumer = member(topic)
    consumer.commit({T[0]: 3, other: 0})
    with pytest.raises(GroupSubscribedToTopicError, match="'g' has members that read topic"):
        topic.delete_offsets("g", [other, T[0]])
    assert topic.groups()["g"].keys() == {T[0], other}
    topic.delete_offsets("g", [other])
    assert topic.groups()["g"].keys() == {T[0]}
    consumer.close()
    topic.delete_offsets("g", [T[0]])
    # It had members: the group stays, as in Kafka.
    assert topic.groups() == {"g": {}}


def test_offsets_of_a_topic_that_dead_members_read_are_deleted(tmp_path):
    path = str(tmp_path / "store")
    with Member() as other:
        other.run("store = eoslog.open(path, create=True); store.create_topic('t')", path=path)
        other.run("consumer = store.consumer(group='g'); consumer.subscribe(['t'])")
        other.run("consumer.poll(timeout=0); consumer.commit({eoslog.TopicPartition('t', 0): 0})")
        with eoslog.open(path) as store:
            with pytest.raises(GroupSubscribedToTopicError):
                store.delete_offsets("g", [TopicPartition("t", 0)])
            other.kill()
            store.delete_offsets("g", [TopicPartition("t", 0)])
            abandon(store)
    with eoslog.open(path) as store:
        assert store.groups() == {"g": {}}


def test_what_dead_members_read_expires(tmp_path):
    """Nobody was there to see their only process die."""
    path = str(tmp_path / "store")
    with Member() as other:
        other.run("store = eoslog.open(path, create=True); store.create_topic('t')", path=path)
        other.run("consumer = store.consumer(group='g'); consumer.subscribe(['t'])")
        other.run("consumer.poll(timeout=0); consumer.commit({eoslog.TopicPartition('t', 0): 0})")
        other.kill()
    with eoslog.open(path, config={"offsets.retention.minutes": 7 * 24 * 60}) as store:
        later_ms = time.time_ns() // 1_000_000 + 8 * 86_400_000
        assert parts_of(store).files.group_offsets.expire(later_ms) == 1
        assert store.groups() == {}


def test_what_members_read_does_not_expire(topic, monkeypatch):
    monkeypatch.setattr(parts_of(topic).files.group_offsets, "_retention_minutes", 7 * 24 * 60)
    consumer = member(topic)
    consumer.commit({T[0]: 3})
    later_ms = time.time_ns() // 1_000_000 + 8 * 86_400_000
    assert parts_of(topic).files.group_offsets.expire(later_ms) == 0
    consumer.close()
    assert parts_of(topic).files.group_offsets.expire(later_ms) == 1
    assert topic.groups() == {}
    with pytest.raises(GroupIdNotFoundError):
        topic.describe_group("g")


def test_members_survive_the_compaction_of_their_log(topic):
    consumer = member(topic)
    consumer.commit({T[0]: 3})
    number = parts_of(topic).files.group_offsets.log.partition_of("g")
    log = parts_of(topic).files.partitions.offsets_partition(number)
    assert parts_of(topic).files.group_offsets.log.write_again(number, log.log_end_offset)
    log.roll()
    log.delete_segments(log.log_end_offset - 2)
    before = now(topic)
    assert len(before.members) == 1
    from eoslog.groups.log import GroupLog
    from eoslog.groups.offsets_index import GroupOffsetsIndex
    from eoslog.storage.lmdb_environment import LmdbEnvironment

    lmdb = LmdbEnvironment(topic.path / "other")
    fresh = GroupLog(
        parts_of(topic).files.partitions,
        GroupOffsetsIndex(lmdb),
        False,
        parts_of(topic).files.session.shared,
    )
    with fresh.caught_up(fresh.of(number)) as state:
        assert len(state.members("g").value.members) == 1
    lmdb.close()
    consumer.poll(timeout=0)
    assert now(topic) == before


# Wrong calls.


def test_subscribing_needs_a_group_and_no_assignment(topic):
    with pytest.raises(IllegalStateError, match="no group"):
        topic.consumer().subscribe(["t"])
    by_hand = topic.consumer(group="g")
    by_hand.assign([T[0]])
    with pytest.raises(IllegalStateError, match="by hand"):
        by_hand.subscribe(["t"])
    subscribed = member(topic)
    with pytest.raises(IllegalStateError, match="subscribed"):
        subscribed.assign([T[0]])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topics": "t"}, TypeError),
        ({"topics": [3]}, TypeError),
        ({"topics": ["a b"]}, InvalidTopicError),
        ({"topics": ["__consumer_offsets"]}, InvalidTopicError),
        ({"topics": ["^("]}, InvalidTopicError),
        ({"pattern": b"t"}, TypeError),
        ({"pattern": re.compile(b"t")}, TypeError),
        ({"topics": ["t"], "on_assigned": 3}, TypeError),
        ({"topics": ["t"], "on_assigned": print, "listener": object()}, TypeError),
    ],
)
def test_wrong_subscriptions_change_nothing(topic, arguments, error):
    consumer = topic.consumer(group="g")
    with pytest.raises(error):
        consumer.subscribe(**arguments)
    assert consumer.subscription() == []


@pytest.mark.parametrize(
    "config",
    [
        {"client.id": ""},
        {"client.id": 3},
        {"client.id": "\ud800"},
        {"partition.assignment.strategy": "roundrobin"},
        {"max.poll.interval.ms": 0},
        {"session.timeout.ms": 10_000},
        {"group.instance.id": ""},
        {"group.instance.id": ".."},
        {"group.instance.id": "a b"},
        {"group.instance.id": "é"},
        {"group.instance.id": "x" * 250},
        {"group.instance.id": 7},
        {"session.timeout.ms": 0, "group.instance.id": "x"},
        {"heartbeat.interval.ms": 5, "group.instance.id": "x"},
    ],
)
def test_wrong_settings_of_a_member(topic, config):
    with pytest.raises(InvalidConfigError, match=re.escape(next(iter(config)))):
        topic.consumer(group="g", config=config)


def test_a_consumer_is_not_pickled(topic):
    consumer = member(topic, config={"client.id": "billing"})
    with pytest.raises(TypeError, match="make one where it is needed"):
        pickle.dumps(consumer)
    metadata = consumer.group_metadata()
    assert pickle.loads(pickle.dumps(metadata)) == metadata
    description = now(topic)
    assert pickle.loads(pickle.dumps(description)) == description
    assert description.members[0].client_id == "billing"
    assert isinstance(description, eoslog.GroupDescription)


def test_a_loop_over_records_goes_on_through_a_rebalance(topic):
    first = member(topic, polled=False)
    seen = []
    second = None
    for record in first:
        seen.append((record.partition, record.offset))
        if len(seen) == 5:
            first.commit()
            second = member(topic)
        if len(seen) == 40:
            break
    assert len(set(seen)) == 40
    first.commit()
    assert settle(first, second) == []


def test_a_close_is_not_outrun_by_a_subscription_of_another_thread(topic, monkeypatch):
    """Nobody is left in the group of a consumer that is closed."""
    consumer = topic.consumer(group="g")
    consumer.subscribe(["t"])
    consumer.poll(timeout=0)
    leave, refused = GroupMembership.leave, []

    def leave_while_another_thread_goes_on(member, *, report):
        leave(member, report=report)
        monkeypatch.undo()
        with pytest.raises(LogClosedError, match="the consumer is closed"):
            consumer.position(T[0])
        consumer.unsubscribe()
        try:
            consumer.subscribe(["t"])
        except LogClosedError as error:
            refused.append(str(error))
        consumer.poll(timeout=0)

    monkeypatch.setattr(GroupMembership, "leave", leave_while_another_thread_goes_on)
    consumer.close()
    assert refused == ["the consumer is closed"]
    assert topic.describe_group("g").members == ()


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_what_was_read_can_be_committed_when_a_member_goes_by_itself(topic, way):
    def commit(consumer, partitions):
        assert set(partitions) == set(T)
        consumer.commit()

    consumer = member(topic, on_revoked=commit)
    while len(consumer.poll(timeout=0)) > 0:
        pass
    getattr(consumer, way)()
    with topic.consumer(group="g") as reader:
        assert [reader.committed(where) for where in T] == [10] * 4


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_a_member_that_was_taken_out_is_told_of_its_loss_when_it_goes(topic, way):
    told = Told()
    slow = member(topic, config=MINUTE, **told.functions())
    polled_last(topic, slow, 61)
    other = member(topic, polled=False)
    deadline_s = time.monotonic() + 30
    while set(other.assignment()) != set(T) and time.monotonic() < deadline_s:
        other.poll(timeout=0.05)
    assert set(other.assignment()) == set(T)
    getattr(slow, way)()
    assert told.calls == [("on_assigned", [0, 1, 2, 3]), ("on_lost", [0, 1, 2, 3])]
    assert set(other.assignment()) == set(T)
    other.close()


# Topics that are deleted and made again under their readers.


@pytest.mark.parametrize("way", ["transaction", "job", "commit"])
@pytest.mark.parametrize("subscribed", [True, False])
def test_what_was_read_of_a_topic_is_not_committed_for_a_new_one_of_its_name(
    topic, way, subscribed
):
    consumer = topic.consumer(group="g")
    if subscribed:
        consumer.subscribe(["t"])
    else:
        consumer.assign(T)
    consumer.poll(timeout=5)
    metadata = pickle.loads(pickle.dumps(consumer.group_metadata()))
    topic.create_topic("out")
    topic.delete_topic("t")
    topic.create_topic("t", partitions=4)
    topic.producer().append("t", 0, [b"new"])
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted since"):
        if way == "commit":
            consumer.commit({T[0]: 5})
        elif way == "job":
            topic.commit_staged("app", 0, [], offsets={metadata: {T[0]: 5}})
        else:
            producer = topic.producer(transactional_id="tx")
            producer.init_transactions()
            with producer.transaction():
                producer.append("out", 0, values=[b"made of the old one"])
                producer.send_offsets_to_transaction({T[0]: 5}, metadata)
    assert topic.groups().get("g", {}) == {}
    reader = topic.consumer(group="g")
    reader.assign([TopicPartition("out", 0)])
    assert reader.poll(timeout=0) == []
    consumer.close()


def test_a_topic_that_is_assigned_anew_is_read_from_its_beginning(topic):
    consumer = topic.consumer(group="g")
    consumer.assign(T[:2])
    consumer.poll(timeout=5)
    consumer.seek(T[0], 5)
    topic.delete_topic("t")
    topic.create_topic("t", partitions=4)
    topic.producer().append("t", 0, [b"new"] * 9)
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted since"):
        consumer.position(T[0])
    consumer.assign(T[:2])
    assert consumer.position(T[0]) == 0
    assert len(consumer.poll(timeout=5)) == 9
    consumer.commit()
    assert consumer.committed(T[0]) == 9
