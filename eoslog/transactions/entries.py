"""The transactional ids in memory: one entry each, made from its record when it is first used.

Each process of a store has entries of its own. An entry's lock is held among all of them, and gives
its holder the newest record, of any writer (`bindings.entry_lock`): what is read without the lock
may be older, but was true once.

Invariants: an id has one entry at a time in a process. Work on it holds the entry's lock and has
checked, under that lock, that it is still the id's entry. An undecided transaction's entry, and one
whose record the index does not have yet, stays in memory. Before the first entry is made in a life
of the store, the state log has a record of how durable that life is.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from eoslog.bindings.entry_lock import AllKeysHeld, EntryLock, LockedEntry
from eoslog.bindings.lock_block import IfFree
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_entry import TransactionEntry, decode_transaction_value
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    InvalidRequestError,
    TransactionalIdNotFoundError,
)
from eoslog.session.process_slots import ProcessSlots
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.compacted_partition import StateRecord
from eoslog.transactions.owner import TransactionOwner, taken_elsewhere
from eoslog.transactions.state_key import DURABILITY, state_partition_of, transaction_key

_log = logging.getLogger(__name__)

ONGOING = "Ongoing"
DEAD = "Dead"
PREPARE_STATES = frozenset(("PrepareCommit", "PrepareAbort"))
UNDECIDED_STATES = PREPARE_STATES | {ONGOING}
# From this version of the protocol on, each end of a transaction raises the epoch, and its markers
# have the raised one. Before, many transactions have one epoch, and their markers have it too.
EPOCH_BUMPING_VERSION = 2
# Settled entries that stay for their next use; of more than these, the unused go.
ENTRIES_KEPT = 10_000
_LOOKS_MAX = 3


class NewestRecord:
    """Newest record of a transactional id."""

    def __init__(self, transactional_id: str, record_offset: int, fields: dict[str, Any]) -> None:
        self.transactional_id = transactional_id
        self.record_offset = record_offset
        self.state: str = fields["state"]
        self.prepared: bool = fields["prepared"]
        self.owner: bytes | None = fields["owner"]
        self.producer_id: int = fields["producer_id"]
        self.producer_epoch: int = fields["producer_epoch"]
        self.last_producer_epoch: int = fields["last_producer_epoch"]
        self.start_ms: int = fields["start_ms"]
        self.timeout_ms: int = fields["timeout_ms"]
        self.partitions: list[tuple[str, int]] = fields["partitions"] or []
        version: int = fields["client_transaction_version"]
        self.newer_epoch = version >= EPOCH_BUMPING_VERSION  # Each end of a transaction raises it.

    @property
    def is_decided(self) -> bool:
        """True if it has to be completed; else it is open."""
        return self.state in PREPARE_STATES


class EntryAsOfNow(NamedTuple):
    """Snapshot of an entry."""

    state: str
    changed: bool
    value: bytes
    record_offset: int
    prepare_offset: int


class TransactionEntries:
    """The entries of a store in this process, and which of its producers has each id now."""

    def __init__(
        self,
        state_log: CompactedLog,
        *,
        durable: bool,
        shared: SharedPage,
        slots: ProcessSlots,
    ) -> None:
        self.own_slot = slots.own
        self._state_log = state_log
        self._warnings = RepeatedWarnings(_log)
        self._durable = durable
        self._shared = shared
        self._slots = slots
        self._lock = ThreadLock()
        self._entries: dict[str, TransactionEntry] = {}
        self._state_partitions: dict[str, UnifiedLog] = {}
        self._owners: dict[str, TransactionOwner] = {}
        self._durability_is_noted = False
        state_log.follow(self)

    def _note_durability(self) -> None:
        """Write to the log how durable this life of the store is, synced: the next life finds from
        it what a power cut may have taken. Takes locks that come before that of the entries.
        """
        if self._durability_is_noted:
            return
        self._state_log.partition_of("")  # What opens it has locks that come first.
        with self._state_log.held(DURABILITY, ""):
            if self.last_life_was_durable() != self._durable:
                self._state_log.append(DURABILITY, "", {"durable": self._durable}, sync=True)
            self._durability_is_noted = True

    def last_life_was_durable(self) -> bool:
        """True if the last life of the store that had entries synced what it decided."""
        state = self._state_log.get(DURABILITY, "")
        return state is None or bool(state.get("durable", True))

    # Entries.

    def known(self) -> list[TransactionEntry]:
        """The entries in memory. Takes no lock."""
        return list(self._entries.values())

    def find(self, transactional_id: str) -> TransactionEntry | None:
        """The id's entry, if it is in memory. Takes no lock."""
        return self._entries.get(transactional_id)

    def locked(self, transactional_id: str, create: bool = False) -> LockedEntry:
        """Return a block that gives the id's entry, with its lock held.

        Raises TransactionalIdNotFoundError, unless `create`; CorruptRecordError if the record
        cannot be read; StoreInUseError if another process has the lock for too long.
        """
        return LockedEntry(self, transactional_id, create)

    def look_up(self, transactional_id: str, create: bool) -> TransactionEntry:
        """Return the id's entry, made if need be. Raises as `locked` does."""
        check_transactional_id(transactional_id)
        entry = self._entries.get(transactional_id)
        if entry is not None:
            return entry
        if not create and self._state_log.transaction(transactional_id) is None:
            raise _not_found(transactional_id)
        # Both before the lock is taken: they may wait for other processes.
        self._note_durability()
        partition = self._state_log.partition_of(transactional_id)
        with self._lock:
            entry = self._entries.get(transactional_id)
            if entry is None:
                record = self._state_log.transaction(transactional_id)
                if record is None and not create:
                    raise _not_found(transactional_id)
                lock = EntryLock(self._shared, transactional_id, partition.log, self)
                entry = TransactionEntry(transactional_id, partition.log, self._durable, lock)
                if record is not None:
                    self._load(entry, record, partition)
                self._state_partitions[transactional_id] = partition
                self._entries[transactional_id] = entry
            return entry

    def _load(self, entry: TransactionEntry, record: StateRecord, partition: UnifiedLog) -> None:
        if record.value is None:
            return
        try:
            entry.load(record.value, record.offset)
        except CorruptRecordError as error:
            raise CorruptRecordError(
                str(partition.path),
                record.offset,
                f"the record of transactional id {entry.transactional_id!r} at offset "
                f"{record.offset}: {error.reason}",
            ) from error

    def standing_still(self) -> AllKeysHeld:
        """A block in which no transaction begins, moves or ends, in any process.

        Raises StoreInUseError if another process is at work on one for too long.
        """
        return AllKeysHeld(self._shared)

    def is_current(self, entry: TransactionEntry, create: bool) -> bool:
        """Return True if an entry, whose lock is held, is the id's. Raises as `locked` does."""
        if self._entries.get(entry.transactional_id) is not entry:
            return False
        if entry.record_offset < 0 and not create:
            raise _not_found(entry.transactional_id)  # Another thread is about to write it.
        return True

    def forget(self, entry: TransactionEntry) -> None:
        """Drop an entry whose lock is held: its record is in the index, or there is none."""
        with self._lock:
            if self._entries.get(entry.transactional_id) is entry:
                del self._entries[entry.transactional_id]
                del self._state_partitions[entry.transactional_id]

    def note_append(self, entry: TransactionEntry) -> None:
        """Report to the checkpointer that the entry, whose lock is held, wrote records."""
        partition = self._state_partitions.get(entry.transactional_id)
        if partition is not None:
            partition.note_append()

    def buried(self, entry: TransactionEntry) -> None:
        """Note that the entry, whose lock is held, has written its tombstone."""
        tombstone = StateRecord(None, entry.record_offset)
        self._state_log.moved(entry.transactional_id, tombstone)
        self.forget(entry)

    # Among processes.

    def note_foreign(self, transactional_id: str, offset: int) -> None:
        """Note that the log has a record at an offset that another process may have written. Takes
        no lock.
        """
        entry = self._entries.get(transactional_id)
        if entry is not None:
            entry.lock.note_newer(offset)

    def note_gap(self, number: int, log_start_offset: int) -> None:
        """Note that records of a state partition, below its start, went unread: the next that takes
        an entry's lock looks whether it expired, if the entry is of a record there. Takes no lock.
        """
        for entry in self.known():
            if (
                0 <= entry.record_offset < log_start_offset
                and state_partition_of(entry.transactional_id) == number
            ):
                entry.lock.note_newer(log_start_offset)

    def catch_up_for(self, transactional_id: str) -> None:
        """Read the state log to its end; the lock of an entry calls it."""
        self._state_log.catch_up(state_partition_of(transactional_id))

    def refresh(self, transactional_id: str, offset: int) -> None:
        """Load the record at this offset if the entry does not know it; the thread that took the
        entry's lock calls it.
        """
        entry = self._entries.get(transactional_id)
        if entry is None or offset <= entry.record_offset:
            return
        record = self._state_log.transaction(transactional_id)
        if record is None:
            if entry.record_offset >= 0:
                entry.bury()
                self.forget(entry)
        elif record.offset > entry.record_offset:
            before = (entry.state, entry.start_ms, entry.timeout_ms)
            self._load(entry, record, self._state_partitions[transactional_id])
            self._look_for_another_owner(entry, *before)

    def _look_for_another_owner(
        self, entry: TransactionEntry, state: str, start_ms: int, timeout_ms: int
    ) -> None:
        """Fence the producer here if another process took its id, and name that process."""
        owner = entry.owner
        if owner == self.own_slot:
            return
        if entry.transactional_id in self._owners:
            expired_ms = start_ms + timeout_ms if state == ONGOING else None
            self.take_from_owner(
                entry.transactional_id,
                taken_elsewhere(
                    entry.transactional_id,
                    entry.producer_epoch,
                    None if owner is None else self._slots.describe(owner),
                    entry.last_update_ms,
                    expired_ms,
                    timeout_ms,
                ),
            )

    def look_after_owners(self) -> None:
        """Fence the producers of this process whose ids others took, as far as the state log was
        read; those that are busy later.
        """
        for transactional_id in list(self._owners):
            entry = self._entries.get(transactional_id)
            if entry is not None and entry.lock.newer_offset >= 0:
                try:
                    with IfFree(entry.lock):
                        pass  # Taking the lock reads the newest record.
                except EoslogError as error:
                    self._warnings.warning(
                        "%s: it cannot be looked at: %s", transactional_id, error
                    )

    def undecided(self) -> list[NewestRecord]:
        """The open and undecided transactions of all processes whose records can be read, sorted by
        id. Does not wait for a process that is at work on one.
        """
        found = []
        for transactional_id in sorted(self._undecided_ids()):
            one = self.newest(transactional_id)
            if one is not None and one.state in UNDECIDED_STATES:
                found.append(one)
        return found

    def _undecided_ids(self) -> set[str]:
        """The ids that may have such a transaction."""
        ids = {one.transactional_id for one in self.known() if one.state in UNDECIDED_STATES}
        return ids.union(self._state_log.undecided_transactions())

    def open_producers(self) -> set[tuple[int, int]]:
        """Return producer id and epoch of each open transaction, of any process, that alone has
        them. It was open, without any marker, when the call began.
        """
        return {
            (one.producer_id, one.producer_epoch)
            for one in self.undecided()
            if one.state == ONGOING and one.newer_epoch
        }

    def none_is_undecided(self) -> bool:
        """True if at one moment of the call no transaction was open or undecided, in any process.

        False also if a record cannot be read, or if others write all the time.
        """
        for _ in range(_LOOKS_MAX):
            before = self._state_log.ends()
            for transactional_id in self._undecided_ids():
                one = self.newest(transactional_id)
                if one is None or one.state in UNDECIDED_STATES:
                    return False
            # Else a transaction that ended during the look may overlap one that began unseen.
            if self._state_log.ends() == before:
                return True
        return False

    def newest(self, transactional_id: str) -> NewestRecord | None:
        """Return the newest record of an id, of any writer; None if it has none that can be read.
        Does not wait for another process that is at work on the id.
        """
        entry = self._entries.get(transactional_id)
        known = None if entry is None else self.read(entry)
        value, offset = (b"", -1) if known is None else (known.value, known.record_offset)
        record = self._state_log.transaction(transactional_id)
        if record is not None and record.value is not None and record.offset > offset:
            value, offset = record.value, record.offset
        try:
            return NewestRecord(transactional_id, offset, decode_transaction_value(value))
        except CorruptRecordError:
            return None

    # Owners.

    def described_owner(self, transactional_id: str, slot: bytes | None) -> str | None:
        """Describe the owner of the id, for people; `slot` is the owner that its record names."""
        owner = self._owners.get(transactional_id)
        if owner is not None:
            return str(owner)
        if slot is None or slot == self.own_slot or not self._slots.alive(slot):
            return None
        return self._slots.describe(slot)

    def owner_of(self, transactional_id: str) -> TransactionOwner | None:
        """Return the owner of the id, if it is in this process."""
        return self._owners.get(transactional_id)

    def hand_over(self, transactional_id: str, owner: TransactionOwner) -> None:
        """Make a producer of this process the owner of the id from now on."""
        with self._lock:
            self._owners[transactional_id] = owner

    def take_from_owner(self, transactional_id: str, reason: str) -> None:
        """Fence the owner of the id for this reason. The id has no owner from now on."""
        with self._lock:
            owner = self._owners.pop(transactional_id, None)
        if owner is not None:
            owner.fence(reason)

    def release(self, transactional_id: str, owner: TransactionOwner) -> None:
        """Note that a closed producer does not own the id any more."""
        with self._lock, suppress(KeyError):
            if self._owners[transactional_id] is owner:
                del self._owners[transactional_id]

    # For the state log, which keeps the index of all records.

    def changed(self) -> Sequence[tuple[str, StateRecord]]:
        """The newest record of each id of which the index may not know it yet."""
        found = []
        for entry in self.known():
            # Also where it looks unchanged: an append may be under way.
            known = self.read(entry)
            if known.changed and known.state != DEAD and known.record_offset >= 0:
                record = StateRecord(known.value, known.record_offset)
                found.append((entry.transactional_id, record))
        return found

    def read(self, entry: TransactionEntry) -> EntryAsOfNow:
        """Return a snapshot of an entry. Does not wait for another process that is at work on it:
        what that one writes, this one reads from the log.
        """
        return EntryAsOfNow(*entry.read())

    def persisted(self, records: Sequence[tuple[str, StateRecord]]) -> None:
        """Note that the index has these records; drop entries that are not in use."""
        for transactional_id, record in records:
            entry = self._entries.get(transactional_id)
            if entry is not None:
                with entry.lock:
                    if entry.record_offset == record.offset:
                        entry.mark_persisted()
        if len(self._entries) > ENTRIES_KEPT:
            self._forget_idle(len(self._entries) - ENTRIES_KEPT)

    def write_again(self, transactional_id: str, upper_bound: int) -> int:
        """Append an id's newest record again, if it stands below an offset and is not undecided.

        Returns the offset from which the log is needed for it.
        """
        try:
            with self.locked(transactional_id) as entry:
                if entry.record_offset >= upper_bound:
                    return upper_bound
                if entry.state in UNDECIDED_STATES:
                    return entry.record_offset
                value = entry.value()
                partition = self._state_partitions[transactional_id]
                result = partition.append_columns([value], [transaction_key(transactional_id)])
                entry.load(value, result.last_offset)
                self._state_log.moved(transactional_id, StateRecord(value, result.last_offset))
        except TransactionalIdNotFoundError:
            pass  # It has expired; its last record has no value.
        return upper_bound

    def _forget_idle(self, count: int) -> None:
        before = len(self._entries)
        for entry in self.known():
            if before - len(self._entries) >= count:
                return
            if entry.transactional_id not in self._owners:
                with IfFree(entry.lock) as held:
                    if held and not entry.changed and entry.state not in UNDECIDED_STATES:
                        self.forget(entry)


def _not_found(transactional_id: str) -> TransactionalIdNotFoundError:
    return TransactionalIdNotFoundError(
        f"no transactional id {transactional_id!r}; it may have expired"
    )


def check_transactional_id(transactional_id: str) -> None:
    """Raise TypeError unless the id is a str, InvalidRequestError if it is empty or too long."""
    if not isinstance(transactional_id, str):
        raise TypeError(f"transactional_id must be a str, got {type(transactional_id).__name__}")
    if not transactional_id:
        raise InvalidRequestError("a transactional id must not be empty")
    try:
        transaction_key(transactional_id)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
