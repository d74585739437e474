"""A consumer's positions, order, waiting and ends."""

import threading
import time

import pytest

from eoslog import OffsetAndTimestamp, TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    IllegalStateError,
    InvalidConfigError,
    LogClosedError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from eoslog.store.store import abandon, engine_of

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def topic(store):
    """Three partitions with 10 records each; the values say where they are."""
    store.create_topic("t", partitions=3, config={"segment.bytes": 1024})
    producer = store.producer()
    for number in range(3):
        for offset in range(10):
            producer.append(
                "t", number, [b"%d:%d" % (number, offset)], timestamps=[1000 + 10 * offset]
            )
    return store


def drained(consumer, **arguments):
    found = []
    while records := consumer.poll(timeout=0, **arguments):
        found += records
    return found


def test_records_of_a_partition_come_in_order_and_once(topic):
    consumer = topic.consumer()
    consumer.assign([T0, T1, T2])
    found = drained(consumer, max_records=7)
    for number in range(3):
        offsets = [record.offset for record in found if record.partition == number]
        assert offsets == list(range(10))
    assert {record.topic for record in found} == {"t"}
    assert all(record.value == b"%d:%d" % (record.partition, record.offset) for record in found)


def test_partitions_take_turns(topic):
    consumer = topic.consumer()
    consumer.assign([T0, T1, T2])
    served = [consumer.poll(timeout=0, max_records=2)[0].partition for _ in range(6)]
    assert served == [0, 1, 2, 0, 1, 2]


def test_a_busy_partition_does_not_starve_the_others(topic):
    producer, consumer = topic.producer(), topic.consumer()
    consumer.assign([T0, T1])
    seen = set()
    for _ in range(4):
        producer.append("t", 0, [b"x"] * 50)
        seen |= {record.partition for record in consumer.poll(timeout=0, max_records=10)}
    assert seen == {0, 1}


def test_max_records_holds(topic):
    consumer = topic.consumer(config={"max.poll.records": 4})
    consumer.assign([T0, T1, T2])
    assert len(consumer.poll(timeout=0)) == 4
    assert len(consumer.poll(timeout=0, max_records=1)) == 1
    assert len(consumer.poll(timeout=0, max_records=1000)) == 25
    with pytest.raises(ValueError, match="max_records"):
        consumer.poll(max_records=0)


def test_a_single_record_is_found_after_many_aborted_batches(store):
    store.create_topic("t")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for _ in range(200):
            producer.append("t", 0, [b"x"])
        end()
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert [consumer.poll(0, 1)[0].offset for _ in range(200)] == list(range(201, 401))
    assert consumer.poll(0, 1) == []


@pytest.mark.parametrize("call", ["poll", "poll_arrow"])
@pytest.mark.parametrize("wrong", [None, "1", b"1"])
def test_a_wrong_argument_of_a_read_is_named(topic, call, wrong):
    limit = "max_records" if call == "poll" else "max_bytes"
    with topic.consumer() as consumer:
        consumer.assign([T0])
        with pytest.raises(TypeError, match="timeout must be a number of seconds"):
            getattr(consumer, call)(timeout=wrong)
        if wrong is not None:
            with pytest.raises(TypeError, match=f"{limit} must be an int"):
                getattr(consumer, call)(0, **{limit: wrong})


@pytest.mark.parametrize("many", [2**31, 2**63 - 1, 2**63, 2**64 + 1])
def test_a_large_number_stands_for_all_there_are(topic, many):
    consumer = topic.consumer()
    consumer.assign([T0, T1, T2])
    assert len(consumer.poll(timeout=0, max_records=many)) == 30
    consumer.assign([T0])
    assert consumer.poll(timeout=0.01, max_records=many) == []  # It waits for one partition.
    consumer.seek_to_beginning()
    assert len(consumer.poll(timeout=1, max_records=many)) == 10


def test_a_poll_ends_near_its_bytes(store):
    store.create_topic("t")
    for _ in range(50):
        store.producer().append("t", 0, [bytes(1000)])
    consumer = store.consumer(config={"fetch.max.bytes": 5000})
    consumer.assign([T0])
    assert 4 <= len(consumer.poll(timeout=0)) <= 6


# Positions.


def test_positions_follow_reading_and_seeking(topic):
    consumer = topic.consumer()
    consumer.assign([T0, T1])
    assert (consumer.position(T0), consumer.lag(T0)) == (0, 10)
    consumer.seek(T0, 7)
    assert (consumer.position(T0), consumer.lag(T0)) == (7, 3)
    consumer.seek_to_end(T1)
    assert [record.value for record in drained(consumer)] == [b"0:7", b"0:8", b"0:9"]
    assert (consumer.position(T0), consumer.lag(T0)) == (10, 0)
    consumer.seek_to_beginning()
    assert [consumer.position(where) for where in (T0, T1)] == [0, 0]
    consumer.seek_to_end()
    assert [consumer.position(where) for where in (T0, T1)] == [10, 10]


def test_a_seek_into_a_batch_begins_exactly_there(store):
    store.create_topic("t")
    store.producer().append("t", 0, [b"%d" % number for number in range(10)])
    consumer = store.consumer()
    consumer.assign([T0])
    consumer.seek(T0, 6)
    assert [record.value for record in consumer.poll(timeout=0)] == [b"6", b"7", b"8", b"9"]


def test_an_assignment_keeps_the_positions_that_stay(topic):
    consumer = topic.consumer()
    consumer.assign([T0, T1])
    consumer.seek(T0, 5)
    consumer.seek(T1, 5)
    consumer.assign([T0, T2])
    assert consumer.assignment() == [T0, T2]
    assert [consumer.position(where) for where in (T0, T2)] == [5, 0]
    consumer.assign([T1])
    assert consumer.position(T1) == 0
    with pytest.raises(UnknownTopicOrPartitionError, match="not assigned"):
        consumer.position(T0)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 0), ("latest", 10)])
def test_where_a_consumer_begins(topic, reset, expected):
    consumer = topic.consumer(auto_offset_reset=reset)
    consumer.assign([T0])
    assert consumer.position(T0) == expected
    other = topic.consumer(config={"auto.offset.reset": reset})
    other.assign([T0])
    assert len(drained(other)) == 10 - expected


def test_without_a_reset_a_position_is_needed(topic):
    consumer = topic.consumer(auto_offset_reset="none")
    consumer.assign([T0])
    for call in (
        lambda: consumer.poll(timeout=0),
        lambda: consumer.poll_arrow(timeout=0),
        lambda: consumer.position(T0),
    ):
        with pytest.raises(NoOffsetForPartitionError, match="t-0"):
            call()
    consumer.seek(T0, 3)
    assert len(drained(consumer)) == 7


@pytest.mark.parametrize("position", [2, 1000])
@pytest.mark.parametrize(("reset", "expected"), [("earliest", 5), ("latest", 10), ("none", None)])
def test_a_position_that_the_log_does_not_hold(store, position, reset, expected):
    store.create_topic("t", config={"segment.bytes": 1200})
    for _ in range(10):
        store.producer().append("t", 0, [bytes(1000)])
    partition = engine_of(store).partition("t", 0)
    partition.delete_segments(5)
    assert partition.log_start_offset == 5
    consumer = store.consumer(auto_offset_reset=reset)
    consumer.assign([T0])
    consumer.seek(T0, position)
    if expected is None:
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {position} is not in \\[5, 10\\]"):
            consumer.poll(timeout=0)
        assert consumer.position(T0) == position
    else:
        assert len(consumer.poll(timeout=0)) == 10 - expected
        assert consumer.position(T0) == 10


def test_retention_under_a_reader_moves_it_on(store):
    store.create_topic("t", config={"segment.bytes": 1200})
    for number in range(10):
        store.producer().append("t", 0, [b"%01000d" % number])
    consumer = store.consumer()
    consumer.assign([T0])
    assert len(consumer.poll(timeout=0, max_records=2)) == 2
    engine_of(store).partition("t", 0).delete_segments(6)
    assert [int(record.value) for record in drained(consumer)] == [6, 7, 8, 9]


def test_offsets_of_partitions_that_are_not_assigned(topic):
    consumer = topic.consumer()
    assert consumer.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
    assert consumer.end_offsets([T2]) == {T2: 10}
    assert consumer.offsets_for_times({T0: 1025, T1: 0, T2: 5000}) == {
        T0: OffsetAndTimestamp(3, 1030),
        T1: OffsetAndTimestamp(0, 1000),
        T2: None,
    }
    for moment_ms in (-1, 10**20):
        with pytest.raises(ValueError, match=f"t-0: timestamp_ms {moment_ms}"):
            consumer.offsets_for_times({T0: moment_ms})
        with pytest.raises(ValueError, match=f"t-0: timestamp_ms {moment_ms}"):
            topic.partition("t", 0).offset_for_timestamp(moment_ms)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_of_a_job_under_way_are_not_seen(topic, level):
    partition = engine_of(topic).partition("t", 0)
    consumer = topic.consumer(isolation_level=level)
    consumer.assign([T0])
    partition.hold_readers()
    topic.producer().append("t", 0, [b"late"])
    assert len(drained(consumer)) == 10
    assert consumer.end_offsets([T0]) == {T0: 10}
    assert consumer.lag(T0) == 0
    partition.release_readers()
    assert [record.value for record in drained(consumer)] == [b"late"]


# Waiting.


def test_a_poll_waits_as_long_as_it_may(topic):
    consumer = topic.consumer(auto_offset_reset="latest")
    consumer.assign([T0])
    began_s = time.monotonic()
    assert consumer.poll(timeout=0.2) == []
    assert 0.2 <= time.monotonic() - began_s < 5
    assert consumer.poll_arrow(timeout=0).num_rows == 0


def test_an_append_wakes_a_waiting_poll(topic):
    consumer = topic.consumer(auto_offset_reset="latest")
    consumer.assign([T0, T1])
    consumer.poll(timeout=0)
    timer = threading.Timer(0.1, lambda: topic.producer().append("t", 1, [b"new"]))
    timer.start()
    assert [record.value for record in consumer.poll(timeout=30)] == [b"new"]
    timer.join()


def test_waiting_costs_no_processor_time(topic):
    consumer = topic.consumer(auto_offset_reset="latest")
    consumer.assign([T0])
    began_s = time.thread_time()
    consumer.poll(timeout=0.5)
    assert time.thread_time() - began_s < 0.1


@pytest.mark.parametrize("what", ["consumer", "store"])
def test_closing_ends_a_waiting_poll_and_an_iteration(topic, what):
    consumer = topic.consumer(auto_offset_reset="latest")
    consumer.assign([T0])
    closed = consumer if what == "consumer" else topic
    timer = threading.Timer(0.1, closed.close)
    timer.start()
    with pytest.raises(LogClosedError):
        consumer.poll(timeout=30)
    timer.join()
    if what == "consumer":
        assert list(consumer) == []
    else:
        # A loop that is to run for ever does not end without a word.
        with pytest.raises(LogClosedError):
            list(consumer)


def test_iterating_tails_the_log(topic):
    consumer = topic.consumer()
    consumer.assign([T0])
    producer = topic.producer()
    seen = []
    for record in consumer:
        seen.append(record.value)
        if len(seen) == 10:
            threading.Timer(0.05, lambda: producer.append("t", 0, [b"tail", b"end"])).start()
        if record.value == b"end":
            consumer.close()
    assert seen == [b"0:%d" % number for number in range(10)] + [b"tail", b"end"]


READS = {
    "poll": lambda consumer: consumer.poll(),
    "a long poll": lambda consumer: consumer.poll(timeout=1e9),
    "poll_arrow": lambda consumer: consumer.poll_arrow(),
    "iteration": lambda consumer: next(iter(consumer)),
}
WAYS_TO_HAVE_NOTHING = {
    "new": lambda consumer: None,
    "unsubscribe": lambda consumer: (consumer.assign([T0]), consumer.unsubscribe()),
    "unsubscribe twice": lambda consumer: (consumer.unsubscribe(), consumer.unsubscribe()),
    "assign nothing": lambda consumer: (consumer.assign([T0]), consumer.assign([])),
    "subscribe to nothing": lambda consumer: (consumer.subscribe(["t"]), consumer.subscribe([])),
    "leave the group": lambda consumer: (
        consumer.subscribe(["t"]),
        consumer.poll(timeout=0),
        consumer.unsubscribe(),
    ),
}


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("way", WAYS_TO_HAVE_NOTHING)
@pytest.mark.parametrize("read", READS)
def test_without_an_assignment_or_a_subscription_a_read_is_refused_at_once(topic, read, way, group):
    if group is None and way in ("subscribe to nothing", "leave the group"):
        pytest.skip("a subscription needs a group")
    consumer = topic.consumer(group=group)
    WAYS_TO_HAVE_NOTHING[way](consumer)
    with pytest.raises(IllegalStateError, match="call assign"):
        READS[read](consumer)
    # The consumer is as it was.
    consumer.assign([T0])
    assert len(consumer.poll(timeout=0)) == 10
    consumer.close()
    with pytest.raises(LogClosedError):
        consumer.poll()
    assert list(consumer) == []


def test_a_loop_whose_body_gives_up_what_was_assigned_does_not_hang(topic):
    consumer = topic.consumer()
    consumer.assign([T0])
    with pytest.raises(IllegalStateError, match="call assign"):
        for _ in consumer:
            consumer.unsubscribe()


# Wrong use.


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda consumer: consumer.assign([TopicPartition("t", 3)]), UnknownTopicOrPartitionError),
        (lambda consumer: consumer.assign([TopicPartition("u", 0)]), UnknownTopicOrPartitionError),
        (lambda consumer: consumer.assign(["t"]), TypeError),
        (lambda consumer: consumer.assign([("t", "0")]), TypeError),
        (lambda consumer: consumer.seek(T0, -1), ValueError),
        (lambda consumer: consumer.seek(T0, 1.5), TypeError),
        (lambda consumer: consumer.seek(T2, 0), UnknownTopicOrPartitionError),
        (lambda consumer: consumer.position(T2), UnknownTopicOrPartitionError),
        (lambda consumer: consumer.end_offsets([("u", 0)]), UnknownTopicOrPartitionError),
        (lambda consumer: consumer.poll(timeout=-1), ValueError),
        (lambda consumer: consumer.poll(timeout=float("nan")), ValueError),
        (lambda consumer: consumer.poll_arrow(max_bytes=0), ValueError),
    ],
)
def test_wrong_calls_have_named_errors(topic, call, error):
    consumer = topic.consumer()
    consumer.assign([T0, T1])
    with pytest.raises(error):
        call(consumer)
    assert consumer.assignment() == [T0, T1]
    assert len(drained(consumer)) == 20


def test_a_timeout_beyond_all_seconds_waits_for_as_long_as_it_takes(topic):
    consumer = topic.consumer()
    consumer.assign([T0])
    assert consumer.poll(timeout=10**400, max_records=1)
    assert consumer.poll_arrow(timeout=10**400).num_rows


def test_wrong_settings_are_refused(store):
    with pytest.raises(InvalidConfigError):
        store.consumer(auto_offset_reset="first")
    with pytest.raises(InvalidConfigError):
        store.consumer(config={"max.poll.records": 0})
    with pytest.raises(InvalidConfigError):
        store.consumer(config={"enable.auto.commit": True})
    with pytest.raises(ValueError, match="read_committed"):
        store.consumer(isolation_level="serializable")


def test_a_closed_consumer_refuses(topic):
    with topic.consumer() as consumer:
        consumer.assign([T0])
    consumer.close()
    assert consumer.closed
    for call in (
        consumer.poll,
        consumer.poll_arrow,
        consumer.assignment,
        lambda: consumer.seek(T0, 0),
        lambda: consumer.lag(T0),
        consumer.__enter__,
    ):
        with pytest.raises(LogClosedError):
            call()


def test_damage_is_an_error_and_the_position_stays_before_it(topic, open_store, store_path):
    position_bytes = topic.partition("t", 0).segments()[0]["size_bytes"]
    abandon(topic)
    log = store_path / "t-0" / f"{0:020d}.log"
    store = open_store()
    consumer = store.consumer()
    consumer.assign([T0])
    store.partition("t", 0)
    data = bytearray(log.read_bytes())
    data[position_bytes - 1] ^= 1
    log.write_bytes(data)
    found = []
    with pytest.raises(CorruptRecordError, match=log.name):
        while True:
            found += consumer.poll(timeout=0)
    assert [record.offset for record in found] == list(range(len(found)))
    assert consumer.position(T0) == len(found)
