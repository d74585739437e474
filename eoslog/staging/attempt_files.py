"""Files of one task attempt while they are being written.

Invariants: this attempt created each file (`O_EXCL`, in a directory that it created); a file holds
whole batches of one producer id, with sequences from 0; its CRC and counts cover every byte that
was written. After a failed write nothing more is written: the state on disk is unknown.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor, sync_descriptor, sync_path
from eoslog.bindings.file_space import begin_writeback, reserve_behind
from eoslog.bindings.record_batch import batch_crc32c
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError
from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories, make_directory
from eoslog.fs.shared_syncs import run_together, with_those_above
from eoslog.staging.message import StagedFile, new_staged_producer_id
from eoslog.staging.names import staged_file_name

# Sequences have 31 bits: a file ends long before they wrap to 0.
FILE_RECORDS_MAX = 1 << 30
# A job may write to more partitions than a process may have files open.
OPEN_FILES_MAX = 64
# Space is reserved in steps, once a file has a batch of at least this size: small files need none.
RESERVED_FROM_BYTES = 256 << 10
RESERVED_STEP_BYTES = 4 << 20
# After so many bytes the disk begins to write: a sync at the end then finds most of it done.
WRITEBACK_STEP_BYTES = 4 << 20

_MAKE_DIRECTORY_CHANCES = 10


@dataclass(slots=True)
class OpenFile:
    """File that takes batches."""

    where: TopicPartition
    name: str
    producer_id: int
    topic_id: str = ""
    bytes: int = 0
    records: int = 0
    crc: int = 0
    reserved_bytes: int = 0
    written_back_bytes: int = 0
    descriptor: FileDescriptor | None = None

    def described(self) -> StagedFile:
        return StagedFile(
            self.where.topic,
            self.where.partition,
            self.name,
            self.bytes,
            self.records,
            self.producer_id,
            self.crc,
            self.topic_id,
        )


class AttemptFiles:
    """Directory of one attempt and its files; nothing is on disk before the first batch.

    With `sync` the files are on disk after `close`.
    """

    def __init__(self, path: Path, store_path: Path, sync: bool) -> None:
        self.path = path
        self._store_path = store_path
        self._sync = sync
        self._made = False
        self._all: list[OpenFile] = []
        self._newest: dict[TopicPartition, OpenFile] = {}
        self._with_descriptor: OrderedDict[str, OpenFile] = OrderedDict()

    def file_for(
        self,
        where: TopicPartition,
        record_count: int,
        batch_bytes: int,
        file_bytes_max: int,
        topic_id: str = "",
    ) -> OpenFile:
        """Return the file for the partition's next batch; create one if none has room.

        A file has at most `file_bytes_max` bytes, or one batch. It keeps the topic id with which it
        was created.
        """
        newest = self._newest.get(where)
        if (
            newest is not None
            and newest.records + record_count <= FILE_RECORDS_MAX
            and newest.bytes + batch_bytes <= file_bytes_max
        ):
            return newest
        number = 0 if newest is None else int(newest.name.rsplit(".", 2)[1]) + 1
        name = staged_file_name(where.topic, where.partition, number)
        file = OpenFile(where, name, new_staged_producer_id(), topic_id)
        with self._named_errors(f"creating {self.path / name}"):
            if not self._made:
                self._make_directory()
            self._opened(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self._all.append(file)
        self._newest[where] = file
        return file

    def write(self, file: OpenFile, batch: bytes | memoryview, record_count: int) -> None:
        """Append one encoded batch. After StoreFullError or StoreFailedError the attempt failed."""
        batch_bytes = len(batch)
        with self._named_errors(f"writing {self.path / file.name}"):
            descriptor = self._opened(file, os.O_WRONLY | os.O_APPEND)
            self._with_descriptor.move_to_end(file.name)
            self._reserve(file, descriptor, batch_bytes)
            written = os.write(descriptor, batch)
            while written < batch_bytes:
                with memoryview(batch) as whole, whole[written:] as rest:
                    written += os.write(descriptor, rest)
        file.crc = batch_crc32c(batch, file.crc)
        file.bytes += batch_bytes
        file.records += record_count
        if self._sync:
            self._write_back(file, descriptor, WRITEBACK_STEP_BYTES)

    def close(self) -> tuple[StagedFile, ...]:
        """Close all files, with `sync` on disk, and describe them."""
        with self._named_errors(f"closing {self.path}"):
            for file in self._all:
                self._finish(file)
            try:
                if self._sync and self._all:
                    self._sync_all()
            finally:
                # If a file was removed since, that is the error to raise.
                for file in self._all:
                    (self.path / file.name).lstat()
        self.close_descriptors()
        return tuple(file.described() for file in self._all)

    def _sync_all(self) -> None:
        """Sync files and directories in any order: no message names them before all are on disk."""
        directories = with_those_above(self.path, self._store_path)
        run_together(
            [
                *(partial(self._sync_file, file) for file in self._all),
                *(partial(sync_directory, one) for one in directories),
            ]
        )

    def _sync_file(self, file: OpenFile) -> None:
        """Sync the file; open it again if it was closed because too many were open."""
        if file.descriptor is not None:
            sync_descriptor(file.descriptor.fileno())
        else:
            sync_path(self.path / file.name, os.O_WRONLY)

    def _reserve(self, file: OpenFile, descriptor: int, batch_bytes: int) -> None:
        """Reserve space for the batch and some more: large writes into it are cheaper."""
        wanted_bytes = file.bytes + batch_bytes
        if batch_bytes >= RESERVED_FROM_BYTES and wanted_bytes > file.reserved_bytes:
            step_bytes = max(RESERVED_STEP_BYTES, batch_bytes)
            reserve_behind(descriptor, file.bytes, step_bytes)
            file.reserved_bytes = file.bytes + step_bytes

    def _write_back(self, file: OpenFile, descriptor: int, step_bytes: int) -> None:
        waiting_bytes = file.bytes - file.written_back_bytes
        if waiting_bytes >= step_bytes:
            begin_writeback(descriptor, file.written_back_bytes, waiting_bytes)
            file.written_back_bytes = file.bytes

    def _finish(self, file: OpenFile) -> None:
        """Free the space reserved beyond the end, and let the disk begin to write the rest."""
        if file.reserved_bytes > file.bytes:
            os.ftruncate(self._opened(file, os.O_WRONLY), file.bytes)
        if self._sync and file.descriptor is not None:
            self._write_back(file, file.descriptor.fileno(), 1)

    def remove(self) -> None:
        """Remove the files and the directory; a sweep removes what stays."""
        self.close_descriptors()
        try:
            for file in self._all:
                (self.path / file.name).unlink(missing_ok=True)
            if self._made:
                self.path.rmdir()
        except OSError:
            return

    def close_descriptors(self) -> None:
        for file in list(self._with_descriptor.values()):
            self._close_file(file)

    def _make_directory(self) -> None:
        for chance in range(_MAKE_DIRECTORY_CHANCES):
            try:
                make_directories(self.path.parent)
                make_directory(self.path)
                break
            except FileExistsError as error:
                raise StagedCommitError(
                    f"{self.path} exists already: each task attempt needs a name of its own"
                ) from error
            except FileNotFoundError:
                # A sweep removed the empty directory above just now.
                if chance == _MAKE_DIRECTORY_CHANCES - 1:
                    raise
        self._made = True

    def _opened(self, file: OpenFile, flags: int) -> int:
        """Return the file's descriptor; open it, and close one of another file, if it has none."""
        if file.descriptor is None:
            if len(self._with_descriptor) >= OPEN_FILES_MAX:
                self._close_file(next(iter(self._with_descriptor.values())))
            self._with_descriptor[file.name] = file
            file.descriptor = FileDescriptor(self.path / file.name, flags, FILE_MODE)
        return file.descriptor.fileno()

    def _close_file(self, file: OpenFile) -> None:
        descriptor, file.descriptor = file.descriptor, None
        self._with_descriptor.pop(file.name, None)
        if descriptor is not None:
            descriptor.close()

    @contextmanager
    def _named_errors(self, doing: str) -> Iterator[None]:
        """Name errors of the operating system; a missing file was removed with the directory."""
        with named_os_errors(doing):
            try:
                yield
            except FileNotFoundError as error:
                raise StagedCommitError(
                    f"{self.path} was removed: the job of this attempt is over, or was overtaken"
                ) from error
