"""The internal log `__transaction_state`: what the store decided, as records in Kafka's own place.

A key is a type (16 bits, big-endian) and a name (UTF-8); a value is JSON with a version. The types
start at 1000: Kafka's tools skip versions of keys that they do not know. The newest record of a key
holds. A key's partition is the one that Kafka would choose for its name.

LMDB holds an index of it with, per partition, the offset up to which the index is true. After a
clean close the index is whole, which a mark proves that the clean-shutdown marker and LMDB share;
otherwise the partitions are read on from those offsets.
"""

import json
import struct
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from eoslog.bindings.record_batch import Record
from eoslog.errors import CorruptRecordError, StoreVersionError
from eoslog.partition import Partition
from eoslog.producer_state_store import ProducerStateStore, StateStoreDamagedError
from eoslog.topic_registry import INTERNAL_TOPIC_PARTITIONS

STATE_PARTITIONS = INTERNAL_TOPIC_PARTITIONS
PRODUCER_ID_BLOCK = 1000
NAMED_PRODUCER = 1001
APPLICATION = 1002
RECORD_VERSION = 1
NAME_BYTES_MAX = 480  # LMDB's keys hold 511.

_TYPE = struct.Struct(">h")
_RECORDS_PER_READ = 1000
_READ_BYTES = 4 << 20

State = Mapping[str, Any]


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
        self._newer: dict[bytes, bytes] = {}  # Newer than the index.
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
                if any(known[number] > ends[number] for number in known):
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

    def persist(self) -> None:
        """Bring the index in LMDB up to what is known here."""
        with self._lock:
            self._mend()
            if self._newer or any(
                self._index.read_applied(number) != offset
                for number, offset in self._applied.items()
            ):
                self._index.write_states(self._newer.items(), self._applied.items())
                self._newer = {}

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
        offset = max(offset, partition.log_start_offset)
        while offset < partition.log_end_offset:
            records, offset = partition.fetch_records(offset, _RECORDS_PER_READ, _READ_BYTES)
            self._apply(records, partition)
        self._applied[number] = partition.log_end_offset

    def _apply(self, records: Iterable[Record], partition: Partition) -> None:
        for record in records:
            key, value = record.key, record.value
            if key is None or value is None or len(key) < _TYPE.size:
                continue
            if _TYPE.unpack_from(key)[0] < PRODUCER_ID_BLOCK:
                continue  # Kafka's own.
            _check_version(value, partition, record.offset)
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


def _check_version(value: bytes, partition: Partition, offset: int) -> None:
    try:
        version = json.loads(value)["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(
            str(partition.path), offset, f"the state record at offset {offset} is not JSON"
        ) from error
    if not isinstance(version, int) or version > RECORD_VERSION:
        raise StoreVersionError(
            f"{partition.topic_partition}: the state record at offset {offset} has version "
            f"{version}; known are versions up to {RECORD_VERSION}"
        )
