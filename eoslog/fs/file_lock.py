"""Keeping other processes, and other threads, out of a file or directory for a while.

The kernel frees the lock when its holder dies. The child of a fork closes its copies at once: one
that outlived its parent would keep the lock.
"""

import errno
import fcntl
import os
import struct
from contextlib import AbstractContextManager
from pathlib import Path

from eoslog.bindings.unforked_file import LockedFile, UnforkedFile
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE

# struct flock: type, whence, first byte, count (0: all), process (0 for locks of an open file).
_FLOCK = struct.Struct("hhqqi4x")


def file_locked(path: Path, *, wait: bool = True) -> AbstractContextManager[bool]:
    """Return a block that holds the file's lock exclusively; the file is created if it is absent.

    Gives False at once, and locks nothing, if it is locked and `wait` is false. Raises StoreError.
    """
    return _locked(path, os.O_RDWR | os.O_CREAT, wait)


def directory_locked(path: Path, *, wait: bool = True) -> AbstractContextManager[bool]:
    """Lock a directory like `file_locked`. Raises FileNotFoundError if there is none, StoreError if
    it cannot be opened.
    """
    return _locked(path, os.O_RDONLY | os.O_DIRECTORY, wait)


def _locked(path: Path, flags: int, wait: bool) -> LockedFile:
    try:
        return LockedFile(path, flags, FILE_MODE, wait)
    except FileNotFoundError:
        if flags & os.O_DIRECTORY:
            raise
        with named_os_errors(f"locking {path}"):
            raise
    except OSError:
        with named_os_errors(f"locking {path}"):
            raise


class UpgradableLock:
    """A file lock that a process shares with others, or has alone. It is not held at first.

    Invariant: a failed attempt to have it alone leaves the shared hold as it was; `flock` would
    give that up. The file at `path` is made if need be. The lock belongs to the open file, of which
    the child of a fork has nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with named_os_errors(f"opening {path}"):
            self._file = UnforkedFile(path, os.O_RDWR | os.O_CREAT, FILE_MODE)

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
        """Hold it with others; waits while one has it exclusively."""
        self._set(fcntl.F_RDLCK, fcntl.F_OFD_SETLKW)

    def close(self) -> None:
        """Free it; a second call does nothing, or what an interrupt left of the first."""
        if not self._file.closed:
            # Said aloud: a child that was forked just now may still have a copy open.
            self._set(fcntl.F_UNLCK, fcntl.F_OFD_SETLK)
            self._file.close()

    def _set(self, kind: int, command: int) -> None:
        fcntl.fcntl(self._file, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def shared_if_free(path: Path) -> UnforkedFile | None:
    """Hold the lock of a file with others until the result is closed; None if a process has it
    alone. The file is only read. A Java process takes the same lock.

    Raises FileNotFoundError if there is no such file, OSError if it cannot be locked.
    """
    file = UnforkedFile(path, os.O_RDONLY, FILE_MODE)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        file.close()
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return file
