"""A copy of a store that no process has open, for work that must not change the store.

The copy is beside the store, so it is on the same file system: there it costs no room where that
shares the blocks of copied files. Files with two names have two names in the copy, too; symbolic
links are followed, so that nothing in the copy leads back to the store.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eoslog.errors import StoreFullError
from eoslog.fs.file_copy import copy_bytes
from eoslog.fs.os_errors import as_if_in, named_os_errors
from eoslog.fs.private_files import DIRECTORY_MODE, remove_directory

_NAME_PREFIX = ".eoslog-copy-"
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def copied_store(root: Path) -> Iterator[Path]:
    """A copy of the directory; it is removed at the end. Errors in the block name the directory.

    Raises StoreFullError if there is no room for it.
    """
    with named_os_errors(f"copying {root}"):
        place = Path(_make_place(root))
    try:
        copy = place / root.name
        with named_os_errors(f"copying {root} to {copy}"):
            copy_store(root, copy)
        with as_if_in({copy: root}):
            yield copy
    finally:
        with suppress(OSError):
            remove_directory(place)


def _no_file(path: Path) -> bool:
    return False


def _not_counted(bytes_copied: int) -> None:
    pass


def copy_store(
    root: Path,
    copy: Path,
    *,
    leaves_out: Collection[Path] = (),
    may_link: Callable[[Path], bool] = _no_file,
    count: Callable[[int], object] = _not_counted,
) -> None:
    """Copy the directory to one that is empty, or not there yet; its parent is.

    Directories in `leaves_out` are not copied. Files for which `may_link` is True are linked where
    the file system can do that. `count` is called with the size of each file that is there. Nothing
    is synced. Raises StoreFullError or OSError.
    """
    _Copy(copy.parent, leaves_out, may_link, count).directory(root, copy)


def _make_place(root: Path) -> str:
    try:
        return tempfile.mkdtemp(prefix=_NAME_PREFIX, dir=root.parent)
    except PermissionError:
        return tempfile.mkdtemp(prefix=_NAME_PREFIX)


class _Copy:
    def __init__(
        self,
        place: Path,
        leaves_out: Collection[Path],
        may_link: Callable[[Path], bool],
        count: Callable[[int], object],
    ) -> None:
        self._place = place
        self._count = count
        self._leaves_out = leaves_out
        self._may_link = may_link
        self._names: dict[tuple[int, int], Path] = {}  # Of files with several names.

    def directory(self, source: Path, target: Path) -> None:
        target.mkdir(DIRECTORY_MODE, exist_ok=True)
        for path in sorted(source.iterdir()):
            if path in self._leaves_out:
                continue
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
        self._copy(source, target, found)
        self._count(found.st_size)

    def _copy(self, source: Path, target: Path, found: os.stat_result) -> None:
        older = self._names.setdefault((found.st_dev, found.st_ino), target)
        if older is not target:
            os.link(older, target)
            return
        if self._may_link(source) and link_if_possible(source, target):
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


def link_if_possible(source: Path, target: Path) -> bool:
    """Link a file; False where the file system cannot, or the file has too many names."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return False
    return True
