"""Records that tasks sent and no call has appended yet, in batches by partition.

Invariants: a batch is small enough to enter its log whole, so its records have consecutive offsets;
a partition's batches are in the order of its records.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from eoslog.bindings.partition_log import AppendResult
from eoslog.common.topic_partition import TopicPartition

# Upper bounds of the frame of a record, a batch, a header.
RECORD_FRAME_BYTES = 36
BATCH_FRAME_BYTES = 64
HEADER_FRAME_BYTES = 10
UNKNOWN_OFFSET = -1

Headers = tuple[tuple[str, bytes | None], ...]


class RecordMetadata(NamedTuple):
    """Position of a record in the log.

    The offset is -1 if it is unknown: records of a staged transaction have none before its commit.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition of the record."""
        return TopicPartition(self.topic, self.partition)


class GivenRecord(NamedTuple):
    """One record with checked types, and the future of its sender."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int
    told: "asyncio.Future[RecordMetadata]"

    def bytes_max(self) -> int:
        """Return an upper bound of the bytes that the record adds to a batch."""
        found = RECORD_FRAME_BYTES + len(self.value or b"") + len(self.key or b"")
        for name, content in self.headers:
            found += HEADER_FRAME_BYTES + 4 * len(name) + len(content or b"")
        return found


@dataclass
class GatheredBatch:
    """Records of one partition, for one append."""

    where: TopicPartition
    records: list[GivenRecord] = field(default_factory=list)
    used_bytes: int = BATCH_FRAME_BYTES

    def columns(
        self,
    ) -> tuple[
        list[bytes | None],
        list[bytes | None] | None,
        list[int],
        list[list[tuple[str, bytes | None]]] | None,
    ]:
        """Return values, keys, timestamps and headers in the form of an append."""
        values, keys, headers, timestamps, _ = zip(*self.records, strict=True)
        return (
            list(values),
            None if all(key is None for key in keys) else list(keys),
            list(timestamps),
            [list(one) for one in headers] if any(headers) else None,
        )

    def one_by_one(self) -> "Iterator[GatheredBatch]":
        """Yield each record as a batch of its own."""
        for record in self.records:
            yield GatheredBatch(self.where, [record])


class Round:
    """The records of one call: all that were gathered during the call before."""

    def __init__(self) -> None:
        self._used_bytes = 0
        self._record_count = 0
        # The partition of each topic whose batch the records without a key fill.
        self.keyless_partitions: dict[str, int] = {}
        self._batches: list[GatheredBatch] = []
        self._last: dict[TopicPartition, GatheredBatch] = {}

    def add(self, where: TopicPartition, record: GivenRecord, batch_bytes_max: int) -> None:
        """Add a record."""
        record_bytes = record.bytes_max()
        batch = self._last.get(where)
        if batch is None or batch.used_bytes + record_bytes > batch_bytes_max:
            if batch is not None:
                # As in Kafka: keyless records fill one partition's batch after another.
                self.keyless_partitions.pop(where.topic, None)
            batch = self._last[where] = GatheredBatch(where)
            self._batches.append(batch)
        batch.records.append(record)
        batch.used_bytes += record_bytes
        self._used_bytes += record_bytes
        self._record_count += 1

    def is_full(self, bytes_max: int, records_max: int) -> bool:
        """Return True if no more records fit."""
        return self._used_bytes >= bytes_max or self._record_count >= records_max

    def withdraw(self, told: "asyncio.Future[RecordMetadata]") -> bool:
        """Withdraw a record; return False if it is not here any more."""
        if any(record.told is told for batch in self._batches for record in batch.records):
            told.cancel()
            return True
        return False

    def wanted(self) -> list[GatheredBatch]:
        """Return the batches without the withdrawn records."""
        for batch in self._batches:
            batch.records = [one for one in batch.records if not one.told.cancelled()]
        return [batch for batch in self._batches if batch.records]

    def fail(self, failure: Exception) -> None:
        """Fail all records: none will be appended."""
        for batch in self._batches:
            Outcome(batch, None, failure).tell()


@dataclass(frozen=True)
class Outcome:
    """Result of the append of a batch."""

    batch: GatheredBatch
    result: AppendResult | None
    failure: Exception | None

    def tell(self) -> None:
        """Set the futures of the batch's records."""
        where, result, failure = self.batch.where, self.result, self.failure
        first = UNKNOWN_OFFSET
        if result is not None:
            span = result.last_offset - result.base_offset + 1
            first = result.base_offset if span == len(self.batch.records) else UNKNOWN_OFFSET
        for index, record in enumerate(self.batch.records):
            if record.told.done():
                continue  # Its sender was cancelled.
            if failure is not None:
                record.told.set_exception(failure)
                record.told.exception()  # Retrieved: a flush raises it too.
                continue
            offset = UNKNOWN_OFFSET if first == UNKNOWN_OFFSET else first + index
            record.told.set_result(RecordMetadata(*where, offset, record.timestamp_ms))
