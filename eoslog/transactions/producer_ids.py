"""Ids and epochs of producers: an id is given out once in the life of a store, in blocks of 1000.

A block is synced before its first id is used, whatever the store's durability: an id given out
twice would make new records look like old duplicates. Each process has blocks of its own: from the
look at the newest block until the next one is synced, no other process takes one. What is left of a
block when the process closes the store, or dies, is never given out. Its slot names its blocks
(`ProcessSlots.note_producer_ids`).

Invariants: an id is above every id that a log of the store held before (`producer_id_range`). The
next id and epoch of a transactional id are never ones that another producer of it may still write
with, but where the same producer asks again for an answer that it did not get.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from eoslog.bindings.known_transaction import KnownTransaction
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.errors import CorruptRecordError, ProducerFencedError, StoreError
from eoslog.storage.producer_id_range import (
    FIRST_PRODUCER_ID,
    STAGED_PRODUCER_ID_MIN,
    FoundProducerIds,
)
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import PRODUCER_ID_BLOCK

_log = logging.getLogger(__name__)

BLOCK_IDS = 1000
EPOCH_EXHAUSTED = 32_766  # The last epoch of a producer; one more fences it.
EPOCH_MAX = 32_767  # Of markers only.
NO_EPOCH = -1
NO_PRODUCER_ID = -1


class ProducerIds:
    """Producer ids from FIRST_PRODUCER_ID on, and below STAGED_PRODUCER_ID_MIN.

    `find_in_partitions` notes in `found` the ids that the partitions of the store hold,
    `note_block` the blocks of this process.
    """

    def __init__(
        self,
        state_log: CompactedLog,
        found: FoundProducerIds,
        find_in_partitions: Callable[[], None],
        note_block: Callable[[range], None],
    ) -> None:
        self._state_log = state_log
        self._found = found
        self._find_in_partitions = find_in_partitions
        self._note_block = note_block
        self._lock = ThreadLock()
        self._next = 0
        self._block_end = 0

    def take(self) -> int:
        """Return a producer id that was never given out before, and that no log holds.

        Raises StoreError if no id is left, if a log cannot be read, or if the next block cannot be
        written; no id is given out then.
        """
        with self._lock:
            if not self._found.all_found:
                self._find_ids()
            if self._next == self._block_end or self._next < self._found.upper_bound:
                self._take_block()
            self._next += 1
            return self._next - 1

    def pass_over(self, id_count: int) -> int:
        """Give out none of the next so many ids; the first one after them, durably.

        Raises StoreError if there are not so many, or as `take`.
        """
        with self._lock:
            if not self._found.all_found:
                self._find_ids()
            self._next = self._block_end = 0
            return self._move_on(id_count) + id_count

    def _take_block(self) -> None:
        first = self._move_on(BLOCK_IDS)
        self._note_block(range(first, first + BLOCK_IDS))
        self._next, self._block_end = first, first + BLOCK_IDS
        _log.debug("this process gives out the producer ids [%d, %d)", first, first + BLOCK_IDS)

    def _move_on(self, id_count: int) -> int:
        """Have the next block of any process begin so many ids later; where they begin."""
        with self._state_log.held(PRODUCER_ID_BLOCK, ""):
            state = self._state_log.get(PRODUCER_ID_BLOCK, "")
            known = 0 if state is None else int(state["next_producer_id"])
            first = max(FIRST_PRODUCER_ID, known, self._found.upper_bound)
            if first > STAGED_PRODUCER_ID_MIN - id_count:
                raise StoreError(f"the next producer id would be {first}: there are none left")
            block = {"next_producer_id": first + id_count}
            self._state_log.append(PRODUCER_ID_BLOCK, "", block, sync=True)
        return first

    def _find_ids(self) -> None:
        """Note the ids in the logs. Waits for locks that come before that of a block."""
        if self._state_log.get(PRODUCER_ID_BLOCK, "") is None:
            # No store has written this state log: its transactional ids may be those of a broker.
            for _, record in self._state_log.transactions():
                with suppress(CorruptRecordError):  # The first use of the id raises it.
                    fields = decode_transaction_value(record.value or b"")
                    self._found.note(fields["producer_id"])
                    self._found.note(fields["next_producer_id"])
        self._find_in_partitions()
        self._found.note_all_found()


# Of transactional ids.


class NextIdentity(NamedTuple):
    """Identity in the next record of the id. `last_producer_epoch`: a producer that shows it asks
    again.
    """

    producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    previous_producer_id: int


def check_expected(known: KnownTransaction, expected: tuple[int, int], is_ongoing: bool) -> None:
    """Raise ProducerFencedError unless a producer with this id and epoch may go on as the newest.

    With a transaction open only its own producer may: an older one would abort it.
    """
    producer_id, epoch = expected
    if known.producer_epoch == NO_EPOCH:
        return  # The store had forgotten the id.
    current = producer_id == known.producer_id and epoch == known.producer_epoch
    asked_again = epoch == known.last_producer_epoch != NO_EPOCH and not is_ongoing
    if producer_id != known.producer_id:
        # The producer id was rotated, and the answer got lost.
        rotated = producer_id == known.previous_producer_id and epoch >= EPOCH_EXHAUSTED
        asked_again = asked_again and rotated
    if not current and not asked_again:
        raise ProducerFencedError(
            f"transactional id {known.transactional_id!r}: producer id {producer_id} with epoch "
            f"{epoch} is not the newest, which is {known.producer_id} with epoch "
            f"{known.producer_epoch}"
        )


def next_identity(
    known: KnownTransaction,
    expected_epoch: int | None,
    take_id: Callable[[], int],
    renews: bool = False,
) -> NextIdentity:
    """Return the next identity of an id with nothing open; `expected_epoch` was checked.

    Without one the last epoch is forgotten, so that no older producer passes for the same one.
    `renews`: the producer id is rotated though its epochs are not used up.
    """
    epoch, previous = known.producer_epoch, known.previous_producer_id
    if known.producer_id == NO_PRODUCER_ID:
        return NextIdentity(take_id(), 0, NO_EPOCH, NO_PRODUCER_ID)
    if expected_epoch is not None and expected_epoch != epoch and not renews:
        return NextIdentity(known.producer_id, epoch, known.last_producer_epoch, previous)
    last_epoch = NO_EPOCH if expected_epoch is None else epoch
    if epoch >= EPOCH_EXHAUSTED or renews:
        return NextIdentity(take_id(), 0, last_epoch, known.producer_id)
    return NextIdentity(known.producer_id, epoch + 1, last_epoch, previous)
