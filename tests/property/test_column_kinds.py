"""The same cells in every kind of column: a list, numpy, Arrow in its layouts, sliced, nulls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_model import batch_codec as codec

from eoslog.bindings.column_set import open_columns
from eoslog.bindings.partitioner import partition_for_key
from eoslog.bindings.record_batch import BatchEncoder, decode_records

Cells = list[bytes | None]
cell_lists = st.lists(st.none() | st.binary(max_size=12), min_size=1, max_size=20)
text_lists = st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=20)
BYTES_TYPES = (pyarrow.binary(), pyarrow.large_binary())
TEXT_TYPES = (pyarrow.string(), pyarrow.large_string())


def sliced(array: pyarrow.Array, before: list, behind: list) -> pyarrow.Array:
    """The same cells in the middle of a longer array."""
    longer = pyarrow.concat_arrays(
        [pyarrow.array(before, array.type), array, pyarrow.array(behind, array.type)]
    )
    return longer.slice(len(before), len(array))


def kinds(cells: Cells) -> Iterator[tuple[str, object]]:
    """Every column that can hold these cells."""
    yield "tuple", tuple(cells)
    boxed = numpy.empty(len(cells), dtype=object)
    boxed[:] = cells
    yield "numpy O", boxed
    for kind in BYTES_TYPES:
        array = pyarrow.array(cells, kind)
        yield str(kind), array
        yield f"{kind}, sliced", sliced(array, [b"x", None, b"yy"], [None, b"z"])
        yield f"{kind}, chunked", pyarrow.chunked_array([array.slice(0, 1), array.slice(1)])
    if None not in cells:
        yield from full_kinds([cell for cell in cells if cell is not None])
    sizes = {len(cell) for cell in cells if cell is not None}
    if len(sizes) == 1 and sizes != {0}:
        kind = pyarrow.binary(sizes.pop())
        array = pyarrow.array(cells, kind)
        yield str(kind), array
        filler = bytes(kind.byte_width)
        yield f"{kind}, sliced", sliced(array, [filler, None, filler], [None])


def full_kinds(cells: list[bytes]) -> Iterator[tuple[str, object]]:
    """Columns that cannot hold a null."""
    if not any(cell.endswith(b"\x00") for cell in cells):
        width = max(1, *(len(cell) for cell in cells))
        yield "numpy S", numpy.array(cells, dtype=f"S{width}")
    if len({len(cell) for cell in cells}) == 1 and cells[0]:
        rows = numpy.frombuffer(b"".join(cells), numpy.uint8).reshape(len(cells), -1)
        yield "numpy uint8", rows
        yield "numpy uint8, every second column", numpy.repeat(rows, 2, axis=1)[:, ::2]
        yield "numpy uint8, upside down", rows[::-1][::-1]


def encoded(values: object, keys: object, **named: object) -> bytes:
    return BatchEncoder().encode_columns(values, keys, timestamp_ms=7, **named)


def expected_bytes(values: Cells, keys: Cells | None) -> bytes:
    keys = [None] * len(values) if keys is None else keys
    return codec.encode_batch(
        [codec.ModelRecord(i, 7, k, v) for i, (k, v) in enumerate(zip(keys, values, strict=True))]
    )


@given(cell_lists)
def test_every_kind_of_column_encodes_alike(cells):
    as_values, as_keys = expected_bytes(cells, None), expected_bytes(cells, cells)
    assert encoded(cells, None) == as_values
    for name, column in kinds(cells):
        assert encoded(column, None) == as_values, name
        assert encoded(cells, column) == as_keys, name
        assert encoded(column, column) == as_keys, name


@given(st.integers(1, 9), st.integers(1, 8), st.data())
def test_cells_of_one_size(count, width, data):
    cell = st.binary(min_size=width, max_size=width)
    nullable = data.draw(st.booleans())
    cells = data.draw(
        st.lists(st.none() | cell if nullable else cell, min_size=count, max_size=count)
    )
    for name, column in kinds(cells):
        assert encoded(column, column) == expected_bytes(cells, cells), name


@given(text_lists)
def test_strings_are_their_utf_8(texts):
    cells = [None if text is None else text.encode() for text in texts]
    for kind in TEXT_TYPES:
        array = pyarrow.array(texts, kind)
        padded = sliced(array, ["é", None], ["x"])
        for column in (array, padded):
            assert encoded(column, column) == expected_bytes(cells, cells)


@given(cell_lists, st.integers(1, 1000))
def test_partitions_of_a_column_are_those_of_its_keys(cells, partitions):
    for name, column in [("list", cells), *kinds(cells)]:
        parts = open_columns(column, column, None, None, 1).by_partition(partitions, 0, 1 << 20)
        found = {
            partition: decode_records(BatchEncoder().encode_columns(part, timestamp_ms=1))
            for partition, part in parts
            if len(part)
        }
        expected: dict[int, list[bytes | None]] = {}
        for cell in cells:
            partition = 0 if cell is None else partition_for_key(cell, partitions)
            expected.setdefault(partition, []).append(cell)
        assert {p: [one.key for one in rows] for p, rows in found.items()} == expected, name
        assert {p: [one.value for one in rows] for p, rows in found.items()} == expected, name


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=9))
def test_every_kind_of_timestamps_encodes_alike(times_ms):
    values = [b"v"] * len(times_ms)
    expected = codec.encode_batch(
        [codec.ModelRecord(index, time_ms, None, b"v") for index, time_ms in enumerate(times_ms)]
    )
    doubled = numpy.repeat(numpy.array(times_ms, numpy.int64), 2)
    for timestamps in (
        times_ms,
        numpy.array(times_ms, numpy.int64),
        numpy.array(times_ms, numpy.uint64),
        doubled[::2],
        pyarrow.array(times_ms, pyarrow.int64()),
        pyarrow.array([0, *times_ms], pyarrow.int64()).slice(1),
    ):
        assert encoded(values, None, timestamps=timestamps) == expected


@given(st.lists(st.integers(0, 2**41), min_size=1, max_size=9))
def test_dates_are_milliseconds(times_ms):
    values = [b"v"] * len(times_ms)
    expected = encoded(values, None, timestamps=times_ms)
    micros = numpy.array(times_ms, "datetime64[ms]").astype("datetime64[us]")
    assert encoded(values, None, timestamps=micros) == expected
    for unit in ("ms", "us"):
        array = pyarrow.array(times_ms, pyarrow.timestamp("ms")).cast(pyarrow.timestamp(unit))
        assert encoded(values, None, timestamps=array) == expected


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.string(), pyarrow.binary(3)])
def test_columns_of_nulls_alone(kind):
    column = pyarrow.array([None, None], kind)
    assert encoded(column, column) == expected_bytes([None, None], [None, None])
    nulls = pyarrow.nulls(2)
    assert encoded(nulls, nulls) == expected_bytes([None, None], [None, None])


def test_headers_in_every_form():
    pairs = [[("a", b"1"), ("b", None)], []]
    records = [
        codec.ModelRecord(index, 7, None, b"v", tuple(one)) for index, one in enumerate(pairs)
    ]
    expected = codec.encode_batch(records)
    structs = pyarrow.array(
        [[{"key": name, "value": value} for name, value in one] for one in pairs],
        pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])),
    )
    for headers in (pairs, tuple(tuple(one) for one in pairs), [dict(pairs[0]), None], structs):
        assert encoded([b"v", b"v"], None, headers=headers) == expected
