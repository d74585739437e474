"""Parquet files of records, in and out.

A file that is imported does not grow: its checksum is that of all its bytes, and a position in it
is a number of rows.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from eoslog.bindings.column_set import open_columns
from eoslog.bindings.partition_log import Columns
from eoslog.bindings.text_records import checksum
from eoslog.columns.topic_limits import TopicLimits
from eoslog.common import clock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    InvalidRecordError,
    InvalidRequestError,
    MissingDependencyError,
    SourceFileChangedError,
)
from eoslog.exchange.file_progress import FileProgress
from eoslog.exchange.text_source import Piece

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise MissingDependencyError("Parquet needs pyarrow: pip install 'eoslog[arrow]'") from error

_BATCH_BYTES = 16 << 20
_BATCH_ROWS_MAX = 1 << 16
_READ_BYTES = 1 << 20
_FIELDS = ("value", "key", "timestamp", "headers")


class ParquetSource:
    """A Parquet file that is imported; `name` is what the user calls it. `total` are its rows."""

    left_bytes = 0
    error: EoslogError | None = None

    def __init__(self, path: Path, name: str, limits: TopicLimits) -> None:
        self._name = name
        self._limits = limits
        self._file = open(path, "rb")  # noqa: SIM115 - closed with this object.
        self._progress = FileProgress("parquet")
        try:
            self._as_found = self._state()
            self._crc = self._checksum()
            self._parquet = self._opened()
            self.total: int | None = self._parquet.metadata.num_rows
            self._columns = self._checked_columns()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def progress(self) -> FileProgress:
        """Progress after all that was taken."""
        return self._progress

    def begin(self, progress: FileProgress) -> None:
        """Pass over what was imported before. Raises SourceFileChangedError if the file changed."""
        size = self._as_found[0]
        if progress.position and (progress.size, progress.crc) != (size, self._crc):
            raise SourceFileChangedError(
                f"{self._name}: {progress.records} records of it were imported, and the file has "
                "changed since: nothing was imported now; if it is another file, give it another "
                "name"
            )
        self._progress = replace(progress, size=size, crc=self._crc)

    def chunks(self) -> Iterator[Iterator[Piece]]:
        """Yield a piece at a time, all of which must be taken. Raises what is wrong with a row."""
        first_row = 0
        for number in range(self._parquet.num_row_groups):
            group = self._parquet.metadata.row_group(number)
            before = self._progress.position - first_row
            first_row += group.num_rows
            if before >= group.num_rows:
                continue
            row_bytes = group.total_byte_size // max(1, group.num_rows) + 1
            rows = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES // row_bytes))
            for batch in self._batches(number, rows):
                if before >= batch.num_rows:
                    before -= batch.num_rows
                    continue
                piece = self._piece(batch.slice(max(0, before)))
                before = 0
                yield iter([piece])

    def _batches(self, group: int, rows: int) -> "Iterator[pa.RecordBatch]":
        try:
            yield from self._parquet.iter_batches(rows, [group], self._columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRecordError(f"{self._name}, row group {group}: {error}") from error

    def _piece(self, batch: "pa.RecordBatch") -> Piece:
        first = self._progress.position
        rows = f"{self._name}, rows {first + 1} to {first + batch.num_rows}"
        now_ms = clock.now_ms()
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        try:
            columns = open_columns(
                _as_bytes(found["value"]),
                _as_bytes(found.get("key")),
                _as_milliseconds(found.get("timestamp"), now_ms),
                found.get("headers"),
                now_ms,
            )
            self._limits.check(columns)
        except EoslogError as error:
            raise type(error)(f"{rows}: {error}") from error
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRecordError(f"{rows}: {error}") from error
        if self._state() != self._as_found:
            raise SourceFileChangedError(f"{self._name}: the file changed while it was imported")
        self._progress = replace(
            self._progress,
            position=first + batch.num_rows,
            records=self._progress.records + batch.num_rows,
        )
        return Piece(columns, self._progress)

    def _opened(self) -> "parquet.ParquetFile":
        self._file.seek(0)
        try:
            return parquet.ParquetFile(self._file, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRecordError(f"{self._name}: it is not Parquet: {error}") from error

    def _checked_columns(self) -> list[str]:
        names = self._parquet.schema_arrow.names
        if "value" not in names:
            raise InvalidRequestError(
                f"{self._name}: it has no column 'value': `eoslog ingest` makes JSON of its rows"
            )
        columns = [name for name in _FIELDS if name in names]
        for name in columns:
            if names.count(name) > 1:
                raise InvalidRequestError(f"{self._name}: column {name!r} is there twice")
            kind = self._parquet.schema_arrow.field(name).type
            if name in ("value", "key") and not _is_of_bytes(kind):
                raise InvalidRequestError(
                    f"{self._name}: column {name!r} must be of binary or string, got {kind}"
                )
            if name == "timestamp" and not _is_of_times(kind):
                raise InvalidRequestError(
                    f"{self._name}: column 'timestamp' must be of times or integers, got {kind}"
                )
        return columns

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _checksum(self) -> int:
        crc = 0
        while data := self._file.read(_READ_BYTES):
            crc = checksum(data, crc)
        return crc


def _is_of_bytes(kind: "pa.DataType") -> bool:
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_null)
    others = (pa.types.is_large_string, pa.types.is_fixed_size_binary)
    return any(test(of) for test in (*tests, *others))


def _is_of_times(kind: "pa.DataType") -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_int64(kind) or pa.types.is_null(kind))


def _as_bytes(column: "pa.Array | None") -> "pa.Array | None":
    if column is not None and pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def _as_milliseconds(column: "pa.Array | None", now_ms: int) -> "pa.Array | None":
    """Return times in milliseconds, rounded down; now where there is none."""
    if column is None:
        return None
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return column.cast(pa.int64()).fill_null(now_ms)


class ParquetTarget:
    """A Parquet file of records, written to a stream; a row group for each fetch."""

    def __init__(self, stream: BinaryIO) -> None:
        from eoslog.columns.arrow import SCHEMA

        # Arrow asks where it is in the file; a pipe does not know.
        self._sink = _Counted(stream)
        self._writer = parquet.ParquetWriter(cast("Any", self._sink), SCHEMA, compression="zstd")

    def write(self, where: TopicPartition, columns: Columns, count: int) -> None:
        """Write the first `count` records of a fetch."""
        from eoslog.columns.arrow import record_batch

        if count:
            self._writer.write_batch(record_batch(where, columns).slice(0, count))

    def finish(self) -> int:
        """Write the end of the file; return its size."""
        self._writer.close()
        return self._sink.tell()


class _Counted:
    """A stream that is only written to, with its position."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._written_bytes = 0

    def write(self, data: Any) -> int:
        self._stream.write(data)
        self._written_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written_bytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
