"""The LMDB environment of a store: opened by many processes, grown, and re-created if damaged.

Invariants:
- One thread of a process at a time is inside LMDB, and no thread while the process forks: a child
  that closed its copy in the middle of a read would free the parent's place among the readers.
- Every write is one transaction, and synced. A process that dies inside one leaves nothing of it;
  the place of a dead reader is found and freed.
- LMDB's own wait for another writer has no end: the writers of a store take turns before it.
- The map grows when it is full; a process whose map is too small by now maps the file again.
- A lack of memory, a read or write that the operating system refuses, and too many open files prove
  nothing about the file's content. The environment is opened again with the next call.
- An environment that cannot be read is dropped and re-created, by a process that is the only one to
  have it open. If others have it open, their calls fail, and the first process that opens it after
  them re-creates it. `generation` counts how often this object did so: what was read of an older
  environment must not be mixed with the new one.
"""

import errno
import os
import struct
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

import lmdb

from eoslog.bindings import file_descriptor
from eoslog.bindings.file_descriptor import FileDescriptor
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.errors import (
    CorruptRecordError,
    ForkedProcessError,
    LogClosedError,
    OutOfMemoryError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.file_lock import UpgradableLock
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories, make_file, remove_directory
from eoslog.session.lmdb_copy import bytes_of_heads
from eoslog.storage.tables import DATABASES, CorruptRowError, Tables

MAP_BYTES_INITIAL = 16 << 20
# Each process needs one place while it reads. The first one to open the environment decides.
READERS_MAX = 1022
DIRECTORY_NAME = "lmdb"  # Below `state/`.
DAMAGED_SUFFIX = ".damaged"
LOCK_SUFFIX = ".lock"
DATA_FILE_NAME = "data.mdb"
LOCK_FILE_NAME = "lock.mdb"
# With less than that left on the device, what LMDB could not write was for want of space.
_LEFT_BYTES_MIN = 64 << 10
# What the operating system may refuse. LMDB knows no errors of its own for these: it hands on the
# system's words.
_REFUSALS = (
    *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOLCK),
)
# What the process met rather than the file: the environment only has to be opened again.
_ERRORS_OF_PROCESS = (lmdb.PanicError, lmdb.BadRslotError)

_NEW_SUFFIX = ".new"

_Result = TypeVar("_Result")

_opened: "weakref.WeakSet[LmdbEnvironment]" = weakref.WeakSet()
# Held during a fork, with the locks of all environments.
_opened_lock = threading.RLock()
_still: "list[LmdbEnvironment]" = []


class StateStoreDamagedError(StoreFailedError):
    """LMDB held something unreadable. What it held comes from the log: at once if the environment
    could be re-created, else when all processes have closed the store and it is opened again.
    """


# Of rows and keys that were not written like this, although a checksum may match.
_NOT_AS_WRITTEN = (CorruptRecordError, CorruptRowError, struct.error)


def mark_damaged(path: Path) -> None:
    """Have the next process that opens the environment alone re-create it."""
    mark = path.with_name(path.name + DAMAGED_SUFFIX)
    with named_os_errors(f"writing {mark}"):
        make_file(mark)


class LmdbEnvironment:
    """An environment in the directory `path`; with `shared` other processes may open it too.

    `databases` has the handles of its databases by name. Inside `read` and `write` they are those
    of the environment that is open then.
    """

    def __init__(
        self,
        path: Path,
        *,
        shared: bool = False,
        synced: bool = True,
        write_turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`write_turn()` is the block in which this process alone writes. Without `synced` what
        is written may be gone after a power cut.
        """
        self.path = path
        self._synced = synced
        self._write_turn = write_turn
        # Of a store that is only read: copies the environment of its writers to a path.
        self.copied_from: Callable[[Path], bool] | None = None
        self.generation = 0
        self.databases: dict[bytes, Any] = {}
        self._lock = threading.RLock()
        self._at_work = ThreadLock()
        self._forked = False
        self._closed = False
        self.lmdb: lmdb.Environment | None = None
        self._use = UpgradableLock(path.with_name(path.name + LOCK_SUFFIX)) if shared else None
        try:
            with self._lock:
                with _opened_lock:
                    _opened.add(self)
                self._open()
        except BaseException:
            self.close()
            raise

    def read(self, work: Callable[[Tables], _Result]) -> _Result:
        """Read in one transaction. Raises like `write`."""
        return self._within(work, write=False)

    def write(self, work: Callable[[Tables], _Result]) -> _Result:
        """Read and write in one transaction, which is synced when it ends. The caller holds no
        partition's lock.

        `work` is repeated where the environment had to grow or to be opened again. Raises
        StoreFullError, StoreFailedError, OutOfMemoryError (the file was not mapped),
        StoreInUseError (another process is inside a write, and hangs); nothing changed then.
        StateStoreDamagedError: what was there is lost.
        """
        return self._within(work, write=True)

    def _within(self, work: Callable[[Tables], _Result], *, write: bool) -> _Result:
        reopened = False
        with self._lock, self._at_work:
            while True:
                environment = self._opened()
                try:
                    turn = self._write_turn() if write else nullcontext()
                    with turn, environment.begin(write=write) as transaction:
                        return work(Tables(transaction, self.databases))
                except lmdb.MapFullError:
                    self._map(environment, 2 * int(environment.info()["map_size"]))
                except lmdb.MapResizedError:
                    self._map(environment, 0)  # As large as another process made it.
                except lmdb.ReadersFullError as error:
                    if not environment.reader_check():
                        raise StoreFailedError(
                            f"{self.path}: {READERS_MAX} others read it at this moment"
                        ) from error
                except lmdb.DiskError as error:
                    raise StoreFullError(f"writing {self.path}: {error}") from error
                except lmdb.MemoryError as error:
                    raise self._unmapped(error) from error
                except _ERRORS_OF_PROCESS as error:
                    self._raise_if_full(error)
                    if reopened:
                        raise self._damaged(error) from error
                    reopened = True
                    self._reopen()
                except (lmdb.Error, *_NOT_AS_WRITTEN) as error:
                    if isinstance(error, lmdb.Error):
                        # LMDB takes a page that was written in part for damage.
                        self._raise_if_full(error)
                        self._raise_if_refused(error)
                    raise self._damaged(error) from error

    def copy_to(self, directory: Path) -> None:
        """Copy what is committed now, as one transaction sees it, to a directory that is empty. Not
        synced. Raises like `write`, and OSError.
        """

        def copy(_: Tables) -> None:
            cast(lmdb.Environment, self.lmdb).copy(str(directory))

        self._within(copy, write=False)

    def renew(self) -> None:
        """Put a new copy in the place of one of another environment, if this is such a copy.

        What it has is true up to later offsets then. Without a new one it stays as it is.
        """
        if self.copied_from is None:
            return
        aside = self.path.with_name(self.path.name + _NEW_SUFFIX)
        with self._lock, self._at_work:
            if self._closed or self._forked or not self.copied_from(aside):
                return
            self._close_environment()
            aside.replace(self.path / DATA_FILE_NAME)
            self._reopen()

    def free_dead_readers(self) -> int:
        """Free the places of readers whose process died: what they read can be overwritten again.

        How many there were.
        """
        with self._lock:
            return 0 if self.lmdb is None else int(self.lmdb.reader_check())

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._close_environment()
            if self._use is not None:
                self._use.close()

    def _opened(self) -> lmdb.Environment:
        if self.lmdb is None and not self._closed and not self._forked:
            self._reopen()  # Memory had run out.
        if self.lmdb is None:
            raise self._closed_error()
        return self.lmdb

    def _unmapped(self, error: lmdb.MemoryError) -> OutOfMemoryError:
        """Memory ran out: LMDB may have lost its map, so it is closed. The error to raise."""
        self._close_environment()
        return OutOfMemoryError(f"mapping {self.path}: {error}")

    def _closed_error(self) -> StoreError:
        if self._forked:
            return ForkedProcessError(
                f"{self.path} was opened before a fork: open the store again in the child"
            )
        return LogClosedError(f"{self.path} is closed")

    # Opening.

    def _open(self) -> None:
        alone = self._begin_use()
        damage: Exception | None = None
        try:
            with named_os_errors(f"opening {self.path}"):
                self._check_mark()
                if alone and self.path.exists() and not self.path.is_dir():
                    self.path.unlink()
                self._open_environment(check_size=alone)
        except lmdb.DiskError as error:
            full = os.strerror(errno.ENOSPC) in str(error)
            kind = StoreFullError if full else StoreFailedError
            raise kind(f"opening {self.path}: {error}") from error
        except lmdb.MemoryError as error:
            raise self._unmapped(error) from error
        except (lmdb.Error, CorruptRowError) as error:
            self._raise_if_refused(error)
            damage = error
        if damage is not None:
            if not alone:
                raise self._unusable(damage) from damage
            self.begin_anew()
        if self._use is not None:
            self._use.share()

    def _begin_use(self) -> bool:
        """Keep others from re-creating the environment; return True if no other has it open."""
        if self._use is None or self._use.try_alone():
            return True
        self._use.share()
        return False

    def _open_environment(self, *, check_size: bool) -> None:
        environment, file_bytes = self._environment_of_file(check_size=check_size)
        self.lmdb = environment
        try:
            # LMDB maps the file: a page beyond its end, when touched, would kill the process.
            page_bytes = int(environment.stat()["psize"])
            last_page = int(environment.info()["last_pgno"])
            if check_size and file_bytes and file_bytes < (last_page + 1) * page_bytes:
                raise CorruptRowError(  # noqa: TRY301
                    f"the file ends at byte {file_bytes}, before its last page"
                )
            handles = self._open_databases(environment)
        except BaseException:
            # It must not be used with the handles of the one before.
            self._close_environment()
            raise
        self.databases.update(handles)

    def _environment_of_file(self, *, check_size: bool) -> tuple[lmdb.Environment, int]:
        """The environment, and how large its file was, which another process may let grow."""
        existing = self.path / DATA_FILE_NAME
        make_directories(self.path)
        for path in (existing, self.path / LOCK_FILE_NAME):
            if not path.exists():
                make_file(path)  # LMDB would make it for the process's user.
        while True:
            with named_os_errors(f"looking at {existing}"):
                file_bytes = existing.stat().st_size if existing.exists() else 0
                if existing.exists() and not existing.is_file():
                    raise CorruptRowError("it is not a regular file")
                heads_bytes = bytes_of_heads(existing) if check_size and file_bytes else 0
            if file_bytes < heads_bytes:
                raise CorruptRowError(f"the file ends at byte {file_bytes}, within its head")
            if not file_bytes:
                # LMDB syncs what it writes, and no name.
                sync_directory(self.path)
                sync_directory(self.path.parent)
            try:
                # Without spare transactions nothing of a reader is left between two of its
                # transactions, neither for a child that closes its copy, nor of a process that
                # dies.
                environment = lmdb.open(
                    str(self.path),
                    map_size=max(MAP_BYTES_INITIAL, file_bytes),
                    max_dbs=16,
                    max_readers=READERS_MAX,
                    max_spare_txns=0,
                    subdir=True,
                    lock=True,
                    sync=self._synced and not self._is_in_memory(),
                    mode=FILE_MODE,
                )
            except lmdb.MapResizedError:
                if existing.stat().st_size <= file_bytes:
                    raise  # It is not that.
            else:
                return environment, file_bytes

    def _open_databases(self, environment: lmdb.Environment) -> dict[bytes, object]:
        while True:
            try:
                # It may make them: by one transaction, which is synced once.
                with self._write_turn(), environment.begin(write=True) as transaction:
                    return {name: environment.open_db(name, transaction) for name in DATABASES}
            except lmdb.MapResizedError:
                self._map(environment, 0)
            except lmdb.ReadersFullError:
                if not environment.reader_check():
                    raise

    def _is_in_memory(self) -> bool:
        with FileDescriptor(self.path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            return file_descriptor.is_in_memory(descriptor)

    def _map(self, environment: lmdb.Environment, map_bytes: int) -> None:
        """Map so many bytes; 0 stands for the size that the file records."""
        try:
            environment.set_mapsize(map_bytes)
        except lmdb.MemoryError as error:
            raise self._unmapped(error) from error
        except lmdb.Error as error:
            raise StoreFailedError(
                f"{self.path}: a map of {map_bytes} bytes cannot be made: {error}"
            ) from error

    def _reopen(self) -> None:
        self._close_environment()
        try:
            with named_os_errors(f"opening {self.path}"):
                self._open_environment(check_size=False)
        except lmdb.MemoryError as error:
            raise self._unmapped(error) from error
        except (lmdb.Error, CorruptRowError) as error:
            self._raise_if_refused(error)
            raise self._damaged(error) from error

    def _close_environment(self) -> None:
        if self.lmdb is not None:
            self.lmdb.close()
            self.lmdb = None

    # Damage.

    @property
    def _damaged_mark(self) -> Path:
        return self.path.with_name(self.path.name + DAMAGED_SUFFIX)

    def _check_mark(self) -> None:
        if self._damaged_mark.exists():
            raise CorruptRowError("it was damaged when it was open last")

    def _damaged(self, error: Exception) -> StateStoreDamagedError:
        """Re-create the environment if no other process has it open; return the error to raise."""
        if self._use is not None and not self._use.try_alone():
            return self._unusable(error)
        try:
            self.begin_anew()
        finally:
            if self._use is not None:
                self._use.share()
        return StateStoreDamagedError(
            f"{self.path} was damaged ({error}); what it held comes from the log when the store is "
            "opened again"
        )

    def _unusable(self, error: Exception) -> StateStoreDamagedError:
        mark_damaged(self.path)
        return StateStoreDamagedError(
            f"{self.path} is damaged ({error}), and other processes have it open: close the store "
            "in all of them; what it held comes from the log when it is opened again"
        )

    def begin_anew(self) -> None:
        """Drop an environment that cannot be read: the log still has all that it held."""
        self._close_environment()
        with named_os_errors(f"replacing {self.path}"):
            if self.path.is_dir() and not self.path.is_symlink():
                remove_directory(self.path)
            elif self.path.exists() or self.path.is_symlink():
                self.path.unlink()
            self._damaged_mark.unlink(missing_ok=True)
        self.generation += 1
        try:
            with named_os_errors(f"opening {self.path}"):
                self._open_environment(check_size=True)
        except lmdb.MemoryError as error:
            raise self._unmapped(error) from error
        except lmdb.Error as error:
            self._raise_if_refused(error)
            raise StoreFailedError(f"{self.path} cannot be re-created: {error}") from error

    def _raise_if_refused(self, error: Exception) -> None:
        """Raise what the operating system refused, if it was that, and close the environment: after
        a write or a sync that failed its content is unknown.
        """
        if isinstance(error, lmdb.Error) and not isinstance(error, lmdb.CorruptedError):
            for number in _REFUSALS:
                if os.strerror(number) in str(error):
                    self._close_environment()
                    with named_os_errors(f"using {self.path}"):
                        raise OSError(number, str(error)) from error

    def _raise_if_full(self, error: Exception) -> None:
        try:
            left = os.statvfs(self.path)
        except OSError:
            return
        if left.f_bavail * left.f_frsize < _LEFT_BYTES_MIN:
            raise StoreFullError(f"writing {self.path}: {error}") from error

    # Forks.

    def _leave_to_parent(self) -> None:
        """Close the copy of a forked child, in which no thread was inside LMDB.

        A second environment for the same files could not be opened beside it.
        """
        self._forked = True
        self._close_environment()


def _before_fork() -> None:
    _opened_lock.acquire()
    _still[:] = _opened
    for environment in _still:
        environment._lock.acquire()


def _after_fork_in_parent() -> None:
    for environment in _still:
        environment._lock.release()
    _still.clear()
    _opened_lock.release()


def _after_fork_in_child() -> None:
    for environment in _still:
        environment._leave_to_parent()
        environment._lock.release()
    _still.clear()
    _opened.clear()
    _opened_lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
