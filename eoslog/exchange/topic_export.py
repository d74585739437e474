"""`eoslog.export_topic`: the committed records of a topic as a file.

It ends where a snapshot of the topic ended when it began. The file has its name only when it is
whole and synced: until then it is `<name>.tmp`, which is locked while it is written.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Literal, cast

from eoslog.bindings.partition_log import Columns
from eoslog.bindings.record_text import CSV_NAMES, RecordText
from eoslog.common.arguments import check_synchronous, path_of, whole_number
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import OffsetOutOfRangeError, StoreError, StoreInUseError
from eoslog.exchange.file_formats import EXPORT_FORMATS, check_format, format_of
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, sync_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.topic_registry import partition_of
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import Store, engine_of

Progress = Callable[[int, int], object]
Bound = int | datetime

# What a core still has in a cache of its own is written out at less cost; a row group of Parquet is
# to be larger.
_FETCH_BYTES = 1 << 20
_ROW_GROUP_BYTES = 32 << 20
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE_MODE = 0o666
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TopicExport:
    """Result of an export: `file` is None for a file object."""

    file: Path | None
    topic: str
    partitions: int
    records: int
    file_bytes: int


def export_topic(
    store: Store,
    topic: str,
    file: str | os.PathLike[str] | BinaryIO,
    *,
    format: str | None = None,
    partitions: Iterable[int] | None = None,
    start: Bound | None = None,
    end: Bound | None = None,
    progress: Progress | None = None,
) -> TopicExport:
    """Write the committed records of a topic to a file, one partition after the other.

    It ends at a snapshot that is taken now, which cuts no transaction. The store may be open for
    reading only. A file of this name is replaced once the new one is whole and synced.

    Parameters
    ----------
    store : Store
        An open store.
    topic : str
        A topic that exists.
    file : str, PathLike, or binary file object
        Where to write. A path must not be that of something else than a file.
    format : str, optional
        "jsonl": the envelope, with {"base64": "..."} for bytes that are not UTF-8. "csv": texts
        only. "parquet": the columns of `Consumer.poll_arrow`. By default what the file's suffix
        says, else "jsonl".
    partitions : iterable of int, optional
        By default all.
    start, end : int or datetime, optional
        Offsets in each of the partitions, the end exclusive; or times, of which the first record
        at or after it is meant (rule R4). A time without a zone is in UTC.
    progress : callable, optional
        Called with the offsets that are done, and with their number.

    Returns
    -------
    TopicExport
        How much was written.

    Raises
    ------
    OffsetOutOfRangeError
        A partition does not reach an offset; or retention deleted records while they were written.
    InvalidRecordError
        A key or value is not UTF-8, which CSV cannot express.
    StoreInUseError
        Another export writes this file.
    UnknownTopicOrPartitionError, CorruptRecordError, MissingDependencyError, StoreError, OSError,
    ValueError, TypeError
        An argument is wrong, damage, or a disk refuses. No file of the name was written.
    """
    engine = engine_of(store)
    if progress is not None:
        check_synchronous(progress, "progress")
    description = engine.topic(topic)
    wanted = range(description.partitions) if partitions is None else partitions
    # One that is named twice is written once, where it is named first.
    targets = dict.fromkeys(partition_of(description, number) for number in wanted)
    path = None if hasattr(file, "write") else path_of(file, "file")
    if format is not None:
        found = check_format(format, EXPORT_FORMATS)
    else:
        found = format_of("" if path is None else str(path))
    ends = store.snapshot([topic])
    ranges = [_range(engine.partition(*where), where, ends[where], start, end) for where in targets]
    export = _Export(ranges, progress)
    if path is None:
        export.write(cast("BinaryIO", file), found)
    else:
        path = path.resolve()
        if store.path.resolve() in path.parents:
            raise StoreError(f"{path} would be a file among those of the store")
        with _new_file(path) as stream:
            export.write(stream, found)
    return TopicExport(path, topic, len(ranges), export.records, export.file_bytes)


@dataclass(frozen=True)
class _Range:
    log: UnifiedLog
    where: TopicPartition
    first: int
    upper_bound: int


class _Export:
    """The writing of records to a stream."""

    def __init__(self, ranges: list[_Range], progress: Progress | None) -> None:
        self._ranges = ranges
        self._progress = progress
        self._offsets_done = 0
        self._offsets = sum(one.upper_bound - one.first for one in ranges)
        self.records = self.file_bytes = 0

    def write(self, stream: BinaryIO, file_format: str) -> None:
        if file_format == "parquet":
            from eoslog.exchange.parquet_files import ParquetTarget  # It needs pyarrow.

            target = ParquetTarget(stream)
            for where, columns, count in self._fetches(_ROW_GROUP_BYTES):
                target.write(where, columns, count)
            self.file_bytes = target.finish()
            return
        text = RecordText(cast('Literal["jsonl", "csv"]', file_format))
        if file_format == "csv":
            self.file_bytes += stream.write(f"{CSV_NAMES}\n".encode())
        for where, columns, count in self._fetches(_FETCH_BYTES):
            with text.encode(where.topic, where.partition, columns, count) as lines:
                stream.write(lines)
                self.file_bytes += len(lines)

    def _fetches(self, fetch_bytes: int) -> Iterator[tuple[TopicPartition, Columns, int]]:
        """Yield records of all ranges: a fetch, and how many of its records are in the range."""
        for one in self._ranges:
            position = one.first
            while position < one.upper_bound:
                columns = one.log.fetch_columns(
                    position, fetch_bytes, isolation_level="read_committed"
                )
                if columns is None or columns.next_offset == position:
                    break
                count = int(columns.offsets.searchsorted(one.upper_bound))
                yield one.where, columns, count
                self.records += count
                self._offsets_done += min(columns.next_offset, one.upper_bound) - position
                position = columns.next_offset
                if self._progress is not None:
                    self._progress(self._offsets_done, self._offsets)


def _range(
    log: UnifiedLog, where: TopicPartition, snapshot: int, start: Bound | None, end: Bound | None
) -> _Range:
    log_start = log.log_start_offset
    first = log_start if start is None else _offset(log, where, start, log_start, snapshot)
    upper_bound = snapshot if end is None else _offset(log, where, end, log_start, snapshot)
    return _Range(log, where, first, max(first, upper_bound))


def _offset(
    log: UnifiedLog, where: TopicPartition, bound: Bound, log_start: int, snapshot: int
) -> int:
    if isinstance(bound, datetime):
        moment = bound if bound.tzinfo is not None else bound.replace(tzinfo=UTC)
        moment_ms = max(0, (moment - _EPOCH) // timedelta(milliseconds=1))
        found = log.offset_for_timestamp(moment_ms, "read_committed")
        return snapshot if found is None else min(found[0], snapshot)
    offset = whole_number(bound, "an offset")
    if not log_start <= offset <= snapshot:
        raise OffsetOutOfRangeError(
            f"no offset {offset} in {where}, which has {log_start} to {snapshot}"
        )
    return offset


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A block that writes a file, which takes the name at the end of it."""
    aside = path.with_name(path.name + TEMPORARY_SUFFIX)
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no file, and would be replaced by one")
    with named_os_errors(f"writing {aside}"), _locked(aside) as stream:
        try:
            stream.truncate()
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            aside.replace(path)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file that no other export writes; the lock ends with the process too."""
    while True:
        descriptor = os.open(path, _NEW_FILE, _FILE_MODE)
        with open(descriptor, "r+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreInUseError(f"another export writes {path}") from error
            if _is_at(path, descriptor):
                yield stream
                return
            # The export that had it has just given it its name, or removed it: once more.


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
