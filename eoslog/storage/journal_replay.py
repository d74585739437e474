"""Replay of the commit journals that an unclean stop left, and the end of those of dead processes.

Steps have the names of `docs/commit-journal.md`. A journal holds bytes of segments that calls have
returned for, and that the segments' files need not hold. The first opener writes them there before
it looks at a partition; whoever looks after dead processes syncs the files instead.

Invariants: nothing is written before all journals are read and found sound; a journal is removed
after all it holds is on the disk in the files, and after an error it stays.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eoslog.bindings.commit_journal import BLOCK_BYTES, HALVES, half_header, record_at
from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, sync_directory, sync_file
from eoslog.fs.identity_files import id_bytes
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE
from eoslog.session.store_paths import StorePaths
from eoslog.storage.partition import Partition
from eoslog.storage.spare_files import remove_spares
from eoslog.storage.topic_registry import TopicDescription

_PIECES_MAX = 1024  # What a call of pwritev takes.
_KEPT_BYTES_MAX = 256 << 20  # Larger journals are read twice.

_log = logging.getLogger(__name__)


class JournaledRange(NamedTuple):
    """Bytes of a segment, and the log's end with them."""

    topic_id: bytes
    partition: int
    base_offset: int
    position_bytes: int
    end_offset: int
    begin: int  # Of the bytes in the half of the journal.
    size: int


class JournaledHalf(NamedTuple):
    """A half of a journal, and the ranges it holds in their order."""

    data: memoryview
    ranges: list[JournaledRange]

    def bytes_of(self, one: JournaledRange) -> memoryview:
        return self.data[one.begin : one.begin + one.size]


def journal_files(paths: StorePaths) -> list[Path]:
    """Return the files of journals, those that were never finished too."""
    with named_os_errors(f"looking for {paths.journals}"):
        try:
            return sorted(paths.journals.iterdir())
        except FileNotFoundError:
            return []


def remove_journals(paths: StorePaths) -> None:
    """Remove all journals, durably: what they hold is on the disk in the files (L2, P5)."""
    for path in journal_files(paths):
        with named_os_errors(f"removing {path}"):
            path.unlink(missing_ok=True)
    # If there are none too: who retires one does not sync its name.
    if paths.journals.is_dir():
        sync_directory(paths.journals)


def replay_journals(
    paths: StorePaths,
    topics: Iterable[TopicDescription],
    log_start: Callable[[TopicPartition], int],
) -> int:
    """Write what the journals hold into the segments, durably, and remove the journals (P1 to P5).
    Return the count of ranges; nobody else has the store open.

    `log_start` gives a partition's log start: what is below it was deleted on purpose. Raises
    CorruptRecordError for a journal that is damaged, StoreFullError and StoreFailedError: all
    journals stay.
    """
    files = journal_files(paths)
    if not files:
        return 0
    remove_spares(paths)
    kept: dict[Path, list[JournaledHalf]] = {}
    kept_bytes = 0
    for path in files:
        halves = list(halves_of(path))
        kept_bytes += sum(len(half.data) for half in halves)
        if kept_bytes <= _KEPT_BYTES_MAX:
            kept[path] = halves
    names = {id_bytes(topic.topic_id): topic for topic in topics}
    target = _Target(paths, log_start)
    count = 0
    for path in files:
        for half in kept.pop(path, None) or halves_of(path):
            for ranges in _by_segment(half.ranges):
                topic = names.get(ranges[0].topic_id)
                if topic is not None and 0 <= ranges[0].partition < topic.partitions:
                    where = TopicPartition(topic.name, ranges[0].partition)
                    target.write(where, half, ranges)
                    count += len(ranges)
    target.sync()
    remove_journals(paths)
    if count:
        _log.info("%s: %d ranges of commit journals were written back", paths.root, count)
    return count


def _by_segment(ranges: list[JournaledRange]) -> Iterable[list[JournaledRange]]:
    """Group ranges by segment, in their order: each file is opened once."""
    found: dict[tuple[bytes, int, int], list[JournaledRange]] = {}
    for one in ranges:
        found.setdefault(one[:3], []).append(one)
    return found.values()


class _Target:
    """The segments that ranges are written to, synced together at the end."""

    def __init__(self, paths: StorePaths, log_start: Callable[[TopicPartition], int]) -> None:
        self._paths = paths
        self._log_start = log_start
        self._written: dict[Path, None] = {}

    def write(
        self, where: TopicPartition, half: JournaledHalf, ranges: list[JournaledRange]
    ) -> None:
        """Write ranges of one segment into its file, unless it was deleted."""
        path = self._paths.partition(where) / f"{ranges[0].base_offset:020d}.log"
        flags = os.O_RDWR
        end_offset = max(one.end_offset for one in ranges)
        with named_os_errors(f"writing what a commit journal has of {path}"):
            if end_offset > self._log_start(where) and path.parent.is_dir():
                flags |= os.O_CREAT  # Its name was lost.
            try:
                descriptor = FileDescriptor(path, flags, FILE_MODE)
            except FileNotFoundError:
                return
            self._written[path] = None
            with descriptor:
                _write_all(descriptor.fileno(), half, ranges)

    def sync(self) -> None:
        for path in self._written:
            sync_file(path)
        for folder in dict.fromkeys(path.parent for path in self._written):
            sync_directory(folder)


def _write_all(descriptor: int, half: JournaledHalf, ranges: list[JournaledRange]) -> None:
    """Write the ranges in their order, those that follow each other in the file by one call."""
    first = 0
    while first < len(ranges):
        position_bytes = end_bytes = ranges[first].position_bytes
        pieces: list[memoryview] = []
        for one in ranges[first : first + _PIECES_MAX]:
            if one.position_bytes != end_bytes:
                break
            pieces.append(half.bytes_of(one))
            end_bytes += one.size
        first += len(pieces)
        while pieces:
            written = os.pwritev(descriptor, pieces, position_bytes)
            position_bytes += written
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][written:]


def halves_of(path: Path) -> Iterator[JournaledHalf]:
    """Yield what a journal holds (P2). A file that was never finished holds nothing.

    Raises CorruptRecordError.
    """
    if path.suffix == TEMPORARY_SUFFIX:
        return
    with named_os_errors(f"reading {path}"), FileDescriptor(path, os.O_RDONLY) as descriptor:
        half_bytes = os.fstat(descriptor).st_size // HALVES
        for half in range(HALVES):
            at = half * half_bytes
            try:
                header = half_header(_read(descriptor, at, BLOCK_BYTES), half)
            except ValueError as error:
                raise CorruptRecordError(str(path), at, str(error)) from error
            if header is None:
                continue
            journal_id, written_bytes, epoch = header
            if written_bytes != half_bytes:
                raise CorruptRecordError(
                    str(path), at, f"its halves have {half_bytes} bytes, and had {written_bytes}"
                )
            data = _read(descriptor, at, half_bytes)
            yield JournaledHalf(data, _ranges_of(path, at, data, (journal_id, epoch)))


def ranges_of(path: Path) -> Iterator[JournaledRange]:
    """Yield the ranges of both halves; see `halves_of`."""
    for half in halves_of(path):
        yield from half.ranges


def _read(descriptor: int, position_bytes: int, count: int) -> memoryview:
    data = view = np.empty(count, dtype=np.uint8).data
    while view:
        done = os.preadv(descriptor, [view], position_bytes)
        if not done:
            raise OSError(errno.ENODATA, "the file ends before")
        view, position_bytes = view[done:], position_bytes + done
    return data


def _ranges_of(
    path: Path, half_at: int, data: memoryview, valid: tuple[bytes, int]
) -> list[JournaledRange]:
    position, count = BLOCK_BYTES, 0
    held: list[JournaledRange] = []
    while (found := record_at(data, position)) is not None:
        journal_id, epoch, number, record_bytes, ranges = found
        if (journal_id, epoch) != valid or number != count + 1:
            break
        held.extend(map(JournaledRange._make, ranges))
        count += 1
        position += -(-record_bytes // BLOCK_BYTES) * BLOCK_BYTES
    for behind in range(position, len(data), BLOCK_BYTES):
        found = record_at(data, behind)
        if found is not None and found[:2] == valid and found[2] > count:
            raise CorruptRecordError(
                str(path),
                half_at + position,
                f"record {count + 1} is damaged, and record {found[2]} behind it is whole: what it "
                "held may be lost",
            )
    return held


def retire_dead_journals(
    paths: StorePaths,
    alive: Callable[[bytes], bool],
    topics: Callable[[], Iterable[TopicDescription]],
    find: Callable[[TopicPartition], Partition | None],
) -> int:
    """Sync what the journals of dead processes hold, and remove them; how many there were.

    `alive` tells by its slot if a process lives, `topics` gives those there are now, `find` an open
    partition; None if it is gone. Raises EoslogError: the rest stays.
    """
    count = 0
    for path in journal_files(paths):
        slot = slot_of(path)
        if slot is None or alive(slot):
            continue
        if path.suffix == TEMPORARY_SUFFIX:
            count += _remove(path)
            continue
        with named_os_errors(f"looking at {path}"):
            try:
                file = UnforkedFile(path, os.O_RDONLY, FILE_MODE)
            except FileNotFoundError:
                continue  # Another process retired it just now.
        try:
            # Else somebody retires it, or it is gone by now.
            if file.lock(exclusive=True, wait=False) and os.fstat(file.fileno()).st_nlink:
                # Looked at now: its process may have made one a moment before it died.
                names = {id_bytes(topic.topic_id): topic.name for topic in topics()}
                _sync_what_it_holds(path, names, find)
                count += _remove(path)
        finally:
            file.close()
    return count


def _remove(path: Path) -> int:
    with named_os_errors(f"removing {path}"):
        path.unlink(missing_ok=True)
    return 1


def slot_of(path: Path) -> bytes | None:
    """Return the slot of the process whose journal this is; None for a file of no journal."""
    try:
        return bytes.fromhex(path.name.partition("-")[0])
    except ValueError:
        return None


def has_journal(paths: StorePaths, slot: bytes) -> bool:
    """True if something is left of a journal of the process with this slot."""
    return any(slot_of(path) == slot for path in journal_files(paths))


def _sync_what_it_holds(
    path: Path, names: dict[bytes, str], find: Callable[[TopicPartition], Partition | None]
) -> None:
    ends: dict[TopicPartition, int] = {}
    for one in ranges_of(path):
        if one.topic_id in names:
            where = TopicPartition(names[one.topic_id], one.partition)
            ends[where] = max(one.end_offset, ends.get(where, 0))
    for where, end in ends.items():
        partition = find(where)
        if partition is not None:
            partition.sync_up_to(min(end, partition.log_end_offset))
