"""The internal log `__transaction_state`: what the store decided, as records in Kafka's own place.

A key is a type (16 bits, big-endian) and a name (UTF-8). Type 0 is Kafka's own: the records of
transactional ids, which their entries write themselves and which are kept here as they stand. Ours
start at 1000, and their values are JSON with a version: Kafka's tools skip versions of keys that
they do not know, as all other types are skipped here. The newest record of a key holds; one without
a value takes the key away. A key's partition is the one that Kafka would choose for its name.

LMDB holds an index of it with, per partition, the offset up to which the index is true. After a
clean close the index is whole, which a mark proves that the clean-shutdown marker and LMDB share;
otherwise the partitions are read on from those offsets. Some values may come from records beyond
them; where the log does not reach as far as those, the index is not believed and the log is read.
"""

import json
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy

from eoslog.bindings.record_batch import Record
from eoslog.errors import CorruptRecordError, StoreVersionError
from eoslog.partition import Partition
from eoslog.producer_state_store import ProducerStateStore, StateStoreDamagedError
from eoslog.topic_registry import INTERNAL_TOPIC_PARTITIONS

STATE_PARTITIONS = INTERNAL_TOPIC_PARTITIONS
TRANSACTION = 0
PRODUCER_ID_BLOCK = 1000
NAMED_PRODUCER = 1001
APPLICATION = 1002
COORDINATOR_EPOCH = 1003
RECORD_VERSION = 1
NAME_BYTES_MAX = 480  # LMDB's keys hold 511.

_TYPE = struct.Struct(">h")
_TRANSACTION_KEY = struct.Struct(">hh")  # The type, and how many bytes of the id follow.
_OFFSET = struct.Struct(">q")
_RECORDS_PER_READ = 1000
_READ_BYTES = 4 << 20
_IDS_PER_LOOK = 1000
# Of a transaction's record, the state is this byte in all versions of the value.
_STATE_BYTE = 16
_DECIDED_STATES = (2, 3)  # PrepareCommit, PrepareAbort.
_UNDECIDED_STATES = frozenset((1, *_DECIDED_STATES))  # And Ongoing.

State = Mapping[str, Any]


class TransactionRecord(NamedTuple):
    """The newest record of a transactional id, as it stands in the log; None: a tombstone."""

    value: bytes | None
    offset: int


class ChangedTransactions(Protocol):
    """Whoever writes the records of transactional ids."""

    def changed(self) -> Sequence[tuple[str, TransactionRecord]]:
        """The newest record of each id of which the index may not know it yet."""

    def persisted(self, records: Sequence[tuple[str, TransactionRecord]]) -> None:
        """The index has these now."""


class StatePartitions(Protocol):
    """What the state log needs of its store."""

    def existing_state_partitions(self) -> list[int]:
        """The partitions that have a directory."""

    def state_partition(self, number: int) -> Partition:
        """A partition, opened, and made if it is not there."""


class StateLog:
    """The newest record of each key; a change is durable in the log before it is known here."""

    def __init__(self, partitions: StatePartitions, index: ProducerStateStore, sync: bool) -> None:
        self._partitions = partitions
        self._index = index
        self._sync = sync
        self._lock = threading.RLock()
        self._persist_lock = threading.Lock()
        self._newer: dict[bytes, bytes] = {}  # Newer than the index.
        self._newer_transactions: dict[bytes, TransactionRecord] = {}
        self._transactions: ChangedTransactions | None = None
        self._applied: dict[int, int] = {}  # Of the partitions opened in this session.
        self._generation = index.generation

    def load(self, index_is_whole: bool) -> None:
        """Make the index true, by reading the log where it may not be."""
        if index_is_whole:
            return
        with self._lock:
            try:
                known = {
                    number: self._index.read_applied(number) or 0
                    for number in self._partitions.existing_state_partitions()
                }
                ends = {number: self._open(number).log_end_offset for number in known}
                reached = {number: self._index.read_reached(number) or 0 for number in known}
                if any(reached[number] > ends[number] for number in known):
                    # The log lost an unsynced tail that the index knows of.
                    self._index.clear_states()
                    known = dict.fromkeys(known, 0)
            except StateStoreDamagedError:
                known = dict.fromkeys(self._partitions.existing_state_partitions(), 0)
            self._generation = self._index.generation
            for number, offset in known.items():
                self._apply_from(number, offset)

    def get(self, record_type: int, name: str) -> State | None:
        """The newest value of a key, or None if it has none."""
        key = state_key(record_type, name)
        with self._lock:
            self._mend()
            value = self._newer.get(key)
            if value is None:
                value = self._indexed(key)
        return None if value is None else json.loads(value)

    def names(self, record_type: int) -> list[str]:
        """The names of all keys of a type, sorted."""
        prefix = _TYPE.pack(record_type)
        with self._lock:
            self._mend()
            try:
                keys = {key for key, _ in self._index.read_states(prefix)}
            except StateStoreDamagedError:
                self._mend()
                keys = set()
            keys |= {key for key in self._newer if key.startswith(prefix)}
        return sorted(key[_TYPE.size :].decode() for key in keys)

    def append(
        self, record_type: int, name: str, state: State, *, sync: bool | None = None
    ) -> None:
        """Write a record; it holds from now on. Synced, unless the store or `sync` says otherwise.

        Raises StoreFullError (nothing changed) or StoreFailedError (unknown: reopen the store).
        """
        key = state_key(record_type, name)
        value = json.dumps({"version": RECORD_VERSION, **state}, separators=(",", ":")).encode()
        number = state_partition_of(name)
        with self._lock:
            partition = self._open(number)
            result = partition.append_columns([value], [key])
            if self._sync if sync is None else sync:
                partition.sync_up_to(result.last_offset + 1)
            self._newer[key] = value
            self._applied[number] = result.last_offset + 1

    def write_again(self, key: bytes) -> None:
        """Append the newest record of one of our own keys once more, as it is, unsynced."""
        with self._lock:
            self._mend()
            value = self._newer.get(key)
            if value is None:
                value = self._indexed(key)
            if value is None:
                return
            number = state_partition_of(key[_TYPE.size :].decode())
            result = self._open(number).append_columns([value], [key])
            self._newer[key] = value
            self._applied[number] = result.last_offset + 1

    # Transactional ids. Their entries append by themselves.

    def follow(self, transactions: ChangedTransactions) -> None:
        """From now on `persist` takes the records of transactional ids from there too."""
        self._transactions = transactions

    def partition_of(self, transactional_id: str) -> Partition:
        """The partition for the records of a transactional id, opened."""
        number = state_partition_of(transactional_id)
        with self._lock:
            return self._open(number)

    def transaction(self, transactional_id: str) -> TransactionRecord | None:
        """The newest record of an id as far as it is known here; None if it has none."""
        key = transaction_key(transactional_id)
        with self._lock:
            self._mend()
            record = self._newer_transactions.get(key)
            if record is None:
                value = self._indexed(key)
                record = self._newer_transactions.get(key)
                if record is None and value is not None:
                    record = _record_of_index(value)
        return None if record is None or record.value is None else record

    def transactions(self) -> Iterator[tuple[str, TransactionRecord]]:
        """Every transactional id that has a record, in order, with the newest known here."""
        prefix = _TYPE.pack(TRANSACTION)
        key = prefix
        with self._lock:
            self._mend()
            newer_keys = sorted(self._newer_transactions)
        while True:
            with self._lock:
                self._mend()
                try:
                    found = self._index.states_after(prefix, key, _IDS_PER_LOOK)
                except StateStoreDamagedError:
                    self._mend()
                    found = []
                last = found[-1][0] if len(found) == _IDS_PER_LOOK else None
                first = bisect_left(newer_keys, key)
                beyond = len(newer_keys) if last is None else bisect_right(newer_keys, last)
                newer = {
                    one: self._newer_transactions[one]
                    for one in newer_keys[first:beyond]
                    if one in self._newer_transactions  # Else the index has it by now.
                }
            merged = {one: _record_of_index(value) for one, value in found} | newer
            for one in sorted(merged):
                if merged[one].value is not None:
                    yield _transactional_id(one), merged[one]
            if last is None:
                return
            key = last + b"\x00"

    def undecided_transactions(self) -> list[str]:
        """The transactional ids whose newest record known here is that of an open transaction."""
        with self._lock:
            self._mend()
            try:
                keys = set(self._index.read_undecided())
            except StateStoreDamagedError:
                self._mend()
                keys = set()
            for key, record in self._newer_transactions.items():
                if _is_undecided(record.value):
                    keys.add(key)
                else:
                    keys.discard(key)
        return [_transactional_id(key) for key in sorted(keys)]

    def decisions_since(self, number: int, offset: int) -> Iterator[TransactionRecord]:
        """The records in a partition, from an offset on, that say of a transactional id that it is
        decided and not complete; oldest first.
        """
        with self._lock:
            partition = self._open(number)
        offset = max(offset, partition.log_start_offset)
        while offset < partition.log_end_offset:
            columns = partition.fetch_columns(offset, _READ_BYTES)
            if columns is None:
                return
            offset = columns.next_offset
            data, starts, ends = (
                columns.value_data,
                columns.value_offsets,
                columns.value_offsets[1:],
            )
            long_enough = numpy.flatnonzero(ends - starts[:-1] > _STATE_BYTE)
            states = data[starts[long_enough] + _STATE_BYTE]
            for index in long_enough[numpy.isin(states, _DECIDED_STATES)].tolist():
                key = columns.key_data[columns.key_offsets[index] : columns.key_offsets[index + 1]]
                if _is_transaction_key(key.tobytes()):
                    value = data[starts[index] : ends[index]].tobytes()
                    yield TransactionRecord(value, int(columns.offsets[index]))

    def moved(self, transactional_id: str, record: TransactionRecord) -> None:
        """The newest record of an id was appended once more, by whoever has its entry's lock."""
        with self._lock:
            self._newer_transactions[transaction_key(transactional_id)] = record

    def took_away(self, transactional_id: str, offset: int) -> None:
        """A record without a value was appended for the id."""
        with self._lock:
            record = TransactionRecord(None, offset)
            self._newer_transactions[transaction_key(transactional_id)] = record

    def persist(self) -> None:
        """Bring the index in LMDB up to what is known here."""
        with self._persist_lock:
            with self._lock:
                self._mend()
                # Before the entries are asked: what they append meanwhile is read on opening.
                ends = {number: self._open(number).log_end_offset for number in self._applied}
            changed = [] if self._transactions is None else self._transactions.changed()
            with self._lock:
                self._mend()
                for number in self._applied:
                    if number not in ends:  # Opened meanwhile.
                        ends[number] = self._index.read_applied(number) or 0
                records = dict(self._newer_transactions)
                for transactional_id, record in changed:
                    key = transaction_key(transactional_id)
                    if key not in records or records[key].offset < record.offset:
                        records[key] = record
                if not self._newer and not records and self._index_reaches(ends):
                    return
                reached = _ends_of(records)
                for number, end in self._applied.items():
                    reached[number] = max(end, reached.get(number, 0))
                if self._sync:
                    # Else a power cut would leave an index ahead of its log: it would be dropped,
                    # and the whole log read.
                    for number in ends:
                        self._open(number).sync_up_to(max(ends[number], reached[number]))
                self._index.write_states(
                    [*self._newer.items(), *((key, _indexed(one)) for key, one in records.items())],
                    ends.items(),
                    reached,
                    {key: _is_undecided(one.value) for key, one in records.items()},
                )
                self._newer = {}
                self._newer_transactions = {}
            if self._transactions is not None:
                self._transactions.persisted(changed)

    def _index_reaches(self, ends: Mapping[int, int]) -> bool:
        return all(self._index.read_applied(number) == end for number, end in ends.items())

    def _open(self, number: int) -> Partition:
        """Open a partition; what it holds beyond the index is known by then."""
        partition = self._partitions.state_partition(number)
        if number not in self._applied:
            self._applied[number] = partition.log_end_offset
        return partition

    def _indexed(self, key: bytes) -> bytes | None:
        try:
            return self._index.read_state(key)
        except StateStoreDamagedError:
            self._mend()
            return self._newer.get(key)

    def _mend(self) -> None:
        """If LMDB was begun anew meanwhile, read the whole log again."""
        if self._generation == self._index.generation:
            return
        for number in self._partitions.existing_state_partitions():
            self._open(number)
            self._apply_from(number, 0)
        self._generation = self._index.generation

    def _apply_from(self, number: int, offset: int) -> None:
        partition = self._open(number)
        self._apply(_records_from(partition, offset), partition)
        self._applied[number] = partition.log_end_offset

    def _apply(self, records: Iterable[Record], partition: Partition) -> None:
        next_producer_id = -1
        transactions = self._newer_transactions
        for record in records:
            key, value = record.key, record.value
            if key in transactions:
                transactions[key] = TransactionRecord(value, record.offset)
                continue
            if key is None or len(key) < _TYPE.size:
                continue
            record_type = _TYPE.unpack_from(key)[0]
            if record_type == TRANSACTION and _is_transaction_key(key):
                transactions[key] = TransactionRecord(value, record.offset)
            elif record_type >= PRODUCER_ID_BLOCK and value is not None:
                state = _checked_state(value, partition, record.offset)
                if record_type == PRODUCER_ID_BLOCK:
                    next_producer_id = _next_block(
                        state, next_producer_id, partition, record.offset
                    )
                self._newer[key] = value


def state_key(record_type: int, name: str) -> bytes:
    """The key of a record; ValueError if the name is too long for it."""
    encoded = name.encode()
    if len(encoded) > NAME_BYTES_MAX:
        raise ValueError(f"a name of {len(encoded)} bytes; at most {NAME_BYTES_MAX} are allowed")
    return _TYPE.pack(record_type) + encoded


def state_partition_of(name: str) -> int:
    """The partition of a name: Java's hash of the text, without its sign, over the partitions."""
    hashed = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        hashed = (31 * hashed + unit) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed & 0x80000000 else hashed
    # Kafka's abs of the smallest number, which has no positive counterpart, is 0.
    return 0 if signed == -(1 << 31) else abs(signed) % STATE_PARTITIONS


def transaction_key(transactional_id: str) -> bytes:
    """The key of a transactional id's record. Raises ValueError if it is too long for the index."""
    encoded = transactional_id.encode()
    if len(encoded) > NAME_BYTES_MAX:
        raise ValueError(
            f"a transactional id of {len(encoded)} bytes; at most {NAME_BYTES_MAX} are allowed"
        )
    return _TRANSACTION_KEY.pack(TRANSACTION, len(encoded)) + encoded


def _is_transaction_key(key: bytes) -> bool:
    if len(key) < _TRANSACTION_KEY.size:
        return False
    record_type, id_bytes = _TRANSACTION_KEY.unpack_from(key)
    if record_type != TRANSACTION or id_bytes != len(key) - _TRANSACTION_KEY.size:
        return False
    try:
        _transactional_id(key)
    except UnicodeDecodeError:
        return False
    return True


def _transactional_id(key: bytes) -> str:
    return key[_TRANSACTION_KEY.size :].decode()


def _is_undecided(value: bytes | None) -> bool:
    if value is None or len(value) <= _STATE_BYTE:
        return False
    return value[_STATE_BYTE] in _UNDECIDED_STATES


def _indexed(record: TransactionRecord) -> bytes | None:
    """A record as the index holds it: with its offset before the value."""
    return None if record.value is None else _OFFSET.pack(record.offset) + record.value


def _record_of_index(value: bytes) -> TransactionRecord:
    return TransactionRecord(value[_OFFSET.size :], _OFFSET.unpack_from(value)[0])


def _ends_of(records: Mapping[bytes, TransactionRecord]) -> dict[int, int]:
    """Per partition, the offset behind the newest of the records."""
    ends: dict[int, int] = {}
    for key, record in records.items():
        number = state_partition_of(_transactional_id(key))
        ends[number] = max(ends.get(number, 0), record.offset + 1)
    return ends


def _records_from(partition: Partition, offset: int) -> Iterator[Record]:
    offset = max(offset, partition.log_start_offset)
    while offset < partition.log_end_offset:
        records, offset = partition.fetch_records(offset, _RECORDS_PER_READ, _READ_BYTES)
        yield from records


def _checked_state(value: bytes, partition: Partition, offset: int) -> State:
    try:
        state = json.loads(value)
        version = state["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(
            str(partition.path), offset, f"the state record at offset {offset} is not JSON"
        ) from error
    if not isinstance(version, int) or version > RECORD_VERSION:
        raise StoreVersionError(
            f"{partition.topic_partition}: the state record at offset {offset} has version "
            f"{version}; known are versions up to {RECORD_VERSION}"
        )
    checked: State = state
    return checked


def _next_block(state: State, known: int, partition: Partition, offset: int) -> int:
    """Blocks of producer ids only rise: one given out twice would hide new records as old.

    The same one may stand twice: compaction writes a record again before it deletes the older.
    """
    found = state.get("next_producer_id")
    if not isinstance(found, int) or found < max(known, 0):
        raise CorruptRecordError(
            str(partition.path),
            offset,
            f"the block of producer ids at offset {offset} ends at {found!r}, the one before it "
            f"at {known}",
        )
    return found
