"""Directories that are removed with all that is in them.

`shutil.rmtree` closes a directory's descriptor a second time where a signal's handler raises right
behind the first: that is an error in place of the handler's, and the number may be another thread's
file by then. Here no descriptor has a number in Python, and no link is followed.
"""

import errno
from pathlib import Path


def remove_directory(path: Path) -> None:
    """Remove a directory with all that is in it. Raises OSError; FileNotFoundError where somebody
    else removes something of it just now.
    """
    if path.is_symlink():
        raise OSError(errno.ENOTDIR, "a link, not a directory", str(path))
    for entry in list(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            remove_directory(entry)
        else:
            entry.unlink()
    path.rmdir()
