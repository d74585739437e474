"""Rows as Python objects: bytes, (key, value) pairs, dicts and Rows with Kafka's columns.

Rows are taken in chunks of about CHUNK_BYTES. A chunk of plain values or of pairs is taken apart by
native code; only rows with Kafka's columns, and cells of rarer types, are looked at one by one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from eoslog.common import clock
from eoslog.errors import InvalidTimestampError
from eoslog.spark.columns import KAFKA_COLUMNS, check_columns
from eoslog.spark.timestamps import TIME_MAX_MS, record_time

if TYPE_CHECKING:
    from eoslog.staging.writer import StagedWriter

CHUNK_BYTES = 1 << 20
CHUNK_ROWS_FIRST = 64
CHUNK_ROWS_MAX = 16_384

_BYTES_LIKE = (bytes, bytearray, memoryview)
Headers = list[tuple[str, bytes | None]]


def append_rows(writer: "StagedWriter", rows: Iterator[Any], topic: str | None) -> None:
    """Append all rows to the writer. Raises TypeError or ValueError, with the row's number."""
    chunk_rows = CHUNK_ROWS_FIRST
    first_row = 0
    while chunk := list(islice(rows, chunk_rows)):
        held_bytes = _append_chunk(writer, chunk, topic, first_row)
        first_row += len(chunk)
        row_bytes = max(1, held_bytes // len(chunk))
        chunk_rows = max(1, min(CHUNK_ROWS_MAX, CHUNK_BYTES // row_bytes))


def _append_chunk(
    writer: "StagedWriter", chunk: list[Any], topic: str | None, first_row: int
) -> int:
    """Append the chunk by the shortest way its rows allow; return about how many bytes it holds."""
    from eoslog.staging.writer import plain_columns

    plain = None if topic is None else plain_columns(chunk)
    if topic is not None and plain is not None:
        values, keys, held_bytes = plain
        writer.append(topic, None, values, keys)
        return held_bytes
    return _append_mixed(writer, chunk, topic, first_row)


class _Columns:
    """The rows of a chunk that go to one topic and partition, as columns."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers] = []

    def append_to(self, writer: "StagedWriter", topic: str, partition: int | None) -> None:
        import numpy as np

        writer.append(
            topic,
            partition,
            self.values,
            self.keys,
            np.array(self.timestamps, dtype=np.int64),
            self.headers if any(self.headers) else None,
        )


def _append_mixed(
    writer: "StagedWriter", chunk: list[Any], topic: str | None, first_row: int
) -> int:
    """Append rows of any kind, each looked at by itself.

    Rows keep their order among those that name the same partition, or leave it to their key.
    """
    targets: dict[tuple[str, int | None], _Columns] = {}
    now_ms = clock.now_ms()
    held_bytes = 0
    for number, row in enumerate(chunk, first_row):
        try:
            cells = _cells(row)
            key, value = _as_bytes(cells.get("key"), "key"), _as_bytes(cells.get("value"), "value")
            timestamp_ms = _as_timestamp_ms(cells.get("timestamp"), now_ms)
            headers = _as_headers(cells.get("headers"))
            target = _target(cells, topic)
        except (TypeError, ValueError, InvalidTimestampError) as error:
            raise type(error)(f"row {number} of the Spark partition: {error}") from None
        columns = targets.setdefault(target, _Columns())
        columns.keys.append(key)
        columns.values.append(value)
        columns.timestamps.append(timestamp_ms)
        columns.headers.append(headers)
        held_bytes += len(key or b"") + len(value or b"")
    for (name, partition), columns in targets.items():
        columns.append_to(writer, name, partition)
    return held_bytes


def _cells(row: Any) -> Mapping[str, Any]:
    if row is None or isinstance(row, (str, *_BYTES_LIKE)):
        return {"value": row}
    if hasattr(row, "__fields__"):  # A pyspark Row: a tuple that knows its names.
        row = dict(zip(row.__fields__, row, strict=True))
    if isinstance(row, Mapping):
        check_columns(row.keys())
        return row
    if isinstance(row, (tuple, list)) and len(row) == 2:
        return {"key": row[0], "value": row[1]}
    size = f" of {len(row)}" if isinstance(row, Sequence) else ""
    raise TypeError(
        f"a record must be bytes, str, a pair (key, value), or a dict or Row with columns of "
        f"{', '.join(KAFKA_COLUMNS)}, got {type(row).__name__}{size}"
    )


def _target(cells: Mapping[str, Any], topic: str | None) -> tuple[str, int | None]:
    name = topic if topic is not None else cells.get("topic")
    if not isinstance(name, str):
        raise TypeError(f"topic must be a str, got {type(name).__name__}")
    partition = cells.get("partition")
    if partition is None:
        return name, None
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"partition must be an int, got {type(partition).__name__}")
    if partition < 0:
        raise ValueError(f"partition {partition} is negative")
    return name, partition


def _as_bytes(cell: Any, name: str) -> bytes | None:
    if cell is None or isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        return cell.encode()
    if isinstance(cell, _BYTES_LIKE):
        return bytes(cell)
    raise TypeError(f"{name} must be bytes, str or None, got {type(cell).__name__}")


def _as_timestamp_ms(cell: Any, now_ms: int) -> int:
    if cell is None:
        return now_ms
    if isinstance(cell, datetime):
        return record_time(cell)
    if isinstance(cell, int) and not isinstance(cell, bool):
        if not -TIME_MAX_MS <= cell <= TIME_MAX_MS:
            raise ValueError(f"timestamp {cell} ms is no time that Spark can hold")
        return cell
    raise TypeError(f"timestamp must be a datetime or milliseconds, got {type(cell).__name__}")


def _as_headers(cell: Any) -> Headers:
    if cell is None:
        return []
    if isinstance(cell, Mapping):
        cell = cell.items()
    if isinstance(cell, (str, *_BYTES_LIKE)) or not isinstance(cell, Iterable):
        raise TypeError(f"headers must be pairs of a str and bytes, got {type(cell).__name__}")
    return [as_header(header) for header in cell]


def as_header(header: Any) -> tuple[str, bytes | None]:
    """A record's header from a pair, or from a Row or dict of key and value."""
    if isinstance(header, Mapping) and header.keys() == {"key", "value"}:
        header = (header["key"], header["value"])
    if not isinstance(header, (tuple, list)) or len(header) != 2 or not isinstance(header[0], str):
        raise TypeError("a header must be a pair of a str and bytes")
    return header[0], _as_bytes(header[1], "a header's value")
