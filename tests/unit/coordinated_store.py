"""An open store, and its transaction coordinator as tests drive it: without producer objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import eoslog
from eoslog.bindings.column_set import open_columns
from eoslog.bindings.record_batch import BatchHeader, decode_records, iter_batches
from eoslog.bindings.transaction_entry import (
    TransactionEntry,
    decode_transaction_value,
    encode_transaction_value,
)
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.coordinator import (
    InitializedTransactions,
    TransactionCoordinator,
)
from eoslog.transactions.owner import TransactionOwner
from eoslog.transactions.state_key import state_partition_of, transaction_key

ID = "my-txn"
TIMEOUT_MS = 60_000
# Records of 1970 stand beside today's: neither starts a segment, nor is deleted.
SMALL = {"segment.bytes": 1 << 20, "segment.ms": 1 << 50, "retention.ms": -1}
OpenStore = Callable[..., eoslog.Store]


class CoordinatedStore:
    """A store with topics a and b of two partitions each."""

    def __init__(self, store: eoslog.Store) -> None:
        self.store = store
        if not store.topics():
            for topic in ("a", "b"):
                store.create_topic(topic, partitions=2, config=SMALL)

    @property
    def coordinator(self) -> TransactionCoordinator:
        return parts_of(self.store).files.transactions

    def init(self, transactional_id: str = ID, **others: Any) -> InitializedTransactions:
        others.setdefault("owner", TransactionOwner.here())
        return self.coordinator.init(
            transactional_id, others.pop("timeout_ms", TIMEOUT_MS), **others
        )

    def write(self, at: InitializedTransactions, *places: str, value: bytes = b"x") -> None:
        """Append a record to each of these ("a-0") under the id and epoch of `at`."""
        for place in places:
            part = self.coordinator.part_of(place[0], int(place[2:]))
            with at.entry.lock:
                columns = open_columns([value], None, None, None, 1000)
                at.entry.append_columns(at.producer_id, at.producer_epoch, part, columns)

    def end(self, at: InitializedTransactions, commit: bool = True) -> InitializedTransactions:
        """Decide it; what the producer goes on with."""
        answer = self.coordinator.end(at.entry, at.producer_id, at.producer_epoch, commit)
        return InitializedTransactions(at.entry, *answer)

    def begun(self, *places: str, transactional_id: str = ID) -> InitializedTransactions:
        """An id with a transaction open in these partitions."""
        at = self.init(transactional_id)
        self.write(at, *places)
        return at

    def record(self, transactional_id: str = ID, **fields: Any) -> None:
        """Write a record of an id that is not in memory: it is as if it had come to this."""
        state = fields.get("state", "Empty")
        is_empty = state == "Empty"
        known = {
            "producer_id": 7,
            "producer_epoch": 0,
            "timeout_ms": TIMEOUT_MS,
            "state": state,
            "partitions": None if is_empty else [],
            "last_update_ms": 1000,
            "start_ms": -1 if is_empty else 900,
            "client_transaction_version": 2,
        }
        self.raw_record(encode_transaction_value(**(known | fields)), transactional_id)

    def raw_record(self, value: bytes | None, transactional_id: str = ID) -> int:
        assert self.coordinator.entries.find(transactional_id) is None
        partition = parts_of(self.store).files.state_log.partition_of(transactional_id)
        result = partition.append_columns([value], [transaction_key(transactional_id)])
        number = state_partition_of(transactional_id)
        parts_of(self.store).files.state_log.open_partition(number).read_from(result.base_offset)
        return int(result.base_offset)

    def entry(self, transactional_id: str = ID) -> TransactionEntry:
        with self.coordinator.entries.locked(transactional_id) as entry:
            return entry

    def identity(self, transactional_id: str = ID) -> tuple[int, int, int, int]:
        """Producer id, epoch, last epoch, previous id."""
        entry = self.entry(transactional_id)
        return (
            entry.producer_id,
            entry.producer_epoch,
            entry.last_producer_epoch,
            entry.previous_producer_id,
        )

    def states(self, transactional_id: str = ID) -> list[str]:
        """The id's records, oldest first."""
        return [
            record["state"] if record else "tombstone" for record in self.records(transactional_id)
        ]

    def records(self, transactional_id: str = ID) -> list[dict[str, Any] | None]:
        partition = parts_of(self.store).files.state_log.partition_of(transactional_id)
        records, _ = partition.fetch_records(0, 100_000, 1 << 24)
        return [
            None if record.value is None else decode_transaction_value(record.value)
            for record in records
            if record.key == transaction_key(transactional_id)
        ]

    def partition(self, place: str) -> UnifiedLog:
        return engine_of(self.store).partition(place[0], int(place[2:]))

    def markers(self, place: str) -> list[tuple[int, int, str]]:
        """(producer id, epoch, type) of each marker in a partition."""
        return [
            (header.producer_id, header.producer_epoch, _type_of(data))
            for header, data in batches_of(self.partition(place))
            if header.is_control
        ]

    def committed(self, place: str) -> list[bytes | None]:
        """What a reader of committed data gets."""
        partition = self.partition(place)
        found: list[bytes | None] = []
        offset = partition.log_start_offset
        while offset < partition.last_stable_offset:
            records, offset = partition.fetch_records(offset, 1000, 1 << 20, "read_committed")
            found += [record.value for record in records]
        return found


def batches_of(partition: UnifiedLog) -> list[tuple[BatchHeader, bytes]]:
    found = []
    offset = partition.log_start_offset
    while offset < partition.log_end_offset:
        data = partition.read(offset)
        for header in iter_batches(data):
            end = header.position_bytes + header.batch_bytes
            found.append((header, data[header.position_bytes : end]))
            offset = header.last_offset + 1
    return found


def _type_of(data: bytes) -> str:
    return {0: "ABORT", 1: "COMMIT"}[int.from_bytes(decode_records(data)[0].key[2:4], "big")]
