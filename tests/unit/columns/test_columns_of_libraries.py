"""Columns of all kinds of libraries: an append takes them for what they are, or refuses them by
name; never another library's error, and never other records than those given.
"""

from __future__ import annotations

import array
import collections
import datetime
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from eoslog import StagedWriter, TopicPartition
from eoslog.errors import EoslogError, InvalidTimestampError

MOMENTS = [1_700_000_000_000, 1_700_000_000_001]
DAYS = [1_699_920_000_000, 1_700_006_400_000]
ZONED = pd.Series(pd.to_datetime(MOMENTS, unit="ms", utc=True))
BYTES = [b"a", b"bb"]
HOLED = [b"a", None]
HEADERS = [[("a", b"1")], []]
ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def object_array(*cells: Any) -> np.ndarray:
    made = np.empty(len(cells), object)
    for index, cell in enumerate(cells):
        made[index] = cell
    return made


def append_to_a_partition(store, tmp_path, **columns) -> list:
    store.producer().append("t", 0, **columns)
    return records(store)


def append_by_key(store, tmp_path, **columns) -> list:
    store.producer().append("t", **columns)
    return records(store)


def append_staged(store, tmp_path, **columns) -> list:
    with StagedWriter(store.path, "app", "run", "attempt", partitions={"t": 1}) as writer:
        writer.append("t", None, **columns)
        store.commit_staged("app", 0, [writer.close()], run_id="run")
    return records(store)


APPENDS = [append_to_a_partition, append_by_key, append_staged]


def records(store) -> list:
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", 0)])
    return consumer.poll(timeout=0)


TIMES: dict[str, Callable[[], Any]] = {
    "list": lambda: MOMENTS,
    "range": lambda: range(MOMENTS[0], MOMENTS[0] + 2),
    "deque": lambda: collections.deque(MOMENTS),
    "array.array": lambda: array.array("q", MOMENTS),
    "memoryview": lambda: memoryview(np.array(MOMENTS)),
    "list of numpy": lambda: [np.datetime64(one, "ms") for one in MOMENTS],
    "numpy": lambda: np.array(MOMENTS),
    "numpy, other byte order": lambda: np.array(MOMENTS, ">i8"),
    "numpy unsigned": lambda: np.array(MOMENTS, np.uint64),
    "numpy times": lambda: np.array(MOMENTS, "M8[ms]").astype("M8[ns]"),
    "numpy without a mask": lambda: np.ma.array(MOMENTS),
    "numpy masked nothing": lambda: np.ma.array(MOMENTS, mask=[False, False]),
    "pandas": lambda: pd.Series(MOMENTS, index=[7, 3]),
    "pandas nullable": lambda: pd.Series(MOMENTS, dtype="Int64"),
    "pandas of Arrow": lambda: pd.Series(MOMENTS, dtype="int64[pyarrow]"),
    "pandas category": lambda: pd.Series(MOMENTS, dtype="category"),
    "pandas sparse": lambda: pd.Series(pd.arrays.SparseArray(MOMENTS)),
    "pandas Index": lambda: pd.Index(MOMENTS),
    "pandas array": lambda: pd.array(MOMENTS),
    "pandas times": lambda: pd.Series(pd.to_datetime(MOMENTS, unit="ms")),
    "pandas times, zone": lambda: ZONED,
    "pandas times, other zone": lambda: ZONED.dt.tz_convert("Europe/Berlin"),
    "pandas DatetimeIndex, zone": lambda: pd.DatetimeIndex(ZONED),
    "pandas times of Arrow": lambda: pd.Series(
        pa.array(MOMENTS, pa.timestamp("ms", "UTC")),
        dtype=pd.ArrowDtype(pa.timestamp("ms", "UTC")),
    ),
    "Arrow": lambda: pa.array(MOMENTS),
    "Arrow chunks": lambda: pa.chunked_array([MOMENTS[:1], MOMENTS[1:]]),
    "Arrow dictionary": lambda: pa.array(MOMENTS).dictionary_encode(),
    "Arrow times": lambda: pa.array(MOMENTS, pa.timestamp("ms", "Asia/Tokyo")),
}
NO_TIMES: dict[str, Callable[[], Any]] = {
    "numpy floats": lambda: np.array(MOMENTS, float),
    "numpy objects": lambda: np.array([1, None], object),
    "numpy texts": lambda: np.array(["1", "2"]),
    "numpy bytes": lambda: np.array([b"1", b"2"]),
    "numpy durations": lambda: np.array(MOMENTS, "m8[ms]"),
    "numpy structures": lambda: np.array([(1, 2), (3, 4)], "i8,i8"),
    "numpy of two dimensions": lambda: np.array([MOMENTS]),
    "numpy of none": lambda: np.array(5),
    "numpy masked": lambda: np.ma.array(MOMENTS, mask=[False, True]),
    "numpy masked times": lambda: np.ma.array(np.array(MOMENTS, "M8[ms]"), mask=[False, True]),
    "numpy no time": lambda: np.array(["NaT", "2023-01-01"], "M8[ms]"),
    "numpy times before 1970": lambda: np.array([0, -1], "M8[us]"),
    "pandas times before 1970": lambda: pd.Series(pd.to_datetime([-1, 5], unit="ns")),
    "Arrow times before 1970": lambda: pa.array([-1000, 5], pa.timestamp("us", "UTC")),
    "numpy times beyond": lambda: np.array([2**62, 0], "M8[s]"),
    "pandas missing": lambda: pd.Series([1, None], dtype="Int64"),
    "pandas nan": lambda: pd.Series([1, None]),
    "pandas missing of Arrow": lambda: pd.Series([1, None], dtype="int64[pyarrow]"),
    "pandas missing category": lambda: pd.Series([1, None], dtype="category"),
    "pandas no time": lambda: pd.Series(pd.to_datetime([MOMENTS[0], None], unit="ms")),
    "pandas texts": lambda: pd.Series(["1", "2"]),
    "pandas MultiIndex": lambda: pd.MultiIndex.from_tuples([(1, 2), (3, 4)]),
    "pandas DataFrame": lambda: pd.DataFrame({"a": MOMENTS}),
    "pandas periods": lambda: pd.Series(pd.period_range("2023-01", periods=2, freq="M")),
    "pandas intervals": lambda: pd.Series(pd.interval_range(0, 2)),
    "pandas durations": lambda: pd.Series(pd.to_timedelta(MOMENTS, unit="ms")),
    "Arrow nulls": lambda: pa.array([1, None]),
    "Arrow nulls in chunks": lambda: pa.chunked_array([[1], [None]]),
    "Arrow lists": lambda: pa.array([[1], [2]]),
    "Arrow times beyond": lambda: pa.array([2**62, 0], pa.timestamp("s")),
    "Arrow table": lambda: pa.table({"a": MOMENTS}),
    "generator": lambda: (one for one in MOMENTS),
    "set": lambda: set(MOMENTS),
    "dict": lambda: dict.fromkeys(MOMENTS),
    "text": lambda: "ab",
    "bytes": lambda: b"ab",
    "bytearray": lambda: bytearray(b"ab"),
    "list of times": lambda: [datetime.datetime(2023, 1, 1)] * 2,
    "list with None": lambda: [1, None],
    "list of lists": lambda: [[1], [2, 3]],
    "list beyond 64 bits": lambda: [2**70, 1],
    "one number": lambda: 5,
    "three": lambda: [1, 2, 3],
}


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("kind", TIMES)
def test_timestamps_that_are_taken(store, tmp_path, append, kind):
    store.create_topic("t")
    found = append(store, tmp_path, values=BYTES, timestamps=TIMES[kind]())
    assert [record.timestamp_ms for record in found] == MOMENTS


@pytest.mark.parametrize("how", [*APPENDS, "send"])
def test_minus_one_is_no_timestamp(store, tmp_path, how):
    store.create_topic("t", config={"message.timestamp.before.max.ms": 3_600_000})
    moments = [-1, time.time_ns() // 1_000_000, -1]
    if callable(how):
        how(store, tmp_path, values=[b"v"] * 3, timestamps=moments)
    else:
        with store.producer() as producer:
            for moment_ms in moments:
                producer.send("t", b"v", timestamp_ms=moment_ms)
    assert [record.timestamp_ms for record in records(store)] == moments


@pytest.mark.parametrize("append", APPENDS)
def test_an_old_time_beside_none_is_still_refused(store, tmp_path, append):
    store.create_topic("t", config={"message.timestamp.before.max.ms": 3_600_000})
    with pytest.raises(InvalidTimestampError):
        append(store, tmp_path, values=[b"v"] * 2, timestamps=[-1, 5])


def test_days_are_timestamps_too(store, tmp_path):
    store.create_topic("t")
    dates = pa.array(DAYS, pa.date64()).cast(pa.date32())
    for days in (dates, dates.to_numpy(zero_copy_only=False)):
        store.producer().append("t", 0, BYTES, timestamps=days)
    assert [record.timestamp_ms for record in records(store)] == DAYS * 2


def check_refused(store, tmp_path, append, name: str, column: Any, **columns: Any) -> None:
    store.create_topic("t")
    columns = {"values": BYTES} | columns | {name: column}
    with pytest.raises((EoslogError, TypeError, ValueError), match=f"^{name}") as raised:
        append(store, tmp_path, **columns)
    assert isinstance(raised.value, (EoslogError, TypeError, ValueError))
    assert records(store) == []


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("kind", NO_TIMES)
def test_timestamps_that_are_refused(store, tmp_path, append, kind):
    check_refused(store, tmp_path, append, "timestamps", NO_TIMES[kind]())


CELLS: dict[str, tuple[Callable[[], Any], list[bytes | None]]] = {
    "tuple": (lambda: tuple(HOLED), HOLED),
    "numpy": (lambda: np.array(BYTES), BYTES),
    "numpy objects": (lambda: np.array(HOLED, object), HOLED),
    "numpy masked": (lambda: np.ma.array(np.array(BYTES), mask=[False, True]), HOLED),
    "numpy masked objects": (
        lambda: np.ma.array(np.array(BYTES, object), mask=[False, True]),
        HOLED,
    ),
    "numpy rows": (lambda: np.array([[97, 98], [99, 100]], np.uint8, order="F"), [b"ab", b"cd"]),
    "numpy rows masked nothing": (
        lambda: np.ma.array(np.array([[97], [98]], np.uint8)),
        [b"a", b"b"],
    ),
    "pandas": (lambda: pd.Series(BYTES, index=[7, 3]), BYTES),
    "pandas None": (lambda: pd.Series(HOLED), HOLED),
    "pandas nan": (lambda: pd.Series([b"a", float("nan")]), HOLED),
    "pandas NA": (lambda: pd.Series([b"a", pd.NA]), HOLED),
    "pandas category": (lambda: pd.Series(HOLED, dtype="category"), HOLED),
    "pandas of Arrow": (lambda: pd.Series(HOLED, dtype=pd.ArrowDtype(pa.binary())), HOLED),
    "pandas Index": (lambda: pd.Index(BYTES), BYTES),
    "pandas texts": (lambda: pd.Series(["a", "ä", ""]), [b"a", "ä".encode(), b""]),
    "pandas objects": (lambda: pd.Series(["a", None, b"c"], dtype=object), [b"a", None, b"c"]),
    "pandas nullable texts": (lambda: pd.Series(["a", None], dtype="string"), HOLED),
    "pandas texts of Arrow": (
        lambda: pd.Series(["a", None], dtype=pd.ArrowDtype(pa.string())),
        HOLED,
    ),
    "pandas views of Arrow": (
        lambda: pd.Series(["a", None], dtype=pd.ArrowDtype(pa.string_view())),
        HOLED,
    ),
    "pandas category of texts": (lambda: pd.Series(["a", None], dtype="category"), HOLED),
    "polars texts": (lambda: pl.Series(["a", None]), HOLED),
    "Arrow": (lambda: pa.array(HOLED), HOLED),
    "Arrow texts": (lambda: pa.array(["a", None]), HOLED),
    "Arrow large": (lambda: pa.array(HOLED, pa.large_binary()), HOLED),
    "Arrow fixed": (lambda: pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
    "Arrow chunks": (lambda: pa.chunked_array([[b"a"], [None]]), HOLED),
    "Arrow slice": (lambda: pa.array([b"x", *HOLED]).slice(1), HOLED),
    "Arrow nulls": (lambda: pa.nulls(2), [None, None]),
    "Arrow dictionary": (lambda: pa.array(HOLED).dictionary_encode(), HOLED),
    "Arrow views": (lambda: pa.array(HOLED, pa.binary_view()), HOLED),
}
NO_CELLS: dict[str, Callable[[], Any]] = {
    "list of texts": lambda: ["a", "b"],
    "list of bytearrays": lambda: [bytearray(b"a")] * 2,
    "list with nan": lambda: [b"a", float("nan")],
    "numpy texts": lambda: np.array(["a", "b"]),
    "numpy numbers": lambda: np.array([1, 2]),
    "numpy structures": lambda: np.array([(1, 2), (3, 4)], "i8,i8"),
    "numpy void": lambda: np.array([b"ab", b"cd"], "V2"),
    "numpy bytes in a row": lambda: np.zeros(2, np.uint8),
    "numpy of two dimensions": lambda: np.array([BYTES]),
    "numpy of none": lambda: np.array(b"a"),
    "numpy rows masked": lambda: np.ma.array(
        np.zeros((2, 2), np.uint8), mask=[[False, True], [False, False]]
    ),
    "numpy strings": lambda: np.array(["a", "b"], np.dtypes.StringDType()),
    "pandas half a character": lambda: pd.Series(["a", "\ud800"], dtype=object),
    "pandas numbers": lambda: pd.Series([1, 2]),
    "pandas texts and numbers": lambda: pd.Series(["a", 2], dtype=object),
    "pandas DataFrame": lambda: pd.DataFrame({"a": BYTES}),
    "Arrow dictionary of numbers": lambda: pa.array([1, 1]).dictionary_encode(),
    "Arrow numbers": lambda: pa.array([1, 2]),
    "Arrow lists": lambda: pa.array([[b"a"], [b"b"]]),
    "Arrow table": lambda: pa.table({"a": BYTES}),
    "memoryview": lambda: memoryview(b"ab"),
    "bytearray": lambda: bytearray(b"ab"),
    "bytes": lambda: b"ab",
    "text": lambda: "ab",
    "array.array": lambda: array.array("B", b"ab"),
    "range": lambda: range(2),
    "generator": lambda: (one for one in BYTES),
    "dict": lambda: {b"a": b"b", b"c": b"d"},
    "set": lambda: set(BYTES),
    "number": lambda: 5,
}


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("kind", CELLS)
def test_values_and_keys_that_are_taken(store, tmp_path, append, kind):
    store.create_topic("t")
    make, expected = CELLS[kind]
    found = append(store, tmp_path, values=make(), keys=make())
    assert [record.value for record in found] == expected
    assert [record.key for record in found] == expected


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("kind", NO_CELLS)
def test_values_and_keys_that_are_refused(store, tmp_path, append, kind):
    name = "keys" if append is append_by_key else "values"
    check_refused(store, tmp_path, append, name, NO_CELLS[kind]())


PAIRS: dict[str, Callable[[], Any]] = {
    "list": lambda: HEADERS,
    "with None": lambda: [HEADERS[0], None],
    "tuples": lambda: tuple(map(tuple, HEADERS)),
    "dicts": lambda: [{"a": b"1"}, {}],
    "generator": lambda: (iter(one) for one in HEADERS),
    "Arrow": lambda: pa.array([[{"key": "a", "value": b"1"}], None], ARROW_HEADERS),
    "Arrow map": lambda: pa.array([HEADERS[0], None], pa.map_(pa.string(), pa.binary())),
    "numpy": lambda: object_array(HEADERS[0], []),
    "numpy of numpy": lambda: object_array(object_array(("a", b"1")), object_array()),
    "numpy masked": lambda: np.ma.array(object_array(*HEADERS[:1] * 2), mask=[False, True]),
    "pandas": lambda: pd.Series(HEADERS, index=[7, 3]),
    "pandas nan": lambda: pd.Series([HEADERS[0], float("nan")]),
    "pandas NA": lambda: pd.Series([HEADERS[0], pd.NA]),
    "pandas of Arrow": lambda: pd.Series(
        pa.array([[{"key": "a", "value": b"1"}], None], ARROW_HEADERS),
        dtype=pd.ArrowDtype(ARROW_HEADERS),
    ),
}
NO_PAIRS: dict[str, Callable[[], Any]] = {
    "one mapping": lambda: {"a": b"b", "c": b"d"},
    "text": lambda: "ab",
    "bytes": lambda: b"ab",
    "memoryview": lambda: memoryview(b"ab"),
    "number": lambda: 5,
    "False": lambda: False,
    "cells of numbers": lambda: [5, 5],
    "cells of texts": lambda: ["ab", "cd"],
    "cells of numpy numbers": lambda: [np.array([1, 2]), np.array([3])],
    "nan": lambda: [float("nan"), None],
    "numpy numbers": lambda: np.array([1, 2]),
    "numpy of three dimensions": lambda: np.zeros((2, 2, 2)),
    "numpy of none": lambda: np.array(5),
    "pandas numbers": lambda: pd.Series([1, 2]),
    "Arrow numbers": lambda: pa.array([1, 2]),
    "other dicts": lambda: [[{"k": "a", "value": b"1"}], []],
    "name of bytes": lambda: [[(b"a", b"1")], []],
    "value of text": lambda: [[("a", "1")], []],
    "value of a memoryview": lambda: [[("a", memoryview(b"1"))], []],
    "half a surrogate pair": lambda: [[("\ud800", b"1")], []],
    "triples": lambda: [[("a", b"b", b"c")], []],
    "one too many": lambda: [[], [], []],
}


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("kind", PAIRS)
def test_headers_that_are_taken(store, tmp_path, append, kind):
    store.create_topic("t")
    found = append(store, tmp_path, values=BYTES, headers=PAIRS[kind]())
    assert [list(record.headers) for record in found] == HEADERS


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize("kind", NO_PAIRS)
def test_headers_that_are_refused(store, tmp_path, append, kind):
    check_refused(store, tmp_path, append, "headers", NO_PAIRS[kind]())


@pytest.mark.parametrize("append", APPENDS)
def test_a_series_of_polars(store, tmp_path, append):
    store.create_topic("t")
    columns = {"values": pl.Series(HOLED), "timestamps": pl.Series(MOMENTS)}
    headers = pl.Series([[{"key": "a", "value": b"1"}], []])
    found = append(store, tmp_path, **columns, headers=headers)
    assert [record.value for record in found] == HOLED
    assert [record.timestamp_ms for record in found] == MOMENTS
    with pytest.raises(ValueError, match="nulls"):
        store.producer().append("t", 0, BYTES, timestamps=pl.Series([1, None]))


def test_an_array_that_another_consumer_took_is_refused(open_store):
    class Cached:
        """Gives out the same capsules each time."""

        def __init__(self, array):
            self._capsules = array.__arrow_c_array__()

        def __arrow_c_array__(self, requested_schema=None):
            return self._capsules

        def __len__(self):
            return 2

    store = open_store()
    store.create_topic("t")
    taken = Cached(pa.array([b"one", b"two"]))
    pa.array(taken)
    with pytest.raises(ValueError, match="that no other consumer has released"):
        store.producer().append("t", 0, taken)
    assert store.partition("t", 0).log_end_offset == 0
