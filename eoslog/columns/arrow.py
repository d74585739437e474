"""Fetched columns as Arrow record batches, over the same memory. The one module with pyarrow."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from eoslog.bindings.log_reader import (
    PART_HEADERS,
    PART_KEYS,
    PART_OFFSETS,
    PART_TIMESTAMPS,
    PART_VALUES,
    Columns,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import MissingDependencyError

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingDependencyError(
        "poll_arrow and scan need pyarrow: run `pip install 'eoslog[arrow]'`"
    ) from error

_HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
_TIMESTAMP = SCHEMA.field("timestamp").type
_HEADERS = SCHEMA.field("headers").type
_PARTS = {
    "offset": PART_OFFSETS,
    "timestamp": PART_TIMESTAMPS,
    "key": PART_KEYS,
    "value": PART_VALUES,
    "headers": PART_HEADERS,
}


def empty_batch() -> pa.RecordBatch:
    """Return a batch of no records, with the columns of all others."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)


def schema_of(names: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns, in their order."""
    return pa.schema([SCHEMA.field(name) for name in names])


def parts_of(names: Iterable[str]) -> int:
    """Return what these columns need of a fetch."""
    return sum(_PARTS.get(name, 0) for name in names)


def record_batch(where: TopicPartition, columns: Columns) -> pa.RecordBatch:
    """Return the columns of one fetch as a record batch, over the same memory."""
    return batch_maker(where, SCHEMA)(columns)


def batch_maker(where: TopicPartition, schema: pa.Schema) -> Callable[[Columns], pa.RecordBatch]:
    """Return the function that makes a record batch of fetched columns of a partition, over the
    same memory.
    """
    makers: dict[str, Callable[[Columns], pa.Array]] = {
        "topic": ConstantColumn(pa.scalar(where.topic, pa.string())),
        "partition": ConstantColumn(pa.scalar(where.partition, pa.int32())),
        "offset": offset_array,
        "timestamp": _timestamp_array,
        "key": key_array,
        "value": value_array,
        "headers": _header_array,
    }
    chosen = [makers[name] for name in schema.names]

    def make(columns: Columns) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([one(columns) for one in chosen], schema=schema)

    return make


class ConstantColumn:
    """A column that holds one value: parts of the longest that was needed."""

    def __init__(self, value: pa.Scalar) -> None:
        self._value = value
        self._cells: pa.Array | None = None

    def __call__(self, columns: Columns) -> pa.Array:
        """Return the column beside others."""
        if self._cells is None or len(self._cells) < columns.record_count:
            self._cells = pa.repeat(self._value, columns.record_count)
        return self._cells.slice(0, columns.record_count)


def offset_array(columns: Columns) -> pa.Array:
    """Return the offsets of the records, over the same memory."""
    return _fixed(pa.int64(), columns.record_count, columns.offsets)


def _timestamp_array(columns: Columns) -> pa.Array:
    return _fixed(_TIMESTAMP, columns.record_count, columns.timestamps)


def key_array(columns: Columns) -> pa.Array:
    """Return the keys, null where a record has none, over the same memory."""
    return _binary(
        columns.record_count, columns.key_validity, columns.key_offsets, columns.key_data
    )


def value_array(columns: Columns) -> pa.Array:
    """Return the values, null where a record has none, over the same memory."""
    return _binary(
        columns.record_count, columns.value_validity, columns.value_offsets, columns.value_data
    )


def header_array(columns: Columns, list_type: pa.DataType, *, null_if_none: bool) -> pa.Array:
    """Return a list of headers for each record; nulls if no record has any.

    A record without headers beside one that has some gets an empty list, or with `null_if_none`
    a null.
    """
    headers = columns.headers
    if headers is None:
        return pa.nulls(columns.record_count, list_type)
    header_type = list_type.value_type
    ends = list(accumulate(map(len, headers), initial=0))
    every = [header for one in headers for header in one]
    cells = pa.StructArray.from_arrays(
        [
            pa.array([key for key, _ in every], pa.string()),
            pa.array([value for _, value in every], pa.binary()),
        ],
        fields=[header_type.field(0), header_type.field(1)],
    )
    mask = pa.array([not one for one in headers]) if null_if_none else None
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), cells, type=list_type, mask=mask)


def _header_array(columns: Columns) -> pa.Array:
    return header_array(columns, _HEADERS, null_if_none=False)


def _fixed(arrow_type: pa.DataType, count: int, numbers: Any) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(numbers)])


def _binary(count: int, validity: Any, offsets: Any, data: Any) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(
        pa.binary(), count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
