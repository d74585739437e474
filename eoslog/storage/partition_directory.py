"""Directory of a partition, with the metadata that says whose it is, and the files that it has
elsewhere.
"""

import errno
import time
from contextlib import suppress
from pathlib import Path

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, StoreError
from eoslog.fs.file_tree import remove_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.partition_metadata import FILE_NAME as PARTITION_METADATA
from eoslog.fs.partition_metadata import read_partition_metadata, write_partition_metadata
from eoslog.fs.private_files import make_directories
from eoslog.session.store_paths import StorePaths

# A directory that somebody else still makes a file in is removed again, so often.
_REMOVALS_MAX = 100
_REMOVAL_PAUSE_S = 0.001


def make_partition_directory(paths: StorePaths, where: TopicPartition, topic_id: str) -> None:
    """Make a partition's directory with its metadata; its own entry is the caller's to sync.

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
    write_partition_metadata(path, topic_id)


def is_unused(path: Path) -> bool:
    """True if the directory is as it was made: nobody has opened the partition yet."""
    with named_os_errors(f"looking at {path}"):
        return all(one.name.startswith(PARTITION_METADATA) for one in path.iterdir())


def check_identity(path: Path, topic: str, topic_id: str) -> None:
    """The directory is that topic's; metadata that is missing is written anew.

    Raises CorruptRecordError if it is not, or is gone.
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
    """Remove all of a partition that nobody begins to write to; the caller syncs."""
    with named_os_errors(f"removing {where}"):
        for directory in (paths.partition, paths.spare, paths.cut_of):
            remove_tree(directory(where))
        paths.control(where).unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory that nobody begins to write to: a process that was told only just may
    still make the file that it was at, or remove one.
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
