"""append of Arrow data: frames of other libraries, streams chunk by chunk, what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    ArrowStreamError,
    IllegalStateError,
    InvalidTimestampError,
    RecordTooLargeError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)

pa = pytest.importorskip("pyarrow")
ROWS = [(b"a", b"k", 5), (None, None, 6), (b"a longer value, not inline", b"", 7)]


@pytest.fixture
def topic(store: eoslog.Store) -> str:
    store.create_topic("t")
    return "t"


def rows_of(store: eoslog.Store, level: str = "read_uncommitted") -> list[tuple[Any, ...]]:
    consumer = store.consumer(isolation_level=level)
    consumer.assign([TopicPartition("t", 0)])
    return [
        (one.value, one.key, one.timestamp_ms) for one in consumer.poll(timeout=0, max_records=9999)
    ]


def values_of(store: eoslog.Store, level: str = "read_uncommitted") -> list[bytes | None]:
    return [row[0] for row in rows_of(store, level)]


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    values, keys, times = zip(*rows, strict=True)
    columns = {"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())}
    return pa.table(columns | {"timestamp": pa.array(times, pa.timestamp("ms"))})


def polars_frame() -> Any:
    polars = pytest.importorskip("polars")
    return polars.from_arrow(table_of(ROWS))


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"value": [b"no", *(row[0] for row in ROWS)]})
    frame["key"] = [None, *(row[1] for row in ROWS)]
    frame["timestamp"] = pandas.to_datetime([0, 5, 6, 7], unit="ms")
    return frame.drop(index=0).iloc[[0, 1, 2]]  # With an index that is no range.


def duckdb_relation() -> Any:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    table = table_of(ROWS)
    return connection.from_arrow(table).project("value, key, timestamp")


@pytest.mark.parametrize("make", [polars_frame, pandas_frame, duckdb_relation])
def test_frames_of_other_libraries_are_appended(store, topic, make):
    with store.producer() as producer:
        placed = producer.append(topic, 0, make())
    assert (placed.base_offset, placed.last_offset, placed.record_count) == (0, 2, 3)
    assert rows_of(store) == ROWS


@pytest.mark.parametrize("kind", ["String", "Binary", "Categorical", "Object of pandas"])
def test_a_series_is_a_column(store, topic, kind):
    polars = pytest.importorskip("polars")
    pandas = pytest.importorskip("pandas")
    cells = ["short", None, "a longer text, not inline"]
    made = {
        "String": polars.Series(cells),
        "Binary": polars.Series([one and one.encode() for one in cells]),
        "Categorical": polars.Series(cells).cast(polars.Categorical),
        "Object of pandas": pandas.Series(cells, dtype=object),
    }[kind]
    with store.producer() as producer:
        producer.append(topic, 0, made, keys=made)
        producer.append(topic, 0, made)
    expected = [one and one.encode() for one in cells]
    assert values_of(store) == expected * 2
    assert [row[1] for row in rows_of(store)] == [*expected, None, None, None]


def test_no_column_of_polars_becomes_a_list(store, topic, monkeypatch):
    polars = pytest.importorskip("polars")
    monkeypatch.delattr(polars.Series, "to_list")
    times = polars.Series([5, 6], dtype=polars.Datetime("ms"))
    headers = polars.Series([[{"key": "h", "value": b"1"}], None])
    series = polars.Series([b"a", None])
    with store.producer() as producer:
        producer.append(topic, 0, series, keys=series, timestamps=times, headers=headers)
    assert rows_of(store) == [(b"a", b"a", 5), (None, None, 6)]


def test_a_frame_of_pandas_needs_pyarrow_and_a_series_does_not(store, topic, monkeypatch):
    pandas = pytest.importorskip("pandas")

    def refuse(self: object, requested_schema: object = None) -> None:
        raise ImportError("no pyarrow")

    monkeypatch.setattr(pandas.Series, "__arrow_c_stream__", refuse)
    monkeypatch.setattr(pandas.DataFrame, "__arrow_c_stream__", refuse)
    with store.producer() as producer:
        producer.append(topic, 0, pandas.Series(["a", None], dtype="str"))
        producer.append(topic, 0, pandas.Series(["a", None]), keys=pandas.Series(["k", "l"]))
        with pytest.raises(ImportError, match="no pyarrow"):
            producer.append(topic, 0, pandas.DataFrame({"value": [b"a"]}))
    assert values_of(store) == [b"a", None] * 2


# Streams, chunk by chunk.

CHUNKS = [[b"a", b"b"], [], [b"c"], [b"d", None]]


def batches_of(chunks: list[list[Any]]) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array(one, pa.binary())}) for one in chunks]


SCHEMA = pa.schema([("value", pa.binary())])


def stream_of(batches: Any) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)


def test_a_stream_is_one_append(store, topic):
    store.create_topic("many", 3)
    with store.producer() as producer:
        producer.append(topic, 0, [b"before"])
        placed = producer.append(topic, 0, stream_of(batches_of(CHUNKS)))
        by_partition = producer.append("many", values=stream_of(batches_of(CHUNKS)))
    assert (placed.base_offset, placed.last_offset, placed.record_count) == (1, 5, 5)
    assert not placed.duplicate
    assert values_of(store) == [b"before", *(one for chunk in CHUNKS for one in chunk)]
    # Each chunk without keys goes to the next partition.
    shown = {number: (one.base_offset, one.last_offset) for number, one in by_partition.items()}
    assert shown == {0: (0, 1), 1: (0, 0), 2: (0, 1)}


@pytest.mark.parametrize("chunks", [[], [[]], [[], []]])
def test_a_stream_without_records_is_as_an_empty_column(store, topic, chunks):
    producer = store.producer()
    for values in ([], stream_of(batches_of(chunks))):
        assert producer.append(topic, values=values) == {}
    for values in ([], stream_of(batches_of(chunks))):
        with pytest.raises(ValueError, match="no records to append"):
            producer.append(topic, 0, values)
    assert store.partition(topic, 0).log_end_offset == 0


def test_a_frame_without_rows_is_appended_in_a_transaction(store, topic):
    producer = store.producer(transactional_id="night")
    producer.init_transactions()
    with producer.transaction():
        assert producer.append(topic, values=pa.table({"value": pa.array([], pa.string())})) == {}
        producer.send(topic, b"one")
    assert values_of(store) == [b"one"]


class Held:
    """What a chunk's memory belongs to."""

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data, np.uint8)


def chunk_over(held: Held) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, len(held.data)], np.int32))
    data = pa.foreign_buffer(held.data.ctypes.data, held.data.nbytes, base=held)
    return pa.record_batch({"value": pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])})


def test_a_stream_is_read_chunk_by_chunk_and_released(store, topic):
    alive: list[weakref.ref[Held]] = []
    seen: list[tuple[int, int]] = []
    ends: list[str] = []

    def chunks() -> Iterator[pa.RecordBatch]:
        try:
            for number in range(4):
                held = Held(b"%d" % number)
                alive.append(weakref.ref(held))
                batch = chunk_over(held)
                del held
                yield batch
                del batch
                # What was appended is in the log by now, and its memory is free.
                gc.collect()
                seen.append(
                    (
                        store.partition(topic, 0).log_end_offset,
                        sum(one() is not None for one in alive),
                    )
                )
        finally:
            ends.append("closed")

    with store.producer() as producer:
        producer.append(topic, 0, stream_of(chunks()))
    assert seen == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert ends == ["closed"]


def failing(good: int, error: BaseException, ends: list[str]) -> pa.RecordBatchReader:
    def chunks() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches_of([[b"%d" % number] for number in range(good)])
            raise error
        finally:
            ends.append("closed")

    return stream_of(chunks())


@pytest.mark.parametrize("good", [0, 3])
def test_an_error_of_the_stream_says_how_many_records_are_in(store, topic, good):
    ends: list[str] = []
    producer = store.producer("rows")
    with pytest.raises(ArrowStreamError, match="the disk of the query is gone") as raised:
        producer.append(topic, 0, failing(good, OSError("the disk of the query is gone"), ends))
    assert raised.value.appended_record_count == good
    assert ends == ["closed"]
    assert values_of(store) == [b"%d" % number for number in range(good)]
    assert producer.next_sequence(topic, 0) == good
    producer.append(topic, 0, [b"after"])
    assert values_of(store)[good:] == [b"after"]


WRONG_CHUNKS: dict[str, tuple[type, Callable[[], pa.RecordBatch]]] = {
    "too large": (RecordTooLargeError, lambda: batches_of([[b"fits", bytes(5000)]])[0]),
    "offsets": (ValueError, lambda: broken_batch()),
}


def broken_batch() -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, 9, 2, 4], np.int32))
    array = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"abcdefghi")])
    return pa.record_batch({"value": array})


@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize("name", WRONG_CHUNKS)
def test_a_chunk_that_is_refused_is_not_in(store, name, partition):
    store.create_topic("t", config={"max.message.bytes": 4096})
    kind, make = WRONG_CHUNKS[name]
    producer = store.producer()
    chunks = [*batches_of([[b"a", b"b"]]), make(), *batches_of([[b"never"]])]
    with pytest.raises(kind) as raised:
        producer.append("t", partition, stream_of(chunks))
    assert raised.value.appended_record_count == 2
    assert raised.value.__notes__ == ["in chunk 1 of the stream, from record 2 on"]
    assert values_of(store) == [b"a", b"b"]


@pytest.mark.parametrize(
    "error", [lambda: OSError("gone"), None], ids=["of the stream", "of a chunk"]
)
def test_a_transaction_with_a_part_of_a_stream_is_aborted(store, topic, error):
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    if error is not None:
        stream = failing(2, error(), [])
    else:
        stream = stream_of([*batches_of([[b"a"], [b"b"]]), broken_batch()])
    with pytest.raises((ArrowStreamError, ValueError)):
        producer.append(topic, 0, stream)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.append(topic, 0, stream_of(batches_of([[b"whole"], [b"stream"]])))
    assert values_of(store, "read_committed") == [b"whole", b"stream"]


def test_a_stream_that_is_refused_at_once_leaves_the_transaction_as_it_is(store, topic):
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    with producer.transaction():
        producer.append(topic, 0, [b"good"])
        with pytest.raises(TypeError, match="'other'"):
            producer.append(topic, 0, pa.table({"value": [b"a"], "other": [1]}))
    assert values_of(store, "read_committed") == [b"good"]


def test_a_stream_stays_within_the_transaction_that_it_began_in(store, topic):
    producer = store.producer(transactional_id="x")
    producer.init_transactions()

    def chunks() -> Iterator[pa.RecordBatch]:
        yield from batches_of([[b"first"]])
        producer.commit_transaction()  # As another thread may do it.
        producer.begin_transaction()
        yield from batches_of([[b"second"]])

    producer.begin_transaction()
    with pytest.raises(IllegalStateError, match="ended in another thread after 1 records"):
        producer.append(topic, 0, stream_of(chunks()))
    producer.append(topic, 0, [b"goes on"])
    producer.commit_transaction()
    assert values_of(store, "read_committed") == [b"first", b"goes on"]


def test_a_stream_may_use_its_own_producer_and_be_interrupted(store, topic):
    producer = store.producer()

    def chunks() -> Iterator[pa.RecordBatch]:
        yield from batches_of([[b"1"]])
        producer.append(topic, 0, [b"between"])
        yield from batches_of([[b"2"]])

    producer.append(topic, 0, stream_of(chunks()))
    assert values_of(store) == [b"1", b"between", b"2"]


def test_a_topic_that_is_not_there_leaves_the_stream_unread(store, topic):
    read = []

    def chunks() -> Iterator[pa.RecordBatch]:
        read.append(1)
        yield from batches_of([[b"1"]])

    stream = stream_of(chunks())
    producer = store.producer()
    for wrong in (("unknown", 0), (topic, 7)):
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.append(*wrong, stream_of(chunks()))
    assert read == []
    producer.append(topic, 0, stream)
    assert read == [1]


# What is refused.


def test_a_lazy_frame_is_to_be_collected(store, topic):
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=r"got LazyFrame, which collect\(\) makes a frame of"):
        store.producer().append(topic, values=polars.LazyFrame({"value": ["a"]}))


def test_columns_of_a_table_are_named(store, topic):
    producer = store.producer()
    value = pa.array([b"a"])
    for table, error, text in (
        (pa.table({"key": value}), TypeError, "must have a column 'value'"),
        (pa.table({"value": value, "offset": value}), TypeError, "got 'offset'"),
        (pa.Table.from_arrays([value, value], ["value", "value"]), TypeError, "two of 'value'"),
        (
            pa.table({"value": [1]}),
            TypeError,
            "column 'value' must be an Arrow binary or string array, got int64",
        ),
        (
            pa.table({"value": pa.RunEndEncodedArray.from_arrays([1], ["a"])}),
            TypeError,
            "array, got run_end_encoded",
        ),
        (pa.table({"value": value, "key": [1.5]}), TypeError, "column 'key' must be .* float64"),
        (
            pa.table({"value": value, "timestamp": [1.5]}),
            TypeError,
            "column 'timestamp' must be .* got float64",
        ),
        (
            pa.table({"value": value, "timestamp": pa.array([1], pa.time32("s"))}),
            TypeError,
            "column 'timestamp' must be .* got time",
        ),
        (
            pa.table({"value": value, "timestamp": pa.array([None], pa.int64())}),
            ValueError,
            "column 'timestamp' must have no nulls, got one in row 0",
        ),
        (
            pa.table({"value": value, "timestamp": pa.array([-5], pa.timestamp("s"))}),
            InvalidTimestampError,
            "column 'timestamp' must be 1970 or later, got -5000 ms in row 0",
        ),
        (
            pa.table({"value": value, "timestamp": pa.array([2**60], pa.timestamp("s"))}),
            ValueError,
            "column 'timestamp' must fit into 64 bits of milliseconds",
        ),
        (pa.table({"value": value, "headers": value}), TypeError, "must be a list .* got binary"),
        (pa.table({"value": value, "headers": [[b"x"]]}), TypeError, "structs .* got bin"),
        (pa.table({"value": value, "headers": [[{"key": "a"}]]}), TypeError, "one key and one val"),
        (
            pa.table({"value": value, "headers": [[{"key": 1, "value": b""}]]}),
            TypeError,
            "got int64",
        ),
        (
            pa.table({"value": value, "headers": [[{"key": "a", "value": b"", "x": 1}]]}),
            TypeError,
            "got 'x'",
        ),
        (pa.table({"value": value, "headers": [[{"key": None, "value": b""}]]}), TypeError, "text"),
        (
            pa.table({"value": value, "headers": headers_of([[{"key": None, "value": b""}]])}),
            ValueError,
            "column 'headers' must have no null key, got one in row 0",
        ),
        (
            pa.table({"value": value, "headers": headers_of([[None]])}),
            ValueError,
            "must have no null header",
        ),
    ):
        with pytest.raises(error, match=text):
            producer.append(topic, 0, table)
    with pytest.raises(TypeError, match="must be an Arrow binary or string array, got a record"):
        producer.append(topic, 0, pa.table({"value": value}), keys=[b"k"])
    with pytest.raises(TypeError, match="keys must be a column of the record batch"):
        producer.append(topic, 0, pa.table({"value": value}).to_struct_array().chunk(0), keys=[b""])
    assert store.partition(topic, 0).log_end_offset == 0


def headers_of(rows: list[Any]) -> pa.Array:
    struct = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.array(rows, pa.list_(struct))


def test_a_null_row_is_refused(store, topic):
    rows = pa.array([{"value": b"a"}, None], pa.struct([("value", pa.binary())]))
    with pytest.raises(ValueError, match="no null rows, got one in row 1"):
        store.producer().append(topic, 0, rows)


def test_times_are_rounded_down(store, topic):
    times = pa.array([1999, 2000, 2001], pa.timestamp("us"))
    with store.producer() as producer:
        producer.append(topic, 0, pa.table({"value": [b"a", b"b", b"c"], "timestamp": times}))
    assert [row[2] for row in rows_of(store)] == [1, 2, 2]


def test_a_key_of_a_header_is_text(store, topic):
    struct = pa.struct([("key", pa.string()), ("value", pa.binary())])
    keys = pa.array([b"good", "schön".encode(), b"\xff"]).view(pa.string())
    cells = pa.StructArray.from_arrays([keys, pa.array([b"1"] * 3)], fields=list(struct))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), cells)
    rows = pa.table({"value": [b"a", b"b"], "headers": lists})
    producer = store.producer()
    with pytest.raises(ValueError, match="keys of valid text, not so row 1"):
        producer.append(topic, 0, rows)
    producer.append(topic, 0, rows.slice(0, 1))
    (batch,) = store.scan(topic, columns=["headers"])
    assert batch.column(0).to_pylist() == [
        [{"key": "good", "value": b"1"}, {"key": "schön", "value": b"1"}]
    ]


def test_staged_writers_take_tables(store, store_path, topic):
    table = pa.Table.from_batches([*table_of(ROWS).to_batches()] * 2)
    writer = eoslog.StagedWriter(store_path, "app", "run", "0", partitions={"t": 1})
    writer.append(topic, None, table)
    writer.append(topic, 0, pa.table({"value": pa.array([], pa.binary())}))
    with pytest.raises(TypeError, match="'other'"):
        writer.append(topic, 0, pa.table({"other": [b"a"]}))
    store.commit_staged("app", 0, [writer.close()])
    assert rows_of(store) == ROWS * 2


def test_a_staged_writer_is_over_after_a_part_of_a_stream(store, store_path, topic):
    writer = eoslog.StagedWriter(store_path, "app", "run", "0", partitions={"t": 1})
    with pytest.raises(ValueError, match="offsets never fall"):
        writer.append(topic, 0, stream_of([broken_batch()]))
    with pytest.raises(ArrowStreamError):
        writer.append(topic, 0, failing(1, OSError("gone"), []))
    with pytest.raises(eoslog.errors.LogClosedError, match="staged writer failed"):
        writer.close()
    writer.abandon()


def test_a_slice_of_structs_is_a_slice_of_its_columns(store, topic):
    keys = pa.array([b"no", b"no", b"k0", None, b"no"]).slice(1)
    values = pa.array(["no", "a", None, "no"], pa.string_view())
    rows = pa.StructArray.from_arrays([values, keys], ["value", "key"]).slice(1, 2)
    producer = store.producer()
    for given in (rows, pa.chunked_array([rows, rows.slice(0, 0)]), Interface(rows)):
        assert producer.append(topic, 0, given).record_count == 2
    assert [row[:2] for row in rows_of(store)] == [(b"a", b"k0"), (None, None)] * 3


class Interface:
    """What another library offers: the interface and no more."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._array.__arrow_c_array__(requested_schema)


def test_chunks_of_other_lengths_are_one_column_beside_others(store, topic):
    values = pa.chunked_array([[b"a"], [], [b"b", None]], pa.binary())
    keys = pa.chunked_array([["k", "l"], ["m"]])
    times = pa.chunked_array([[1], [2, 3]])
    with store.producer() as producer:
        producer.append(topic, 0, values, keys=keys, timestamps=times)
        producer.append(topic, 0, None, keys=keys)
        with pytest.raises(ValueError, match="keys must have 3 items, one for each value, got 2"):
            producer.append(topic, 0, values, keys=keys.slice(1))
        with pytest.raises(ArrowStreamError, match="keys: the stream failed after 1 records: "):
            producer.append(topic, 0, values, keys=failing(1, OSError("gone"), []))
    assert rows_of(store)[:3] == [(b"a", b"k", 1), (b"b", b"l", 2), (None, b"m", 3)]
    assert [row[:2] for row in rows_of(store)[3:]] == [(None, b"k"), (None, b"l"), (None, b"m")]
