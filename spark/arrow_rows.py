"""Rows as Arrow record batches: the buffers of a column go to the encoder as they are.

Only headers are turned into Python objects, and only a batch with a topic or partition column is
split, into one batch for each place its rows go to.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eoslog.common import clock
from eoslog.spark.columns import check_columns
from eoslog.spark.rows import as_header
from eoslog.spark.timestamps import check_time_max, record_times

if TYPE_CHECKING:
    from eoslog.staging.writer import StagedWriter


def append_batches(
    writer: "StagedWriter", batches: Iterator[pa.RecordBatch], topic: str | None
) -> None:
    """Append all record batches to the writer. Raises TypeError or ValueError for wrong columns."""
    for batch in batches:
        check_columns(batch.schema.names)
        if batch.num_rows:
            for name, partition, rows in _split(batch, topic):
                _append(writer, rows, name, partition)


def _append(
    writer: "StagedWriter", batch: pa.RecordBatch, topic: str, partition: int | None
) -> None:
    writer.append(
        topic,
        partition,
        _bytes_column(batch, "value"),
        _bytes_column(batch, "key"),
        _timestamps(batch),
        _headers(batch),
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _bytes_column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    column = _column(batch, name)
    if column is None:
        return None
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.binary())
    if pa.types.is_dictionary(kind):
        return column.dictionary_decode()
    bytes_like = (
        pa.types.is_binary,
        pa.types.is_string,
        pa.types.is_large_binary,
        pa.types.is_large_string,
        pa.types.is_fixed_size_binary,
    )
    if not any(is_kind(kind) for is_kind in bytes_like):
        raise TypeError(f"column {name} must be binary or string, got {kind}")
    return column


def _timestamps(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Milliseconds; a row without a timestamp has the time of now."""
    column = _column(batch, "timestamp")
    if column is None or column.null_count == len(column):
        return None
    kind = column.type
    if pa.types.is_timestamp(kind):
        # A view has no time zone: Arrow would look it up, and knows fewer of them than Spark.
        times_ms = record_times(_numbers(column.view(pa.int64())), kind.unit)
    elif pa.types.is_integer(kind):
        times_ms = _numbers(column.cast(pa.int64()))
        check_time_max(int(times_ms.max()))
    else:
        raise TypeError(f"column timestamp must be a timestamp or milliseconds, got {kind}")
    if not column.null_count:
        return times_ms
    return np.where(column.is_null(), clock.now_ms(), times_ms)


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    """The numbers of a column of 64-bit integers, 0 for null."""
    return np.asarray(column.fill_null(0), np.int64)


def _headers(batch: pa.RecordBatch) -> list[list[tuple[str, bytes | None]]] | None:
    column = _column(batch, "headers")
    if column is None or column.null_count == len(column):
        return None
    if not _is_list_of_headers(column.type):
        raise TypeError(f"column headers must be an array of (key, value), got {column.type}")
    return [[as_header(header) for header in headers or ()] for headers in column.to_pylist()]


def _is_list_of_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    item = kind.value_type
    return pa.types.is_struct(item) and {field.name for field in item} == {"key", "value"}


def _split(
    batch: pa.RecordBatch, topic: str | None
) -> Iterator[tuple[str, int | None, pa.RecordBatch]]:
    """One batch for each topic and partition that rows name; the order of rows is kept in each."""
    topics = _column(batch, "topic") if topic is None else None
    partitions = _column(batch, "partition")
    if partitions is not None and not (
        pa.types.is_integer(partitions.type) or pa.types.is_null(partitions.type)
    ):
        raise TypeError(f"column partition must be an integer, got {partitions.type}")
    if topic is None and topics is None:
        raise ValueError("no topic: name one, or give the rows a column 'topic'")
    if topics is not None and topics.null_count:
        raise ValueError(f"{topics.null_count} rows have no topic")
    if topics is None and (partitions is None or partitions.null_count == len(partitions)):
        yield _name(topic), None, batch
        return
    topic_names, topic_codes = _codes(topics, batch.num_rows, topic)
    numbers, number_codes = _codes(partitions, batch.num_rows, None)
    targets = topic_codes * len(numbers) + number_codes
    for target in np.unique(targets):
        rows = batch.take(pa.array(np.flatnonzero(targets == target)))
        number = numbers[int(target) % len(numbers)]
        if number is not None and number < 0:
            raise ValueError(f"partition {number} is negative")
        yield _name(topic_names[int(target) // len(numbers)]), number, rows


def _codes(column: pa.Array | None, row_count: int, constant: Any) -> tuple[list[Any], Any]:
    """The distinct values of a column and, for each row, which one it has."""
    if column is None:
        return [constant], np.zeros(row_count, dtype=np.int64)
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices, dtype=np.int64)


def _name(topic: Any) -> str:
    if not isinstance(topic, str):
        raise TypeError(f"column topic must be a string, got {type(topic).__name__}")
    return topic
