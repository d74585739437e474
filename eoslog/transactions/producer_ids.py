"""Ids for producers: each given out once in the life of a store, in blocks of 1000.

A block is synced before its first id is used, whatever the store's durability: an id given out
twice would make new records look like old duplicates. Each process has blocks of its own: from the
look at the newest block until the next one is synced, no other process takes one. What is left of a
block when the process closes the store, or dies, is never given out.

Invariant: an id is above every id that a log of the store held before (`producer_id_range`).
"""

from collections.abc import Callable

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.errors import CorruptRecordError, StoreError
from eoslog.storage.producer_id_range import (
    FIRST_PRODUCER_ID,
    STAGED_PRODUCER_ID_MIN,
    FoundProducerIds,
)
from eoslog.transactions.compacted_log import PRODUCER_ID_BLOCK, CompactedLog, StateRecord

BLOCK_IDS = 1000


class ProducerIds:
    """Gives out ids from FIRST_PRODUCER_ID on, and below STAGED_PRODUCER_ID_MIN.

    `find_in_partitions` notes in `found` the ids that the partitions of the store hold.
    """

    def __init__(
        self,
        state_log: CompactedLog,
        found: FoundProducerIds,
        find_in_partitions: Callable[[], None],
    ) -> None:
        self._state_log = state_log
        self._found = found
        self._find_in_partitions = find_in_partitions
        self._lock = ThreadLock()
        self._next = 0
        self._block_end = 0

    def take(self) -> int:
        """A producer id that was never given out before, and that no log holds.

        Raises StoreError if there are none left, if the logs cannot be looked at, or if the next
        block cannot be written down; no id is given out then.
        """
        with self._lock:
            if not self._found.all_found:
                self._find_ids()
            if self._next == self._block_end or self._next < self._found.upper_bound:
                self._take_block()
            self._next += 1
            return self._next - 1

    def _take_block(self) -> None:
        with self._state_log.held(PRODUCER_ID_BLOCK, ""):
            state = self._state_log.get(PRODUCER_ID_BLOCK, "")
            known = 0 if state is None else int(state["next_producer_id"])
            first = max(FIRST_PRODUCER_ID, known, self._found.upper_bound)
            if first > STAGED_PRODUCER_ID_MIN - BLOCK_IDS:
                raise StoreError(f"the next producer id would be {first}: there are none left")
            block = {"next_producer_id": first + BLOCK_IDS}
            self._state_log.append(PRODUCER_ID_BLOCK, "", block, sync=True)
        self._next, self._block_end = first, first + BLOCK_IDS

    def _find_ids(self) -> None:
        """Note the ids in the logs. Waits for locks that come before that of a block."""
        if self._state_log.get(PRODUCER_ID_BLOCK, "") is None:
            # No store wrote this state log so far: its transactional ids may be another's.
            for _, record in self._state_log.transactions():
                self._note_transaction(record)
        self._find_in_partitions()
        self._found.note_all_found()

    def _note_transaction(self, record: StateRecord) -> None:
        try:
            fields = decode_transaction_value(record.value or b"")
        except CorruptRecordError:
            return  # Using the id says where the record stands.
        for field in ("producer_id", "next_producer_id"):
            self._found.note(fields[field])
