"""Settings and partitions of a topic are changed while processes have the store open."""

import time

import pytest
from harness.crew import Member
from harness.waiting import eventually

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from eoslog.store.store import engine_of

SMALL, LARGE = {"segment.bytes": 4096}, {"segment.bytes": 1 << 20}
BIG_RECORD = b"x" * 300_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(path):
    with eoslog.open(path, create=True, durability="process") as store:
        yield store


def values(store, topic="t", partition=0):
    consumer = store.consumer()
    consumer.assign([TopicPartition(topic, partition)])
    found = []
    while records := consumer.poll(0):
        found += [record.value for record in records]
    return found


def test_settings_are_changed_added_and_taken_back(store, path):
    store.create_topic("t", partitions=2, config={"retention.ms": 5, "segment.bytes": 4096})
    altered = store.alter_topic("t", {"retention.ms": None, "segment.ms": "1000"})
    assert dict(altered.config) == {"segment.bytes": 4096, "segment.ms": 1000}
    assert store.topics()["t"] == altered
    assert store.alter_topic("t") == altered
    store.close()
    with eoslog.open(path) as store:
        assert store.topics()["t"] == altered
        assert altered.partitions == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retention.msx": 1}, "'retention.msx' is no topic setting; did you mean 'retention.ms'"),
        ({"retention.msx": None}, "'retention.msx' is no topic setting"),
        ({"retention.ms": "soon"}, "retention.ms must be an int"),
        ({"cleanup.policy": "compact"}, "cleanup.policy cannot be altered"),
        ({"max.message.bytes": 5000}, "max.message.bytes=5000 is above segment.bytes=4096"),
        ({"segment.bytes": 1024}, "max.message.bytes=2048 is above segment.bytes=1024"),
        ([], "must be a mapping"),
    ],
)
def test_a_wrong_setting_changes_nothing(store, config, message):
    before = store.create_topic("t", config={"segment.bytes": 4096, "max.message.bytes": 2048})
    with pytest.raises(InvalidConfigError, match=message):
        store.alter_topic("t", config)
    assert store.topics()["t"] == before


def test_a_wrong_topic_or_count_changes_nothing(store):
    before = store.create_topic("t", partitions=3)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'other'"):
        store.alter_topic("other", partitions=4)
    with pytest.raises(InvalidTopicError):
        store.alter_topic("__consumer_offsets", {"retention.ms": 1})
    for count, message in [(2, "cannot become 2"), (0, "outside"), (True, "int"), (10**6, "outs")]:
        with pytest.raises(InvalidPartitionsError, match=message):
            store.alter_topic("t", partitions=count)
    assert store.topics()["t"] == before


def test_limits_are_those_of_the_next_append(store):
    store.create_topic("t")
    with store.producer() as producer:
        producer.append("t", 0, values=[b"x" * 2000])
        producer.send("t", b"x" * 2000)
        store.alter_topic("t", {"max.message.bytes": 1000})
        for write in (
            lambda: producer.append("t", 0, values=[b"x" * 2000]),
            lambda: producer.send("t", b"x" * 2000),
        ):
            with pytest.raises(RecordTooLargeError):
                write()
        with pytest.raises(RecordTooLargeError):
            producer.flush()  # What was gathered before stays, as after any refusal.
        store.alter_topic("t", {"max.message.bytes": None})
        producer.append("t", 0, values=[b"x" * 2000])
        producer.send("t", b"x" * 2000)
        producer.flush()
    assert len(values(store)) == 4


@pytest.mark.parametrize("appended", [[], [b"before"]], ids=["empty", "begun"])
@pytest.mark.parametrize(("before", "after"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_segments_of_another_size_are_written_and_read_by_all(store, path, appended, before, after):
    """The other process goes on with the settings of before: it may for a moment."""
    store.create_topic("t", config=before)
    with Member() as other:
        other.run("import eoslog; from eoslog.storage.opened_partitions import OpenedPartitions")
        other.run("OpenedPartitions._take_settings = lambda *_: None")
        other.run(
            "store = eoslog.open(path, durability='process'); producer = store.producer()",
            path=str(path),
        )
        producer = store.producer()
        if appended:
            producer.append("t", 0, values=appended)
        assert other.value("store.partition('t', 0).log_end_offset") == len(appended)
        store.alter_topic("t", after)
        turns = [BIG_RECORD if LARGE in (before, after) else b"", b"small" * 100]
        wanted = list(appended)
        for turn in range(8):
            mine = turns[turn % 2] if after is LARGE else b"small" * 100
            theirs = turns[turn % 2] if before is LARGE else b"small" * 100
            producer.append("t", 0, values=[mine])
            other.run("producer.append('t', 0, values=[value.encode()])", value=theirs.decode())
            wanted += [mine, theirs]
        assert values(store) == wanted
        other.run("c = store.consumer(); c.assign([eoslog.TopicPartition('t', 0)])")
        other.run("read = []\nwhile found := c.poll(0): read += [one.value for one in found]")
        assert other.value("[len(one) for one in read]") == [len(one) for one in wanted]
    assert store.verify() == []
    store.close()
    with eoslog.open(path) as again:
        assert values(again) == wanted
        assert again.verify() == []


def test_an_empty_segment_is_enlarged_and_ended_before_another_process_looks(store, path):
    """It has the segment mapped as small as it was: by then the next one is as small again."""
    store.create_topic("t", config=SMALL)
    with Member() as other:
        other.run("import eoslog; store = eoslog.open(path, durability='process')", path=str(path))
        assert other.value("store.partition('t', 0).log_end_offset") == 0
        producer = store.producer()
        for config, value in [(LARGE, BIG_RECORD), (SMALL, b"small")]:
            store.alter_topic("t", config)
            producer.append("t", 0, values=[value])
        other.run("c = store.consumer(); c.assign([eoslog.TopicPartition('t', 0)])")
        other.run("read = []\nwhile found := c.poll(0): read += [one.value for one in found]")
        assert other.value("[len(one) for one in read]") == [300_000, 5]
        other.run("store.producer().append('t', 0, values=[b'other'])")
    assert values(store) == [BIG_RECORD, b"small", b"other"]


def test_a_segment_that_was_longer_than_new_ones_is_mapped_alike_after_a_kill(path):
    """The first process to open it may let it grow as far as it has it mapped: all others too."""
    with Member() as killed:
        killed.run(
            """
import eoslog
store = eoslog.open(path, create=True, durability='process')
store.create_topic('t', config={'segment.bytes': 1 << 20})
producer = store.producer()
for _ in range(30):
    producer.append('t', 0, values=[b'x' * 3000])
store.alter_topic('t', {'segment.bytes': 4096})
""",
            path=str(path),
        )
        killed.kill()
    with eoslog.open(path, durability="process") as store, Member() as other:
        assert store.partition("t", 0).log_end_offset == 30
        store.alter_topic("t", LARGE)
        other.run("import eoslog; store = eoslog.open(path, durability='process')", path=str(path))
        assert other.value("store.partition('t', 0).log_end_offset") == 30
        producer = store.producer()
        for _ in range(8):
            producer.append("t", 0, values=[b"x" * 3000])
        assert engine_of(store).partition("t", 0).segment_count == 1
        other.run("c = store.consumer(); c.assign([eoslog.TopicPartition('t', 0)])")
        other.run("read = []\nwhile found := c.poll(0): read += [one.value for one in found]")
        assert other.value("[len(one) for one in read]") == [3000] * 38


def test_smaller_segments_begin_with_the_next_append(store):
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, values=[b"x" * 3000, b"y" * 3000])
    store.alter_topic("t", {"segment.bytes": 4096})
    for _ in range(3):
        producer.append("t", 0, values=[b"z" * 3000])
    assert engine_of(store).partition("t", 0).segment_count == 4


def test_another_process_follows_within_a_second(store, path):
    store.create_topic("t", partitions=1)
    with Member() as other:
        other.run(
            "import eoslog, time; store = eoslog.open(path, durability='process')", path=str(path)
        )
        other.run("p = store.producer(); p.send('t', b'first', partition=0); p.flush()")
        began_s = time.monotonic()
        store.alter_topic("t", {"max.message.bytes": 1000}, partitions=3)
        other.run(
            """
def is_followed():
    try:
        p.send('t', b'x' * 2000, partition=2)
    except eoslog.errors.RecordTooLargeError:
        return True
    except eoslog.errors.UnknownTopicOrPartitionError:
        return False
    p.flush()
    return False
while not is_followed():
    time.sleep(0.01)
taken_s = time.monotonic()
"""
        )
        assert other.value("taken_s") - began_s < 30  # The bench measures it: a second.
        assert other.value("len(store.topics()['t'].topic_partitions())") == 3


def test_producers_take_up_new_partitions(store):
    store.create_topic("t", partitions=1)
    plain, transactional = store.producer(), store.producer(transactional_id="t")
    transactional.init_transactions()
    plain.send("t", b"gathered", partition=0)
    transactional.begin_transaction()
    transactional.send("t", b"in a transaction", partition=0)
    store.alter_topic("t", partitions=40)
    for producer in (plain, transactional):
        producer.send("t", b"last", partition=39)
        for number in range(1000):
            producer.send("t", b"by key", key=b"%d" % number)
    transactional.commit_transaction()
    plain.flush()
    ends = {number: store.partition("t", number).log_end_offset for number in range(40)}
    assert all(ends.values())
    assert values(store)[0] in (b"gathered", b"in a transaction")
    assert sorted(values(store, partition=39))[-2:] == [b"last", b"last"]
    plain.append("t", 5, values=[b"appended"])
    assert values(store, partition=5)[-1] == b"appended"


def test_a_group_takes_up_new_partitions(store):
    store.create_topic("t", partitions=1)
    one, two = store.consumer(group="g"), store.consumer(group="g")
    for consumer in (one, two):
        consumer.subscribe(["t"])

    def assigned():
        one.poll(0)
        two.poll(0)
        return sorted([*one.assignment(), *two.assignment()])

    eventually(lambda: len(assigned()) == 1)
    store.alter_topic("t", partitions=4)
    eventually(lambda: assigned() == [TopicPartition("t", number) for number in range(4)])
    assert {len(one.assignment()), len(two.assignment())} == {2}


def test_retention_follows(store, path):
    store.create_topic("t", config=SMALL)
    producer = store.producer()
    for _ in range(10):
        producer.append("t", 0, values=[b"x" * 2000])
    store.close()
    config = {"log.retention.check.interval.ms": 20, "log.initial.task.delay.ms": 0}
    with eoslog.open(path, config=config) as store:
        partition = store.partition("t", 0)
        store.alter_topic("t", {"retention.bytes": 5000})
        eventually(lambda: partition.log_start_offset > 0)
        assert partition.size_bytes >= 5000
