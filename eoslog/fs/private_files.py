"""Files and directories that belong to the store's user alone, whatever the umask allows: made,
and removed. The group may read what is made in a directory that it may read, and write nothing.

Anyone who can write the files may forge a decision: there is no other guard. So all processes that
write to a store run as one user, or as root: what root makes in a store belongs to the owner of the
directory that it is in, which is that user.
"""

import errno
import os
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor, make_directories, make_directory

__all__ = [
    "DIRECTORY_MODE",
    "FILE_MODE",
    "make_directories",
    "make_directory",
    "make_file",
    "make_outer_directories",
    "remove_directory",
]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def make_file(path: Path) -> None:
    """Make an empty file; one that is there stays as it is."""
    FileDescriptor(path, os.O_WRONLY | os.O_CREAT, FILE_MODE).close()


def make_outer_directories(path: Path, mode: int = DIRECTORY_MODE) -> None:
    """Make a directory that is in no store, and those above it that are missing, for the process's
    user; one that is there stays as it is.
    """
    missing = []
    for directory in (path, *path.parents):
        if directory.is_dir():
            break
        missing.append(directory)
    for directory in reversed(missing):
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        if mode != DIRECTORY_MODE:
            directory.chmod(mode)


def remove_directory(path: Path) -> None:
    """Remove a directory with all that is in it. Raises OSError: FileNotFoundError if another
    thread or process removes something in it at the same time.
    """
    # Not by `shutil.rmtree`: it closes a directory's descriptor a second time where a signal's
    # handler raises right after the first, and the number may be another thread's file by then.
    # Here no descriptor has a number in Python, and no link is followed.
    if path.is_symlink():
        raise OSError(errno.ENOTDIR, "a link, not a directory", str(path))
    for entry in list(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_directory(entry)
        else:
            entry.unlink()
    path.rmdir()
