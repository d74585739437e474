"""A copy of a store that no process has open, for work that must not change the store.

The copy is beside the store, so it is on the same file system: there it costs no room where that
shares the blocks of copied files. Files with two names have two names in the copy, too; symbolic
links are followed, so that nothing in the copy leads back to the store.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eoslog.errors import StoreFullError
from eoslog.fs.file_copy import copy_bytes
from eoslog.fs.os_errors import named_os_errors

_NAME_PREFIX = ".eoslog-copy-"


@contextmanager
def copied_store(root: Path) -> Iterator[Path]:
    """A copy of the directory; it is removed at the end.

    Raises StoreFullError if there is no room for it.
    """
    with named_os_errors(f"copying {root}"):
        place = Path(_make_place(root))
    try:
        copy = place / root.name
        with named_os_errors(f"copying {root} to {copy}"):
            _Copy(place).directory(root, copy)
        yield copy
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _make_place(root: Path) -> str:
    try:
        return tempfile.mkdtemp(prefix=_NAME_PREFIX, dir=root.parent)
    except PermissionError:
        return tempfile.mkdtemp(prefix=_NAME_PREFIX)


class _Copy:
    def __init__(self, place: Path) -> None:
        self._place = place
        self._names: dict[tuple[int, int], Path] = {}  # Of files with several names.

    def directory(self, source: Path, target: Path) -> None:
        target.mkdir()
        for path in sorted(source.iterdir()):
            if path.is_dir():
                self.directory(path, target / path.name)
            else:
                self._file(path, target / path.name)
        shutil.copystat(source, target)  # After all else: it may take the right to write away.

    def _file(self, source: Path, target: Path) -> None:
        try:
            found = source.stat()
        except FileNotFoundError:
            target.symlink_to(source.readlink())  # To nothing, here and there.
            return
        if stat.S_ISFIFO(found.st_mode):
            os.mkfifo(target)
        if not stat.S_ISREG(found.st_mode):
            return
        older = self._names.setdefault((found.st_dev, found.st_ino), target)
        if older is not target:
            os.link(older, target)
            return
        free = shutil.disk_usage(self._place).free
        if found.st_blocks * 512 > free:
            raise StoreFullError(
                f"no room for a copy in {self._place}: {source} has {found.st_blocks * 512} bytes, "
                f"and {free} are free"
            )
        with source.open("rb") as data, target.open("xb") as copy:
            copy_bytes(data.fileno(), copy.fileno(), found.st_size)
        shutil.copystat(source, target)
