"""A producer's send, append and flush; its state after errors."""

import itertools
import threading
import time
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
from stores import values_of

from eoslog import TopicPartition
from eoslog.bindings.column_set import open_columns
from eoslog.bindings.partitioner import partition_for_key
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    InvalidConfigError,
    InvalidTimestampError,
    LogClosedError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer import linger
from eoslog.producer import producer as producer_module
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of

LONG = {"linger.ms": 3_600_000}


def test_what_was_sent_is_in_the_log_after_flush_with_key_headers_and_time(store):
    store.create_topic("t")
    with store.producer() as producer:
        producer.send("t", b"v", b"k", headers=[("h", b"x"), ("n", None)], timestamp_ms=77)
        producer.send("t", None, None)
        producer.flush()
        records, _ = engine_of(store).partition("t", 0).fetch_records(0, 10, 1 << 20)
    assert [(one.key, one.value, one.headers) for one in records] == [
        (b"k", b"v", (("h", b"x"), ("n", None))),
        (None, None, ()),
    ]
    assert records[0].timestamp_ms == 77
    assert abs(records[1].timestamp_ms - time.time() * 1000) < 60_000


def test_keys_choose_the_partition_as_in_kafka(store):
    store.create_topic("t", partitions=7)
    keys = [b"key-%d" % number for number in range(200)]
    with store.producer() as producer:
        for key in keys:
            producer.send("t", key, key)
    for number in range(7):
        expected = [key for key in keys if partition_for_key(key, 7) == number]
        assert values_of(store, "t", number) == expected


def test_records_without_a_key_change_partition_with_each_batch(store):
    store.create_topic("t", partitions=3)
    with store.producer(config={"batch.size": 1000, **LONG}) as producer:
        for _ in range(100):
            producer.send("t", bytes(100))
    counts = [store.partition("t", number).log_end_offset for number in range(3)]
    assert sum(counts) == 100
    assert min(counts) > 20


def test_a_batch_is_appended_when_it_is_full(store):
    store.create_topic("t")
    producer = store.producer(config={"batch.size": 1000, **LONG})
    for _ in range(50):
        producer.send("t", bytes(100))
    assert 0 < store.partition("t", 0).log_end_offset < 50
    producer.flush()
    assert store.partition("t", 0).log_end_offset == 50


def test_a_record_larger_than_a_batch_goes_alone(store):
    store.create_topic("t")
    with store.producer(config={"batch.size": 100}) as producer:
        producer.send("t", bytes(50_000))
        producer.send("t", b"small")
    assert [len(value) for value in values_of(store, "t")] == [50_000, 5]


def test_what_lingers_is_appended_without_another_call(store):
    store.create_topic("t")
    with store.producer(config={"linger.ms": 20}) as producer:
        for count in (1, 2, 3):
            producer.send("t", b"x")
            with store.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("t", 0)])
                consumer.seek(TopicPartition("t", 0), count - 1)
                assert len(consumer.poll(timeout=20)) == 1


@pytest.mark.parametrize("error", [StoreError("too many open files"), RuntimeError("unknown")])
def test_what_lingers_is_tried_again_after_an_error(store, monkeypatch, caplog, error):
    monkeypatch.setattr(linger, "RETRY_S", 0.01)
    monkeypatch.setattr(producer_module, "RETRY_S", 0.01)
    store.create_topic("t")
    registry = engine_of(store).registry
    failures = [error, error]

    def fail(name):
        if threading.current_thread().name == "eoslog-linger" and failures:
            raise failures.pop()
        return type(registry).get(registry, name)

    with store.producer(config={"linger.ms": 20}) as producer:
        producer.send("t", b"first")
        producer.flush()
        monkeypatch.setattr(registry, "get", fail)
        producer.send("t", b"second")
        with store.consumer() as consumer:
            consumer.assign([TopicPartition("t", 0)])
            found = [record.value for _ in range(2) for record in consumer.poll(timeout=20)]
    assert (found, failures) == ([b"first", b"second"], [])


def test_limits_of_small_topics_hold_for_gathered_batches(store):
    store.create_topic("t", config={"max.message.bytes": 500, "segment.bytes": 2000})
    with store.producer() as producer:
        for number in range(100):
            producer.send("t", b"%090d" % number)
        with pytest.raises(RecordTooLargeError):
            producer.send("t", bytes(600))
    assert [int(value) for value in values_of(store, "t")] == list(range(100))


@pytest.mark.parametrize("named", [{"values": 0}, {"values": None, "keys": 0}])
@pytest.mark.parametrize("partition", [0, None])
def test_a_record_of_more_than_31_bits_is_refused_with_its_size(store, partition, named):
    store.create_topic("t")
    cells = [bytes(2**31 + 10)]
    columns = {name: [None] if one is None else cells for name, one in named.items()}
    with pytest.raises(RecordTooLargeError, match=r" 21474837\d\d[ ,]"):
        store.producer().append("t", partition, **columns)


@pytest.mark.parametrize("bytes_max", [128, 1000, 20_000])
@pytest.mark.parametrize("key", [None, b"key"])
def test_a_record_is_taken_if_its_batch_fits_to_the_byte(store, bytes_max, key):
    store.create_topic("t", config={"max.message.bytes": bytes_max})
    taken, refused = [], []
    with store.producer() as producer:
        for size in range(bytes_max - 100, bytes_max):
            if size < 0:
                continue
            try:
                producer.send("t", b"v" * size, key=key, timestamp_ms=5)
            except RecordTooLargeError:
                refused.append(size)
                assert producer.discard_gathered() == 0
            else:
                taken.append(size)
                producer.flush()
        producer.send("t", b"small")
    assert max(taken) < min(refused)
    # Its batch has up to the limit: one byte more in the value makes it longer by one or two.
    with store.producer() as producer, pytest.raises(RecordTooLargeError):
        producer.append("t", 0, [b"v" * min(refused)], None if key is None else [key])
    assert [len(value) for value in values_of(store, "t")] == [*taken, 5]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "nowhere"}, UnknownTopicOrPartitionError),
        ({"partition": 2}, UnknownTopicOrPartitionError),
        ({"partition": -1}, UnknownTopicOrPartitionError),
        ({"value": "text"}, TypeError),
        ({"key": 7}, TypeError),
        ({"headers": [("h", "text")]}, TypeError),
        ({"headers": [b"h"]}, TypeError),
        ({"timestamp_ms": -5}, ValueError),
        ({"timestamp_ms": True}, TypeError),
        ({"value": bytes(2 << 20)}, RecordTooLargeError),
    ],
)
def test_a_refused_record_leaves_no_trace(store, arguments, error):
    store.create_topic("t", partitions=2)
    producer = store.producer()
    with pytest.raises(error):
        producer.send(**{"topic": "t", "value": b"v", **arguments})
    producer.send("t", b"good", partition=0)
    producer.flush()
    assert values_of(store, "t") == [b"good"]
    assert values_of(store, "t", 1) == []


# Columns.


@pytest.mark.parametrize(
    "column",
    [
        [b"a", None, b"cc"],
        (b"a", None, b"cc"),
        pa.array([b"a", None, b"cc"], pa.binary()),
        pa.array([b"x", b"a", None, b"cc"], pa.large_binary())[1:],
        pa.chunked_array([[b"a", None], [b"cc"]], pa.binary()),
    ],
)
def test_columns_of_every_kind_are_appended(store, column):
    store.create_topic("t", partitions=2)
    producer = store.producer()
    result = producer.append("t", 1, column)
    assert (result.base_offset, result.last_offset, result.record_count) == (0, 2, 3)
    assert values_of(store, "t", 1) == [b"a", None, b"cc"]
    placed = producer.append("t", values=column, keys=[b"k"] * 3)
    assert sum(one.record_count for one in placed.values()) == 3
    assert values_of(store, "t", partition_for_key(b"k", 2))[-3:] == [b"a", None, b"cc"]


def test_columns_are_placed_by_key_in_their_order(store):
    store.create_topic("t", partitions=5)
    keys = [b"key-%d" % (number % 37) for number in range(1000)]
    values = [b"%d" % number for number in range(1000)]
    stamps = np.arange(1000) + 5
    results = store.producer().append("t", values=values, keys=keys, timestamps=stamps)
    for number in range(5):
        expected = [
            value
            for key, value in zip(keys, values, strict=True)
            if partition_for_key(key, 5) == number
        ]
        assert values_of(store, "t", number) == expected
        assert results[number].record_count == len(expected)
        records, _ = engine_of(store).partition("t", number).fetch_records(0, 1000, 1 << 20)
        assert [one.timestamp_ms - 5 for one in records] == [int(value) for value in expected]


def test_columns_without_keys_take_turns(store):
    store.create_topic("t", partitions=3)
    producer = store.producer()
    for _ in range(6):
        producer.append("t", values=[b"x", b"y"])
    assert [store.partition("t", number).log_end_offset for number in range(3)] == [4, 4, 4]


def test_what_was_sent_before_columns_comes_before_them(store):
    store.create_topic("t")
    with store.producer(config=LONG) as producer:
        producer.send("t", b"1")
        producer.append("t", 0, [b"2"])
        producer.send("t", b"3")
        producer.append("t", values=[b"4"])
    assert values_of(store, "t") == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"values": 7}, TypeError),
        ({"values": ["text"]}, TypeError),
        ({"values": [b"v"], "keys": [b"a", b"b"]}, ValueError),
        ({"values": [b"v"], "timestamps": [1, 2]}, ValueError),
        ({"values": [b"v", b"w"], "timestamps": [1, -7]}, InvalidTimestampError),
        ({"values": [b"v"], "headers": [[("h", 1)]]}, TypeError),
        ({"values": [b"v", bytes(3000)], "keys": [b"a", b"b"]}, RecordTooLargeError),
        ({"values": pa.array([1, 2])}, TypeError),
    ],
)
def test_refused_columns_leave_no_trace(store, partition, columns, error):
    store.create_topic("t", partitions=3, config={"max.message.bytes": 1000})
    producer = store.producer()
    with pytest.raises(error) as raised:
        producer.append("t", partition, **columns)
    if partition == 0 and issubclass(error, EoslogError):
        assert raised.value.appended_record_count == 0
    assert [store.partition("t", number).log_end_offset for number in range(3)] == [0, 0, 0]
    producer.append("t", 0, [b"good"])
    assert values_of(store, "t") == [b"good"]


def test_columns_for_what_does_not_exist(store):
    store.create_topic("t")
    producer = store.producer()
    for topic, partition, error in (
        ("u", 0, UnknownTopicOrPartitionError),
        ("t", 1, UnknownTopicOrPartitionError),
        ("__transaction_state", 0, UnknownTopicOrPartitionError),
        ("t", "0", TypeError),
        (7, 0, TypeError),
    ):
        with pytest.raises(error):
            producer.append(topic, partition, [b"x"])
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send("__transaction_state", b"x")


# Identity.


def test_an_id_is_taken_with_the_first_append_and_given_out_once(open_store):
    store = open_store()
    store.create_topic("t")
    ids = set()
    for _ in range(3):
        first, second = store.producer(), store.producer()
        assert first.producer_id == -1
        first.append("t", 0, [b"x"])
        second.append("t", 0, [b"x"])
        ids |= {first.producer_id, second.producer_id}
        store.close()
        store = open_store()
    assert len(ids) == 6
    assert min(ids) >= 0


def test_without_idempotence_batches_carry_no_id(store):
    store.create_topic("t")
    with store.producer(config={"enable.idempotence": "false"}) as producer:
        producer.send("t", b"1")
        producer.append("t", 0, [b"2"])
        producer.flush()
        assert producer.producer_id == -1
        with pytest.raises(ValueError, match="idempotence"):
            producer.next_sequence("t", 0)
    assert store.partition("t", 0).producers() == []
    assert values_of(store, "t") == [b"1", b"2"]


def test_sequences_count_on_over_send_and_append(store):
    store.create_topic("t")
    producer = store.producer()
    producer.send("t", b"1")
    producer.append("t", 0, [b"2", b"3"])
    producer.send("t", b"4")
    assert producer.next_sequence("t", 0) == 4
    producer.flush()
    state = engine_of(store).partition("t", 0).producer(producer.producer_id)
    assert [batch[:2] for batch in state.batches] == [(0, 0), (1, 2), (3, 3)]


def test_sequences_wrap_after_the_largest(store):
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"first"])
    sequenced = producer._identity.sequenced(TopicPartition("t", 0))
    partition = engine_of(store).partition("t", 0)
    # A partition takes a first batch anywhere: let the producer stand just below the wrap.
    partition.producer_state.forget([producer.producer_id])
    sequenced.stands_at(2**31 - 4, sequenced.position)
    producer.append("t", 0, [b"a", b"b", b"c", b"d", b"e"])
    assert partition.producer(producer.producer_id).batches[-1][:2] == (2**31 - 3, 1)
    producer.append("t", 0, [b"f"])
    assert partition.producer(producer.producer_id).last_sequence == 2
    assert values_of(store, "t") == [b"first", b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize(
    "config", [{"batch.size": 0}, {"linger.ms": -1}, {"acks": 0}, {"nonsense": 1}]
)
def test_wrong_settings_are_refused(store, config):
    with pytest.raises(InvalidConfigError):
        store.producer(config=config)


# After errors.


class DiskFullOnce:
    """The engine's refusal of an append, before or after it wrote."""

    def __init__(self, error, *, written):
        self.error, self.written = error, written

    def patch(self, monkeypatch, name):
        original = getattr(UnifiedLog, name)
        once = [self.error]

        def append(partition, *arguments, **named):
            if once:
                if self.written:
                    original(partition, *arguments, **named)
                raise once.pop()
            return original(partition, *arguments, **named)

        monkeypatch.setattr(UnifiedLog, name, append)


@pytest.mark.parametrize("written", [False, True])
def test_a_failed_flush_keeps_records_and_numbers_and_the_next_one_goes_on(
    store, monkeypatch, written
):
    store.create_topic("t")
    producer = store.producer(config=LONG)
    producer.append("t", 0, [b"0"])
    producer.send("t", b"1")
    DiskFullOnce(StoreFullError("full"), written=False).patch(monkeypatch, "append_accumulated")
    with pytest.raises(StoreFullError) as raised:
        producer.flush()
    assert raised.value.appended_record_count == 0
    assert producer.next_sequence("t", 0) == 2
    producer.flush()
    producer.append("t", 0, [b"2"])
    assert values_of(store, "t") == [b"0", b"1", b"2"]
    assert producer.next_sequence("t", 0) == 3


@pytest.mark.parametrize("error", [StoreFailedError("sync"), KeyboardInterrupt()])
def test_an_append_of_unknown_end_is_settled_before_the_next(store, monkeypatch, error):
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"0"])
    DiskFullOnce(error, written=True).patch(monkeypatch, "append_columns")
    with pytest.raises(type(error)):
        producer.append("t", 0, [b"1"], keys=[None])
    # Of the same length as the one in doubt: under its number it would pass for a duplicate.
    producer.append("t", 0, [b"2"])
    assert values_of(store, "t") == [b"0", b"1", b"2"]
    assert producer.next_sequence("t", 0) == 3


def test_an_append_that_ends_half_way_says_how_far_it_came(store, monkeypatch):
    store.create_topic("t", partitions=2)
    producer = store.producer()
    producer.append("t", 1, [b"takes an id"])
    original = UnifiedLog.append_columns

    def half(partition, columns, **named):
        original(partition, open_columns([b"0", b"1"], None, None, None, 1), **named)
        raise StoreFullError("full")

    monkeypatch.setattr(UnifiedLog, "append_columns", half)
    with pytest.raises(StoreFullError) as raised:
        producer.append("t", 0, [b"0", b"1", b"2"])
    assert raised.value.appended_record_count == 2
    monkeypatch.undo()
    producer.append("t", 0, [b"2"])
    assert values_of(store, "t") == [b"0", b"1", b"2"]


def test_columns_over_partitions_say_how_far_they_came(store, monkeypatch):
    store.create_topic("t", partitions=2)
    producer = store.producer()
    original = UnifiedLog.append_columns

    def refuse_second(partition, *arguments, **named):
        if partition.partition == 1:
            raise StoreFullError("full")
        return original(partition, *arguments, **named)

    monkeypatch.setattr(UnifiedLog, "append_columns", refuse_second)
    keys = [b"%d" % number for number in range(100)]
    first = sum(partition_for_key(key, 2) == 0 for key in keys)
    with pytest.raises(StoreFullError) as raised:
        producer.append("t", values=keys, keys=keys)
    assert raised.value.appended_record_count == first


def test_all_partitions_are_tried_by_a_flush(store, monkeypatch):
    store.create_topic("t", partitions=3)
    producer = store.producer(config=LONG)
    for number in range(3):
        producer.send("t", b"x", partition=number)
    DiskFullOnce(StoreFullError("full"), written=False).patch(monkeypatch, "append_accumulated")
    with pytest.raises(StoreFullError):
        producer.flush()
    assert [store.partition("t", number).log_end_offset for number in range(3)] == [0, 1, 1]
    producer.flush()
    assert store.partition("t", 0).log_end_offset == 1


@pytest.mark.parametrize("error", [StoreFailedError("a sync failed"), KeyboardInterrupt()])
def test_what_could_not_be_synced_is_asked_for_by_the_next_flush(open_store, monkeypatch, error):
    """A flush that returned would say that it survives a power cut."""
    store = open_store("commit")
    store.create_topic("t", partitions=2)
    producer = store.producer(config=LONG)
    partitions = [engine_of(store).partition("t", number) for number in range(2)]
    for number in range(2):
        producer.append("t", number, [b"x"])
    with monkeypatch.context() as patch:

        def refuse(end):
            raise error

        patch.setattr(partitions[0], "make_durable", refuse)
        for _ in range(2):
            with pytest.raises(type(error)):
                producer.flush()
    assert partitions[0].recovery_point == 0
    producer.flush()
    assert [one.recovery_point for one in partitions] == [1, 1]


@pytest.mark.parametrize("ends_by", ["close", "flush"])
def test_a_close_does_not_pass_over_what_could_not_be_synced(open_store, monkeypatch, ends_by):
    store = open_store("commit")
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"x"])

    def refuse(end):
        raise StoreFailedError("a sync failed")

    monkeypatch.setattr(engine_of(store).partition("t", 0), "make_durable", refuse)
    for call in (producer.flush, getattr(producer, ends_by)):
        with pytest.raises(StoreFailedError):
            call()


def test_a_refused_batch_stays_until_it_is_discarded(store):
    store.create_topic("t", config={"message.timestamp.before.max.ms": 1000})
    producer = store.producer(config=LONG)
    producer.send("t", b"old", timestamp_ms=5)
    for _ in range(2):
        with pytest.raises(InvalidTimestampError):
            producer.flush()
    assert producer.discard_gathered() == 1
    assert producer.discard_gathered() == 0
    producer.send("t", b"new")
    producer.flush()
    assert values_of(store, "t") == [b"new"]


def test_somebody_else_under_the_same_id_is_noticed(store):
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"0"])
    engine_of(store).partition("t", 0).append_columns(
        [b"theirs"], producer_id=producer.producer_id, producer_epoch=0, base_sequence=1
    )
    with pytest.raises(OutOfOrderSequenceError, match="another process"):
        producer.append("t", 0, [b"1"])
    with pytest.raises(OutOfOrderSequenceError):
        producer.send("t", b"2")
    producer.close()
    assert values_of(store, "t") == [b"0", b"theirs"]


def test_a_failed_partition_leaves_the_others_usable(store, monkeypatch):
    store.create_topic("t", partitions=2)
    producer = store.producer(config=LONG)

    def refuse(partition, *_arguments, **_named):
        raise StoreFailedError("broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(
            engine_of(store).partition("t", 0), "append_accumulated", refuse.__get__(None, object)
        )
        producer.send("t", b"x", partition=0)
        producer.send("t", b"x", partition=1)
        with pytest.raises(StoreFailedError):
            producer.flush()
    assert values_of(store, "t", 1) == [b"x"]
    producer.append("t", 1, [b"y"])
    assert values_of(store, "t", 1) == [b"x", b"y"]


def test_a_deleted_topic_takes_what_was_gathered_and_says_so(store):
    store.create_topic("t")
    store.create_topic("u")
    producer = store.producer(config=LONG)
    producer.append("t", 0, [b"x"])
    producer.send("t", b"lost")
    producer.send("u", b"kept")
    store.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="1 records"):
        producer.flush()
    producer.flush()
    assert values_of(store, "u") == [b"kept"]
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send("t", b"x")
    store.create_topic("t")
    producer.append("t", 0, [b"new"])
    assert values_of(store, "t") == [b"new"]


# Closing.


def test_a_closed_producer_takes_nothing(store):
    store.create_topic("t")
    producer = store.producer(config=LONG)
    producer.send("t", b"x")
    producer.close()
    producer.close()
    for call in (
        lambda: producer.send("t", b"y"),
        lambda: producer.append("t", 0, [b"y"]),
        producer.flush,
        producer.__enter__,
    ):
        with pytest.raises(LogClosedError):
            call()
    assert values_of(store, "t") == [b"x"]


def closed_by_two(producer, monkeypatch):
    """What a close raises, and one that another thread begins as the first one appends."""
    append = UnifiedLog.append_accumulated
    begun = threading.Event()
    raised = [None, None]

    def close(number):
        begun.set()
        try:
            producer.close()
        except EoslogError as error:
            raised[number] = type(error)

    other = threading.Thread(target=close, args=(1,))

    def overtaken(*arguments):
        monkeypatch.setattr(UnifiedLog, "append_accumulated", append)
        other.start()
        begun.wait()
        time.sleep(0.05)  # It waits for this one now, or comes when all is over.
        return append(*arguments)

    monkeypatch.setattr(UnifiedLog, "append_accumulated", overtaken)
    close(0)
    other.join()
    return raised


def test_of_two_closes_at_once_one_flushes(store, monkeypatch):
    store.create_topic("t")
    producer = store.producer(config=LONG)
    producer.send("t", b"x")
    assert closed_by_two(producer, monkeypatch) == [None, None]
    assert values_of(store, "t") == [b"x"]


def test_of_two_closes_at_once_that_cannot_flush_none_is_silent(store, monkeypatch):
    store.create_topic("t")
    producer = store.producer(config=LONG)
    producer.send("t", b"x")
    DiskFullOnce(StoreFullError("full"), written=False).patch(monkeypatch, "append_accumulated")
    first, second = closed_by_two(producer, monkeypatch)
    assert first is StoreFullError
    assert second in (LogClosedError, None)
    producer.close()
    assert values_of(store, "t") == []


@pytest.mark.parametrize("durability", ["process", "commit"])
@pytest.mark.parametrize("closed", ["the producer", "the store"])
def test_what_another_thread_sent_is_in_when_it_is_closed(open_store, durability, closed):
    """Each send that returned; the one that is refused says so."""
    sent, begun = [], threading.Event()

    def send(producer):
        with pytest.raises(LogClosedError):
            for number in itertools.count():
                producer.send("t", b"%d" % number, partition=0)
                sent.append(number)
                if number == 50:
                    begun.set()

    for _ in range(5):
        store = open_store(durability)
        store.create_topic("t")
        producer = store.producer()
        sent.clear()
        begun.clear()
        thread = threading.Thread(target=send, args=(producer,))
        thread.start()
        begun.wait()
        (producer if closed == "the producer" else store).close()
        thread.join()
        store.close()
        store = open_store(durability)
        assert store.partition("t", 0).log_end_offset == len(sent)
        store.delete_topic("t")
        store.close()


@pytest.mark.parametrize("named", [{}, {"name": "n"}, {"transactional_id": "x"}])
def test_a_producer_made_while_the_store_closes_is_refused(store, monkeypatch, named):
    """Nobody would append what it gathered."""
    store.create_topic("t")
    store.producer(config=LONG).send("t", b"x")
    live = parts_of(store).producers

    def one_more_comes_behind():
        found = live()
        with pytest.raises(LogClosedError, match="is closed"):
            store.producer(**named)
        return found

    monkeypatch.setattr(parts_of(store), "producers", one_more_comes_behind)
    store.close()
    with pytest.raises(LogClosedError):
        store.producer(**named)


def test_a_fenced_producer_closes_with_nothing_gathered(store):
    producer = store.producer(name="n")
    store.producer(name="n")
    producer.close()


@pytest.mark.parametrize("step", ["_add_topic", "_drain"])
def test_a_close_in_the_middle_of_a_send_is_refused(store, monkeypatch, step):
    """The send goes on, and so does the producer."""
    store.create_topic("t")
    producer = store.producer(config=LONG)
    real = getattr(producer, step)

    def closing_in_it(argument):
        found = real(argument)
        with pytest.raises(ConcurrentAccessError, match="did nothing"):
            producer.close()
        return found

    monkeypatch.setattr(producer, step, closing_in_it)
    for number in range(100):
        producer.send("t", b"%d" % number + bytes(1000), partition=0)
    producer.close()
    assert store.partition("t", 0).log_end_offset == 100


def test_a_close_that_cannot_flush_raises_and_closes(store, monkeypatch):
    store.create_topic("t")
    producer = store.producer(config=LONG)
    producer.send("t", b"x")
    DiskFullOnce(StoreFullError("full"), written=False).patch(monkeypatch, "append_accumulated")
    with pytest.raises(StoreFullError):
        producer.close()
    with pytest.raises(LogClosedError):
        producer.flush()
    assert values_of(store, "t") == []


# Durability.


@pytest.mark.parametrize(
    ("durability", "after_append", "after_flush"),
    [("process", False, False), ("commit", False, True), ("always", True, True)],
)
def test_what_is_synced_when(open_store, durability, after_append, after_flush):
    store = open_store(durability)
    store.create_topic("t")
    producer = store.producer(config=LONG)
    partition = engine_of(store).partition("t", 0)
    producer.append("t", 0, [b"x"])
    assert (partition.recovery_point == 1) is after_append
    producer.flush()
    assert (partition.recovery_point == 1) is after_flush
    producer.send("t", b"y")
    producer.flush()
    assert (partition.recovery_point == 2) is after_flush


# Threads.


def test_threads_that_share_a_producer_lose_and_repeat_nothing(store):
    store.create_topic("t", partitions=2)
    producer = store.producer(config={"batch.size": 700, "linger.ms": 1})

    def work(number):
        for count in range(2000):
            if count % 100 == 50:
                producer.append("t", count % 2, [b"%d-%d" % (number, count)])
            else:
                producer.send("t", b"%d-%d" % (number, count), partition=count % 2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    for partition in range(2):
        found = values_of(store, "t", partition)
        for number in range(4):
            of_thread = [value for value in found if value.startswith(b"%d-" % number)]
            assert of_thread == [b"%d-%d" % (number, count) for count in range(partition, 2000, 2)]


def test_every_append_to_a_partition_comes_after_what_was_gathered_for_it(store):
    store.create_topic("short", partitions=2)
    producer = store.producer()
    for number in range(4):
        producer.append("short", partition=1, values=[b"append %d" % number])
        producer.send("short", value=b"send %d" % number, partition=1)
    producer.flush()
    expected = [b"%s %d" % (how, number) for number in range(4) for how in (b"append", b"send")]
    assert values_of(store, "short", 1) == expected


def test_an_append_finds_the_new_topic_of_a_name(store):
    producer = store.producer()
    for life in range(3):
        store.create_topic("again", partitions=1)
        for number in range(3):
            producer.append("again", partition=0, values=[b"%d %d" % (life, number)])
        assert values_of(store, "again") == [b"%d %d" % (life, number) for number in range(3)]
        store.delete_topic("again")
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.append("again", partition=0, values=[b"nowhere"])


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([2**64 - 1, 2], dtype="u8"),
        np.array([2**63, 2], dtype="u8"),
        np.array([2**62, 2], dtype="datetime64[s]"),
        np.array([2**57, 2], dtype="datetime64[h]"),
        np.array(["NaT", "2020-01-01"], dtype="datetime64[ms]"),
        pa.array([2**64 - 1, 2], pa.uint64()),
        pa.array([2**62, 2], pa.timestamp("s")),
    ],
    ids=[
        "unsigned",
        "just beyond",
        "seconds",
        "hours",
        "no time",
        "Arrow unsigned",
        "Arrow seconds",
    ],
)
@pytest.mark.parametrize("partition", [0, None])
def test_a_column_of_times_beyond_64_bits_is_refused(store, wrong, partition):
    store.create_topic("t")
    producer = store.producer()
    with pytest.raises(ValueError, match="fit into 64 bits"):
        producer.append("t", partition, [b"a", b"b"], timestamps=wrong)
    producer.close()
    assert store.partition("t", 0).log_end_offset == 0


@pytest.mark.parametrize("partition", [1, -1, 2**64, -(2**64)])
def test_a_partition_that_is_not_there_is_named_at_once(store, partition):
    store.create_topic("t")
    producer = store.producer()
    with pytest.raises(UnknownTopicOrPartitionError, match=f"not {partition}"):
        producer.send("t", b"a", partition=partition)
    assert store.partition("t", 0).log_end_offset == 0


def test_a_headers_name_without_a_utf8_form_is_named(store):
    store.create_topic("t")
    with store.producer() as producer:
        with pytest.raises(
            ValueError, match=r"headers must have names of valid text, got '\\ud800'"
        ):
            producer.send("t", b"a", headers=[("\ud800", b"")])
        with pytest.raises(
            ValueError, match=r"headers must have names of valid text, got '\\ud800'"
        ):
            producer.append("t", 0, [b"a"], headers=[[("\ud800", b"")]])
    assert store.partition("t", 0).log_end_offset == 0


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ([(1, b"x")], "have names of str, got int"),
        ([("h", 5)], "have values of bytes or None, got int"),
        ([("h", b"x", b"y")], "be pairs of"),
        ([5], "be pairs of"),
        (5, "be pairs of"),
    ],
)
def test_wrong_headers_are_named_also_after_other_records(store, headers, wrong):
    store.create_topic("t")
    with store.producer(config=LONG) as producer:
        for _ in range(2):
            with pytest.raises(TypeError, match=f"headers must {wrong}"):
                producer.send("t", b"v", headers=headers)
            producer.send("t", b"good")
    assert values_of(store, "t") == [b"good", b"good"]


@pytest.mark.parametrize(
    "headers",
    [
        lambda value: [{"key": "h", "value": value}],  # As Arrow has them.
        lambda value: MappingProxyType({"h": value}),
        lambda value: (pair for pair in [("h", value)]),
    ],
)
def test_headers_of_any_form_count_in_the_size_of_a_batch(store, headers):
    store.create_topic("t", config={"max.message.bytes": 4096})
    with store.producer(config=LONG) as producer:
        producer.send("t", b"first")
        producer.send("t", b"second", headers=headers(bytes(4000)))
        producer.flush()
    assert values_of(store, "t") == [b"first", b"second"]
