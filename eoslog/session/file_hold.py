"""Keeping the files of a store's logs in place while a backup copies them.

A lock of the directory of control pages: a backup has it alone, and who removes files of a log has
it with others. Nothing else takes that lock, and none of them waits for the backup: what may not be
removed yet is removed later. The kernel frees the lock when its holder dies.
"""

import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eoslog.bindings import shared_page
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.errors import StoreInUseError
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE

_LOOK_S = 0.01


class FileHold:
    """The hold of one store, by whichever of its processes.

    `left_over` has what this process removes once no backup is under way: calls, by what they
    remove files of.
    """

    def __init__(self, controls_path: Path) -> None:
        self._path = controls_path
        self.left_over: dict[Hashable, Callable[[], object]] = {}

    def _opened(self) -> UnforkedFile:
        with named_os_errors(f"locking {self._path}"):
            return UnforkedFile(self._path, os.O_RDONLY | os.O_DIRECTORY, FILE_MODE)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Have no process remove files of logs. Raises StoreInUseError if another backup, or a
        removal, does not end.
        """
        timeout_s = shared_page.LOCK_TIMEOUT_S
        end_s = time.monotonic() + timeout_s
        file = self._opened()
        try:
            while not file.lock(exclusive=True, wait=False):
                if time.monotonic() > end_s:
                    raise StoreInUseError(
                        f"another backup of {self._path.parent.parent} is under way, or files of "
                        f"it are being removed, for longer than {timeout_s:g} s: one backup is "
                        "made at a time"
                    )
                time.sleep(_LOOK_S)
            yield
        finally:
            file.close()

    @contextmanager
    def removing(self) -> Iterator[bool]:
        """Gives True if files of logs may be removed in the block: no backup copies them."""
        file = self._opened()
        try:
            yield file.lock(exclusive=False, wait=False)
        finally:
            file.close()

    def remove_left_over(self) -> None:
        """Remove what could not be removed before; what still cannot be is noted again."""
        for key in list(self.left_over):
            remove = self.left_over.pop(key, None)
            if remove is not None:
                remove()
