"""The commit journal of this process: when it gets a file, its growth, and its end.

What writes to it is native; docs/commit-journal.md has the protocol, whose steps are named here. A
process has no file until it waited for the disk often: then one that lives for a moment pays
nothing. One thread, which the waits wake, takes a file that an earlier process kept or makes one,
makes larger ones as they are needed, and retires their halves. Where that fails, commits go on by
the journal as it is, or by the files of the logs, and it is tried again.
"""

import errno
import logging
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.commit_journal import BLOCK_BYTES, HALVES, JOURNAL_ID_BYTES, CommitJournal
from eoslog.bindings.counter_page import CounterPage
from eoslog.bindings.file_descriptor import sync_descriptor
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common.config import NO_LIMIT
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.errors import EoslogError, LogClosedError, OutOfMemoryError
from eoslog.fs.atomic_file import TEMPORARY_SUFFIX, sync_directory
from eoslog.fs.file_system import mount_of
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories
from eoslog.session.background_thread import BackgroundThread
from eoslog.session.paths import StorePaths
from eoslog.storage.kept_journals import FILE_BYTES_MAX, keep_journal, take_kept_journal

# Of a half, where its size is not given: the first one, and those that follow as it fills up.
HALF_BYTES_FIRST = 1 << 20
HALF_BYTES_LAST = 64 << 20
GROWTH = 8
HALF_BYTES_MIN = 64 << 10
# A half that fills up in a shorter time is too small.
FILLED_S_MIN = 1.0
# What failed is tried again after so long, then after twice as long each time.
RETRY_S = 1.0
RETRY_S_MAX = 60.0
_IDLE_S = 3600.0
_ZEROS_BYTES = 1 << 20
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
# How the file is opened, and whether each write is on the disk then when it returns.
FILE_WAYS = ((os.O_DIRECT | os.O_DSYNC, True), (0, False))

_log = logging.getLogger(__name__)


class _JournalFile(NamedTuple):
    """A file of the journal, open and locked."""

    path: Path
    file: UnforkedFile


class ProcessJournal:
    """The journal of one process for one store, with durability other than "process"."""

    def __init__(
        self,
        paths: StorePaths,
        half_bytes: int,
        slot: bytes,
        check_files: Callable[[], object],
        counters: CounterPage,
    ) -> None:
        """`half_bytes` is the setting `eoslog.journal.bytes`: NO_LIMIT, 0 or a size. `slot` is the
        process's, and names the file: other processes find a dead one's file by it. `check_files`
        raises if the store's directory is not the one that was opened. Writes are counted in
        `counters`.
        """
        self.journal = CommitJournal(counters)
        self._paths = paths
        self.fixed_bytes = half_bytes
        self._slot = slot
        self._check_files = check_files
        self._current: _JournalFile | None = None
        self._before: _JournalFile | None = None  # Not retired yet.
        self._thread = BackgroundThread("eoslog-journal", self._run)
        self._stopped = False
        self._warnings = RepeatedWarnings(_log)
        self._error_count = 0
        self._last_error = ""
        # The thread's.
        self._wanted_bytes = 0  # Of a half of the file to be made next.
        self._fill_count = 0  # Of the journal, as it was when last looked at,
        self._filled_s = 0.0  # ... and when that was.
        self._failed_count = 0  # The same of its failed writes.
        self.retry_s = RETRY_S
        self._due_s = 0.0  # No file is made before.

    # From other threads.

    @property
    def path(self) -> Path | None:
        """Path of its file."""
        return self._current.path if self._current is not None else None

    def begin(self) -> None:
        """Have the thread wait until the process waits for the disk often, or make a file at once,
        if its size was given.
        """
        if self.fixed_bytes == 0:
            return
        if self.fixed_bytes > 0:
            self.journal.want()
        try:
            self._thread.start()
        except OutOfMemoryError as error:
            self._warn(error)

    def metrics(self) -> dict[str, Any]:
        """Return what it is, wrote, and met."""
        return {
            "usable": self.journal.usable,
            "half_bytes": self.journal.half_bytes,
            **self.journal.counts,
            "error_count": self._error_count,
            "last_error": self._last_error,
        }

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
        """Let go of the file, once the logs are closed. It is kept for the next one (K1) if it
        holds nothing that their files do not; else it stays for the next opener. A second call does
        nothing.
        """
        self.stop()
        self.journal.free_buffers()
        current, self._current = self._current, None
        before, self._before = self._before, None
        try:
            if before is not None and self.journal.is_retired(before=True):
                self._remove(before.path)
            if current is not None and self.journal.is_retired():
                keep_journal(self._paths, current.path)
        finally:
            for one in (current, before):
                if one is not None:
                    one.file.close()

    def _remove(self, path: Path) -> None:
        with named_os_errors(f"removing {path}"):
            path.unlink(missing_ok=True)

    # The thread.

    def _run(self) -> None:
        while not self._stopped:
            work = self.journal.work
            try:
                all_done = self._attend()
            except (EoslogError, OSError, MemoryError) as error:
                self._warn(error)
                all_done = False
            if all_done:
                self.retry_s = RETRY_S
                self.journal.wait(work, _IDLE_S)
                continue
            self.journal.wait(work, self.retry_s)
            if self.journal.work == work:
                self.retry_s = min(2 * self.retry_s, RETRY_S_MAX)

    def _warn(self, error: BaseException) -> None:
        self._error_count += 1
        self._last_error = str(error)
        how = "by the journal as it is" if self.journal.usable else "by the files of the logs"
        self._warnings.warning("%s: commits go %s: %s", self._paths.root, how, error)

    def _attend(self) -> bool:
        """Retire what is full (H2 to H4), and have another file if one is wanted: the first, a
        larger one, or one for a file that takes nothing more. True if nothing is left to be done.
        """
        self._look_at_file()
        self._take_wanted()  # First, while the other half fills up.
        all_done = self.empty_all()
        if self._before is not None and self.journal.is_retired(before=True):
            before, self._before = self._before, None
            before.file.close()
            self._remove(before.path)
        if self._current is not None and not all_done:
            # It covers a log whose sync failed, and keeps the only good copy.
            self._wanted_bytes = max(self._wanted_bytes, self.journal.half_bytes)
        self._take_wanted()
        return all_done and not self._wanted_bytes

    def _look_at_file(self) -> None:
        """Note whether there has to be another one."""
        now_s = time.monotonic()
        if self._current is None:
            if self.journal.wanted and (self.fixed_bytes > 0 or not self._is_in_memory()):
                self._wanted_bytes = self._first_bytes()
            return
        half_bytes = self.journal.half_bytes
        if self._fill_count != self.journal.fill_count:
            self._fill_count = self.journal.fill_count
            is_small = now_s - self._filled_s < FILLED_S_MIN
            self._filled_s = now_s
            if is_small and self.fixed_bytes == NO_LIMIT and half_bytes < HALF_BYTES_LAST:
                self._wanted_bytes = min(half_bytes * GROWTH, HALF_BYTES_LAST)
        failed_errno = self.journal.failed_errno
        if failed_errno:
            self._wanted_bytes = max(self._wanted_bytes, half_bytes)
            if self._failed_count != self.journal.failed_count:
                self._failed_count = self.journal.failed_count
                self._due_s = now_s + self.retry_s
                self._warn(OSError(failed_errno, os.strerror(failed_errno), str(self.path)))

    def _is_in_memory(self) -> bool:
        return mount_of(self._paths.root).kind in IN_MEMORY

    def _first_bytes(self) -> int:
        if self.fixed_bytes == NO_LIMIT:
            return HALF_BYTES_FIRST
        return max(HALF_BYTES_MIN, -(-self.fixed_bytes // BLOCK_BYTES) * BLOCK_BYTES)

    def _take_wanted(self) -> None:
        """Have another file, if one is wanted and the one before the last is retired."""
        if not self._wanted_bytes or self._before is not None or time.monotonic() < self._due_s:
            return
        try:
            self.take(self._wanted_bytes)
        except (EoslogError, OSError, MemoryError):
            self._due_s = time.monotonic() + self.retry_s
            raise
        self._wanted_bytes = 0
        self._filled_s = time.monotonic()

    def take(self, half_bytes: int) -> None:
        """Go over to another file of this size, or to a larger one that was kept (M1 to M5)."""
        folder = self._paths.journals
        self._check_files()
        make_directories(folder)
        sync_directory(folder.parent)
        path = folder / f"{self._slot.hex()}-{os.urandom(4).hex()}"
        unfinished = path.with_name(path.name + TEMPORARY_SUFFIX)
        file: UnforkedFile | None = None
        try:
            with named_os_errors(f"making {path}"):
                file, synced, size_bytes = self._file_of(unfinished, HALVES * half_bytes)
                if not self._stopped:
                    self._go_over(_JournalFile(path, file), synced, size_bytes // HALVES)
        finally:
            if self.path != path:
                if file is not None:
                    file.close()
                # Also where it could not be made: it is as large as it was to be, or a kept file.
                unfinished.unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def _go_over(self, taken: _JournalFile, synced: bool, half_bytes: int) -> None:
        """Use a file that has its unfinished name (M3 to M5); the one before is to be retired."""
        journal_id = os.urandom(JOURNAL_ID_BYTES)
        CommitJournal.write_headers(taken.file, synced, journal_id, half_bytes)
        sync_descriptor(taken.file.fileno())
        taken.path.with_name(taken.path.name + TEMPORARY_SUFFIX).rename(taken.path)
        sync_directory(taken.path.parent)
        self.journal.stop()
        try:
            self.journal.take_file(taken.file, synced, journal_id, half_bytes)
            self._before, self._current = self._current, taken
            _log.debug(
                "%s: the commit journal from now on, halves of %d bytes", taken.path, half_bytes
            )
        finally:
            if not self._stopped:
                self.journal.start()

    def _file_of(self, path: Path, size_bytes: int) -> tuple[UnforkedFile, bool, int]:
        """A locked file of blocks that were written; whether its writes need no sync, and its size
        (M1, M2).
        """
        bytes_max = FILE_BYTES_MAX if self.fixed_bytes == NO_LIMIT else size_bytes
        kept_bytes = take_kept_journal(self._paths, size_bytes, bytes_max, path)
        if kept_bytes is not None:
            # A copy of the store that is made of links has the same file.
            if path.stat().st_nlink == 1:
                return *self._file_of_zeros(path, BLOCK_BYTES), kept_bytes
            path.unlink()
        return *self._file_of_zeros(path, size_bytes), size_bytes

    def empty_all(self) -> bool:
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
                emptied = self.journal.empty(half)
                all_done &= emptied
            _log.debug(
                "%s: half %d %s", self.path, half, "is retired" if emptied else "is not synced yet"
            )
        return all_done

    def _file_of_zeros(self, path: Path, size_bytes: int) -> tuple[UnforkedFile, bool]:
        """A file with so many zeros at its beginning, locked; whether its writes need no sync."""
        zeros = mmap.mmap(-1, _ZEROS_BYTES)
        for flags, synced in FILE_WAYS:
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
        """Not all of them if the store is being closed: no process uses the file then."""
        view = memoryview(zeros)
        for at in range(0, size_bytes, _ZEROS_BYTES):
            if self._stopped:
                return
            piece = view[: min(_ZEROS_BYTES, size_bytes - at)]
            if os.pwrite(descriptor, piece, at) < len(piece):
                raise OSError(errno.EIO, "a write ended early")
