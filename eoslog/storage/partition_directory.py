"""Directory of a partition, with the metadata that has its topic's id, and its files elsewhere: its
control page and spare files may outlive it.
"""

import errno
import logging
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eoslog.bindings.control_state import ControlState, control_state, synced_before
from eoslog.bindings.file_descriptor import FileDescriptor, sync_descriptor, sync_file_system
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, StoreError
from eoslog.fs.atomic_file import sync_directory, sync_file
from eoslog.fs.identity_files import (
    PARTITION_METADATA,
    read_partition_metadata,
    write_partition_metadata,
)
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories, remove_directory
from eoslog.session.paths import StorePaths
from eoslog.storage.topic_registry import TopicRegistry

_log = logging.getLogger(__name__)

# A sync of the file system waits for what other programs wrote, too.
SYNCED_EACH_MAX = 32
# A directory that another process still makes a file in is removed again, so often.
_REMOVALS_MAX = 100
_REMOVAL_PAUSE_S = 0.001
# Errors of stat where there is nothing, as `Path.is_dir` takes it.
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def make_partition_directories(
    paths: StorePaths, wanted: Sequence[tuple[TopicPartition, str]]
) -> None:
    """Make the directories of partitions, each with its topic's id; durable on return. Of many, all
    of the file system is synced, once.

    Raises StoreError if files are in the way that belong to no topic.
    """
    if len(wanted) <= SYNCED_EACH_MAX:
        for where, topic_id in wanted:
            make_partition_directory(paths, where, topic_id)
        sync_directory(paths.root)
        return
    # Opened first: a failed write before that is no error of the sync.
    with (
        named_os_errors(f"syncing the file system of {paths.root}"),
        FileDescriptor(paths.root, os.O_RDONLY | os.O_DIRECTORY) as root,
    ):
        for where, topic_id in wanted:
            make_partition_directory(paths, where, topic_id, sync=False)
        if not sync_file_system(root):
            for where, _ in wanted:
                sync_file(paths.partition(where) / PARTITION_METADATA)
                sync_directory(paths.partition(where))
            sync_descriptor(root)


def make_partition_directory(
    paths: StorePaths, where: TopicPartition, topic_id: str, *, sync: bool = True
) -> None:
    """Make a partition's directory with its metadata, durably if `sync` is true; its own entry is
    the caller's to sync.

    Raises StoreError if files are in the way that belong to no topic.
    """
    path = paths.partition(where)
    with named_os_errors(f"creating {path}"):
        if path.exists():
            # A creation that was cut short may have left it.
            foreign = [
                name.name for name in path.iterdir() if not name.name.startswith(PARTITION_METADATA)
            ]
            if foreign:
                raise StoreError(
                    f"{path} is in the way: it belongs to no topic and holds {foreign[0]!r}"
                )
        make_directories(path)
        # Of a partition of that name which was deleted, if that was cut short.
        paths.control(where).unlink(missing_ok=True)
    write_partition_metadata(path, topic_id, sync=sync)


def is_directory(path: str) -> bool:
    """Return True if there is a directory. Raises OSError if that cannot be known."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 -- a Path costs more.
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return False


def is_unused(path: Path) -> bool:
    """True if the directory is as it was created, the partition was not opened yet; or if it went
    just now, with its topic.
    """
    with named_os_errors(f"looking at {path}"):
        try:
            return all(one.name.startswith(PARTITION_METADATA) for one in path.iterdir())
        except FileNotFoundError:
            return True


def check_identity(path: Path, topic: str, topic_id: str) -> None:
    """Check that the directory is that topic's, and write its metadata again if that is missing.

    Raises CorruptRecordError if it is another topic's, or is gone.
    """
    if not path.is_dir():
        raise CorruptRecordError(str(path), 0, "the partition's directory is gone")
    found = read_partition_metadata(path)
    if found is None:
        write_partition_metadata(path, topic_id)
    elif found != topic_id:
        raise CorruptRecordError(
            str(path / PARTITION_METADATA), 0, f"topic id {found}, but topic {topic} has {topic_id}"
        )


def remove_partition_files(paths: StorePaths, where: TopicPartition) -> None:
    """Remove all files of a partition to which no new write comes; the caller syncs."""
    with named_os_errors(f"removing {where}"):
        for directory in (paths.partition, paths.spare, paths.cut_of):
            remove_tree(directory(where))
        paths.control(where).unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory to which no new write comes: a process that has only just noticed the
    deletion may still create or remove one file.
    """
    for _ in range(_REMOVALS_MAX):
        if not path.is_dir():
            return
        with suppress(FileNotFoundError):
            try:
                remove_directory(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                time.sleep(_REMOVAL_PAUSE_S)
    remove_directory(path)


def remove_orphan_spares(paths: StorePaths, registry: TopicRegistry) -> None:
    """Remove the spare files of partitions that do not exist; no other process has the store open.

    Where nothing is synced, a power cut may bring those of a deleted topic back: files as large as
    segments. What cannot be removed is left, and logged.
    """
    with named_os_errors(f"reading {paths.spares}"):
        found = list(paths.spares.iterdir()) if paths.spares.is_dir() else []
    known = {
        where
        for topic in (*registry.all(), *registry.deleting())
        for where in topic.topic_partitions()
    }
    for path in found:
        try:
            where = TopicPartition.parse(path.name)
        except ValueError:
            continue  # Nothing of ours.
        if where in known:
            continue
        try:
            remove_directory(path)
        except OSError as error:
            _log.warning("%s, of a topic that was deleted, is left there: %s", path, error)


def base_offset_of(path: Path) -> int:
    """Return the offset that a segment, and so its file, begins with; ValueError if its name has
    none.
    """
    digits = path.name.partition(".")[0]
    if not digits.isdigit():
        raise ValueError(f"{path}: the name does not begin with an offset")
    return int(digits)


def page_of(paths: StorePaths, where: TopicPartition) -> ControlState | None:
    """Return a partition's control page; None if there is none."""
    with named_os_errors(f"looking at {where}"):
        return control_state(str(paths.control(where)))


def partitions_with_pages(paths: StorePaths) -> list[TopicPartition]:
    """Return the partitions that have a control page, sorted by its name."""
    with named_os_errors(f"looking at {paths.controls}"):
        if not paths.controls.is_dir():
            return []
        names = sorted(path.name for path in paths.controls.iterdir())
    found = []
    for name in names:
        with suppress(ValueError):  # Another file.
            found.append(TopicPartition.parse(name))
    return found


def synced_by_page_alone(paths: StorePaths, where: TopicPartition) -> int:
    """Return the offset up to which a page has its log as synced, whatever its topic; 0 if it has
    none. It is known also of a store that stopped before its first checkpoint.
    """
    state = page_of(paths, where)
    if state is None:
        return 0
    with named_os_errors(f"looking at {where}"):
        return synced_before(str(paths.control(where)), state.topic_id, where.partition)


def lost_by_pages(paths: StorePaths) -> dict[TopicPartition, int]:
    """Return the partitions of internal topics without a directory of which something had been
    synced, and up to where. Such a partition is never deleted.
    """
    found = {}
    for where in partitions_with_pages(paths):
        if where.topic in INTERNAL_TOPICS and not paths.partition(where).is_dir():
            offset = synced_by_page_alone(paths, where)
            if offset:
                found[where] = offset
    return found
