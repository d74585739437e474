"""Space that a store takes on disk, directory by directory: see `Store.describe_log_dirs`."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.paths import STATE_DIRECTORY

_BLOCK_BYTES = 512  # Of `st_blocks`, whatever the file system's are.


class LogDirectory(NamedTuple):
    """Space that one directory of a store takes; `Store.describe_log_dirs` returns it.

    Attributes
    ----------
    path : str
        Below the store's directory; "." and "state" have the files that are directly in them.
    topic_partition : TopicPartition or None
        The partition whose log is in it.
    file_count : int
        Files in it.
    size_bytes : int
        Sum of the files' sizes.
    allocated_bytes : int
        What they take on the disk: also what is reserved for records to come. A file with several
        names (a backup's hard link) counts whole.
    """

    path: str
    topic_partition: TopicPartition | None
    file_count: int
    size_bytes: int
    allocated_bytes: int


def log_directories(root: Path) -> list[LogDirectory]:
    """Return the directories of a store, sorted by path. Raises StoreError."""
    with named_os_errors(f"looking at {root}"):
        state = root / STATE_DIRECTORY
        names = _directories(root)
        found = [_usage(root, "."), _usage(root, STATE_DIRECTORY)]
        found += [_usage(root, name, whole=True) for name in names if name != STATE_DIRECTORY]
        found += [
            _usage(root, f"{STATE_DIRECTORY}/{name}", whole=True) for name in _directories(state)
        ]
        return sorted(found)


def _directories(path: Path) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _usage(root: Path, name: str, *, whole: bool = False) -> LogDirectory:
    """Return the space of a directory, with those below it if it is `whole`."""
    sums = [0, 0, 0]
    _add(root / name, sums, whole)
    where = None
    with suppress(ValueError):
        where = TopicPartition.parse(name)
    return LogDirectory(name, where, *sums)


def _add(path: Path, sums: list[int], whole: bool) -> None:
    with suppress(FileNotFoundError):  # What is being deleted.
        sums[2] += path.stat().st_blocks * _BLOCK_BYTES
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if whole:
                        _add(Path(entry.path), sums, whole)
                    continue
                with suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    sums[0] += 1
                    sums[1] += state.st_size
                    sums[2] += state.st_blocks * _BLOCK_BYTES
