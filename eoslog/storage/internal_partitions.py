"""The partitions of the internal topics, `__transaction_state` and `__consumer_offsets`.

Each is made when it is first used: its directory, then the file that says of which topic it is.
"""

import errno
import os
import stat
from contextlib import AbstractContextManager

from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.atomic_file import sync_directory
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.partition_metadata import FILE_NAME as PARTITION_METADATA
from eoslog.session.store_paths import StorePaths
from eoslog.storage.lost_directories import synced_by_page_alone
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.partition import Partition
from eoslog.storage.partition_directory import make_partition_directory
from eoslog.storage.topic_registry import INTERNAL_TOPIC_PARTITIONS, TopicDescription, TopicRegistry

# What stat says where there is nothing, as `Path.is_dir` takes it.
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class InternalPartitions:
    """Partitions of internal topics: a part of `OpenedPartitions`, which is made on top of it."""

    _paths: StorePaths
    _registry: TopicRegistry
    _checkpoints: OffsetCheckpoints
    _lock: AbstractContextManager[object]
    _opened: dict[TopicPartition, Partition]

    def existing_state_partitions(self) -> list[int]:
        """The partitions of `__transaction_state` that have a directory."""
        return self.existing_internal_partitions(TRANSACTION_STATE_TOPIC)

    def state_partition(self, number: int) -> Partition:
        """A partition of `__transaction_state`, opened, and made if it is not there."""
        return self.internal_partition(TRANSACTION_STATE_TOPIC, number)

    def existing_offsets_partitions(self) -> list[int]:
        """The partitions of `__consumer_offsets` that have a directory."""
        return self.existing_internal_partitions(CONSUMER_OFFSETS_TOPIC)

    def offsets_partition(self, number: int) -> Partition:
        """A partition of `__consumer_offsets`, opened, and made if it is not there."""
        return self.internal_partition(CONSUMER_OFFSETS_TOPIC, number)

    def existing_internal_partitions(self, topic_name: str) -> list[int]:
        """The partitions of an internal topic that have a directory."""
        prefix = str(self._paths.partition(TopicPartition(topic_name, 0)))[:-1]
        with named_os_errors(f"looking at {prefix}*"):
            # Each opening asks for all of them: fifty paths would cost more than the looks.
            numbers = range(INTERNAL_TOPIC_PARTITIONS)
            return [number for number in numbers if _is_directory(f"{prefix}{number}")]

    def has_files(self, where: TopicPartition) -> bool:
        """True if a partition, of any topic, has a directory."""
        path = str(self._paths.partition(where))
        with named_os_errors(f"looking at {path}"):
            return _is_directory(path)

    def internal_partition(self, topic_name: str, number: int) -> Partition:
        """A partition of an internal topic, opened, and made if it is not there."""
        where = TopicPartition(topic_name, number)
        partition = self._opened.get(where)
        if partition is not None:
            return partition
        with self._lock:
            topic = self._registry.get(topic_name)
            # The directory comes first, then this file: another process may be between the two.
            made = self._paths.partition(where) / PARTITION_METADATA
            with named_os_errors(f"looking at {made}"):
                is_made = made.exists()
            if topic is None or not is_made:
                topic = self._make_internal(where)
            return self._open(topic, where)

    def _make_internal(self, where: TopicPartition) -> TopicDescription:
        with self._registry.making_partition(where.topic, INTERNAL_TOPIC_PARTITIONS) as topic:
            if not self.has_files(where):
                self._checkpoints.note_if_lost(where, synced_by_page_alone(self._paths, where))
                make_partition_directory(self._paths, where, topic.topic_id)
                sync_directory(self._paths.root)
            return topic

    def _open(self, topic: TopicDescription, where: TopicPartition) -> Partition:
        raise NotImplementedError


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 -- a Path costs more.
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return False
