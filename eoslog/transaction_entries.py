"""The transactional ids in memory: one entry each, made from its record when it is first used.

Invariants: an id has one entry at a time; whoever works on it holds its lock and has seen, under
that lock, that it is still the one. An undecided transaction's entry, and one whose record the
index does not have yet, stays in memory. The coordinator's epoch is raised, durably, before the
first entry is made in a life of the store.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eoslog.bindings.held_locks import HeldLocks
from eoslog.bindings.transaction_entry import TransactionEntry
from eoslog.errors import CorruptRecordError, InvalidRequestError, TransactionalIdNotFoundError
from eoslog.partition import Partition
from eoslog.state_log import COORDINATOR_EPOCH, StateLog, TransactionRecord, transaction_key
from eoslog.transaction_owner import TransactionOwner

EMPTY = "Empty"
ONGOING = "Ongoing"
DEAD = "Dead"
PREPARE_STATES = frozenset(("PrepareCommit", "PrepareAbort"))
UNDECIDED_STATES = PREPARE_STATES | {ONGOING}
# Settled entries that stay for their next use; of more than these, the unused go.
ENTRIES_KEPT = 10_000
_NO_EPOCH = -1


class TransactionEntries:
    """The entries of a store, and who has each id now."""

    def __init__(self, state_log: StateLog, *, durable: bool) -> None:
        self._state_log = state_log
        self._durable = durable
        self._lock = threading.RLock()
        self._entries: dict[str, TransactionEntry] = {}
        self._state_partitions: dict[str, Partition] = {}
        self._owners: dict[str, TransactionOwner] = {}
        self._epoch = _NO_EPOCH
        self._epoch_raised = False
        state_log.follow(self)

    @property
    def epoch(self) -> int:
        """The coordinator's epoch; the first look in a life of the store raises it, durably."""
        with self._lock:
            if not self._epoch_raised:
                # How durable this life is tells the next one what it may have lost.
                record = {"coordinator_epoch": self.plan_epoch(), "durable": self._durable}
                self._state_log.append(COORDINATOR_EPOCH, "", record, sync=True)
                self._epoch_raised = True
            return self._epoch

    def last_life_was_durable(self) -> bool:
        """Whether the last life of the store that had entries synced what it decided."""
        state = self._state_log.get(COORDINATOR_EPOCH, "")
        return state is None or bool(state.get("durable", True))

    def plan_epoch(self) -> int:
        """The epoch as it will be raised to in this life of the store, if it was not yet."""
        with self._lock:
            if self._epoch == _NO_EPOCH:
                state = self._state_log.get(COORDINATOR_EPOCH, "")
                self._epoch = 0 if state is None else int(state["coordinator_epoch"]) + 1
            return self._epoch

    @property
    def planned_epoch(self) -> int:
        """As `plan_epoch` found it. Takes no lock."""
        return max(0, self._epoch)

    # Entries.

    def known(self) -> list[TransactionEntry]:
        """The entries in memory. Takes no lock."""
        return list(self._entries.values())

    def find(self, transactional_id: str) -> TransactionEntry | None:
        """The id's entry, if it is in memory. Takes no lock."""
        return self._entries.get(transactional_id)

    @contextmanager
    def locked(self, transactional_id: str, create: bool = False) -> Iterator[TransactionEntry]:
        """The id's entry, with its lock held.

        Raises TransactionalIdNotFoundError, unless it is to be created; CorruptRecordError if its
        record cannot be read.
        """
        while True:
            entry = self._find(transactional_id, create)
            with entry.lock:
                if self._entries.get(transactional_id) is not entry:
                    continue  # It was forgotten, or it expired, meanwhile.
                try:
                    yield entry
                finally:
                    if entry.record_offset < 0:  # Nothing was ever written of it.
                        self.forget(entry)
                return

    def _find(self, transactional_id: str, create: bool) -> TransactionEntry:
        check_transactional_id(transactional_id)
        entry = self._entries.get(transactional_id)
        if entry is not None:
            return entry
        with self._lock:
            entry = self._entries.get(transactional_id)
            if entry is None:
                record = self._state_log.transaction(transactional_id)
                if record is None and not create:
                    raise TransactionalIdNotFoundError(
                        f"no transactional id {transactional_id!r}; it may have expired"
                    )
                partition = self._state_log.partition_of(transactional_id)
                entry = self._made(transactional_id, record, partition)
                self._state_partitions[transactional_id] = partition
                self._entries[transactional_id] = entry
            return entry

    def _made(
        self, transactional_id: str, record: TransactionRecord | None, partition: Partition
    ) -> TransactionEntry:
        entry = TransactionEntry(transactional_id, partition._log, self.epoch, self._durable)
        if record is not None and record.value is not None:
            try:
                entry.load(record.value, record.offset)
            except CorruptRecordError as error:
                raise CorruptRecordError(
                    str(partition.path),
                    record.offset,
                    f"the record of transactional id {transactional_id!r} at offset "
                    f"{record.offset}: {error.reason}",
                ) from error
        return entry

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within the block no transaction begins, moves or ends."""
        held = HeldLocks()
        locked: set[int] = set()
        try:
            while True:
                for entry in sorted(self.known(), key=lambda one: one.transactional_id):
                    if id(entry) not in locked:
                        held.take(entry.lock)
                        locked.add(id(entry))
                # An entry is made under this lock, and nothing of it moves without its own.
                with self._lock:
                    if all(id(entry) in locked for entry in self.known()):
                        yield
                        return
        finally:
            held.release()

    def forget(self, entry: TransactionEntry) -> None:
        """Drop an entry whose lock is held: its record is in the index, or there is none."""
        with self._lock:
            if self._entries.get(entry.transactional_id) is entry:
                del self._entries[entry.transactional_id]
                del self._state_partitions[entry.transactional_id]

    def note_append(self, entry: TransactionEntry) -> None:
        """The entry, whose lock is held, wrote records: the checkpointer is told."""
        partition = self._state_partitions.get(entry.transactional_id)
        if partition is not None:
            partition.note_append()

    def buried(self, entry: TransactionEntry) -> None:
        """The entry, whose lock is held, has written its record without a value."""
        self._state_log.took_away(entry.transactional_id, entry.record_offset)
        self.forget(entry)

    # Owners.

    def owner_of(self, transactional_id: str) -> TransactionOwner | None:
        """Who has the id, if anybody in this process does."""
        return self._owners.get(transactional_id)

    def hand_over(self, transactional_id: str, owner: TransactionOwner) -> TransactionOwner | None:
        """The owner from now on; returns the one before."""
        with self._lock:
            older = self._owners.get(transactional_id)
            self._owners[transactional_id] = owner
        return older

    def take_from_owner(self, transactional_id: str, reason: str) -> None:
        """Nobody has the id from now on; who had it is told why."""
        with self._lock:
            owner = self._owners.pop(transactional_id, None)
        if owner is not None:
            owner.fence(reason)

    def release(self, transactional_id: str, owner: TransactionOwner) -> None:
        """The owner goes by itself."""
        with self._lock:
            if self._owners.get(transactional_id) is owner:
                del self._owners[transactional_id]

    # For the state log, which keeps the index of all records.

    def changed(self) -> Sequence[tuple[str, TransactionRecord]]:
        """The newest record of each id of which the index may not know it yet."""
        found = []
        for entry in self.known():
            # Also where it looks unchanged: an append may be under way.
            with entry.lock:
                if entry.changed and entry.state != DEAD and entry.record_offset >= 0:
                    record = TransactionRecord(entry.value(), entry.record_offset)
                    found.append((entry.transactional_id, record))
        return found

    def persisted(self, records: Sequence[tuple[str, TransactionRecord]]) -> None:
        """The index has these now; entries that nobody uses may go."""
        for transactional_id, record in records:
            entry = self._entries.get(transactional_id)
            if entry is not None:
                with entry.lock:
                    if entry.record_offset == record.offset:
                        entry.mark_persisted()
        if len(self._entries) > ENTRIES_KEPT:
            self._forget_idle(len(self._entries) - ENTRIES_KEPT)

    def _forget_idle(self, count: int) -> None:
        for entry in self.known():
            if count == 0:
                return
            if entry.transactional_id in self._owners or not entry.lock.acquire(blocking=False):
                continue
            try:
                if not entry.changed and entry.state not in UNDECIDED_STATES:
                    self.forget(entry)
                    count -= 1
            finally:
                entry.lock.release()


def check_transactional_id(transactional_id: str) -> None:
    """Raise TypeError for anything but a text, InvalidRequestError for one that is no id."""
    if not isinstance(transactional_id, str):
        raise TypeError(f"a transactional id is a str, not {type(transactional_id).__name__}")
    if not transactional_id:
        raise InvalidRequestError("a transactional id must not be empty")
    try:
        transaction_key(transactional_id)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
