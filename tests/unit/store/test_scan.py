"""Store.scan: what it reads and when, where it ends, in which libraries it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    EoslogError,
    LogClosedError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from eoslog.storage.unified_log import UnifiedLog

pa = pytest.importorskip("pyarrow")
from eoslog.columns import arrow  # noqa: E402 -- needs pyarrow.

NAMES = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


@pytest.fixture
def filled(store: eoslog.Store) -> eoslog.Store:
    """Two partitions of ten records, in batches of five."""
    store.create_topic("t", 2)
    with store.producer() as producer:
        for partition in (0, 1):
            for first in (0, 5):
                numbers = range(first, first + 5)
                values = [b"%d-%d" % (partition, number) for number in numbers]
                times = [1000 * partition + number for number in numbers]
                producer.append("t", partition, values, keys=values, timestamps=times)
    return store


def values(scan: eoslog.Scan) -> list[bytes | None]:
    return [one for batch in scan for one in batch.column("value").to_pylist()]


def of(partition: int, first: int, upper_bound: int) -> list[bytes]:
    return [b"%d-%d" % (partition, number) for number in range(first, upper_bound)]


def test_a_scan_has_what_poll_arrow_has(filled):
    scan = filled.scan("t")
    assert scan.schema == arrow.SCHEMA
    table = pa.table(scan)
    table.validate(full=True)
    consumer = filled.consumer()
    consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
    polled = pa.Table.from_batches([consumer.poll_arrow(timeout=0) for _ in (0, 1)])
    assert table == polled
    assert repr(scan) == f"<eoslog.Scan of 't', partitions: 2, {', '.join(NAMES)}>"


def test_only_the_columns_that_are_asked_for_are_made(filled, monkeypatch):
    asked: list[int] = []
    original = UnifiedLog.fetch_columns

    def fetch_columns(self: UnifiedLog, *arguments: Any, **named: Any) -> Any:
        found = original(self, *arguments, **named)
        if found is not None:
            made = (found.offsets, found.timestamps, found.key_data, found.value_data)
            asked.append(sum(one is not None for one in made))
        return found

    monkeypatch.setattr(UnifiedLog, "fetch_columns", fetch_columns)
    for names, count in (
        (["value"], 1),
        (["value", "offset"], 2),
        (["topic", "partition"], 0),
        (["headers"], 0),
        (["key", "timestamp", "topic"], 2),
        (NAMES[::-1], 4),
    ):
        asked.clear()
        scan = filled.scan("t", columns=names)
        table = pa.table(scan)
        assert table.column_names == names
        assert set(asked) == {count}
        assert table == pa.table(filled.scan("t")).select(names)


def test_nothing_is_read_before_it_is_asked_for(filled, monkeypatch):
    reads: list[int] = []
    original = UnifiedLog.fetch_columns

    def fetch_columns(self: UnifiedLog, offset: int, *arguments: Any, **named: Any) -> Any:
        reads.append(offset)
        return original(self, offset, *arguments, **named)

    def no_time(*arguments: Any) -> None:
        raise AssertionError("the time index was read")

    monkeypatch.setattr(UnifiedLog, "fetch_columns", fetch_columns)
    scan = filled.scan("t", max_bytes=1)
    iterator = iter(scan)
    stream = pa.RecordBatchReader.from_stream(scan)
    assert stream.schema == scan.schema
    with monkeypatch.context() as patch:
        patch.setattr(UnifiedLog, "offset_for_timestamp", no_time)
        iter(filled.scan("t", time=(5, None)))
    assert reads == []
    next(iterator)
    assert reads == [0]
    next(iterator)
    assert reads == [0, 5]
    stream.read_next_batch()
    assert reads == [0, 5, 0]


def test_each_stream_begins_at_the_first_record(filled):
    scan = filled.scan("t", columns=["value"])
    expected = of(0, 0, 10) + of(1, 0, 10)
    assert values(scan) == values(scan) == expected
    assert pa.table(scan).column(0).to_pylist() == expected
    next(iter(scan))
    assert values(scan) == expected


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_scan_ends_where_the_log_ended(filled, level):
    scan = filled.scan("t", columns=["value"], isolation_level=level)
    with filled.producer() as producer:
        producer.append("t", 0, [b"later"])
    assert b"later" not in values(scan)
    assert b"later" in values(filled.scan("t", isolation_level=level))


def test_only_committed_records_are_read(filled):
    producer = filled.producer(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("t", 0, [b"aborted"])
    producer.abort_transaction()
    with producer.transaction():
        producer.append("t", 0, [b"committed"])
    producer.begin_transaction()
    producer.append("t", 0, [b"open"])
    scan = filled.scan("t", offsets={0: (None, None)}, columns=["value"])
    assert values(scan) == [*of(0, 0, 10), b"committed"]
    uncommitted = filled.scan(
        "t", offsets={0: (10, None)}, columns=["value"], isolation_level="read_uncommitted"
    )
    assert values(uncommitted) == [b"aborted", b"committed", b"open"]
    producer.commit_transaction()
    assert values(scan) == [*of(0, 0, 10), b"committed"]


def test_a_scan_cuts_no_transaction_in_two(store):
    """The first transaction is decided in one partition, and its other one has an open one before
    it: both are left out.
    """
    store.create_topic("t", 2)
    producers = [store.producer(transactional_id=name) for name in "ab"]
    for producer in producers:
        producer.init_transactions()
        producer.begin_transaction()
    producers[0].append("t", 0, [b"open"])
    producers[1].append("t", 0, [b"both"])
    producers[1].append("t", 1, [b"both"])
    producers[1].commit_transaction()
    assert values(store.scan("t")) == []
    producers[0].commit_transaction()
    assert values(store.scan("t")) == [b"open", b"both", b"both"]


# Offsets.


def test_offsets_choose_partitions_and_ranges(filled):
    for offsets, expected in (
        ({}, []),
        ({1: (None, None)}, of(1, 0, 10)),
        ({1: (3, 7), 0: (7, 8)}, of(0, 7, 8) + of(1, 3, 7)),
        ({TopicPartition("t", 0): (9, None)}, of(0, 9, 10)),
        ({0: [None, 1]}, of(0, 0, 1)),
        ({0: (10, None), 1: (4, 4)}, []),
    ):
        for max_bytes in (1, 1 << 20):
            scan = filled.scan("t", offsets=offsets, columns=["value"], max_bytes=max_bytes)
            assert values(scan) == expected
    cuts = filled.snapshot(["t"])
    assert values(filled.scan("t", offsets={where: (9, end) for where, end in cuts.items()})) == [
        *of(0, 9, 10),
        *of(1, 9, 10),
    ]


@pytest.mark.parametrize(
    ("offsets", "error", "text"),
    [
        ({0: (0, 11)}, OffsetOutOfRangeError, "0 to 11 were asked for, and those from 0 to 10"),
        ({0: (-1, 5)}, OffsetOutOfRangeError, "-1 to 5 were asked for"),
        ({0: (11, None)}, OffsetOutOfRangeError, "11 to 11 were asked for"),
        ({0: (5, 4)}, ValueError, "must rise, got 5 to 4"),
        ({2: (0, 1)}, UnknownTopicOrPartitionError, "0 to 1, not 2"),
        ({TopicPartition("u", 0): (0, 1)}, ValueError, "must be of partitions of 't'"),
        ({0: (0, 1), TopicPartition("t", 0): (0, 1)}, ValueError, "each partition once"),
        ({True: (0, 1)}, TypeError, "a partition must be an int, got bool"),
        ({0: 5}, TypeError, r"must be a pair \(first, upper_bound\), got int"),
        ({0: (1, 2, 3)}, ValueError, "got 3 items"),
        ({0: (0, 1.5)}, TypeError, "must be an int, got float"),
        ((0, 5), TypeError, "offsets must be a mapping of partitions"),
    ],
)
def test_wrong_offsets_are_named(filled, offsets, error, text):
    with pytest.raises(error, match=text):
        filled.scan("t", offsets=offsets)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"columns": "value"}, TypeError, "columns must be a list of names, got str"),
        ({"columns": 5}, TypeError, "columns must be a list of names, got int"),
        ({"columns": [5]}, TypeError, "columns must be names, got int"),
        ({"columns": ["val"]}, ValueError, "key, value, headers; got 'val'"),
        ({"columns": []}, ValueError, "one or more, each once"),
        ({"columns": ["key", "key"]}, ValueError, "one or more, each once"),
        ({"isolation_level": "none"}, ValueError, "isolation"),
        ({"max_bytes": 0}, ValueError, "max_bytes must be 1 or more"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes must be an int"),
        ({"time": 5}, TypeError, r"time must be a pair \(from, to\), got int"),
        ({"time": (5, 4)}, ValueError, "got 5 ms to 4 ms"),
        ({"time": (-1, 4)}, ValueError, "from 1970 on"),
        ({"time": (None, 2**63)}, ValueError, "within 64 bits"),
        ({"time": ("2020", None)}, TypeError, "a time in milliseconds must be an int, got str"),
        ({"time": (datetime(2020, 1, 1), None)}, ValueError, "must have a time zone"),
    ],
)
def test_wrong_arguments_are_named(filled, arguments, error, text):
    with pytest.raises(error, match=text):
        filled.scan("t", **arguments)


def test_a_topic_that_is_not_there_is_named(filled):
    for name in ("unknown", "__consumer_offsets"):
        with pytest.raises(UnknownTopicOrPartitionError):
            filled.scan(name)
    with pytest.raises(TypeError):
        filled.scan(5)


# Times.

OUT_OF_ORDER = [50, 10, 40, 20, 90, 30, -1, 20, 60, 20]


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_times_are_filtered_exactly_also_out_of_order(store, batch):
    store.create_topic("t")
    with store.producer() as producer:
        for first in range(0, 10, batch):
            times = OUT_OF_ORDER[first : first + batch]
            cells = [b"%d" % number for number in range(first, first + len(times))]
            producer.append("t", 0, cells, timestamps=times)
    for low in (None, 0, 10, 11, 20, 21, 50, 90, 91):
        for high in (None, 0, 10, 20, 21, 30, 90, 91, 1000):
            if low is not None and high is not None and low > high:
                continue
            expected = [
                b"%d" % number
                for number, moment in enumerate(OUT_OF_ORDER)
                if (low is None or moment >= low) and (high is None or moment < high)
            ]
            for columns in (["value"], ["timestamp", "value"]):
                assert values(store.scan("t", time=(low, high), columns=columns)) == expected
            late = store.scan("t", time=(low, high), offsets={0: (4, 9)})
            assert values(late) == [one for one in expected if 4 <= int(one) < 9]


def test_times_are_datetimes_too(filled):
    moment = datetime.fromtimestamp(0, UTC)
    first = moment + timedelta(microseconds=1002_001)  # After 1002 ms, before 1003 ms.
    upper_bound = (moment + timedelta(milliseconds=1005)).astimezone(timezone(timedelta(hours=3)))
    assert values(filled.scan("t", time=(first, upper_bound))) == of(1, 3, 5)


# Lives of others.


def test_batches_outlive_the_store_and_retention(open_store):
    store = open_store()
    store.create_topic("t")
    with store.producer() as producer:
        producer.append("t", 0, [b"kept"] * 100)
    scan = store.scan("t")
    (batch,) = scan
    store.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 't' was deleted"):
        list(scan)
    store.close()
    assert batch.column("value").to_pylist() == [b"kept"] * 100
    with pytest.raises(LogClosedError):
        list(scan)
    with pytest.raises(LogClosedError):
        store.scan("t")


def test_what_retention_deletes_in_the_middle_is_an_error(filled):
    scan = filled.scan("t", columns=["value"], max_bytes=1)
    timed = filled.scan("t", columns=["value"], time=(8, None))
    batches = iter(scan)
    next(batches)
    filled.delete_records({TopicPartition("t", 0): 8})
    with pytest.raises(OffsetOutOfRangeError, match="offsets 5 to 10 were to be read, and the log"):
        next(batches)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 10 were to be read"):
        list(timed)
    assert values(filled.scan("t"))[:2] == of(0, 8, 10)
    with pytest.raises(OffsetOutOfRangeError):
        filled.scan("t", offsets={0: (7, None)})
    with pytest.raises(pa.ArrowException, match="OffsetOutOfRangeError: t-0: the offsets 0 to 10"):
        reading_of(scan).read_all()


class Passed:
    """As another library sees it: what is not an Arrow stream is hidden."""

    def __init__(self, scan: eoslog.Scan) -> None:
        self._scan = scan

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._scan.__arrow_c_stream__(requested_schema)


def reading_of(scan: eoslog.Scan) -> Any:
    return pa.RecordBatchReader.from_stream(Passed(scan))


def test_read_only_stores_are_scanned(filled, store_path):
    filled.close()
    with eoslog.open(store_path, read_only=True) as reader:
        assert values(reader.scan("t", columns=["value"])) == of(0, 0, 10) + of(1, 0, 10)
        assert values(reader.scan("t", time=(1003, 1004))) == of(1, 3, 4)


def test_a_loop_that_is_interrupted_leaves_the_store_as_it_is(filled):
    def read() -> Iterator[None]:
        for _ in filled.scan("t", max_bytes=1):
            yield
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(read())
    assert len(values(filled.scan("t"))) == 20


# In which libraries it works.


def test_polars_pandas_and_duckdb_read_a_scan(filled):
    polars = pytest.importorskip("polars")
    pandas = pytest.importorskip("pandas")
    duckdb = pytest.importorskip("duckdb")
    scan = filled.scan("t", columns=["partition", "offset", "value"])
    expected = of(0, 0, 10) + of(1, 0, 10)
    assert polars.DataFrame(scan)["value"].to_list() == expected
    assert list(pandas.DataFrame.from_arrow(scan)["value"]) == expected
    connection = duckdb.connect()
    query = "select partition, count(*), max(value) from scan group by all order by all"
    assert connection.sql(query).fetchall() == [(0, 10, b"0-9"), (1, 10, b"1-9")]
    assert connection.from_arrow(scan).aggregate("sum(octet_length(value))").fetchall() == [(60,)]
    # An error's name comes through.
    filled.delete_records({TopicPartition("t", 0): 8})
    with pytest.raises(Exception, match="OffsetOutOfRangeError"):
        connection.sql(query).fetchall()
    with pytest.raises(Exception, match="OffsetOutOfRangeError"):
        polars.DataFrame(scan)


def test_a_scan_is_appended_as_it_comes(filled):
    filled.create_topic("copy", 3)
    scan = filled.scan("t", columns=["key", "value", "timestamp", "headers"], max_bytes=1)
    with filled.producer() as producer:
        placed = producer.append("copy", values=scan)
    assert sum(one.record_count for one in placed.values()) == 20
    copied = [row for batch in filled.scan("copy") for row in batch.to_pylist()]
    rows = [row for batch in filled.scan("t") for row in batch.to_pylist()]
    names = ("key", "value", "timestamp", "headers")
    shown = [sorted(repr([row[name] for name in names]) for row in some) for some in (rows, copied)]
    assert shown[0] == shown[1]


def test_a_scan_without_pyarrow_says_what_is_missing(filled, monkeypatch):
    monkeypatch.delitem(sys.modules, "eoslog.columns.arrow")
    monkeypatch.delattr(eoslog.columns, "arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EoslogError, match=r"scan need pyarrow: run `pip install 'eoslog\[arrow\]'"):
        filled.scan("t")


def test_the_class_says_so_in_a_type(store_path: Path):
    assert eoslog.Scan.__module__ == "eoslog.store.scan"
