"""Ids for producers: each given out once in the life of a store, in blocks of 1000.

A block is synced before its first id is used, whatever the store's durability: an id given out
twice would make new records look like old duplicates. Each process has blocks of its own: from the
look at the newest block until the next one is synced, no other process takes one. What is left of a
block when the process closes the store, or dies, is never given out.
"""

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.errors import StoreError
from eoslog.state_log import PRODUCER_ID_BLOCK, StateLog

BLOCK_IDS = 1000
# At or above: the random ids of staged files.
STAGED_PRODUCER_ID_MIN = 1 << 62


class ProducerIds:
    """Gives out ids below STAGED_PRODUCER_ID_MIN."""

    def __init__(self, state_log: StateLog) -> None:
        self._state_log = state_log
        self._lock = ThreadLock()
        self._next = 0
        self._block_end = 0

    def take(self) -> int:
        """A producer id that was never given out before.

        Raises StoreError if there are none left, or if the next block cannot be written down; no id
        is given out then.
        """
        with self._lock:
            if self._next == self._block_end:
                self._take_block()
            self._next += 1
            return self._next - 1

    def _take_block(self) -> None:
        with self._state_log.held(PRODUCER_ID_BLOCK, ""):
            state = self._state_log.get(PRODUCER_ID_BLOCK, "")
            first = 0 if state is None else int(state["next_producer_id"])
            if first > STAGED_PRODUCER_ID_MIN - BLOCK_IDS:
                raise StoreError(f"the next producer id would be {first}: there are none left")
            block = {"next_producer_id": first + BLOCK_IDS}
            self._state_log.append(PRODUCER_ID_BLOCK, "", block, sync=True)
        self._next, self._block_end = first, first + BLOCK_IDS
