"""Staged files on their way into the partitions: checked before the decision, adopted after it.

Steps D3 to D5 and A1 to V of `docs/staged-commit.md`. Every step of an adoption may be done again
from the start: the partition knows, by the last sequence of each file's producer id, which batches
it holds.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.record_batch import BatchHeader, batch_crc32c, crc32c, iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    LogClosedError,
    StagedCommitError,
    StoreFullError,
)
from eoslog.fs.atomic_file import sync_directory, sync_file
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories
from eoslog.fs.shared_syncs import SYNC_THREADS_MAX, run_together, with_those_above
from eoslog.staging.staged_job import JobFile, StagedJob, threads_for
from eoslog.storage.partition import Partition

FindPartition = Callable[[TopicPartition], Partition | None]
Offsets = dict[TopicPartition, tuple[int, int]]

# The interpreter's lock is held while a piece is summed up.
_CRC_PIECE_BYTES = 4 << 20
# What stands at the path, or on the way there, is no file of ours: a link, a file, a socket.
_NO_FILE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})


# Before the decision.


@contextmanager
def _mapped(one: JobFile) -> Iterator[memoryview]:
    """The file's bytes for as long as the block lasts.

    Raises StagedCommitError if it is not there, is no regular file, or has another length than its
    message says.
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
    """The file, open to read; without waiting, were it a pipe."""
    try:
        return FileDescriptor(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
    """Raise StagedCommitError unless all files of a job can be adopted; the ids of their topics.

    `batch_bytes_max(topic)` says how large a batch the topic takes.
    """
    partitions: dict[TopicPartition, Partition] = {}
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
    """The error for a job that is not decided, since a topic of it went."""
    return StagedCommitError(f"topic {where.topic!r} was deleted while the job was checked")


@contextmanager
def _deletions_named(
    where: TopicPartition, partition: Partition, find_partition: FindPartition
) -> Iterator[None]:
    """Raise StagedCommitError for a partition that is closed because its topic was deleted."""
    try:
        yield
    except LogClosedError as error:
        if find_partition(where) is partition:
            raise  # The store is being closed.
        raise _deleted_meanwhile(where) from error


def _check_files(files: Sequence[JobFile], limits: Mapping[str, int]) -> None:
    """Check each of the files; those of a large job by several threads."""

    def check(one: JobFile) -> None:
        _check_file(one, limits[one.file.topic])

    threads_max = threads_for(files, len(files))
    if threads_max < 2:
        for one in files:
            check(one)
        return
    run_together([partial(check, one) for one in files], threads_max)


def _check_file(one: JobFile, batch_bytes_max: int) -> None:
    """Raise StagedCommitError unless the file is as its message says, and fits the topic."""
    with _mapped(one) as staged:
        try:
            headers = _headers_of(one, staged)
        except StagedCommitError:
            _check_sum(one, _sum_of(staged))
            raise
        crc = 0
        for header in headers:  # Each was verified just now, and so need not be read again.
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

    Its batches may say by now where they stand in the log, which the file's checksum covers; their
    own do not.
    """
    with _mapped(one) as staged:
        headers = _headers_of(one, staged)
    _check_batches(one, headers)


def _headers_of(one: JobFile, staged: memoryview) -> Sequence[BatchHeader]:
    """The headers of a file's batches, each of which was verified."""
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
    """CRC-32C of the bytes, piece by piece: the interpreter's lock is held for each."""
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

    `segment_bytes(topic)` says how large a file may be that becomes a segment. It is a forecast:
    others may fill the disk meanwhile. A job that is too large is refused here, instead of being
    decided and then waiting for room.
    """
    with named_os_errors(f"measuring {store_path}"):
        disk = os.statvfs(store_path)
        device = store_path.stat().st_dev
    wanted_bytes = sum(
        one.file.bytes
        for one in files
        if not one.is_large
        or one.file.bytes > segment_bytes(one.file.topic)
        or not _is_on(device, one.path)
    )
    free_bytes = disk.f_bavail * disk.f_frsize
    if wanted_bytes > free_bytes:
        raise StoreFullError(
            f"{store_path}: the job needs {wanted_bytes} bytes beside its staged files, and "
            f"{free_bytes} are free; nothing of it was decided"
        )


def _is_on(device: int, path: Path) -> bool:
    """True if the file is on a device; one that is missing is named by the checks that follow."""
    try:
        return path.stat().st_dev == device
    except OSError:
        return False


def make_run_directory(run: Path, store_path: Path, sync: bool) -> None:
    """Make a run's directory for a job without files."""
    with named_os_errors(f"making {run}"):
        made = not run.is_dir()
        make_directories(run)
        if made and sync:
            above = with_those_above(run.parent, store_path)
            run_together([partial(sync_directory, one) for one in above])


def sync_staged(paths: list[Path], store_path: Path) -> None:
    """Put staged files on disk whose writer did not, and the directories above them."""
    directories = {
        directory
        for attempt in {path.parent for path in paths}
        for directory in with_those_above(attempt, store_path)
    }
    run_together(
        [
            *(partial(sync_file, path) for path in paths),
            *(partial(sync_directory, one) for one in sorted(directories)),
        ]
    )


# After it.


class HeldPartitions:
    """The partitions of a job, with readers held at its bounds."""

    def __init__(self, find: FindPartition, topic_ids: Mapping[str, str]) -> None:
        self._find = find
        self._topic_ids = topic_ids
        self._held: dict[TopicPartition, Partition] = {}

    def hold(self, bounds: Mapping[TopicPartition, int]) -> None:
        """Keep readers below the bounds, of those partitions that exist and can be opened."""
        for where, bound in bounds.items():
            try:
                partition = self.find(where)
            except EoslogError:
                continue  # Nobody can read it either; the adoption will say why.
            if partition is not None:
                partition.hold_readers(bound)
                self._held[where] = partition

    def have(self, wanted: Iterable[TopicPartition]) -> None:
        """Have the partitions of a job of which readers may see everything."""
        for where in wanted:
            partition = self.find(where)
            if partition is not None:
                self._held[where] = partition

    def let_in_if_begun(self) -> None:
        """Let readers in everywhere, if a process that died had begun to let them in."""
        held = [partition.hold_offset >= 0 for partition in self._held.values()]
        if any(held) and not all(held):
            for partition in self._held.values():
                partition.release_readers()

    def hold_at_end(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Keep readers below the partitions' present ends, and say where these are.

        Raises StagedCommitError where a topic was deleted meanwhile.
        """
        bounds = {}
        for where in wanted:
            partition = self.find(where)
            if partition is None:
                raise _deleted_meanwhile(where)
            with _deletions_named(where, partition, self._find):
                self._held[where] = partition
                partition.hold_readers()
                bounds[where] = partition.visible_end
        return bounds

    def find(self, where: TopicPartition) -> Partition | None:
        """The partition, unless its topic was deleted since the decision."""
        partition = self._find(where)
        if partition is None or partition.topic_id != self._topic_ids[where.topic]:
            return None
        return partition

    def sync(self) -> None:
        """Put on disk whatever the partitions hold, all at once: their syncs share the disk's."""
        waiting = []
        for where, partition in list(self._held.items()):
            if self._has_unsynced(where, partition):
                waiting.append((where, partition))
            else:
                self._sync_partition(where, partition)  # Tells of a sync that failed before.
        run_together([partial(self._sync_partition, *one) for one in waiting])

    def _has_unsynced(self, where: TopicPartition, partition: Partition) -> bool:
        try:
            return partition.recovery_point < partition.log_end_offset
        except LogClosedError:
            if self.find(where) is not None:
                raise
            return False

    def sync_one(self, where: TopicPartition) -> None:
        """Put on disk whatever one of the partitions holds."""
        partition = self._held.get(where)
        if partition is not None:
            self._sync_partition(where, partition)

    def _sync_partition(self, where: TopicPartition, partition: Partition) -> None:
        try:
            partition.sync_up_to(partition.log_end_offset)
        except LogClosedError:
            if self.find(where) is not None:
                raise

    def release(self) -> None:
        """Let readers see everything."""
        for partition in list(self._held.values()):
            partition.release_readers()
        self._held = {}

    def forget_topic(self, topic: str) -> None:
        """The topic is being deleted, with all that was adopted into it."""
        for where in [where for where in self._held if where.topic == topic]:
            del self._held[where]


def adopt_files(
    job: StagedJob, held: HeldPartitions, *, sync: bool, checked: bool = False
) -> Offsets:
    """Append what the partitions do not hold yet; the first and last offset of each of them.

    Large jobs fill several partitions at once, and with `sync` one goes to disk while others are
    filled. Files of topics that were deleted since the decision are passed over. `checked`: the
    checksums of all files were verified just now.
    """
    by_partition: dict[TopicPartition, list[JobFile]] = {}
    for one in job.files:
        by_partition.setdefault(one.file.topic_partition, []).append(one)
    threads_max = threads_for(job.files, len(by_partition))
    if threads_max > 1 and sync:
        threads_max = min(len(by_partition), SYNC_THREADS_MAX)  # They wait, mostly.
    if threads_max < 2:
        filled = [_fill(files, held, checked) for files in by_partition.values()]
    else:
        for where in by_partition:
            held.find(where)  # Opened here: what is done then may need what this thread holds.
        filled = run_together(
            [
                partial(_fill, files, held, checked, where if sync else None)
                for where, files in by_partition.items()
            ],
            threads_max,
        )
    return {
        where: found for where, found in zip(by_partition, filled, strict=True) if found is not None
    }


def _fill(
    files: Sequence[JobFile],
    held: HeldPartitions,
    checked: bool,
    synced: TopicPartition | None = None,
) -> tuple[int, int] | None:
    """Append a partition's files in their order; its first and last new offset, if there are any.
    `synced` is the partition if it is to be on disk on return.
    """
    found: tuple[int, int] | None = None
    for one in files:
        first_offset, appended = _adopt_file(one, held, checked)
        if appended:
            begin = first_offset if found is None else found[0]
            found = (begin, first_offset + appended - 1)
    if synced is not None:
        held.sync_one(synced)
    return found


def is_adopted(job: StagedJob, held: HeldPartitions) -> bool:
    """True if all of the job's files are in the partitions. Raises EoslogError."""
    return all(is_file_adopted(one, held) for one in job.files)


def is_untouched(job: StagedJob, held: HeldPartitions) -> bool:
    """True if nothing of the job's files is in the partitions. Raises EoslogError."""
    for one in job.files:
        partition = held.find(one.file.topic_partition)
        if partition is not None and partition.producer(one.file.producer_id) is not None:
            return False
    return True


def is_file_adopted(one: JobFile, held: HeldPartitions) -> bool:
    """True if nothing of the file is wanted any more: all of it is in, or its topic is gone."""
    partition = held.find(one.file.topic_partition)
    return partition is None or _holds_all_of(partition, one)


def _adopt_file(one: JobFile, held: HeldPartitions, checked: bool) -> tuple[int, int]:
    where = one.file.topic_partition
    partition = held.find(where)
    if partition is None:
        return -1, 0
    if _holds_all_of(partition, one):
        return -1, 0
    try:
        if one.is_large:
            adopted = partition.adopt_file(
                one.path, one.file.bytes, one.file.producer_id, checked=checked
            )
            if adopted is not None:
                return adopted
        with _mapped(one) as staged:
            return partition.adopt(staged, one.file.producer_id)
    except CorruptRecordError as error:
        if error.path:
            raise
        raise CorruptRecordError(str(one.path), error.position_bytes, error.reason) from error
    except LogClosedError:
        if held.find(where) is None:
            return -1, 0
        raise


def _holds_all_of(partition: Partition, one: JobFile) -> bool:
    """True if the partition holds the file's last record: the file may even be gone by now."""
    state = partition.producer(one.file.producer_id)
    return state is not None and state.last_sequence == one.file.records - 1
