"""Arrow data of every layout in by `append`, and out by `scan`: the same records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stores import QUIET

import eoslog

BYTES_TYPES = [
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.dictionary(index, pa.binary()) for index in (pa.int8(), pa.uint16(), pa.int64())),
    pa.dictionary(pa.int32(), pa.large_string()),
    pa.dictionary(pa.uint8(), pa.string_view()),
]
TIME_TYPES = [
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "Europe/Athens") for unit in ("ms", "us")),
    *(pa.int64(), pa.uint64(), pa.int32(), pa.date32(), pa.date64()),
]
DAY_MS = 86_400_000
texts = st.text(max_size=16)


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def with_null_in_dictionary(array: pa.DictionaryArray, text: bool) -> pa.DictionaryArray:
    """Cells that were null point to a null value of the dictionary."""
    values = [*array.dictionary.to_pylist(), None, "spare" if text else b"spare"]
    indices = [len(array.dictionary) if one is None else one for one in array.indices.to_pylist()]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, array.indices.type), pa.array(values, array.dictionary.type)
    )


def array_of(cells: list[Any], kind: pa.DataType) -> pa.Array:
    """pyarrow makes no dictionary of views: its values are cast afterwards."""
    if not pa.types.is_dictionary(kind):
        return pa.array(cells, kind)
    plain = pa.string() if is_text(kind) else pa.binary()
    made = pa.array(cells, plain).dictionary_encode()
    values = pa.array(made.dictionary.to_pylist(), kind.value_type)
    return pa.DictionaryArray.from_arrays(made.indices.cast(kind.index_type), values)


@st.composite
def bytes_arrays(draw: Callable[..., Any], count: int, nullable: bool = True) -> pa.Array:
    kind = draw(st.sampled_from(BYTES_TYPES))
    cell = texts if is_text(kind) else st.binary(max_size=16)
    cells = draw(st.lists(st.none() | cell if nullable else cell, min_size=count, max_size=count))
    array = array_of(cells, kind)
    if pa.types.is_dictionary(kind) and None in cells and draw(st.booleans()):
        array = with_null_in_dictionary(array, is_text(kind))
    return array


@st.composite
def time_arrays(draw: Callable[..., Any], count: int) -> pa.Array:
    kind = draw(st.sampled_from(TIME_TYPES))
    top = {pa.int32(): 2**31 - 1, pa.date32(): 10_000, pa.date64(): 10_000}.get(kind, 10**15)
    numbers = draw(st.lists(st.integers(0, top), min_size=count, max_size=count))
    if kind == pa.date64():
        numbers = [one * DAY_MS for one in numbers]
    stored = {pa.date32(): pa.int32(), pa.int32(): pa.int32(), pa.uint64(): pa.uint64()}
    return pa.array(numbers, stored.get(kind, pa.int64())).view(kind)


def milliseconds(array: pa.Array) -> list[int]:
    kind = array.type
    if kind == pa.date32():
        return [one * DAY_MS for one in array.view(pa.int32()).to_pylist()]
    if pa.types.is_integer(kind):
        return array.to_pylist()
    numbers = array.view(pa.int64()).to_pylist()
    if kind == pa.date64() or kind.unit == "ms":
        return numbers
    if kind.unit == "s":
        return [one * 1000 for one in numbers]
    return [one // (1000 if kind.unit == "us" else 1_000_000) for one in numbers]


@st.composite
def header_arrays(draw: Callable[..., Any], count: int) -> pa.Array:
    key_kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
    value_kind = draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]))
    pair = st.tuples(texts, st.none() | st.binary(max_size=8))
    rows = draw(st.lists(st.none() | st.lists(pair, max_size=3), min_size=count, max_size=count))
    form = draw(st.sampled_from(["list", "large", "map"]))
    fields = [("key", key_kind), ("value", value_kind)]
    if form == "map":
        return pa.array(rows, pa.map_(key_kind, value_kind))
    if draw(st.booleans()):
        fields.reverse()
    struct = pa.struct(fields)
    as_dicts = [row and [{"key": key, "value": value} for key, value in row] for row in rows]
    return pa.array(as_dicts, pa.list_(struct) if form == "list" else pa.large_list(struct))


def padded(array: pa.Array, before: int) -> pa.Array:
    """The same cells behind some others: an array with an offset."""
    return array if not before or not len(array) else longer(array, before).slice(before)


def longer(array: pa.Array, before: int) -> pa.Array:
    cells = [array[index % len(array)] for index in range(before)]
    if pa.types.is_dictionary(array.type):
        indices = pa.concat_arrays([array.indices.take(pa.array([0] * before)), array.indices])
        return pa.DictionaryArray.from_arrays(indices, array.dictionary)
    return pa.concat_arrays([pa.array([one.as_py() for one in cells], array.type), array])


class Foreign:
    """Arrow data of a library that offers the interface and no more."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


class ForeignArray:
    def __init__(self, data: Any) -> None:
        self._data = data

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_array__(requested_schema)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[eoslog.Store, Any]]:
    path = tmp_path_factory.mktemp("frames") / "store"
    limits = {"message.timestamp.after.max.ms": 2**62}
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("t", config=limits)
        store.create_topic("many", 3, config=limits)
        with store.producer() as producer:
            yield store, producer


def as_bytes(cells: list[Any]) -> list[bytes | None]:
    return [one.encode() if isinstance(one, str) else one for one in cells]


def read_back(store: eoslog.Store, topic: str, offsets: Any, names: list[str]) -> list[dict]:
    rows = []
    for batch in store.scan(topic, offsets=offsets, columns=names, max_bytes=2000):
        batch.validate(full=True)
        columns = batch.to_pydict() if "timestamp" not in names else {}
        if not columns:  # As numbers: Python has no times after the year 9999.
            times = batch.column("timestamp").cast(pa.int64())
            columns = batch.drop_columns(["timestamp"]).to_pydict() | {
                "timestamp": times.to_pylist()
            }
        rows += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return rows


@given(st.data())
def test_a_column_of_any_layout_is_appended_as_its_cells(log, data):
    store, producer = log
    chunks = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    array = data.draw(bytes_arrays(sum(chunks)))
    parts, at = [], 0
    for size in chunks:
        parts.append(padded(array.slice(at, size), data.draw(st.integers(0, 3))))
        at += size
    column = pa.chunked_array(parts, array.type)
    given = data.draw(st.sampled_from([column, Foreign(column)]))
    if len(chunks) == 1 and data.draw(st.booleans()):
        given = ForeignArray(parts[0])
    alone = data.draw(st.booleans())
    others = {} if alone else {"keys": given, "timestamps": list(range(sum(chunks)))}
    placed = producer.append("t", 0, given, **others)
    found = read_back(store, "t", {0: (placed.base_offset, None)}, ["key", "value"])
    cells = as_bytes(array.to_pylist())
    assert [row["value"] for row in found] == cells
    assert placed.record_count == len(cells)
    if not alone:
        assert [row["key"] for row in found] == cells


@given(st.data())
def test_a_table_of_any_layout_is_appended_as_its_rows(log, data):
    store, producer = log
    chunks = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    count = sum(chunks)
    columns = {
        "value": data.draw(bytes_arrays(count)),
        "key": data.draw(bytes_arrays(count)),
        "timestamp": data.draw(time_arrays(count)),
        "headers": data.draw(header_arrays(count)),
    }
    names = data.draw(st.permutations(list(columns)))
    names = [name for name in names if name == "value" or data.draw(st.integers(0, 4))]
    batches, at = [], 0
    for size in chunks:
        # An offset of the batch, and others of its columns.
        pieces = [
            padded(columns[name].slice(at, size), data.draw(st.integers(0, 2))) for name in names
        ]
        batch = pa.RecordBatch.from_arrays(pieces, names=names)
        if size and data.draw(st.booleans()):
            rows = pa.StructArray.from_arrays([longer(piece, 1) for piece in pieces], names)
            batch = pa.RecordBatch.from_struct_array(rows.slice(1))
        batches.append(batch)
        at += size
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    given = data.draw(st.sampled_from([Foreign(reader), reader]))
    if len(batches) == 1 and data.draw(st.booleans()):
        given = ForeignArray(batches[0])
    topic, partition = data.draw(st.sampled_from([("t", 0), ("many", None)]))
    if not count and partition is not None:
        with pytest.raises(ValueError, match="no records to append"):
            producer.append(topic, partition, given)
        return
    placed = producer.append(topic, partition, given)
    by_partition = {partition: placed} if partition is not None else placed
    assert sum(one.record_count for one in by_partition.values()) == count
    offsets = {number: (one.base_offset, None) for number, one in by_partition.items()}
    found = read_back(store, topic, offsets, ["value", "key", "timestamp", "headers"])
    rows = [{} for _ in range(count)]
    for name in names:
        cells = columns[name]
        listed = milliseconds(cells) if name == "timestamp" else cells.to_pylist()
        for row, cell in zip(rows, listed, strict=True):
            row[name] = cell
    expected = [plain(row, "timestamp" in names) for row in rows]
    shown = [shown_row(row, "timestamp" in names) for row in found]
    if partition is None:
        expected.sort(key=repr)
        shown.sort(key=repr)
    assert shown == expected


def plain(row: dict[str, Any], timed: bool) -> tuple[Any, ...]:
    headers = row.get("headers") or []
    pairs = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in headers]
    value, key = as_bytes([row["value"], row.get("key")])
    return value, key, row["timestamp"] if timed else None, pairs


def shown_row(row: dict[str, Any], timed: bool) -> tuple[Any, ...]:
    pairs = [(one["key"], one["value"]) for one in row["headers"] or []]
    return row["value"], row["key"], row["timestamp"] if timed else None, pairs
