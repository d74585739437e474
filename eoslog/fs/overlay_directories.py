"""Directories that this process made in memory to open a store that it only reads (`Overlay`).

Nothing in them is synced: they end with the process. A symbolic link in them leads to a file of the
store, which is read and never written to.
"""

import os
from pathlib import Path

_paths: set[str] = set()


def add_overlay(path: Path) -> None:
    """Note a directory that is such a one from now on."""
    _paths.add(f"{path}{os.sep}")


def remove_overlay(path: Path) -> None:
    """Forget a directory that was one."""
    _paths.discard(f"{path}{os.sep}")


def is_in_overlay(path: Path) -> bool:
    """Return True if a file or directory is in such a directory."""
    return bool(_paths) and f"{path}{os.sep}".startswith(tuple(_paths))
