"""A staged file as the driver reads it: mapped, and checked before the decision."""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.record_batch import BatchHeader, batch_crc32c, crc32c, iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, LogClosedError, StagedCommitError, StoreFullError
from eoslog.fs.atomic_file import sync_directory, sync_file
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories
from eoslog.fs.shared_syncs import run_together, with_those_above
from eoslog.staging.staged_job import JobFile, threads_for
from eoslog.storage.partition import Partition

# The interpreter's lock is held while a piece is summed up.
_CRC_PIECE_BYTES = 4 << 20
# What stands at the path, or on the way there, is no file of ours: a link, a file, a socket.
_NO_FILE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})


@contextmanager
def mapped(one: JobFile) -> Iterator[memoryview]:
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
    find_partition: Callable[[TopicPartition], Partition | None],
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
        with deletions_named(where, partitions[where], find_partition):
            was_committed = partitions[where].producer(producer_id) is not None
        if was_committed:
            raise StagedCommitError(
                f"{one.path}: partition {where} has records of producer {producer_id} already: "
                "the file was committed before"
            )
    _check_files(files, limits)
    return {where.topic: partition.topic_id for where, partition in partitions.items()}


def deleted_meanwhile(where: TopicPartition) -> StagedCommitError:
    """The error for a job that is not decided, since a topic of it went."""
    return StagedCommitError(f"topic {where.topic!r} was deleted while the job was checked")


@contextmanager
def deletions_named(
    where: TopicPartition,
    partition: Partition,
    find_partition: Callable[[TopicPartition], Partition | None],
) -> Iterator[None]:
    """Raise StagedCommitError for a partition that is closed because its topic was deleted."""
    try:
        yield
    except LogClosedError as error:
        if find_partition(where) is partition:
            raise  # The store is being closed.
        raise deleted_meanwhile(where) from error


def _check_files(files: Sequence[JobFile], limits: Mapping[str, int]) -> None:
    """Check each of the files; those of a large job by several threads."""

    def check(one: JobFile) -> None:
        check_file(one, limits[one.file.topic])

    threads_max = threads_for(files, len(files))
    if threads_max < 2:
        for one in files:
            check(one)
        return
    run_together([partial(check, one) for one in files], threads_max)


def check_file(one: JobFile, batch_bytes_max: int) -> None:
    """Raise StagedCommitError unless the file is as its message says, and fits the topic."""
    with mapped(one) as staged:
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
    with mapped(one) as staged:
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
