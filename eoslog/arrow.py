"""Fetched columns as Arrow record batches, over the same memory. The one module with pyarrow."""

from typing import Any

from eoslog.bindings.partition_log import Columns
from eoslog.errors import MissingDependencyError
from eoslog.topic_partition import TopicPartition

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingDependencyError(
        "poll_arrow needs pyarrow: run `pip install 'eoslog[arrow]'`"
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


def empty_batch() -> pa.RecordBatch:
    """A batch of no records, with the columns of all others."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)


def record_batch(where: TopicPartition, columns: Columns) -> pa.RecordBatch:
    """The columns of one fetch as a record batch, over the same memory."""
    count = columns.record_count
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(where.topic, count),
            pa.repeat(pa.scalar(where.partition, pa.int32()), count),
            _fixed(pa.int64(), count, columns.offsets),
            _fixed(_TIMESTAMP, count, columns.timestamps),
            _binary(count, columns.key_validity, columns.key_offsets, columns.key_data),
            _binary(count, columns.value_validity, columns.value_offsets, columns.value_data),
            _header_column(count, columns.headers),
        ],
        schema=SCHEMA,
    )


def _fixed(arrow_type: pa.DataType, count: int, numbers: Any) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(numbers)])


def _binary(count: int, validity: Any, offsets: Any, data: Any) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(
        pa.binary(), count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _header_column(count: int, headers: Any) -> pa.Array:
    """Per record a list of its headers; null for all where no record has any."""
    if headers is None:
        return pa.nulls(count, _HEADERS)
    cells = [[{"key": key, "value": value} for key, value in one] for one in headers]
    return pa.array(cells, _HEADERS)
