"""What a partition remembers of its producers: five batches each, and a verdict on the next."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from reference_model.batch_codec import (
    MAX_SEQUENCE,
    ModelBatch,
    crc32c,
    decode_records,
    decrement_sequence,
    increment_sequence,
)

WINDOW_BATCHES_MAX = 5
SNAPSHOT_HEADER = struct.Struct(">hIi")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")


class ModelError(Exception):
    """A refusal; `name` is the class that the engine raises for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class WindowBatch:
    """One remembered batch; both ends are inclusive."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass
class ProducerModel:
    """One producer on one partition."""

    producer_id: int
    producer_epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    transaction_first_offset: int = -1
    batches: list[WindowBatch] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    def judge(
        self,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
        transactional: bool,
        verified: bool = False,
    ) -> WindowBatch | None:
        """The first write of a duplicate, None for a batch to write; else a refusal."""
        last_sequence = increment_sequence(base_sequence, record_count - 1)
        is_known = producer_epoch == self.producer_epoch
        if is_known and base_sequence >= 0:
            for batch in self.batches:
                if (batch.first_sequence, batch.last_sequence) == (base_sequence, last_sequence):
                    return batch
        if producer_epoch < self.producer_epoch:
            raise ModelError("InvalidProducerEpochError")
        is_open = self.transaction_first_offset >= 0
        # Nobody but the coordinator can tell that a transaction begins here.
        may_begin = verified and not is_open
        if transactional and not may_begin and not (is_open and is_known):
            raise ModelError("InvalidTxnStateError")
        if is_open and not transactional:
            raise ModelError("InvalidTxnStateError")
        if base_sequence < 0:
            return None
        if not is_known:
            # A producer that is not known may begin anywhere, but not a transaction.
            must_be_zero = transactional or self.producer_epoch != -1
            follows = base_sequence == 0 or not must_be_zero
        else:
            wraps = self.last_sequence == MAX_SEQUENCE and base_sequence == 0
            follows = wraps or base_sequence == self.last_sequence + 1
        if not follows:
            raise ModelError("OutOfOrderSequenceError")
        return None

    def judge_marker(self, producer_epoch: int, coordinator_epoch: int, newer_epoch: bool) -> bool:
        """Whether the marker is to be written: not if it was; else a refusal.

        `newer_epoch`: each transaction raises the epoch, so its marker must stand above its data.
        """
        is_open = self.transaction_first_offset >= 0
        if producer_epoch < self.producer_epoch:
            raise ModelError("InvalidProducerEpochError")
        if coordinator_epoch < self.coordinator_epoch:
            raise ModelError("TransactionCoordinatorFencedError")
        if producer_epoch == self.producer_epoch and is_open and newer_epoch:
            raise ModelError("InvalidProducerEpochError")
        return is_open or producer_epoch != self.producer_epoch or not newer_epoch

    def take(self, batch: ModelBatch) -> None:
        """A batch that stands in the log now; no verdict is asked."""
        if batch.is_control:
            self._take_marker(batch)
            return
        if batch.producer_epoch != self.producer_epoch:
            self.batches = []
            self.producer_epoch = batch.producer_epoch
        self.batches.append(
            WindowBatch(
                batch.base_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.max_timestamp,
            )
        )
        del self.batches[:-WINDOW_BATCHES_MAX]
        self.last_timestamp = batch.max_timestamp
        if batch.is_transactional and self.transaction_first_offset < 0:
            self.transaction_first_offset = batch.base_offset

    def _take_marker(self, batch: ModelBatch) -> None:
        if batch.record_count == 0:
            return
        record = decode_records(batch.data)[0]
        if batch.producer_epoch != self.producer_epoch:
            self.batches = []
            self.producer_epoch = batch.producer_epoch
        assert record.value is not None
        coordinator_epoch = struct.unpack_from(">i", record.value, 2)[0]
        self.coordinator_epoch = max(self.coordinator_epoch, coordinator_epoch)
        self.transaction_first_offset = -1
        self.last_timestamp = record.timestamp_ms


class ProducerTable:
    """All producers of one partition."""

    def __init__(self) -> None:
        self.entries: dict[int, ProducerModel] = {}

    def entry(self, producer_id: int) -> ProducerModel:
        return self.entries.get(producer_id, ProducerModel(producer_id))

    def take(self, batch: ModelBatch) -> None:
        if batch.producer_id >= 0:
            self.entries.setdefault(batch.producer_id, ProducerModel(batch.producer_id)).take(batch)

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget producers that have been idle; one with an open transaction stays."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return expired

    def forget_windows(self) -> None:
        """What a `.snapshot` file leaves of each window: its last batch."""
        for entry in self.entries.values():
            entry.batches = entry.batches[-1:]

    @classmethod
    def rebuilt(cls, batches: Iterable[ModelBatch]) -> ProducerTable:
        table = cls()
        for batch in batches:
            table.take(batch)
        return table


def encode_snapshot(entries: Iterable[ProducerModel]) -> bytes:
    """The `.snapshot` file of these producers."""
    rows = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        rows.append(
            SNAPSHOT_ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                last.last_offset - last.first_offset if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", 1, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerModel]:
    """The producers of a `.snapshot` file; ModelError("corrupt") for any other bytes."""
    if len(data) < SNAPSHOT_HEADER.size:
        raise ModelError("corrupt")
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    expected_bytes = SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size
    if version != 1 or crc != crc32c(data[6:]) or len(data) != expected_bytes:
        raise ModelError("corrupt")
    entries = []
    for row in SNAPSHOT_ENTRY.iter_unpack(data[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator, txn = row
        entry = ProducerModel(producer_id, epoch, coordinator, timestamp, txn)
        if last_offset >= 0:
            entry.batches.append(
                WindowBatch(
                    decrement_sequence(last_sequence, delta),
                    last_sequence,
                    last_offset - delta,
                    last_offset,
                    timestamp,
                )
            )
        entries.append(entry)
    return entries
