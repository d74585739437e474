"""The internal log `__transaction_state`: what the store decided, as records in Kafka's own place.

Type 0 of a key is Kafka's own: the records of transactional ids, which their entries write and
which are kept here as they stand. Values of eoslog's own types are JSON with a version: Kafka's
tools skip versions of keys that they do not know, as all other types are skipped here. The newest
record of a key holds; a tombstone removes the key. A key's partition is the one that Kafka would
choose for its name (`compacted_partition`).

LMDB holds an index of it with, per partition, the offset up to which the index is true. After a
clean close the index is whole, which a mark proves that the clean-shutdown marker and LMDB share;
otherwise the partitions are read from those offsets on. Some values may come from records beyond
them; where the log does not reach as far as those, the index is not believed and the log is read.

Several processes may write it. Each follows the others by reading what they appended: a lookup of a
key first reads its partition to the end. What a process appended itself it need not read. A process
that writes a key after it read the key's older value holds the key's lock (`held`) from the read to
the write, so that it overwrites no record unseen.

Invariants: everything below a partition's `own_end` is known here, from the index, from what was
read, or from those who appended it. The offset up to which the index is true never goes back, and
nothing that this process knows is dropped here before the index is true beyond it.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

from eoslog.bindings.shared_page import (
    COUNTER_STATE_PARTITIONS,
    LOCK_PRODUCER_IDS,
    LOCK_STATE_INDEX,
    SharedPage,
)
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.json_text import loads_json
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_partition import (
    RECORD_VERSION,
    CompactedPartition,
    State,
    StateRecord,
    WatchedKey,
    decisions_from,
    is_unresolved,
    keys_below,
)
from eoslog.transactions.state_index import StateIndex, write_live_bytes
from eoslog.transactions.state_key import (
    APPLICATION,
    DURABILITY,
    PRODUCER_ID_BLOCK,
    TRANSACTION,
    name_of,
    state_key,
    state_partition_of,
    transaction_key,
    transactional_id_of,
    type_of,
    type_prefix,
)

_KEYS_PER_LOOK = 1000
# Records that the index does not have: with more of them it is brought up to the log.
UNPERSISTED_MAX = 10_000
# Compaction looks for keys in the index while it has fewer than a share of the records: a look at a
# key costs so much more than one at a record.
_RECORDS_PER_KEY = 16
_OWN_KEYS_MAX = 16  # Of one partition: more are not written again where they need not be.
_OFFSET = struct.Struct(">q")
_NO_OFFSET = -1  # Of our own types, the index has values alone.

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")
StateRecords = dict[bytes, StateRecord]


class CompactionPlan(NamedTuple):
    """The segments of a partition below an offset, and the keys that may have to be written again
    before these go.
    """

    partition: UnifiedLog
    upper_bound: int
    keys: set[bytes]


class ChangedTransactions(Protocol):
    """Writer of the records of transactional ids."""

    def changed(self) -> Sequence[tuple[str, StateRecord]]:
        """The newest record of each id of which the index may not know it yet."""

    def persisted(self, records: Sequence[tuple[str, StateRecord]]) -> None:
        """Note that the index has these records."""

    def write_again(self, transactional_id: str, upper_bound: int) -> int:
        """Append an id's newest record again, if it stands below an offset and is not undecided.

        Returns the offset from which the log is needed for it.
        """

    def note_foreign(self, transactional_id: str, offset: int) -> None:
        """Note that the log has a record at an offset that another process may have written.

        The state log's lock is held: it may take no other.
        """

    def note_gap(self, number: int, log_start_offset: int) -> None:
        """Note that another process deleted records of a partition, below its start, that were not
        read here. The same lock is held.
        """


class CompactedLog:
    """The newest record of each key; a change is durable in the log before it is known here."""

    _transactions: ChangedTransactions  # See `follow`.

    def __init__(
        self,
        partitions: OpenedPartitions,
        index: StateIndex,
        sync: bool,
        shared: SharedPage,
    ) -> None:
        self._partitions = partitions
        self._index = index
        self._sync = sync
        self._shared = shared
        self._lock = ThreadLock()
        self.persist_lock = ThreadLock()
        self._opened: dict[int, CompactedPartition] = {}
        # How often processes had opened a partition when they were last looked for.
        self._opened_count = -1
        self._generation = index.environment.generation

    def load(self, index_is_whole: bool) -> None:
        """Make the index true, by reading the log where it may not be. No other process has the
        store open.
        """
        self._opened_count = self._openings()
        with self._lock:
            numbers = []
            try:
                numbers = self._partitions.existing_state_partitions()
                if index_is_whole and all(map(self._is_closed_end, numbers)):
                    return
                if any(self._index_is_ahead(number) for number in numbers):
                    # The log lost an unsynced tail that the index knows of.
                    self._index.clear()
            except StateStoreDamagedError:  # It was re-created, and is empty.
                numbers = self._partitions.existing_state_partitions()
            self._generation = self._index.environment.generation
            for number in numbers:
                self.open_partition(number)

    def _is_closed_end(self, number: int) -> bool:
        """True if the index is true up to where a partition was closed. An old copy of LMDB is not,
        though it was put back together with the mark of its close.
        """
        where = TopicPartition(TRANSACTION_STATE_TOPIC, number)
        true_at = self._index.read_applied(number)
        return true_at is not None and true_at == self._partitions.closed_end(where)

    def _index_is_ahead(self, number: int) -> bool:
        reached = self._index.read_reached(number) or 0
        return reached > self._partitions.state_partition(number).log_end_offset

    def join(self) -> None:
        """Join the processes that have the store open: read what they wrote when it is needed."""
        self._opened_count = -1

    # What other processes append.

    def held(self, record_type: int, name: str) -> AbstractContextManager[bool]:
        """A block in which no other process writes the key's record.

        Those of applications have a lock of their own besides, that of staged jobs.
        """
        return self._held(state_key(record_type, name))

    def _held(self, key: bytes) -> AbstractContextManager[bool]:
        of_all = type_of(key) in (PRODUCER_ID_BLOCK, DURABILITY)
        return self._shared.held(LOCK_PRODUCER_IDS if of_all else SharedPage.lock_of(key))

    def catch_up(self, number: int) -> None:
        """Read what any process has appended to a partition."""
        with self._lock:
            self._mend()
            self._read_on(self.open_partition(number))

    def watch(self, record_type: int, name: str) -> WatchedKey:
        """Watch a key: note from now on when another process writes its record."""
        with self._lock:
            opened = self.open_partition(state_partition_of(name))
            return WatchedKey(opened, state_key(record_type, name), self.catch_up)

    def look_after(self) -> None:
        """Follow the other processes; called now and then, so that memory stays bounded."""
        with self._lock:
            self._mend()
            self._catch_up_with_all()
            if self._unpersisted > UNPERSISTED_MAX:
                # Mostly the process that appended it has brought it into the index.
                for number, one in self._opened.items():
                    one.drop_below(min(one.known_end, self._true_at(number)))
            too_many = self._unpersisted > UNPERSISTED_MAX
        if too_many:
            self.persist()

    @property
    def _unpersisted(self) -> int:
        return sum(len(one.newer) for one in self._opened.values())

    # Keys of our own types.

    def get(self, record_type: int, name: str) -> State | None:
        """The newest value of a key, or None if it has none."""
        with self._lock:
            record = self._newest(state_key(record_type, name), state_partition_of(name))
        return None if record is None or record.value is None else loads_json(record.value)

    def names(self, record_type: int) -> list[str]:
        """The names of all keys of a type, sorted."""
        return [name_of(key) for key, _ in self._all(type_prefix(record_type))]

    def append(self, record_type: int, name: str, state: State, *, sync: bool | None = None) -> int:
        """Write a record, which holds from now on, and return its offset. It is synced according to
        `sync`, or to the store's durability.

        Raises StoreFullError (nothing changed) or StoreFailedError (unknown: reopen the store).
        """
        key = state_key(record_type, name)
        value = json.dumps({"version": RECORD_VERSION, **state}, separators=(",", ":")).encode()
        with self._held(key), self._lock:
            opened = self.open_partition(state_partition_of(name))
            return opened.append(key, value, self._sync if sync is None else sync)

    def sync(self, name: str) -> None:
        """Sync the newest record of a name, of any writer. Raises StoreFailedError."""
        with self._lock:
            partition = self.open_partition(state_partition_of(name)).partition
        partition.make_durable(partition.log_end_offset)

    def sync_all(self) -> None:
        """Sync all records, of any writer. Raises StoreFailedError."""
        with self._lock:
            self._open_those_of_others()
            partitions = [one.partition for one in self._opened.values()]
        for partition in partitions:
            partition.make_durable(partition.log_end_offset)

    def _write_again(self, key: bytes, upper_bound: int) -> int:
        """Append the newest record of a key again, as it is, unsynced, if it may stand below an
        offset. Returns the offset from which the log is needed for it.
        """
        if type_of(key) == TRANSACTION:
            transactional_id = transactional_id_of(key)
            known = self.transaction(transactional_id)
            if known is None or known.offset >= upper_bound:
                return upper_bound
            return self._transactions.write_again(transactional_id, upper_bound)
        number = state_partition_of(name_of(key))
        with self._held(key), self._lock:
            record = self._newest(key, number)
            if record is not None and record.value is not None and record.offset < upper_bound:
                self.open_partition(number).append(key, record.value, sync=False)
        return upper_bound

    # Transactional ids. Their entries append by themselves.

    def follow(self, transactions: ChangedTransactions) -> None:
        """Have `persist` include the records of transactional ids, which `transactions` writes."""
        self._transactions = transactions

    def partition_of(self, transactional_id: str) -> UnifiedLog:
        """The partition for the records of a transactional id, opened."""
        number = state_partition_of(transactional_id)
        with self._lock:
            return self.open_partition(number).partition

    def transaction(self, transactional_id: str) -> StateRecord | None:
        """The newest record of an id that is known here; None if it has none."""
        with self._lock:
            record = self._newest(
                transaction_key(transactional_id), state_partition_of(transactional_id)
            )
        return None if record is None or record.value is None else record

    def transactions(self) -> Iterator[tuple[str, StateRecord]]:
        """Every transactional id that has a record, in order, with the newest known here."""
        for key, record in self._all(type_prefix(TRANSACTION)):
            yield transactional_id_of(key), record

    def undecided_transactions(self) -> list[str]:
        """The transactional ids whose newest record known here is that of an open transaction."""
        return [transactional_id_of(key) for key in self._unresolved(TRANSACTION)]

    def prepared_applications(self) -> list[str]:
        """The names of the applications whose newest record has a job that is not complete."""
        return [name_of(key) for key in self._unresolved(APPLICATION)]

    def _unresolved(self, record_type: int) -> list[bytes]:
        """The keys of a type whose newest records are unresolved; the index has a list of them."""
        prefix = type_prefix(record_type)
        with self._lock:
            self._mend()
            self._catch_up_with_all()
            keys = set(self._read_index(self._index.read_unresolved, prefix) or ())
            for key, record in self._newer(prefix):
                if is_unresolved(key, record.value):
                    keys.add(key)
                else:
                    keys.discard(key)
        return sorted(keys)

    def ends(self) -> Mapping[int, int]:
        """The ends of all partitions that are open, in any process. If two calls return the same,
        nothing was written between them.
        """
        with self._lock:
            self._open_those_of_others()
            return {number: one.partition.log_end_offset for number, one in self._opened.items()}

    def decisions_since(self, number: int, offset: int) -> Iterator[StateRecord]:
        """The records in a partition, from an offset on, of decided and incomplete transactions;
        oldest first.
        """
        with self._lock:
            partition = self.open_partition(number).partition
        return decisions_from(partition, offset)

    def moved(self, transactional_id: str, record: StateRecord) -> None:
        """Note the newest record of an id; its writer holds the lock of the entry."""
        with self._lock:
            opened = self.open_partition(state_partition_of(transactional_id))
            opened.note(transaction_key(transactional_id), record)

    # The index.

    def persist(self) -> None:
        """Bring the index in LMDB up to what is known here. The caller holds no entry's lock."""
        with self.persist_lock:
            with self._lock:
                self._mend()
                self._catch_up_with_all()
                # Before the entries are asked: what they append from now on is read on opening.
                ends = {number: one.known_end for number, one in self._opened.items()}
            changed = self._transactions.changed()
            # No other process writes the index now, and what others put into it is in the log.
            with self._shared.held(LOCK_STATE_INDEX), self._lock:
                self._mend()
                self._catch_up_with_all()
                self._write_index(ends, changed)
            self._transactions.persisted(changed)

    def _write_index(
        self, ends: Mapping[int, int], changed: Sequence[tuple[str, StateRecord]]
    ) -> None:
        by_partition: dict[int, StateRecords] = {}
        for transactional_id, record in changed:
            records = by_partition.setdefault(state_partition_of(transactional_id), {})
            records[transaction_key(transactional_id)] = record
        newest: dict[int, StateRecords] = {}
        applied: dict[int, int] = {}
        reached: dict[int, int] = {}
        was_true = True
        for number, opened in self._opened.items():
            true_at = self._true_at(number)
            # What is below is in the index, or something newer is: by another process, mostly.
            newest[number] = _merged(opened.newer, by_partition.get(number, {}), true_at)
            # Where it was opened since, the index stays as true as it was.
            applied[number] = max(true_at, ends.get(number, 0))
            was_true = was_true and applied[number] == true_at
            offsets = [one.offset for one in newest[number].values()]
            before = self._index.read_reached(number) or 0
            reached[number] = max(before, applied[number], 1 + max(offsets, default=-1))
        changes = [(key, one) for records in newest.values() for key, one in records.items()]
        if changes or not was_true:
            if self._sync:
                # Else a power cut would leave an index ahead of its log: it would be dropped, and
                # the whole log read.
                for number, end in reached.items():
                    self._opened[number].partition.make_durable(end)
            self._index.write_states(
                [(key, _indexed(key, one)) for key, one in changes],
                applied.items(),
                reached,
                {
                    key: is_unresolved(key, one.value)
                    for key, one in changes
                    if type_of(key) in (TRANSACTION, APPLICATION)
                },
            )
        for number, opened in self._opened.items():
            # The index has records of entries beyond the offset that it is true at, and they are
            # not passed again: an older one that was read must not be written over them.
            for key, record in newest[number].items():
                opened.note(key, record)
            opened.drop_below(applied[number])

    # Compaction.

    def compact(self, partition: UnifiedLog, safe_offset: Callable[[int], int]) -> int:
        """Compact one partition; how many segments went."""
        plans = self.plan_compaction([partition], safe_offset)
        return sum(partition.delete_segments(self.write_forward(plan)) for plan in plans)

    def plan_compaction(
        self, partitions: Sequence[UnifiedLog], safe_offset: Callable[[int], int]
    ) -> list[CompactionPlan]:
        """Find which sealed segments of these partitions may go, from the oldest on, and which keys
        may have their newest records there. Partitions of which none may go are left out.

        A segment stays while it, or an older one, has the record of an undecided transaction, or a
        decision whose markers are not known to be synced: those from `safe_offset(number)` on.
        After a power cut, markers are written again from there.
        """
        with self._lock:
            for one in partitions:
                self.open_partition(one.partition)
        bounds = {
            one.partition: min(one.active_base_offset, safe_offset(one.partition))
            for one in partitions
        }
        # The index has the newest of all records below these bounds then.
        self.persist()
        for transactional_id in self.undecided_transactions():
            number = state_partition_of(transactional_id)
            record = self.transaction(transactional_id) if number in bounds else None
            if record is not None:
                bounds[number] = min(bounds[number], record.offset)
        plans = {}
        for one in partitions:
            bases = [base for base, _ in one.segment_sizes()]
            upper_bound = max(
                base for base in bases if base <= max(bounds[one.partition], bases[0])
            )
            if upper_bound > bases[0]:
                plans[one.partition] = CompactionPlan(one, upper_bound, set())
        self._find_keys(plans)
        return list(plans.values())

    def _find_keys(self, plans: Mapping[int, CompactionPlan]) -> None:
        """Find the keys of plans: in the index, or where that has too many, in the segments."""
        record_count = sum(
            one.upper_bound - one.partition.log_start_offset for one in plans.values()
        )
        key_count = self._read_index(self._index.count_states) or 0
        if key_count > record_count // _RECORDS_PER_KEY:
            for plan in plans.values():
                plan.keys.update(keys_below(plan.partition, plan.upper_bound))
            return
        for key, record in self._all(b""):
            is_own = type_of(key) != TRANSACTION
            name = name_of(key) if is_own else transactional_id_of(key)
            of_key = plans.get(state_partition_of(name))
            if of_key is not None and record.offset < of_key.upper_bound:
                of_key.keys.add(key)
        for plan in plans.values():
            # Where those of our own types stand, the index does not know.
            if sum(type_of(key) != TRANSACTION for key in plan.keys) > _OWN_KEYS_MAX:
                plan.keys.intersection_update(keys_below(plan.partition, plan.upper_bound))

    def write_forward(self, plan: CompactionPlan) -> int:
        """Write again what still holds in the segments of a plan, under the locks of those who
        write it. Returns the offset up to which segments may be deleted, from the oldest on: the
        copies of all that holds in them, and all newer records, are synced.

        A copy is equal to its original. Raises StoreFullError or StoreFailedError.
        """
        partition = plan.partition
        bytes_before = partition.size_bytes
        keep_from = min(
            (self._write_again(key, plan.upper_bound) for key in plan.keys),
            default=plan.upper_bound,
        )
        live_bytes = partition.size_bytes - bytes_before
        partition.sync_up_to(partition.log_end_offset)
        write_live_bytes(self._index.environment, partition.topic_partition, live_bytes)
        return keep_from

    # The newest records. The caller holds the lock, but for `_all`.

    def _newest(self, key: bytes, number: int) -> StateRecord | None:
        """The newest record of a key that is known here, a tombstone too."""
        self._mend()
        opened = self._caught_up(number)
        record = None if opened is None else opened.newer.get(key)
        if record is not None:
            return record
        value = self._read_index(self._index.read_state, key)
        if value is not None:
            return _record_of_index(key, value)
        # It may have been lost just now, and be known from the log.
        opened = self._opened.get(number)
        return None if opened is None else opened.newer.get(key)

    def _newer(self, prefix: bytes) -> Iterator[tuple[bytes, StateRecord]]:
        """The records whose keys begin with `prefix` that the index may not have."""
        for opened in self._opened.values():
            for key, record in opened.newer.items():
                if key.startswith(prefix):
                    yield key, record

    def _all(self, prefix: bytes) -> Iterator[tuple[bytes, StateRecord]]:
        """All keys that begin with `prefix` and have a value, in order, with their newest records.

        The lock is released between parts.
        """
        with self._lock:
            self._mend()
            self._catch_up_with_all()
        first: bytes | None = prefix
        while first is not None:
            with self._lock:
                found = self._read_index(self._index.states_after, prefix, first, _KEYS_PER_LOOK)
                indexed = {key: _record_of_index(key, value) for key, value in found or ()}
                last = max(indexed) if len(indexed) == _KEYS_PER_LOOK else None
                # Those that are missing there are in the index by now.
                newer = {
                    key: one
                    for key, one in self._newer(prefix)
                    if first <= key and (last is None or key <= last)
                }
            for key, record in sorted(_merged(indexed, newer).items()):
                if record.value is not None:
                    yield key, record
            first = None if last is None else last + b"\x00"

    def _true_at(self, number: int) -> int:
        """Return the offset of a partition up to which the index is true."""
        return self._index.read_applied(number) or 0

    def _read_index(
        self, read: Callable[[*_Arguments], _Result], *arguments: *_Arguments
    ) -> _Result | None:
        """Read the index; None if it was lost: then all of the log is known here."""
        try:
            found = read(*arguments)
        except StateStoreDamagedError:
            found = None
        self._mend()
        return found

    def _mend(self) -> None:
        """Read the whole log again if LMDB was re-created."""
        if self._generation == self._index.environment.generation:
            return
        for number in self._partitions.existing_state_partitions():
            self.open_partition(number).read_from(0)
        self._generation = self._index.environment.generation

    # The partitions. The caller holds the lock.

    def open_partition(self, number: int) -> CompactedPartition:
        """Open a partition, and read what it holds beyond the index."""
        opened = self._opened.get(number)
        if opened is not None:
            return opened
        opened = CompactedPartition(self._partitions.state_partition(number))
        # Before anything is appended here: others look into this partition from now on.
        count = self._shared.raise_counter(COUNTER_STATE_PARTITIONS)
        if count == self._opened_count + 1:
            self._opened_count = count
        try:
            known = self._true_at(number)
        except StateStoreDamagedError:
            known = 0  # It was re-created.
        opened.read_from(known)
        self._opened[number] = opened
        return opened

    def _openings(self) -> int:
        return self._shared.counter(COUNTER_STATE_PARTITIONS)

    def _open_those_of_others(self) -> None:
        """Open the partitions that other processes have opened, and this one has not."""
        count = self._openings()
        while count != self._opened_count:
            self._opened_count = count
            for number in self._partitions.existing_state_partitions():
                self.open_partition(number)
            count = self._openings()

    def _catch_up_with_all(self) -> None:
        self._open_those_of_others()
        for opened in list(self._opened.values()):
            self._read_on(opened)

    def _caught_up(self, number: int) -> CompactedPartition | None:
        """The partition, read to its end; None if no process opened it: the index has all of it."""
        if number not in self._opened:
            self._open_those_of_others()
        opened = self._opened.get(number)
        if opened is not None:
            self._read_on(opened)
        return opened

    def _read_on(self, opened: CompactedPartition) -> None:
        opened.read_on(self._transactions.note_foreign, self._note_gap)

    def _note_gap(self, number: int, log_start_offset: int) -> None:
        # What was deleted is in the index of those who write, before they delete it.
        self._index.environment.renew()
        self._transactions.note_gap(number, log_start_offset)


def _indexed(key: bytes, record: StateRecord) -> bytes | None:
    """A record as the index holds it: that of a transactional id with its offset before it."""
    if record.value is None or not key.startswith(type_prefix(TRANSACTION)):
        return record.value
    return _OFFSET.pack(record.offset) + record.value


def _record_of_index(key: bytes, value: bytes) -> StateRecord:
    if not key.startswith(type_prefix(TRANSACTION)):
        return StateRecord(value, _NO_OFFSET)
    return StateRecord(value[_OFFSET.size :], _OFFSET.unpack_from(value)[0])


def _merged(some: StateRecords, others: StateRecords, offset_min: int = _NO_OFFSET) -> StateRecords:
    """The newer record of each key, of those from an offset on."""
    found = {key: one for key, one in some.items() if one.offset >= offset_min}
    for key, record in others.items():
        known = found.get(key)
        if record.offset >= offset_min and (known is None or known.offset < record.offset):
            found[key] = record
    return found
