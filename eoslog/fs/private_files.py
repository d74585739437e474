"""Files that belong to the store's user alone, whatever the umask of the process lets others do.

A record may be read, and a decision be forged, by whoever can read and write the files: there is no
other guard. So all processes of a store run as one user.
"""

import os
from functools import partial
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

# For `open`: a file that is made is its user's alone. All of it is C: between two steps of Python a
# signal's handler could lose the descriptor.
private_opener = partial(os.open, mode=FILE_MODE)


def make_file(path: Path) -> None:
    """Make an empty file; one that is there stays as it is."""
    FileDescriptor(path, os.O_WRONLY | os.O_CREAT, FILE_MODE).close()


def make_directories(path: Path) -> None:
    """Make a directory, and those above it that are missing; one that is there stays as it is."""
    missing = []
    for directory in (path, *path.parents):
        if directory.is_dir():
            break
        missing.append(directory)
    for directory in reversed(missing):
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
