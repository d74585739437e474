"""The commit journal of this process: when it gets a file, its growth, and its end.

What writes to it is native; docs/commit-journal.md has the protocol, whose steps are named here. A
process has no file until it waited for the disk often: then one that lives for a moment pays
nothing. One thread makes the file, larger ones as they are needed, and retires its halves.
"""

import errno
import logging
import mmap
import os
import secrets
import time
from pathlib import Path

from eoslog.bindings.commit_journal import BLOCK_BYTES, HALVES, JOURNAL_ID_BYTES, CommitJournal
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common.config import NO_LIMIT
from eoslog.errors import EoslogError, LogClosedError, OutOfMemoryError
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, sync_directory
from eoslog.fs.file_system import mount_of
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories
from eoslog.session.background_thread import BackgroundThread
from eoslog.session.store_paths import StorePaths

# Of a half, where its size is not given: the first one, and those that follow as it fills up.
HALF_BYTES_FIRST = 1 << 20
HALF_BYTES_LAST = 64 << 20
GROWTH = 8
HALF_BYTES_MIN = 64 << 10
# A half that fills up in a shorter time is too small.
FILLED_S_MIN = 1.0
# What could not be retired is tried again after so long.
RETRY_S = 1.0
_IDLE_S = 3600.0
_ZEROS_BYTES = 1 << 20
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
# How the file is opened, and whether each write is on the disk then when it returns.
_WAYS = ((os.O_DIRECT | os.O_DSYNC, True), (0, False))

_log = logging.getLogger(__name__)


class ProcessJournal:
    """The journal of one process for one store, with durability other than "process"."""

    def __init__(self, paths: StorePaths, half_bytes: int, slot: bytes) -> None:
        """`half_bytes` is the setting `eoslog.journal.bytes`: NO_LIMIT, 0 or a size. `slot` is the
        process's: whoever looks after dead ones knows the file by it.
        """
        self.journal = CommitJournal()
        self.path: Path | None = None  # Of its file.
        self._paths = paths
        self._fixed_bytes = half_bytes
        self._slot = slot
        self._file: UnforkedFile | None = None
        self._thread = BackgroundThread("eoslog-journal", self._run)
        self._stopped = False
        self._settled = False  # Whether to have a file.
        self._filled_s = 0.0
        self._warned = False

    # From other threads.

    def begin(self) -> None:
        """Make the file at once, if its size was given."""
        if self._fixed_bytes > 0:
            self._start()

    def start_if_wanted(self) -> None:
        """Make the file if the process waited for the disk often. Costs next to nothing."""
        if self._settled or not self.journal.wanted:
            return
        self._settled = True
        if self._fixed_bytes == NO_LIMIT and mount_of(self._paths.root).kind not in _IN_MEMORY:
            self._start()

    def _start(self) -> None:
        try:
            self._thread.start()
        except OutOfMemoryError as error:
            self._warn(error)

    def stop(self) -> None:
        """Take no more records: what is to be durable goes by the files. A second call does
        nothing.
        """
        self._stopped = True
        self.journal.stop()
        self.journal.wake()
        self._thread.join()
        # The thread may have been at the start of one.
        self.journal.stop()

    def end(self) -> None:
        """Let go of the file, once the logs are closed. It is removed if it holds nothing that
        their files do not; else it stays for whoever comes next.
        """
        self.stop()
        self.journal.free_buffers()
        if self._file is not None:
            if self.path is not None and self.journal.is_empty:
                with named_os_errors(f"removing {self.path}"):
                    self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    # The thread.

    def _run(self) -> None:
        try:
            if not self._stopped:
                self._take(self._first_bytes())
        except (EoslogError, OSError, MemoryError) as error:
            self._warn(error)
            return
        while not self._stopped:
            work = self.journal.work
            try:
                all_done = self._retire()
            except (EoslogError, OSError, MemoryError) as error:
                self._warn(error)
                all_done = False
            self.journal.wait(work, _IDLE_S if all_done else RETRY_S)

    def _warn(self, error: BaseException) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: commits go by the files of the logs, without a journal: %s",
                self._paths.root,
                error,
            )

    def _first_bytes(self) -> int:
        if self._fixed_bytes == NO_LIMIT:
            return HALF_BYTES_FIRST
        return max(HALF_BYTES_MIN, -(-self._fixed_bytes // BLOCK_BYTES) * BLOCK_BYTES)

    def _take(self, half_bytes: int) -> None:
        """Have a new file (M1 to M5); what an earlier one held is retired."""
        folder = self._paths.journals
        make_directories(folder)
        sync_directory(folder.parent)
        path = folder / f"{self._slot.hex()}-{secrets.token_hex(4)}"
        unfinished = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            with named_os_errors(f"making {path}"):
                file, synced = self._file_of_zeros(unfinished, HALVES * half_bytes)
            if self._replace(file, synced, half_bytes, unfinished, path):
                return
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        file.close()
        unfinished.unlink(missing_ok=True)

    def _replace(
        self, file: UnforkedFile, synced: bool, half_bytes: int, unfinished: Path, path: Path
    ) -> bool:
        """Go over to the file; False if the store is being closed, or the one before holds on."""
        if self._stopped:
            return False
        if self._file is not None:
            self.journal.stop()
            if not self._empty_all() or self.journal.failed_errno:
                return False
        with named_os_errors(f"making {path}"):
            self.journal.take_file(file, synced, secrets.token_bytes(JOURNAL_ID_BYTES), half_bytes)
            os.fsync(file.fileno())
            unfinished.rename(path)
        sync_directory(path.parent)
        before, self.path = self.path, path
        file_before, self._file = self._file, file
        if not self._stopped:
            self.journal.start()
        if file_before is not None and before is not None:
            before.unlink(missing_ok=True)
            file_before.close()
        return True

    def _retire(self) -> bool:
        """Retire the halves that are full (H2 to H4); whether none is left."""
        full = self.journal.full_halves()
        if not full:
            return True
        now_s = time.monotonic()
        is_small = now_s - self._filled_s < FILLED_S_MIN
        self._filled_s = now_s
        all_done = self._empty_all()
        half_bytes = self.journal.half_bytes
        grows = is_small and self._fixed_bytes == NO_LIMIT and half_bytes < HALF_BYTES_LAST
        if all_done and grows and not self._stopped:
            self._take(min(half_bytes * GROWTH, HALF_BYTES_LAST))
        return all_done

    def _empty_all(self) -> bool:
        all_done = True
        for half in self.journal.full_halves():
            for log in self.journal.logs_of(half):
                try:
                    log.sync_up_to(log.journaled_end(half), in_pieces=True)
                except LogClosedError:
                    continue  # It left the half, or its topic was deleted.
                except EoslogError as error:
                    self._warn(error)
            with named_os_errors(f"retiring a half of {self.path}"):
                all_done &= self.journal.empty(half)
        return all_done

    def _file_of_zeros(self, path: Path, size_bytes: int) -> tuple[UnforkedFile, bool]:
        """A file of blocks that were written, locked; whether its writes need no sync (M1, M2)."""
        zeros = mmap.mmap(-1, _ZEROS_BYTES)
        for flags, synced in _WAYS:
            file: UnforkedFile | None = None
            try:
                file = UnforkedFile(path, os.O_RDWR | os.O_CREAT | flags, FILE_MODE)
                file.lock(exclusive=True, wait=True)
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                self._write_zeros(file.fileno(), zeros, size_bytes)
            except BaseException as error:
                if file is not None:
                    file.close()
                if not synced or not isinstance(error, OSError) or error.errno != errno.EINVAL:
                    raise
                continue  # The file system takes no writes past the page cache.
            return file, synced
        raise AssertionError("the last way raises")

    def _write_zeros(self, descriptor: int, zeros: mmap.mmap, size_bytes: int) -> None:
        """Not all of them if the store is being closed: nobody uses the file then."""
        view = memoryview(zeros)
        for at in range(0, size_bytes, _ZEROS_BYTES):
            if self._stopped:
                return
            piece = view[: min(_ZEROS_BYTES, size_bytes - at)]
            if os.pwrite(descriptor, piece, at) < len(piece):
                raise OSError(errno.EIO, "a write ended early")
