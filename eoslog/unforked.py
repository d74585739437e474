"""Descriptors of locked files that no child of a fork keeps.

A child that outlived its parent would keep the parent's locks. So it closes its copies at once; and
no fork happens between the opening of such a file and the note that it is open.
"""

import os
import threading
from pathlib import Path

from eoslog.private_files import FILE_MODE

# Held while a descriptor comes or goes, and by whoever forks.
_guard = threading.RLock()
_descriptors: set[int] = set()


def open_unforked(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """Open a file; `close_unforked` closes it, and so does a fork in the child."""
    with _guard:
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        _descriptors.add(descriptor)
    return descriptor


def close_unforked(descriptor: int) -> None:
    """Close it, unless this is a child of a fork, where it is closed already."""
    with _guard:
        if descriptor in _descriptors:
            _descriptors.discard(descriptor)
            os.close(descriptor)


def is_open(descriptor: int) -> bool:
    """Whether it is open here: in a child of a fork it is not."""
    return descriptor in _descriptors


def _after_fork_in_child() -> None:
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_after_fork_in_child
)
