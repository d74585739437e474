"""Keeping other processes, and other threads, out of a file or directory for a while.

The kernel frees the lock when its holder dies. The child of a fork closes its copies at once: one
that outlived its parent would keep the lock.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from eoslog.bindings.unforked_file import LockedFile
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE


def file_locked(path: Path, *, wait: bool = True) -> AbstractContextManager[bool]:
    """A block in which nobody else is in such a block of the same file, which is made if need be.

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
