"""A directory that appears as a whole: what it holds is built beside its place, and synced.

The last step gives it its name. A crash before that leaves the temporary directory
`.<name>.eoslog-...` beside the place, which nothing reads and which may be removed; an error
removes it, and so does the next one that builds a directory of the name. Who builds it has it
locked. A power cut leaves nothing under the name, or all of it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eoslog.bindings.file_descriptor import sync_file_system
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.errors import NotAStoreError, StoreError
from eoslog.fs.atomic_file import sync_directory, sync_file
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_outer_directories, remove_directory

_UNFINISHED_NAME = re.compile(r"\..+\.eoslog-[a-z0-9_]{8}")


class NewDirectory:
    """The temporary directory `workspace`, in which one named `target` is built."""

    def __init__(
        self,
        target: Path,
        workspace: Path,
        refusal: type[StoreError],
        descriptor: int,
    ) -> None:
        self.workspace = workspace
        self._target = target
        self._refusal = refusal
        self._descriptor = descriptor

    def publish(self, built: Path) -> None:
        """Sync what was built, the workspace or a directory in it, and give it the name; durable on
        return. An error takes the name back.
        """
        with named_os_errors(f"syncing the file system of {self._target}"):
            reports_errors = sync_file_system(self._descriptor)
        if not reports_errors:
            _sync_tree(built)
        check_free(self._target, self._refusal)
        try:
            with named_os_errors(f"creating {self._target}"):
                built.replace(self._target)
            sync_directory(self._target.parent)
        except BaseException:
            # What another process put there is not renamed to where `built` still is.
            with suppress(OSError):
                self._target.replace(built)
            raise


@contextmanager
def new_directory(target: Path, refusal: type[StoreError]) -> Iterator[NewDirectory]:
    """Make a directory in steps; it is there, as a whole, once it was published.

    Raises `refusal` if the name is taken, also if it was taken during the work; StoreFullError,
    StoreReadOnlyError, StoreFailedError.
    """
    check_free(target, refusal)
    with named_os_errors(f"making a directory beside {target}"):
        make_outer_directories(target.parent)
        _remove_leftovers(target)
        workspace, opened = _make_locked(target)
    try:
        yield NewDirectory(target, workspace, refusal, opened.fileno())
    finally:
        with suppress(OSError):
            remove_directory(workspace)
        opened.close()


def check_finished(path: Path) -> None:
    """Raise NotAStoreError for a directory that is being built, or whose builder died, and for one
    in it.
    """
    real = Path(os.path.realpath(path))
    if any(_UNFINISHED_NAME.fullmatch(one.name) for one in (real, real.parent)):
        raise NotAStoreError(
            f"{path} was left by a backup, restore, import or export that was killed, or one is "
            "building it: remove it, or wait"
        )


def _make_locked(target: Path) -> tuple[Path, UnforkedFile]:
    import tempfile  # Not every process makes one, and it loads much.

    while True:
        workspace = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
        # Opened first, so that its sync reports each write that failed.
        opened = _opened(workspace)
        if opened.lock(exclusive=True, wait=False) and workspace.exists():
            return workspace, opened
        opened.close()  # Another one took it for a leftover.


def _remove_leftovers(target: Path) -> None:
    import glob  # As above.

    for path in target.parent.glob(f"{glob.escape(_prefix(target))}*"):
        if not _UNFINISHED_NAME.fullmatch(path.name) or not path.is_dir() or path.is_symlink():
            continue
        with suppress(FileNotFoundError):
            opened = _opened(path)
            try:
                if opened.lock(exclusive=True, wait=False):
                    remove_directory(path)
            finally:
                opened.close()


def _opened(directory: Path) -> UnforkedFile:
    return UnforkedFile(directory, os.O_RDONLY | os.O_DIRECTORY, FILE_MODE)


def _prefix(target: Path) -> str:
    return f".{target.name}.eoslog-"


def check_free(target: Path, refusal: type[StoreError]) -> None:
    """Raise `refusal` if anything but an empty directory has the name."""
    with named_os_errors(f"looking at {target}"):
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise refusal(f"{target} is in the way: it is no directory")
        if target.is_dir():
            if (found := next(target.iterdir(), None)) is not None:
                raise refusal(f"{target} is not empty: it holds {found.name!r}")
            if target.is_mount():
                raise refusal(f"{target} is a mount point: name a directory below it")


def _sync_tree(path: Path) -> None:
    with named_os_errors(f"reading {path}"):
        found = list(path.iterdir())
    for one in found:
        if one.is_dir() and not one.is_symlink():
            _sync_tree(one)
        else:
            sync_file(one)
    sync_directory(path)
