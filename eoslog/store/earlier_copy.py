"""An earlier backup of a store, whose files the next one may share."""

import logging
from pathlib import Path

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreError
from eoslog.fs.identity_files import read_meta_properties, read_partition_metadata
from eoslog.fs.offline_log import is_whole_segment
from eoslog.session.paths import StorePaths

_log = logging.getLogger(__name__)


class EarlierCopy:
    """Sealed segments of an earlier backup.

    A segment that was sealed does not change, but after a power cut another one may have its name.
    So a file is shared if it is of the same topic, and has the size and the time of change of the
    store's. Its batches are verified first: what became damaged in the earlier copy is copied from
    the store.
    """

    def __init__(self, path: Path, source: Path) -> None:
        """Raises NotAStoreError; StoreError if it is no copy of the store."""
        self._paths = StorePaths(path)
        self.damaged: list[Path] = []
        if read_meta_properties(path) != read_meta_properties(source):
            raise StoreError(f"{path} is no backup of {source}: it has other ids")

    def find(
        self, where: TopicPartition, topic_id: str, source: Path, end_offset: int
    ) -> Path | None:
        """Return the file that a sealed segment's file can share; None if there is none."""
        path = self._paths.partition(where) / source.name
        try:
            theirs, ours = path.stat(), source.stat()
        except FileNotFoundError:
            return None
        if (theirs.st_size, theirs.st_mtime_ns) != (
            ours.st_size,
            ours.st_mtime_ns,
        ) or read_partition_metadata(path.parent) != topic_id:
            return None
        if not is_whole_segment(path, end_offset):
            _log.warning("%s is damaged; it is copied from the store again", path)
            self.damaged.append(path)
            return None
        return path
