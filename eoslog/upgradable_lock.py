"""A file lock that a process shares with others, and has alone where nobody else holds it.

Invariant: a failed attempt to have it alone leaves the shared hold as it was; `flock` would give
that up. The kernel frees the lock when its holder dies. It belongs to the open file, of which the
child of a fork has a copy; the child closes that at once, and has nothing.
"""

import errno
import fcntl
import os
import struct
import weakref
from pathlib import Path

from eoslog.os_errors import named_os_errors
from eoslog.private_files import FILE_MODE

# struct flock: type, whence, first byte, count (0: all), process (0 for locks of an open file).
_FLOCK = struct.Struct("hhqqi4x")

_made: "weakref.WeakSet[UpgradableLock]" = weakref.WeakSet()


class UpgradableLock:
    """The lock in the file at `path`, which is made if need be. Made, it is not held yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with named_os_errors(f"opening {path}"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        _made.add(self)

    def try_alone(self) -> bool:
        """Hold it alone if no other process holds it; whether that is so now."""
        try:
            self._set(fcntl.F_WRLCK, fcntl.F_OFD_SETLK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def share(self) -> None:
        """Hold it with others; waits until nobody has it alone."""
        self._set(fcntl.F_RDLCK, fcntl.F_OFD_SETLKW)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self._descriptor >= 0:
            # Said aloud: a child that was forked just now may still have a copy open.
            self._set(fcntl.F_UNLCK, fcntl.F_OFD_SETLK)
            self._close_copy()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self._close_copy()

    def _close_copy(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _set(self, kind: int, command: int) -> None:
        fcntl.fcntl(self._descriptor, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _after_fork_in_child() -> None:
    for lock in list(_made):
        lock._close_copy()
    _made.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
