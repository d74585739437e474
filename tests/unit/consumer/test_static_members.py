"""Static members: a place in a group that outlives its consumer, for one successor at a time."""

import gc
import logging
import os
import threading
import time

import pytest

from eoslog import TopicPartition
from eoslog.errors import (
    FencedInstanceIdError,
    InvalidConfigError,
    StoreFullError,
    UnknownMemberIdError,
)
from eoslog.groups.log import GroupLog
from eoslog.store.store import parts_of

T = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def topic(store):
    """Four partitions with 10 records each."""
    store.create_topic("t", partitions=4)
    for number in range(4):
        write(store, number, range(10))
    return store


def write(store, number, offsets):
    store.producer().append("t", number, [b"%d:%d" % (number, offset) for offset in offsets])


def member(store, instance_id=None, **config):
    settings = {name.replace("__", "."): value for name, value in config.items()}
    if instance_id is not None:
        settings["group.instance.id"] = instance_id
    consumer = store.consumer(group="g", config=settings)
    consumer.subscribe(["t"])
    consumer.poll(timeout=0)
    return consumer


def settled(*consumers):
    """All poll until nothing moves; the partitions of each."""
    for _ in range(3):
        for consumer in consumers:
            consumer.poll(timeout=0)
    return [sorted(where.partition for where in one.assignment()) for one in consumers]


def generation(store):
    return store.describe_group("g").generation


def look(store):
    """Look for dead members, as the background thread does now and then."""
    parts_of(store).files.group_members.look_after_members()


def age(store, member_id, ago_s):
    """Have a member's last poll be so long ago."""
    at_ns = time.monotonic_ns() - int(ago_s * 1e9)
    heartbeats = parts_of(store).files.group_members.heartbeats
    os.utime(heartbeats.path_of(member_id), ns=(at_ns, at_ns))


WAYS = {
    "close": lambda consumer: consumer.close(),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "dropped": lambda consumer: None,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_place_is_kept_and_its_successor_gets_it_without_a_rebalance(topic, way, strategy):
    config = {"partition__assignment__strategy": strategy}
    first, other = member(topic, "one", **config), member(topic, "two", **config)
    shares = settled(first, other)
    assert sorted(len(one) for one in shares) == [2, 2]
    before = generation(topic)
    first.commit()
    member_id = first.group_metadata().member_id
    assert member_id.startswith("one-")
    assert first.group_metadata().group_instance_id == "one"
    WAYS[way](first)
    del first
    gc.collect()
    for number in range(4):
        write(topic, number, range(10, 12))
    look(topic)
    # The other member goes on, and gets nothing more.
    assert settled(other) == [shares[1]]
    assert {one.member_id for one in topic.describe_group("g").members} > {member_id}
    successor = topic.consumer(group="g", config={"group.instance.id": "one"} | named(config))
    successor.subscribe(["t"])
    records = successor.poll(timeout=0)
    expected = [(number, offset) for number in shares[0] for offset in (10, 11)]
    assert sorted((one.partition, one.offset) for one in records) == expected
    assert settled(successor, other) == shares
    assert generation(topic) == before
    assert topic.describe_group("g").state == "Stable"
    successor.commit()


def named(config):
    return {name.replace("__", "."): value for name, value in config.items()}


def test_the_functions_of_a_consumer_are_called_as_it_goes_and_comes(topic):
    calls = []

    def note(kind):
        return lambda consumer, partitions: calls.append((kind, len(partitions)))

    for _ in range(2):
        consumer = topic.consumer(group="g", config={"group.instance.id": "one"})
        consumer.subscribe(["t"], on_assigned=note("assigned"), on_revoked=note("revoked"))
        consumer.poll(timeout=0)
        consumer.close()
    assert calls == [("assigned", 4), ("revoked", 4)] * 2
    assert generation(topic) == 1


def test_after_the_session_timeout_the_others_get_the_partitions(topic, caplog):
    first, other = member(topic, "one", session__timeout__ms=60_000), member(topic)
    settled(first, other)
    member_id = first.group_metadata().member_id
    first.close()
    age(topic, member_id, 59)
    look(topic)
    assert len(settled(other)[0]) == 2
    age(topic, member_id, 61)
    with caplog.at_level(logging.INFO, "eoslog"):
        look(topic)
    assert f"member {member_id} is removed" in caplog.text
    assert settled(other) == [[0, 1, 2, 3]]
    # Who comes later is a new member.
    late = member(topic, "one")
    assert sorted(map(len, settled(late, other))) == [2, 2]


def test_one_that_lives_and_does_not_poll_is_removed_as_any_other(topic):
    first = member(topic, "one", max__poll__interval__ms=60_000, session__timeout__ms=1)
    other = member(topic)
    settled(first, other)
    member_id = first.group_metadata().member_id
    age(topic, member_id, 59)
    look(topic)
    assert len(settled(other)[0]) == 2
    age(topic, member_id, 61)
    look(topic)
    assert settled(other) == [[0, 1, 2, 3]]
    with pytest.raises(UnknownMemberIdError):
        first.commit()
    assert sorted(map(len, settled(first, other))) == [2, 2]


def test_a_second_live_one_fences_the_first_for_good(topic):
    lost = []
    first = topic.consumer(group="g", config={"group.instance.id": "one"})
    first.subscribe(["t"], on_lost=lambda consumer, partitions: lost.append(len(partitions)))
    first.poll(timeout=0, max_records=3)
    producer = topic.producer(transactional_id="x")
    producer.init_transactions()
    second = member(topic, "one")
    words = "'one-.*' has taken the place of 'one-.*group.instance.id 'one'"
    with pytest.raises(FencedInstanceIdError, match=words):
        first.commit()
    offsets, claim = {T[0]: 5}, first.group_metadata()
    with pytest.raises(FencedInstanceIdError, match=words), producer.transaction():
        producer.send_offsets_to_transaction(offsets, claim)
    for _ in range(3):
        with pytest.raises(FencedInstanceIdError, match=words):
            first.poll(timeout=5)
        assert first.assignment() == []
    assert lost == [4]
    with pytest.raises(FencedInstanceIdError, match=words):
        next(iter(first))
    with pytest.raises(FencedInstanceIdError):
        first.commit(offsets)
    first.close()
    # Nothing of that has disturbed the second.
    second.commit()
    assert settled(second) == [[0, 1, 2, 3]]
    assert generation(topic) == 1
    assert topic.groups()["g"][T[0]].offset == 10


@pytest.mark.parametrize("error", [StoreFullError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_joining_that_failed_is_made_again(topic, monkeypatch, error, when):
    """Its predecessor, in whose place it is not yet, has not fenced it."""
    first = member(topic, "one")
    first.commit()
    first.close()
    original = GroupLog.append

    def append(log, *arguments):
        monkeypatch.undo()
        if when == "after":
            original(log, *arguments)
        raise error

    successor = topic.consumer(group="g", config={"group.instance.id": "one"})
    successor.subscribe(["t"])
    monkeypatch.setattr(GroupLog, "append", append)
    with pytest.raises(error):
        successor.poll(timeout=0)
    assert settled(successor) == [[0, 1, 2, 3]]
    successor.commit()
    assert len(topic.describe_group("g").members) == 1
    # It is fenced as ever once it was in.
    second = member(topic, "one")
    with pytest.raises(FencedInstanceIdError):
        successor.poll(timeout=0)
    assert settled(second) == [[0, 1, 2, 3]]


def test_a_poll_that_waits_is_fenced_at_once(topic):
    first = member(topic, "one")
    met = []

    def wait():
        try:
            first.poll(timeout=60)
        except FencedInstanceIdError as error:
            met.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    began_s = time.monotonic()
    second = member(topic, "one")
    thread.join(60)
    assert len(met) == 1
    assert time.monotonic() - began_s < 30
    second.close()


def test_offsets_under_way_are_waited_for_by_the_successor(topic):
    first = member(topic, "one")
    producer = topic.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T[0]: 4}, first.group_metadata())
    second = member(topic, "one")
    assert {record.partition for record in second.poll(timeout=0)} <= {1, 2, 3}
    producer.commit_transaction()
    records = second.poll(timeout=60)
    assert next(record.offset for record in records if record.partition == 0) == 4


def test_a_successor_that_asks_for_something_else_rebalances(topic):
    topic.create_topic("u")
    first, other = member(topic, "one"), member(topic)
    settled(first, other)
    first.close()
    before = generation(topic)
    successor = topic.consumer(group="g", config={"group.instance.id": "one"})
    successor.subscribe(["t", "u"])
    assert sum(map(len, settled(successor, other))) == 5
    assert generation(topic) > before
    assert len(topic.describe_group("g").members) == 2


def test_a_successor_holds_nothing_that_its_predecessor_had_to_give_up(topic):
    first = member(topic, "one")
    other = member(topic)  # The first has not given up its half yet.
    assert settled(other) == [[]]
    first.close()
    successor = member(topic, "one")
    assert sorted(map(len, settled(successor, other))) == [2, 2]


def test_a_group_with_an_empty_place_is_changed_by_no_outsider(topic):
    first = member(topic, "one")
    first.close()
    outsider = topic.consumer(group="g")
    outsider.assign(T)
    with pytest.raises(UnknownMemberIdError):
        outsider.commit({T[0]: 1})


def test_the_last_close_of_the_store_ends_all_places(open_store):
    store = open_store()
    store.create_topic("t", partitions=4)
    member(store, "one")
    store.close()
    store = open_store()
    assert store.describe_group("g").members == ()
    assert settled(member(store, "one")) == [[0, 1, 2, 3]]


def test_it_needs_a_group_and_its_timeout_needs_it(topic):
    with pytest.raises(InvalidConfigError, match="give a group"):
        topic.consumer(config={"group.instance.id": "one"})
    with pytest.raises(InvalidConfigError, match=r"only beside a group\.instance\.id"):
        topic.consumer(group="g", config={"session.timeout.ms": 5})
    with pytest.raises(TypeError, match=r'config=\{"group\.instance\.id": \.\.\.\}'):
        topic.consumer(group="g", group_instance_id="one")
