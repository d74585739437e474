"""Compaction of the internal topics by the background thread: when, and of which partitions.

A partition is due once its sealed segments are twice as large as what held when it was compacted
last. So compaction writes no more than the store's own records do, and a partition is no larger
than twice what holds and two segments, however many records were written. All that are due are
compacted together: a look at the whole store is shared by them.
"""

from contextlib import suppress

from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import StoreFiles
from eoslog.transactions.state_index import read_live_bytes

# With so much to be deleted the next compaction does not wait for its time.
AT_ONCE_BYTES = 16 << 20


class InternalCompaction:
    """The partitions that are due; only the background thread, and who stopped it, calls it."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._sealed_bytes: dict[UnifiedLog, int] = {}

    def look(self, partition: UnifiedLog) -> bool:
        """Note a partition that was appended to, if it is due; True if now so much is due that the
        next compaction must not wait.
        """
        if partition.topic not in INTERNAL_TOPICS or partition.segment_count < 2:
            return False
        sealed_bytes = sum(size for _, size in partition.segment_sizes()[:-1])
        live_bytes = 0
        with suppress(StateStoreDamagedError):
            live_bytes = read_live_bytes(self._files.lmdb, partition.topic_partition)
        if sealed_bytes >= 2 * live_bytes:
            self._sealed_bytes[partition] = sealed_bytes
        return sum(self._sealed_bytes.values()) >= AT_ONCE_BYTES

    def has_due(self) -> bool:
        """True if a partition is due."""
        return bool(self._sealed_bytes)

    def run(self) -> int:
        """Compact what is due; how many segments went. What could not go is looked at again after
        the partition's next append. Raises StoreError.
        """
        partitions = [one for one in self._sealed_bytes if not one.failed]
        self._sealed_bytes = {}
        return self._files.compact(*partitions)
