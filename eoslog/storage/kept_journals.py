"""Files of commit journals that a clean stop keeps for the next opening: room, and nothing else.

A file is written over twice and synced before a journal may use it, which takes a moment that a
short program may not have. So a process that closes the store leaves its file below
`state/spare-journal`, where none counts: no replay looks there, and what an old record in it says
no longer holds once the file has another id. docs/crash-points.md has the steps.

Any of these files may be removed while no process has the store open.
"""

import os
from contextlib import suppress
from pathlib import Path

from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories
from eoslog.session.paths import StorePaths

# Of a store; each is as large as its journal was, at most 128 MiB.
KEPT_MAX = 4
FILE_BYTES_MAX = 128 << 20


def keep_journal(paths: StorePaths, path: Path) -> None:
    """Keep a journal's file that nothing is needed of, or remove it: there are larger ones, or it
    is too large (K1).
    """
    with named_os_errors(f"keeping {path}"), suppress(FileNotFoundError):
        size_bytes = path.stat().st_size
        sizes = dict(_kept(paths))
        names = [paths.kept_journals / str(number) for number in range(KEPT_MAX)]
        name = min(names, key=lambda one: sizes.get(one, 0))
        if sizes.get(name, 0) >= size_bytes or size_bytes > FILE_BYTES_MAX:
            path.unlink()
            return
        make_directories(paths.kept_journals)
        path.replace(name)  # Another process may have kept one there just now: it is gone.


def take_kept_journal(
    paths: StorePaths, bytes_min: int, bytes_max: int, target: Path
) -> int | None:
    """Give the largest kept file of such a size another name; its size. None: there is none."""
    with named_os_errors(f"taking a file of {paths.kept_journals}"):
        for path, size_bytes in sorted(_kept(paths), key=lambda one: one[1], reverse=True):
            if bytes_min <= size_bytes <= bytes_max:
                with suppress(FileNotFoundError):  # Another process took it.
                    path.rename(target)
                    return size_bytes
    return None


def remove_kept_journals(paths: StorePaths) -> None:
    """Remove all kept files, after an unclean stop: one may have the name of a journal too."""
    for path, _ in _kept(paths):
        with named_os_errors(f"removing {path}"):
            path.unlink(missing_ok=True)


def sync_kept_journals(paths: StorePaths) -> None:
    """Have the names of kept files on the disk, and no old one."""
    if paths.kept_journals.is_dir():
        sync_directory(paths.kept_journals)


def _kept(paths: StorePaths) -> list[tuple[Path, int]]:
    """Return the kept files, and their sizes."""
    found: list[tuple[Path, int]] = []
    with named_os_errors(f"reading {paths.kept_journals}"), suppress(FileNotFoundError):
        for entry in os.scandir(paths.kept_journals):
            with suppress(FileNotFoundError):  # Another process took it.
                if entry.is_file(follow_symlinks=False):
                    found.append((Path(entry.path), entry.stat().st_size))
    return found
