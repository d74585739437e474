"""The lock that keeps a store to one process at a time.

It is a file lock on `state/lock`: the kernel drops it when the holder dies, however it dies. The
file also names the holder, for people to read; the name alone proves nothing.

A fork would hand the lock on: a child that lives longer than its parent would keep the store
locked, and could write to it beside the next owner. So the child closes its copy at once, and
every object of the store is told that it is in the wrong process.
"""

import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from eoslog.errors import StoreInUseError
from eoslog.os_errors import named_os_errors

FILE_NAME = "lock"

_held: "weakref.WeakSet[StoreLock]" = weakref.WeakSet()


class StoreLock:
    """The held lock of one store. `release` frees it; so does the death of the process."""

    def __init__(self, state_path: Path, on_fork: Callable[[], None] | None = None) -> None:
        """Take the lock at once or raise StoreInUseError, which says who holds it.

        `on_fork` is called in the child of every fork made while the lock is held.
        """
        self.path = state_path / FILE_NAME
        self._on_fork = on_fork
        with named_os_errors(f"locking {self.path}"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _describe_holder(descriptor)
            os.close(descriptor)
            raise StoreInUseError(f"{state_path.parent} is open already: {holder}") from error
        self._descriptor = descriptor
        _write_holder(descriptor)
        _held.add(self)

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def release(self) -> None:
        """Free the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            # Said aloud: a child that was forked just now may still have a copy open.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1
        _held.discard(self)

    def __del__(self) -> None:
        # Of an opening that was interrupted before anybody could release it.
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def _forget_in_child(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # The parent's lock stands: it has its own descriptor.
            self._descriptor = -1
        if self._on_fork is not None:
            self._on_fork()


def _write_holder(descriptor: int) -> None:
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "opened_ms": time.time_ns() // 1_000_000,
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _describe_holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        since = moment_text(int(holder["opened_ms"]))
        here = " (this process)" if int(holder["pid"]) == os.getpid() else ""
        return f"by process {holder['pid']}{here} on {holder['host']} since {since}"
    except (ValueError, KeyError, TypeError):
        return "by a process that has not yet said who it is"


def moment_text(time_ms: int) -> str:
    """A moment, for people: UTC, to the millisecond."""
    seconds, ms = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{ms:03d} UTC"


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._forget_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
