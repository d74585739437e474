"""Adoption of staged files: they are checked before the decision, and appended after it.

Steps D3 to D5 and A1 to V of `docs/staged-commit.md`. Every step of an adoption may be repeated:
the last sequence of a file's producer id shows which of its batches a partition holds.
"""

import errno
import logging
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor, sync_descriptor
from eoslog.bindings.record_batch import BatchHeader, batch_crc32c, crc32c, iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    LogClosedError,
    StagedCommitError,
    StoreFullError,
)
from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.overlay_directories import is_in_overlay
from eoslog.fs.shared_syncs import SYNC_THREADS_MAX, run_together, with_those_above
from eoslog.staging.job import JobFile, StagedJob, threads_for
from eoslog.storage.unified_log import UnifiedLog

FindPartition = Callable[[TopicPartition], UnifiedLog | None]
Offsets = dict[TopicPartition, tuple[int, int]]

# The GIL is held while the CRC of a piece is computed.
_CRC_PIECE_BYTES = 4 << 20
# At the path, or on the way there, is no file of ours: a link, a file, a socket.
_log = logging.getLogger(__name__)

_NO_FILE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})


# Before the decision.


@contextmanager
def _mapped(one: JobFile) -> Iterator[memoryview]:
    """Map the file's bytes for the block.

    Raises StagedCommitError if the file is missing, is no regular file, or does not have the length
    in its message.
    """
    with named_os_errors(f"reading {one.path}"), _opened(one.path) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StagedCommitError(f"{one.path}: the staged file is no regular file")
        found_bytes = status.st_size
        if found_bytes != one.file.bytes:
            raise StagedCommitError(
                f"{one.path}: a staged file of {found_bytes} bytes, expected {one.file.bytes}"
            )
        mapping = mmap.mmap(descriptor, found_bytes, prot=mmap.PROT_READ)
    with mapping, memoryview(mapping) as staged:
        yield staged


def _opened(path: Path) -> FileDescriptor:
    """Open the file to read; a pipe does not make it wait."""
    flags = os.O_RDONLY | os.O_NONBLOCK
    try:
        return FileDescriptor(path, flags if is_in_overlay(path) else flags | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise StagedCommitError(f"{path}: the staged file is missing") from error
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise StagedCommitError(
            f"{path}: the staged file is no regular file: {error.strerror}"
        ) from error


def check_job(
    files: Sequence[JobFile],
    find_partition: FindPartition,
    batch_bytes_max: Callable[[str], int],
) -> dict[str, str]:
    """Raise StagedCommitError unless all files of a job can be adopted; return their topics' ids.

    `batch_bytes_max(topic)` is the size of the largest batch that the topic takes.
    """
    partitions: dict[TopicPartition, UnifiedLog] = {}
    for where in sorted({one.file.topic_partition for one in files}):
        partition = find_partition(where)
        if partition is None:
            raise StagedCommitError(f"the store has no partition {where}")
        partitions[where] = partition
    limits = {topic: batch_bytes_max(topic) for topic in {where.topic for where in partitions}}
    seen: set[int] = set()
    for one in files:
        where, producer_id = one.file.topic_partition, one.file.producer_id
        topic_id = partitions[where].topic_id
        if one.file.topic_id not in ("", topic_id):
            raise StagedCommitError(
                f"{one.path}: staged for a topic {where.topic!r} that was deleted (topic id "
                f"{one.file.topic_id}); the one of the name now has the id {topic_id}"
            )
        if producer_id in seen:
            raise StagedCommitError(f"{one.path}: producer id {producer_id} came twice")
        seen.add(producer_id)
        with _deletions_named(where, partitions[where], find_partition):
            was_committed = partitions[where].producer(producer_id) is not None
        if was_committed:
            raise StagedCommitError(
                f"{one.path}: partition {where} has records of producer {producer_id} already: "
                "the file was committed before"
            )
    _check_files(files, limits)
    return {where.topic: partition.topic_id for where, partition in partitions.items()}


def _deleted_meanwhile(where: TopicPartition) -> StagedCommitError:
    """Return the error for a job that is not decided because a topic of it was deleted."""
    return StagedCommitError(f"topic {where.topic!r} was deleted while the job was checked")


@contextmanager
def _deletions_named(
    where: TopicPartition, partition: UnifiedLog, find_partition: FindPartition
) -> Iterator[None]:
    """Raise StagedCommitError for a partition that is closed because its topic was deleted."""
    try:
        yield
    except LogClosedError as error:
        if find_partition(where) is partition:
            raise  # The store is being closed.
        raise _deleted_meanwhile(where) from error


def _check_files(files: Sequence[JobFile], limits: Mapping[str, int]) -> None:
    """Check each file; several threads check those of a large job."""

    def check(one: JobFile) -> None:
        _check_file(one, limits[one.file.topic])

    threads_max = threads_for(files, len(files))
    if threads_max < 2:
        for one in files:
            check(one)
        return
    run_together([partial(check, one) for one in files], threads_max)


def _check_file(one: JobFile, batch_bytes_max: int) -> None:
    """Raise StagedCommitError unless the file matches its message and fits the topic."""
    with _mapped(one) as staged:
        try:
            headers = _headers_of(one, staged)
        except StagedCommitError:
            _check_sum(one, _sum_of(staged))
            raise
        crc = 0
        for header in headers:  # Each was verified just now: its CRC need not be computed again.
            begin = header.position_bytes
            crc = batch_crc32c(staged[begin : begin + header.batch_bytes], crc)
        _check_sum(one, crc)
    for header in headers:
        if header.base_offset:
            raise _wrong_batch(one, header, f"base offset {header.base_offset}")
        if header.batch_bytes > batch_bytes_max:
            raise _wrong_batch(
                one,
                header,
                f"a batch of {header.batch_bytes} bytes; the topic takes {batch_bytes_max}",
            )
    _check_batches(one, headers)


def check_decided_file(one: JobFile) -> None:
    """Raise StagedCommitError unless a file whose job is decided can be adopted.

    Its batches may have their offsets in the log by now, which the file's checksum covers, and
    their own do not.
    """
    with _mapped(one) as staged:
        headers = _headers_of(one, staged)
    _check_batches(one, headers)


def _headers_of(one: JobFile, staged: memoryview) -> Sequence[BatchHeader]:
    """Verify a file's batches and return their headers."""
    try:
        return iter_batches(staged)
    except CorruptRecordError as error:
        raise StagedCommitError(
            f"{one.path} at byte {error.position_bytes}: {error.reason}"
        ) from error


def _check_batches(one: JobFile, headers: Sequence[BatchHeader]) -> None:
    """Raise StagedCommitError unless these are all the records of the file's producer id."""
    sequence = 0
    for header in headers:
        wrong = None
        if header.producer_id != one.file.producer_id or header.producer_epoch != 0:
            wrong = f"producer {header.producer_id}, expected {one.file.producer_id}"
        elif header.base_sequence != sequence:
            wrong = f"base sequence {header.base_sequence}, expected {sequence}"
        elif header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
            wrong = f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        elif header.attributes:
            wrong = f"attributes {header.attributes:#x}"
        if wrong is not None:
            raise _wrong_batch(one, header, wrong)
        sequence += header.record_count
    if sequence != one.file.records:
        raise StagedCommitError(f"{one.path}: {sequence} records, expected {one.file.records}")


def _wrong_batch(one: JobFile, header: BatchHeader, wrong: str) -> StagedCommitError:
    return StagedCommitError(f"{one.path} at byte {header.position_bytes}: {wrong}")


def _sum_of(staged: memoryview) -> int:
    """Return the CRC-32C of the bytes, computed piece by piece: the GIL is held for each."""
    crc = 0
    for first in range(0, len(staged), _CRC_PIECE_BYTES):
        crc = crc32c(staged[first : first + _CRC_PIECE_BYTES], crc)
    return crc


def _check_sum(one: JobFile, crc: int) -> None:
    if crc != one.file.crc:
        raise StagedCommitError(
            f"{one.path}: the staged file is damaged: CRC-32C {crc:#010x}, expected "
            f"{one.file.crc:#010x}"
        )


def check_room(
    files: Sequence[JobFile], store_path: Path, segment_bytes: Callable[[str], int]
) -> None:
    """Raise StoreFullError unless the disk has room for the files that are copied into the log.

    `segment_bytes(topic)` is the size of the largest file that becomes a segment. This is a
    forecast: others may fill the disk first. A job that is too large is refused here, and does
    not wait for room after its decision.
    """
    with named_os_errors(f"measuring {store_path}"):
        disk = os.statvfs(store_path)
        device = store_path.stat().st_dev
    wanted_bytes = sum(
        one.file.bytes
        for one in files
        if not one.is_large
        or one.file.bytes > segment_bytes(one.file.topic)
        or not _can_be_linked(device, one.path)
    )
    free_bytes = disk.f_bavail * disk.f_frsize
    if wanted_bytes > free_bytes:
        raise StoreFullError(
            f"{store_path}: the job needs {wanted_bytes} bytes beside its staged files, and "
            f"{free_bytes} are free; nothing of it was decided"
        )


def _can_be_linked(device: int, path: Path) -> bool:
    """True if the file is on a device, and this process's to change (L1). Later checks report a
    missing file.
    """
    try:
        found = path.stat()
    except OSError:
        return False
    is_own = os.geteuid() in (0, found.st_uid)
    return is_own and found.st_dev == device and found.st_nlink == 1


def sync_staged(paths: list[Path], store_path: Path) -> None:
    """Sync staged files that their writer did not sync, and the directories above them.

    Raises StagedCommitError, and removes the file, if one cannot be synced: a second sync would
    succeed, whatever the disk has of what the first one was to write. Then it is written again.
    Directories are synced by each call until all of this succeeded.
    """
    directories = {
        directory
        for attempt in {path.parent for path in paths}
        for directory in with_those_above(attempt, store_path)
    }
    run_together(
        [
            *(partial(_sync_or_remove, path) for path in paths),
            *(partial(sync_directory, one) for one in sorted(directories)),
        ]
    )


def _sync_or_remove(path: Path) -> None:
    with named_os_errors(f"opening {path}"):
        file = FileDescriptor(path, os.O_RDONLY)
    with file as descriptor:
        try:
            sync_descriptor(descriptor)
        except OSError as error:
            with named_os_errors(f"removing {path}, which could not be synced"):
                path.unlink(missing_ok=True)
            raise StagedCommitError(
                f"{path}: the staged file could not be synced, and was removed: {error}; stage its "
                "records again"
            ) from error


# After it.


class HeldPartitions:
    """Partitions of a job, in which readers are held at its bounds.

    Where they are held is in the pages that all processes share, and nowhere else: each call is for
    all partitions of the job, whichever process held readers there.
    """

    def __init__(
        self, find: FindPartition, topic_ids: Mapping[str, str], wanted: Iterable[TopicPartition]
    ) -> None:
        self.wanted = frozenset(wanted)
        self._find = find
        self._topic_ids = topic_ids

    def hold(self, bounds: Mapping[TopicPartition, int]) -> None:
        """Hold readers at the bounds, in the partitions that exist and can be opened."""
        for where, bound in bounds.items():
            try:
                partition = self.find(where)
            except EoslogError:
                continue  # No reader can open it either; the adoption raises the error.
            if partition is not None:
                _log.debug("%s: readers are held at offset %d", where, bound)
                partition.hold_readers(bound)

    def release_if_begun(self) -> None:
        """Release the readers of all partitions if a dead process had begun to release them."""
        held = [partition.hold_offset >= 0 for partition in self._there()]
        if any(held) and not all(held):
            self.release()

    def hold_at_end(self) -> dict[TopicPartition, int]:
        """Hold readers at the partitions' present ends, and return these.

        Raises StagedCommitError if a topic was deleted since.
        """
        bounds = {}
        for where in self.wanted:
            partition = self.find(where)
            if partition is None:
                raise _deleted_meanwhile(where)
            with _deletions_named(where, partition, self._find):
                partition.hold_readers()
                bounds[where] = partition.visible_end
            _log.debug("%s: readers are held at offset %d", where, bounds[where])
        return bounds

    def find(self, where: TopicPartition) -> UnifiedLog | None:
        """Return the partition, or None if its topic was deleted since the decision."""
        partition = self._find(where)
        if partition is None or partition.topic_id != self._topic_ids[where.topic]:
            return None
        return partition

    def sync(self) -> None:
        """Make all partitions durable at once: they share the syncs, and the journal's writes."""
        waiting = []
        for partition in self._there():
            where = partition.topic_partition
            with self._deletions_passed_over(where):
                if partition.log.durable_offset < partition.log_end_offset:
                    waiting.append(where)
                else:
                    self.sync_partition(where)  # Raises if a sync failed before.
        run_together([partial(self.sync_partition, where) for where in waiting])

    def sync_partition(self, where: TopicPartition) -> None:
        """Make a partition durable, unless its topic was deleted."""
        partition = self.find(where)
        if partition is not None:
            with self._deletions_passed_over(where):
                partition.make_durable(partition.log_end_offset)

    @contextmanager
    def _deletions_passed_over(self, where: TopicPartition) -> Iterator[None]:
        try:
            yield
        except LogClosedError:
            if self.find(where) is not None:
                raise

    def release(self) -> None:
        """Release the readers of all partitions."""
        for partition in self._there():
            _log.debug("%s: readers are released", partition.topic_partition)
            partition.release_readers()

    def _there(self) -> list[UnifiedLog]:
        """Return the partitions whose topics were not deleted. Raises EoslogError."""
        found = (self.find(where) for where in self.wanted)
        return [partition for partition in found if partition is not None]


def adopt_files(job: StagedJob, held: HeldPartitions, *, sync: bool, checked: bool) -> Offsets:
    """Append the batches that the partitions do not hold; return first and last offset of each.

    Several threads fill the partitions of a large job; with `sync` each is synced while others are
    filled. Files of topics that were deleted since the decision are left out. `checked`: the
    checksums of all files were verified just now.
    """
    by_partition: dict[TopicPartition, list[JobFile]] = {}
    for one in job.files:
        by_partition.setdefault(one.file.topic_partition, []).append(one)
    threads_max = threads_for(job.files, len(by_partition))
    if threads_max > 1 and sync:
        threads_max = min(len(by_partition), SYNC_THREADS_MAX)  # Mostly they wait for the disk.
    if threads_max < 2:
        filled = [_fill(files, held, checked, False) for files in by_partition.values()]
    else:
        for where in by_partition:
            held.find(where)  # Opening it may need a lock that this thread holds.
        filled = run_together(
            [partial(_fill, files, held, checked, sync) for files in by_partition.values()],
            threads_max,
        )
    return {
        where: found for where, found in zip(by_partition, filled, strict=True) if found is not None
    }


def _fill(
    files: Sequence[JobFile], held: HeldPartitions, checked: bool, sync: bool
) -> tuple[int, int] | None:
    """Append a partition's files in order; return its first and last new offset, if any."""
    found: tuple[int, int] | None = None
    for one in files:
        first_offset, appended = adopt_file(one, held, checked)
        if appended:
            begin = first_offset if found is None else found[0]
            found = (begin, first_offset + appended - 1)
    if sync:
        held.sync_partition(files[0].file.topic_partition)
    return found


def is_adopted(job: StagedJob, held: HeldPartitions) -> bool:
    """True if all of the job's files are in the partitions. Raises EoslogError."""
    return all(is_file_adopted(one, held) for one in job.files)


def is_any_file_begun(job: StagedJob, held: HeldPartitions) -> bool:
    """True if anything of the job's files is in the partitions. Raises EoslogError."""
    for one in job.files:
        partition = held.find(one.file.topic_partition)
        if partition is not None and partition.producer(one.file.producer_id) is not None:
            return True
    return False


def is_file_adopted(one: JobFile, held: HeldPartitions) -> bool:
    """True if all of the file is in the log, or its topic was deleted."""
    partition = held.find(one.file.topic_partition)
    return partition is None or _holds_all_of(partition, one)


def adopt_file(one: JobFile, held: HeldPartitions, checked: bool) -> tuple[int, int]:
    """Append the batches of a file that its partition lacks; return first offset and count."""
    where = one.file.topic_partition
    partition = held.find(where)
    if partition is None or _holds_all_of(partition, one):
        why = "its topic was deleted" if partition is None else f"{where} holds it"
        _log.debug("%s: nothing is adopted: %s", one.path, why)
        return -1, 0
    how = "became a segment of"
    try:
        adopted = None
        if one.is_large:
            adopted = partition.adopt_file(
                one.path, one.file.bytes, one.file.producer_id, checked=checked
            )
        if adopted is None:
            how = "was copied to"
            with _mapped(one) as staged:
                adopted = partition.adopt(staged, one.file.producer_id)
    except CorruptRecordError as error:
        if error.path:
            raise
        raise CorruptRecordError(str(one.path), error.position_bytes, error.reason) from error
    except LogClosedError:
        if held.find(where) is None:
            return -1, 0
        raise
    _log.debug("%s: %s %s at offset %d, %d records", one.path, how, where, *adopted)
    return adopted


def _holds_all_of(partition: UnifiedLog, one: JobFile) -> bool:
    """True if the partition holds the file's last record; the file may be gone by now."""
    state = partition.producer(one.file.producer_id)
    return state is not None and state.last_sequence == one.file.records - 1
