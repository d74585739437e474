"""The locks that say which processes have a store open.

- `state/lock`: held by every process that has the store open, exclusively by one that is alone.
- `state/opening.lock`: held, exclusively, by whoever opens or closes the store just now. So nobody
  comes or goes while a process finds out whether it is the first one or the last.

Both are file locks: the kernel drops them when the holder dies, however it dies. The files also
name a holder, for people to read; the name alone proves nothing. One process has a store open once:
LMDB allows no more.

A fork would hand the locks on: a child that lives longer than its parent would keep the store
open, and could write to it beside the next owner. So the child closes its copies at once, and
every object of the store is told that it is in the wrong process.
"""

import fcntl
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eoslog.errors import StoreInUseError
from eoslog.json_text import loads_json
from eoslog.os_errors import named_os_errors
from eoslog.unforked import close_unforked, open_unforked

FILE_NAME = "lock"
OPENING_FILE_NAME = "opening.lock"
# Whoever waits longer for an opening or closing to end is told who is at it.
OPENING_TIMEOUT_S = 60.0
_HOLDER_BYTES = 512
_FIRST_SLEEP_S = 0.0005
_LONGEST_SLEEP_S = 0.02

_made: "weakref.WeakSet[StoreLock]" = weakref.WeakSet()
_made_lock = threading.Lock()


class StoreLock:
    """One process's hold on a store. Made, it is the one that opens; `opened` lets others do so.

    `alone` says that no other process had the store open: it is to be taken up from the disk.
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
        """Wait until nobody else is opening or closing the store, and come in.

        Raises StoreInUseError, which says who is in the way: another opening that takes too long,
        an object of this process that has the store open, or, unless `joining`, any other process.
        `on_fork` is called in the child of every fork made while the lock is held.
        """
        self.path = state_path / FILE_NAME
        self.opening_path = state_path / OPENING_FILE_NAME
        self._on_fork = on_fork
        self._timeout_s = timeout_s
        self._descriptor = self._opening = -1
        self._exclusive = False
        self._holder = _holder()
        _made.add(self)
        try:
            self._begin(f"opening {state_path.parent}")
            with named_os_errors(f"locking {self.path}"):
                self._descriptor = open_unforked(self.path, os.O_RDWR | os.O_CREAT)
            self._enter(joining)
        except BaseException:
            self.release()
            raise

    @property
    def alone(self) -> bool:
        """Whether this is the only process that has the store open."""
        return self._exclusive

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def identity(self) -> tuple[int, int]:
        """Device and inode of the file that is locked."""
        found = os.fstat(self._descriptor)
        return found.st_dev, found.st_ino

    def opened(self, *, share: bool) -> None:
        """The store is open: others may open it too if `share` says so, or close it."""
        with named_os_errors(f"locking {self.path}"):
            if share and self._exclusive:
                # Not one step, but nobody else comes in between: that needs the other lock.
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)
                self._exclusive = False
        self._end()

    def begin_closing(self) -> bool:
        """Keep others from opening and closing until `release`; whether this is the last process.

        Raises StoreInUseError if another one takes too long with that.
        """
        self._begin(f"closing {self.path.parent.parent}")
        if not self._exclusive:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._exclusive = True
            except BlockingIOError:
                # The attempt gave up the lock that was held.
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        return self._exclusive

    def release(self) -> None:
        """Free everything; a second call does nothing."""
        if self._descriptor >= 0:
            if self._exclusive:
                # For people only; the lock is freed all the same.
                with suppress(OSError):
                    os.ftruncate(self._descriptor, 0)
            # Said aloud: a child that was forked just now may still have a copy open.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._close_descriptor()
        self._end()
        _made.discard(self)

    def __del__(self) -> None:
        # Of an opening that was interrupted before anybody could release it.
        for descriptor in (getattr(self, "_descriptor", -1), getattr(self, "_opening", -1)):
            if descriptor >= 0:
                close_unforked(descriptor)

    def _enter(self, joining: bool) -> None:
        """Become one of those that have the store open; nobody else does so meanwhile."""
        store_path = self.path.parent.parent
        with _made_lock:
            for other in _made:
                if other.held and other is not self and other.identity() == self.identity():
                    raise StoreInUseError(
                        f"{store_path} is open already: {_describe(other._holder)}; a process "
                        "opens a store once, and its threads share the object"
                    )
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._exclusive = True
                _write(self._descriptor, self._holder)
            except BlockingIOError as error:
                if not joining:
                    holder = describe_holder(self._descriptor)
                    self._close_descriptor()
                    raise StoreInUseError(f"{store_path} is open already: {holder}") from error
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError as again:
                    holder = describe_holder(self._descriptor)
                    self._close_descriptor()
                    raise StoreInUseError(
                        f"{store_path} is open already, for one process alone: {holder}"
                    ) from again

    def _close_descriptor(self) -> None:
        close_unforked(self._descriptor)
        self._descriptor = -1

    # The lock of who opens or closes.

    def _begin(self, what: str) -> None:
        with named_os_errors(f"locking {self.opening_path}"):
            descriptor = open_unforked(self.opening_path, os.O_RDWR | os.O_CREAT)
        self._opening = descriptor
        deadline_s = time.monotonic() + self._timeout_s
        sleep_s = _FIRST_SLEEP_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline_s:
                    holder = describe_holder(descriptor)
                    self._close_opening()
                    raise StoreInUseError(
                        f"{what}: for {self._timeout_s:g} s it was being opened or closed {holder}"
                    ) from error
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
        _write(descriptor, _holder())

    def _end(self) -> None:
        if self._opening >= 0:
            fcntl.flock(self._opening, fcntl.LOCK_UN)
            self._close_opening()

    def _close_opening(self) -> None:
        close_unforked(self._opening)
        self._opening = -1

    def _forget_in_child(self) -> None:
        # The parent's locks stand, by its own descriptors; those that were here are closed.
        self._descriptor = self._opening = -1
        if self._on_fork is not None:
            self._on_fork()


def _holder() -> dict[str, object]:
    """This process, from now on."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "opened_ms": time.time_ns() // 1_000_000,
    }


def _write(descriptor: int, holder: dict[str, object]) -> None:
    # Over whatever stands there: cutting a file short may wait for the disk. It is for people only.
    with suppress(OSError):
        os.pwrite(descriptor, json.dumps(holder).encode().ljust(_HOLDER_BYTES), 0)


def describe_holder(descriptor: int) -> str:
    """Who wrote his name into a lock's file."""
    try:
        return _describe(loads_json(os.pread(descriptor, 4096, 0)))
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
    _made_lock = threading.Lock()  # A thread that held it is not here.
    for lock in list(_made):
        lock._forget_in_child()
    _made.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
