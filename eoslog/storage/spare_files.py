"""Spare segment files: as many as are soon used while a store is open, none once it is closed.

A spare file is as large as a segment, and saves the next roll of its own partition some time. So a
store has `SPARE_BYTES_MAX` of them, in all processes: a file takes the place of one that lay unused
for a while, or is not made. The last process to close the store removes all. A process that dies
leaves them; the next one uses them, or removes them at its close.

Any of these files may be removed at any time: a process that takes one renames it, or finds none.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eoslog.common import clock
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import remove_directory
from eoslog.session.paths import StorePaths

# Four segments of the default size: more partitions are seldom written so fast that a roll is near.
SPARE_BYTES_MAX = 4 << 30
# So long after it was filled a file makes way for that of another partition.
UNUSED_S = 600.0

_log = logging.getLogger(__name__)


class SpareFile(NamedTuple):
    """A spare file, when it was last written, and its size."""

    written_s: float
    file_bytes: int
    path: Path


def make_spare_room(paths: StorePaths, where: TopicPartition, segment_bytes: int) -> bool:
    """Return True if a partition may have another spare file: if it has one, if there is room for
    one more, or once those that lay unused are removed.
    """
    if any(one.path.suffix != ".building" for one in _in_directory(paths.spare(where))):
        return True
    return _trim(paths, SPARE_BYTES_MAX - segment_bytes, clock.now_ms() / 1000 - UNUSED_S)


def trim_spares(paths: StorePaths) -> None:
    """Remove the oldest spare files of a store that has more than it may have."""
    _trim(paths, SPARE_BYTES_MAX, clock.now_ms() / 1000)


def _trim(paths: StorePaths, bytes_max: int, unused_since_s: float) -> bool:
    found = sorted(one for path in spare_directories(paths) for one in _in_directory(path))
    total_bytes = sum(one.file_bytes for one in found)
    for one in found:
        if total_bytes <= bytes_max or one.written_s > unused_since_s:
            break
        if one.path.suffix == ".building":
            continue  # A process fills it now.
        with named_os_errors(f"removing {one.path}"):
            one.path.unlink(missing_ok=True)
        total_bytes -= one.file_bytes
    return total_bytes <= bytes_max


def remove_spares(paths: StorePaths) -> None:
    """Remove all spare files; no other process has the store open. What cannot be removed is left,
    and logged.
    """
    for path in spare_directories(paths):
        try:
            remove_directory(path)
        except OSError as error:
            _log.warning("spare files are left in %s: %s", path, error)


def spare_directories(paths: StorePaths) -> list[Path]:
    """Return the directories with spare files of partitions, present or deleted."""
    found = []
    with named_os_errors(f"reading {paths.spares}"), suppress(FileNotFoundError):
        for path in paths.spares.iterdir():
            with suppress(ValueError):  # Nothing of ours.
                TopicPartition.parse(path.name)
                found.append(path)
    return found


def _in_directory(path: Path) -> Iterator[SpareFile]:
    with named_os_errors(f"reading {path}"):
        try:
            names = list(path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        for one in names:
            with suppress(FileNotFoundError):  # A roll has taken it.
                found = one.lstat()
                yield SpareFile(found.st_mtime, found.st_size, one)
