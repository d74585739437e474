"""Replay of the commit journals that an unclean stop left, and the end of those of dead processes.

Steps have the names of `docs/crash-points.md`. A journal holds bytes of segments that calls have
returned for, and that the segments' files need not hold. The first opener writes them there before
it looks at a partition; a process that settles a dead one syncs the files instead.

Invariants: nothing is written before all journals are read and found sound; a journal is removed
after all it holds is on the disk in the files, and after an error it stays. What has no journal's
name is none, and stays.
"""

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.commit_journal import BLOCK_BYTES, HALVES, half_header, record_at
from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.snapshot_files import SEGMENT_NAME
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, EoslogError, RecoveryNeededError
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, sync_directory, sync_file
from eoslog.fs.file_system import boot_id
from eoslog.fs.identity_files import id_bytes
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE
from eoslog.session.paths import StorePaths
from eoslog.session.store_session import SessionFile
from eoslog.storage.clean_close import read_last_stop
from eoslog.storage.spare_files import remove_spares
from eoslog.storage.topic_registry import TopicDescription
from eoslog.storage.unified_log import UnifiedLog

_PIECES_MAX = 1024  # What a call of pwritev takes.
_KEPT_BYTES_MAX = 256 << 20  # Larger journals are read twice.

# The slot of its process, and some letters.
_JOURNAL_NAME = re.compile(r"([0-9a-f]{2})+-[0-9a-f]+(\.tmp)?")
# What could not be retired is tried again after so long, and twice as long each time, up to this.
_RETRY_S_FIRST = 1.0
_RETRY_S_LAST = 60.0

_log = logging.getLogger(__name__)
_warnings = RepeatedWarnings(_log)


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
    end: tuple[int, int]  # Its epoch, and the count of its records.
    end_bytes: int  # Where the next record would stand in it.
    other_end: tuple[
        int, int
    ]  # What `end` of the other half was when its newest record was written.

    def bytes_of(self, one: JournaledRange) -> memoryview:
        return self.data[one.begin : one.begin + one.size]


def journal_files(paths: StorePaths) -> list[Path]:
    """Return the files of journals, those that were never finished too."""
    with named_os_errors(f"looking for {paths.journals}"):
        try:
            found = sorted(paths.journals.iterdir())
        except FileNotFoundError:
            return []
    for path in found:
        if not _JOURNAL_NAME.fullmatch(path.name):
            _warnings.warning("%s is no commit journal: it is left as it is", path)
    return [path for path in found if _JOURNAL_NAME.fullmatch(path.name)]


def remove_journals(paths: StorePaths) -> None:
    """Remove all journals, durably: what they hold is on the disk in the files (L2, P5)."""
    for path in journal_files(paths):
        with named_os_errors(f"removing {path}"):
            path.unlink(missing_ok=True)
    # If there are none too: who retires one does not sync its name.
    if paths.journals.is_dir():
        sync_directory(paths.journals)


def refuse_after_power_cut(paths: StorePaths) -> None:
    """Raise RecoveryNeededError where journals may hold what the files lack: the store was not
    closed, and the processes that left them did not die in this run of the kernel. It is named in
    the session's file before the first journal is begun, and after the older ones are replayed.
    """
    if read_last_stop(paths.clean_marker, paths.unrecovered).unrecovered is not None or all(
        path.suffix == TEMPORARY_SUFFIX for path in journal_files(paths)
    ):
        return
    left = SessionFile.read(paths.session)
    if left is None or left.boot_id != boot_id():
        raise RecoveryNeededError(
            f"{paths.root} was not closed before the power went or the machine was started again, "
            "and has commit journals: open it once without read_only, or run a command that writes "
            "(`eoslog produce TOPIC < /dev/null`), which writes back what they hold"
        )


def replay_journals(
    paths: StorePaths,
    topics: Iterable[TopicDescription],
    log_start: Callable[[TopicPartition], int],
) -> int:
    """Write what the journals hold into the segments, durably, and remove the journals (P1 to P5).
    Return the count of ranges; no other process has the store open.

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
            _log.debug(
                "%s: a half of epoch %d has %d records with %d ranges",
                *(path, *half.end, len(half.ranges)),
            )
            for ranges in _by_segment(half.ranges):
                topic = names.get(ranges[0].topic_id)
                if topic is not None and 0 <= ranges[0].partition < topic.partitions:
                    where = TopicPartition(topic.name, ranges[0].partition)
                    target.write(where, half, ranges)
                    count += len(ranges)
                else:
                    _log.debug("%s: %d ranges are of a topic that was deleted", path, len(ranges))
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
        self._oldest: dict[Path, int] = {}  # By folder, before anything was written.
        self._written: dict[Path, None] = {}

    def write(
        self, where: TopicPartition, half: JournaledHalf, ranges: list[JournaledRange]
    ) -> None:
        """Write ranges of one segment into its file, unless it was deleted."""
        folder, base_offset = self._paths.partition(where), ranges[0].base_offset
        path = folder / f"{base_offset:020d}.log"
        with named_os_errors(f"writing what a commit journal has of {path}"):
            flags = os.O_RDWR
            if base_offset > self._oldest_of(folder) and (
                max(one.end_offset for one in ranges) > self._log_start(where)
            ):
                flags |= os.O_CREAT  # Its name was lost.
            try:
                descriptor = FileDescriptor(path, flags, FILE_MODE)
            except FileNotFoundError:
                _log.debug("%s: %d ranges are of a segment that was deleted", path, len(ranges))
                return
            _log.debug(
                "%s: %d ranges up to offset %d are written back",
                *(path, len(ranges), max(one.end_offset for one in ranges)),
            )
            self._written[path] = None
            with descriptor:
                _write_all(descriptor.fileno(), half, ranges)

    def _oldest_of(self, folder: Path) -> int:
        """Base offset of a folder's oldest segment: what was older is deleted. -1 if it has none.

        What a log start says may be lost, or was never written.
        """
        if folder not in self._oldest:
            names = (one.name for one in (folder.iterdir() if folder.is_dir() else ()))
            found = map(SEGMENT_NAME.fullmatch, names)
            self._oldest[folder] = min((int(one[1]) for one in found if one), default=-1)
        return self._oldest[folder]

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

    Raises CorruptRecordError, for what one half lacks that the other one knows of after both.
    """
    if path.suffix == TEMPORARY_SUFFIX:
        return
    ends: dict[int, tuple[tuple[int, int], int]] = {}
    other_ends: dict[int, tuple[int, int]] = {}
    with (
        named_os_errors(f"reading {path}"),
        FileDescriptor(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor,
    ):
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptRecordError(str(path), 0, "it is not a regular file")
        half_bytes = found.st_size // HALVES
        for half in range(HALVES):
            at = half * half_bytes
            try:
                header = half_header(_read(descriptor, at, min(half_bytes, BLOCK_BYTES)), half)
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
            one = _half_of(path, at, data, (journal_id, epoch))
            ends[half], other_ends[1 - half] = (one.end, at + one.end_bytes), one.other_end
            yield one
    for half, other_end in other_ends.items():
        end, end_bytes = ends.get(half, ((0, 0), half * half_bytes))
        if other_end[1] and end < other_end:
            raise _lost_record(path, end_bytes, end[1] + 1, "the other half was begun after it")


def _lost_record(path: Path, at: int, number: int, shown_by: str) -> CorruptRecordError:
    reason = f"record {number} is damaged, and {shown_by}: what it held may be lost"
    return CorruptRecordError(str(path), at, reason)


def ranges_of(path: Path) -> Iterator[JournaledRange]:
    """Yield the ranges of both halves; see `halves_of`."""
    for half in halves_of(path):
        yield from half.ranges


def _read(descriptor: int, position_bytes: int, count: int) -> memoryview:
    data = view = memoryview(bytearray(count))
    while view:
        done = os.preadv(descriptor, [view], position_bytes)
        if not done:
            raise OSError(errno.ENODATA, "the file ends before")
        view, position_bytes = view[done:], position_bytes + done
    return data


def _half_of(path: Path, half_at: int, data: memoryview, valid: tuple[bytes, int]) -> JournaledHalf:
    position, count, other_end = BLOCK_BYTES, 0, (0, 0)
    held: list[JournaledRange] = []
    while (found := record_at(data, position)) is not None:
        journal_id, epoch, number, record_bytes, ranges, now_other_end = found
        if (journal_id, epoch) != valid or number != count + 1:
            break
        held.extend(map(JournaledRange._make, ranges))
        count += 1
        other_end = now_other_end
        position += -(-record_bytes // BLOCK_BYTES) * BLOCK_BYTES
    for later_bytes in range(position, len(data), BLOCK_BYTES):
        found = record_at(data, later_bytes)
        if found is not None and found[:2] == valid and found[2] > count:
            shown_by = f"record {found[2]} after it is whole"
            raise _lost_record(path, half_at + position, count + 1, shown_by)
    return JournaledHalf(data, held, (valid[1], count), position, other_end)


class DeadJournals:
    """The journals of processes that died, retired by one that lives.

    `alive(slot)` is true if the slot's process lives, `topics` returns the topics that exist now,
    `find` an open partition, or None if it is gone.
    """

    def __init__(
        self,
        paths: StorePaths,
        alive: Callable[[bytes], bool],
        topics: Callable[[], Iterable[TopicDescription]],
        find: Callable[[TopicPartition], UnifiedLog | None],
    ) -> None:
        self._paths = paths
        self._alive = alive
        self._topics = topics
        self._find = find
        # Of those that could not be retired: when it is tried again, and how long that waited.
        self._put_off: dict[Path, tuple[float, float]] = {}

    def retire(self) -> int:
        """Sync what the journals of dead processes hold, and remove them; how many there were.

        Raises the first EoslogError, after the others had their turn: that journal stays, and is
        left alone for a while.
        """
        count = 0
        errors: list[EoslogError] = []
        for path in journal_files(self._paths):
            slot = slot_of(path)
            due_s, waited_s = self._put_off.get(path, (0.0, _RETRY_S_FIRST / 2))
            if self._alive(slot) or time.monotonic() < due_s:
                continue
            try:
                count += self._retire(path)
                self._put_off.pop(path, None)
            except EoslogError as error:
                wait_s = min(2 * waited_s, _RETRY_S_LAST)
                self._put_off[path] = (time.monotonic() + wait_s, wait_s)
                errors.append(error)
        if errors:
            raise errors[0]
        return count

    def _retire(self, path: Path) -> bool:
        """Retire one; False if another process does."""
        if path.suffix == TEMPORARY_SUFFIX:
            return _remove(path)
        with named_os_errors(f"looking at {path}"):
            try:
                # To be written, or a network file system would not lock it exclusively.
                file = UnforkedFile(path, os.O_RDWR | os.O_NONBLOCK, FILE_MODE)
            except FileNotFoundError:
                return False  # Another process retired it just now.
        try:
            # Else another process retires it, or it is gone by now.
            if not file.lock(exclusive=True, wait=False) or not os.fstat(file.fileno()).st_nlink:
                return False
            # Looked at now: its process may have made one a moment before it died.
            names = {id_bytes(topic.topic_id): topic.name for topic in self._topics()}
            _sync_what_it_holds(path, names, self._find)
            return _remove(path)
        finally:
            file.close()


def _remove(path: Path) -> bool:
    with named_os_errors(f"removing {path}"):
        path.unlink(missing_ok=True)
    return True


def slot_of(path: Path) -> bytes:
    """Return the slot of the process whose journal this is."""
    return bytes.fromhex(path.name.partition("-")[0])


def has_journal(paths: StorePaths, slot: bytes) -> bool:
    """True if something is left of a journal of the process with this slot."""
    return any(slot_of(path) == slot for path in journal_files(paths))


def _sync_what_it_holds(
    path: Path, names: dict[bytes, str], find: Callable[[TopicPartition], UnifiedLog | None]
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
