"""Keeping other processes, and other threads, out of a file or directory for a while.

The kernel frees the lock when its holder dies. The child of a fork closes its copies at once: one
that outlived its parent would keep the lock.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from eoslog.os_errors import named_os_errors
from eoslog.private_files import FILE_MODE

_held: set[int] = set()


def file_locked(path: Path, *, wait: bool = True) -> AbstractContextManager[bool]:
    """A block in which nobody else is in such a block of the same file, which is made if need be.

    Gives False at once, and locks nothing, if it is locked and `wait` is false.
    """
    return _locked(path, os.O_RDWR | os.O_CREAT, wait)


def directory_locked(path: Path, *, wait: bool = True) -> AbstractContextManager[bool]:
    """As `file_locked`, of a directory. Raises FileNotFoundError if there is none, StoreError if it
    cannot be opened.
    """
    return _locked(path, os.O_RDONLY | os.O_DIRECTORY, wait)


@contextmanager
def _locked(path: Path, flags: int, wait: bool) -> Iterator[bool]:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    except FileNotFoundError:
        raise
    except OSError:
        with named_os_errors(f"locking {path}"):
            raise
    _held.add(descriptor)
    try:
        yield _lock(descriptor, wait)
    finally:
        if descriptor in _held:  # Else this is a child, whose copy is closed.
            # Said aloud: a child that was forked just now may still have a copy open.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            _held.discard(descriptor)
            os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _after_fork_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
