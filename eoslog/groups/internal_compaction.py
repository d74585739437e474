"""Compaction of the internal topics: whatever still holds is written again, then the rest goes.

The state log compacts `__transaction_state`. A partition of `__consumer_offsets` is compacted while
no transaction moves and none is open in it: a copy counts as written later than a pending offset,
and must not win over it. One process compacts at a time.
"""

from collections.abc import Callable

from eoslog.bindings.shared_page import LOCK_COMPACTION, SharedPage
from eoslog.common.topic_name import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.storage.partition import Partition
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.transaction_entries import TransactionEntries


class InternalCompaction:
    """Compaction of one store's internal topics; its background thread calls it when a segment of
    one is full.
    """

    def __init__(
        self,
        state_log: CompactedLog,
        entries: TransactionEntries,
        safe_offset: Callable[[int], int],
        group_offsets: GroupOffsets,
        cached_max: int,
        *,
        shared: SharedPage | None = None,
    ) -> None:
        self._state_log = state_log
        self._entries = entries
        self._safe_offset = safe_offset
        self._group_offsets = group_offsets
        self._cached_max = cached_max
        self._shared = shared

    def compact(self, partition: Partition) -> int:
        """Compact a partition; how many segments went. Nothing for a partition of a user.

        Raises StoreFullError or StoreFailedError: nothing was deleted then.
        """
        if partition.topic not in INTERNAL_TOPICS or partition.segment_count < 2:
            return 0
        shared = self._shared
        if shared is None:
            return self._compact(partition)
        # Never waited for, so it may be held while the locks of all keys are taken.
        if not shared.try_lock(LOCK_COMPACTION):
            return 0  # Another process is at it: when the next segment is full.
        try:
            return self._compact(partition)
        finally:
            shared.unlock(LOCK_COMPACTION)

    def _compact(self, partition: Partition) -> int:
        if partition.topic == TRANSACTION_STATE_TOPIC:
            return self._state_log.compact(partition, self._safe_offset)
        return self._compact_offsets(partition)

    def _compact_offsets(self, partition: Partition) -> int:
        upper_bound = partition.active_base_offset
        with self._entries.standing_still():
            if not self._group_offsets.write_again(partition.partition, upper_bound):
                return 0  # A transaction is open: when the next segment is full.
        partition.flush()
        # The batches of transactions' producers go with the segments.
        partition.write_down_producers(self._cached_max)
        return partition.delete_segments(min(upper_bound, partition.last_stable_offset))
