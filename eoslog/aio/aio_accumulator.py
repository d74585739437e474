"""Records that tasks sent, appended together by one call at a time.

While a call is under way, new records are gathered for the next one: the more tasks send, the
larger the batches, and no record waits for a timer.

Invariants: a batch is small enough to enter its log whole, so its records have consecutive offsets;
a partition's records enter the log in the order in which they were sent; the future of every record
that was taken is set; after a batch that could not be appended, no later record is appended by the
same call.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from eoslog.aio.aio_calls import Calls, Job, Lane, Work
from eoslog.bindings.partition_log import AppendResult
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InvalidTimestampError, RecordTooLargeError
from eoslog.producer.producer import Producer
from eoslog.storage.topic_registry import TopicDescription

# Who sends more than this faster than it is appended waits. Telling the senders of so many records
# takes the event loop some milliseconds.
GATHERED_BYTES_MAX = 32 << 20
GATHERED_RECORDS_MAX = 8192
# What one record of a batch may be guilty of alone.
OF_ONE_RECORD = (RecordTooLargeError, InvalidTimestampError, TypeError, ValueError)

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


class AsyncAccumulator:
    """Gathers the records of a producer's tasks, and appends them in the producer's lane.

    With `skips_refused`, a batch is appended without the records that are refused.
    """

    def __init__(
        self,
        producer: Producer,
        calls: Calls,
        loop: asyncio.AbstractEventLoop,
        *,
        skips_refused: bool,
    ) -> None:
        self._producer = producer
        self._loop = loop
        self._skips_refused = skips_refused
        self.lane = Lane(calls, loop, self._call_over, self.fail)
        # The first failure of a record that no flush has raised.
        self.failure: BaseException | None = None
        self._gathered = Round()
        # What a call took that has not ended, and its outcomes, until the senders' futures are set.
        self._taken: Round | None = None
        self._untold: deque[Outcome] = deque()
        self._append_job: Job | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._keyless_turns: dict[str, int] = {}

    # In the event loop.

    def is_full(self) -> bool:
        """Return True if a task must wait before it adds a record."""
        return self._gathered.is_full(GATHERED_BYTES_MAX, GATHERED_RECORDS_MAX)

    async def wait_for_room(self) -> None:
        """Wait until a call takes the gathered records."""
        self._has_room.clear()
        await self._has_room.wait()

    def keyless_partition(self, topic: TopicDescription) -> int:
        """Return the partition for a record without a key."""
        chosen = self._gathered.keyless_partitions.get(topic.name)
        if chosen is None:
            turn = self._keyless_turns.get(topic.name, 0)
            self._keyless_turns[topic.name] = turn + 1
            chosen = self._gathered.keyless_partitions[topic.name] = turn % topic.partitions
        return chosen

    def add(self, where: TopicPartition, record: GivenRecord, batch_bytes_max: int) -> None:
        """Add a record, for the next call."""
        self._gathered.add(where, record, batch_bytes_max)
        if self._append_job is None:
            self._put_append_job()

    def withdraw(self, told: "asyncio.Future[RecordMetadata]") -> bool:
        """Withdraw a record; return False if a call has taken it."""
        return self._gathered.withdraw(told)

    def take(self) -> list[GatheredBatch]:
        """Take the gathered records; the next ones go to a new round."""
        return self._take_round().wanted()

    def fail(self, error: Exception) -> None:
        """Fail the gathered records, and those taken for a call that was not begun."""
        if self._taken is not None:
            self._taken.fail(error)
        self._take_round().fail(error)
        self._taken = None

    def hold_append(self) -> None:
        """Leave the gathered records to another call in the lane, which takes them."""
        if self._append_job is not None:
            self.lane.withdraw(self._append_job)

    def resume_append(self) -> None:
        """Append the gathered records after all, if the call for which they were held is off."""
        if self._append_job is not None:
            self._put_append_job()

    def _put_append_job(self) -> None:
        self._append_job = self.lane.put(self._begin_appending)
        # The records' futures report the errors.
        self._append_job.ended.add_done_callback(_looked_at)

    def _begin_appending(self) -> Work:
        return partial(self.append_and_tell, self.take())

    def _take_round(self) -> Round:
        self._append_job = None
        taken = self._taken = self._gathered
        self._gathered = Round()
        self._has_room.set()
        return taken

    def _tell(self) -> None:
        """Set the futures of the senders."""
        while self._untold:
            outcome = self._untold[0]
            if outcome.failure is not None and self.failure is None:
                self.failure = outcome.failure
            outcome.tell()
            self._untold.popleft()

    def _call_over(self) -> None:
        self._tell()
        self._taken = None

    # In a thread of the store.

    def append_and_tell(self, batches: list[GatheredBatch]) -> Exception | None:
        """Append the batches; return the first failure."""
        outcomes = self._append_batches(batches)
        self._untold.extend(outcomes)
        self._loop.call_soon_threadsafe(self._tell)
        return next((one.failure for one in outcomes if one.failure is not None), None)

    def _append_batches(self, batches: list[GatheredBatch]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        broken: dict[TopicPartition, Exception] = {}
        for batch in batches:
            failure = broken.get(batch.where)
            if failure is not None:
                outcomes.append(Outcome(batch, None, failure))
                continue
            for outcome in self._append_batch(batch):
                outcomes.append(outcome)
                if outcome.failure is not None and not isinstance(outcome.failure, OF_ONE_RECORD):
                    broken[batch.where] = outcome.failure
        return outcomes

    def _append_batch(self, batch: GatheredBatch) -> list[Outcome]:
        try:
            result: Any = self._producer.append(*batch.where, *batch.columns())
        except OF_ONE_RECORD as error:
            if len(batch.records) == 1 or not self._skips_refused:
                return [Outcome(batch, None, error)]
        except Exception as error:
            return [Outcome(batch, None, error)]
        else:
            return [Outcome(batch, result, None)]
        # One record is wrong: append the others.
        return [found for one in batch.one_by_one() for found in self._append_batch(one)]


def _looked_at(job: "asyncio.Future[Any]") -> None:
    if not job.cancelled():
        job.exception()
