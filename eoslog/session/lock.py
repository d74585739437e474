"""Locks of the processes that have a store open.

- `state/lock`: held by every process that has the store open, exclusively by one that is alone.
- `state/opening.lock`: held exclusively by the process that opens or closes the store just now. So
  no other opens or closes it while that process finds out if it is the first one or the last.

Both are file locks: the kernel drops them when the holder dies, however it dies. The files also
name a holder, for people to read; the name alone proves nothing. A process has a store open only
once: LMDB allows no more.

A fork would hand the locks on: a child that lives longer than its parent would keep the store
open, and could write to it beside the next owner. So the child closes its copies at once, and
every object of the store refuses its calls with ForkedProcessError.
"""

import json
import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.common import clock
from eoslog.common.json_text import loads_json
from eoslog.errors import StoreInUseError
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE

FILE_NAME = "lock"
OPENING_FILE_NAME = "opening.lock"
# After a longer wait for an opening or closing to end, the error names the process that does it.
OPENING_TIMEOUT_S = 60.0
_HOLDER_BYTES = 512
_FIRST_SLEEP_S = 0.0005
_LONGEST_SLEEP_S = 0.02

_made: "weakref.WeakSet[StoreLock]" = weakref.WeakSet()
_made_lock = ThreadLock()


class StoreLock:
    """One process's hold on a store. Made, it is the one that opens; `opened` lets others do so.

    `alone` is true if no other process had the store open: it must be recovered from the disk.
    `release` frees everything; so does the death of the process.
    """

    def __init__(
        self,
        state_path: Path,
        on_fork: Callable[[], None] | None = None,
        *,
        joining: bool = True,
        timeout_s: float = OPENING_TIMEOUT_S,
    ) -> None:
        """Wait until no other process opens or closes the store, and take the lock.

        Raises StoreInUseError, which names what is in the way: another opening that takes too long,
        an object of this process that has the store open, or, unless `joining`, any other process.
        `on_fork` is called in the child of every fork made while the lock is held.
        """
        self.path = state_path / FILE_NAME
        self.opening_path = state_path / OPENING_FILE_NAME
        self._on_fork = on_fork
        self.timeout_s = timeout_s
        self._file: UnforkedFile | None = None
        self._opening: UnforkedFile | None = None
        self._exclusive = False
        self._holder = _holder()
        with _made_lock:
            _made.add(self)
        try:
            self._begin(f"opening {state_path.parent}")
            with named_os_errors(f"locking {self.path}"):
                self._file = _opened(self.path)
            self._enter(self._file, joining)
        except BaseException:
            self.release()
            raise

    @property
    def alone(self) -> bool:
        """True if this is the only process that has the store open."""
        return self._exclusive

    @property
    def held(self) -> bool:
        return self._file is not None and not self._file.closed

    def identity(self) -> tuple[int, int]:
        """Device and inode of the file that is locked."""
        found = os.fstat(self._locked_file.fileno())
        return found.st_dev, found.st_ino

    def opened(self, *, share: bool) -> None:
        """End the opening: others may close the store, and with `share` open it too."""
        with named_os_errors(f"locking {self.path}"):
            if share and self._exclusive:
                # Two steps; the other lock, which is held, keeps other processes out between them.
                self._locked_file.lock(exclusive=False, wait=True)
                self._exclusive = False
        self._end()

    def begin_closing(self) -> bool:
        """Keep others from opening and closing until `release`; return True for the last process.

        Raises StoreInUseError if another one takes too long with that.
        """
        self._begin(f"closing {self.path.parent.parent}")
        if not self._exclusive:
            self._exclusive = self._locked_file.lock(exclusive=True, wait=False)
            if not self._exclusive:
                # The attempt gave up the lock that was held.
                self._locked_file.lock(exclusive=False, wait=True)
        return self._exclusive

    def release(self) -> None:
        """Free everything; a second call does nothing, or what an interrupt left of the first."""
        # No lock may be compared with this one while its file is being closed.
        with _made_lock:
            if self._file is not None and not self._file.closed:
                if self._exclusive:
                    # For people only; the lock is freed all the same.
                    with suppress(OSError):
                        os.ftruncate(self._file.fileno(), 0)
                self._file.close()
            _made.discard(self)
        self._end()

    @property
    def _locked_file(self) -> UnforkedFile:
        if self._file is None:
            raise ValueError(f"{self.path} is not locked")
        return self._file

    def _enter(self, file: UnforkedFile, joining: bool) -> None:
        """Join the processes that have the store open; no other does so at the same time."""
        store_path = self.path.parent.parent
        with _made_lock:
            for other in _made:
                if other.held and other is not self and other.identity() == self.identity():
                    raise StoreInUseError(
                        f"{store_path} is open already: {_describe(other._holder)}; a process "
                        "opens a store once, and its threads share the object"
                    )
            self._exclusive = file.lock(exclusive=True, wait=False)
            if self._exclusive:
                _write(file, self._holder)
            elif not (joining and file.lock(exclusive=False, wait=False)):
                how = ", for one process alone" if joining else ""
                raise StoreInUseError(f"{store_path} is open already{how}: {_holder_of(file)}")

    # The lock of who opens or closes.

    def _begin(self, what: str) -> None:
        with named_os_errors(f"locking {self.opening_path}"):
            self._opening = opening = _opened(self.opening_path)
        deadline_s = time.monotonic() + self.timeout_s
        sleep_s = _FIRST_SLEEP_S
        while not opening.lock(exclusive=True, wait=False):
            if time.monotonic() >= deadline_s:
                holder = _holder_of(opening)
                opening.close()
                raise StoreInUseError(
                    f"{what}: for {self.timeout_s:g} s it was being opened or closed {holder}"
                )
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
        _write(opening, _holder())

    def _end(self) -> None:
        if self._opening is not None:
            self._opening.close()

    def _forget_in_child(self) -> None:
        # The parent's locks stand, by its own descriptors; those that were here are closed.
        if self._on_fork is not None:
            self._on_fork()


def _holder() -> dict[str, object]:
    """Return the description of this process as the holder."""
    return {
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "opened_ms": clock.now_ms(),
    }


def _opened(path: Path) -> UnforkedFile:
    return UnforkedFile(path, os.O_RDWR | os.O_CREAT, FILE_MODE)


def _write(file: UnforkedFile, holder: dict[str, object]) -> None:
    # Over whatever stands there: cutting a file short may wait for the disk. It is for people only.
    with suppress(OSError):
        os.pwrite(file.fileno(), json.dumps(holder).encode().ljust(_HOLDER_BYTES), 0)


def _holder_of(file: UnforkedFile) -> str:
    """Return the holder that a lock's file names."""
    try:
        return _describe(loads_json(os.pread(file.fileno(), 4096, 0)))
    except (ValueError, KeyError, TypeError):
        return "by a process that has not yet said who it is"


def _describe(holder: Mapping[str, Any]) -> str:
    since = moment_text(int(holder["opened_ms"]))
    here = " (this process)" if int(holder["pid"]) == os.getpid() else ""
    return f"by process {holder['pid']}{here} on {holder['host']} since {since}"


def moment_text(time_ms: int) -> str:
    """A moment, for people: UTC, to the millisecond."""
    seconds, ms = divmod(time_ms, 1000)
    try:
        moment = time.gmtime(seconds)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms after 1970"  # Beyond the calendar.
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', moment)}.{ms:03d} UTC"


def _after_fork_in_child() -> None:
    global _made_lock
    _made_lock = ThreadLock()  # A thread that held it is not here.
    for lock in list(_made):
        lock._forget_in_child()
    _made.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
