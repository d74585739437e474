"""A file that is read while others write, cut or delete it: no access can fault."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eoslog.bindings.file_descriptor import open_regular


class LockedFileReader:
    """Reader of what a file holds at this moment, by position. While it is open no store recycles
    the file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size_bytes(self) -> int:
        """Size of the file. It may shrink: a segment's file is cut to its batches when the next
        segment begins.
        """
        return os.fstat(self._descriptor).st_size

    def read(self, position_bytes: int, wanted_bytes: int) -> bytes:
        """Read `wanted_bytes` from a position; fewer only where the file ends before."""
        found = os.pread(self._descriptor, wanted_bytes, position_bytes)
        while 0 < len(found) < wanted_bytes:
            # One call gives 2 GiB at most.
            more = os.pread(
                self._descriptor, wanted_bytes - len(found), position_bytes + len(found)
            )
            if not more:
                break
            found += more
        return found


@contextmanager
def open_locked(path: Path) -> Iterator[LockedFileReader]:
    """Open a file for reading, with a shared lock on it where the file system has locks.

    Raises OSError; FileNotFoundError also if the file is deleted just now.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        descriptor = file.fileno()
        # Not every file system can: there, no store recycles files either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield LockedFileReader(descriptor)
