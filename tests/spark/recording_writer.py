"""A stand-in for a task's StagedWriter, that keeps the records it is given."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Appended:
    topic: str
    partition: int | None
    value: bytes | None
    key: bytes | None
    timestamp_ms: int | None
    headers: list[tuple[str, bytes | None]]


class RecordingWriter:
    def __init__(self) -> None:
        self.records: list[Appended] = []
        self.chunk_rows: list[int] = []

    def append(self, topic, partition, values, keys=None, timestamps=None, headers=None) -> None:
        columns = [listed(column) for column in (values, keys, timestamps)]
        row_count = len(columns[0])
        self.chunk_rows.append(row_count)
        cells = [column or [None] * row_count for column in columns]
        for value, key, timestamp_ms, pairs in zip(
            *cells, headers or [[]] * row_count, strict=True
        ):
            at = None if timestamp_ms is None else int(timestamp_ms)
            self.records.append(
                Appended(topic, partition, as_bytes(value), as_bytes(key), at, list(pairs))
            )


def listed(column: Any) -> list[Any]:
    if column is None:
        return []
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)


def as_bytes(cell: Any) -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell
