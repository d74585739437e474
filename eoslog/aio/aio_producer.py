"""Writing from an event loop: records that tasks give are appended together, by one call at a time.

While a call is under way, what is sent meanwhile is gathered for the next one: the more tasks send,
the larger the batches, and no record waits for a timer.

Invariants: a partition's records enter the log in the order in which they were sent; every record
that was taken is told what became of it; where a batch could not be appended, what was sent behind
it is not appended by the same call.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Never, ParamSpec, TypeVar

from eoslog.aio.aio_calls import Calls, until_ended
from eoslog.aio.aio_gathering import (
    GatheredBatch,
    GivenRecord,
    Headers,
    Outcome,
    RecordMetadata,
    Round,
)
from eoslog.aio.aio_lane import Job, Lane, Work
from eoslog.aio.aio_opening import ClosedByBlock
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.partitioner import partition_for_key
from eoslog.common import clock
from eoslog.common.config import INT64_MAX
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.topic_partition import TopicPartition
from eoslog.common.whole_number import whole_number
from eoslog.errors import (
    ConcurrentAccessError,
    InvalidTimestampError,
    LogClosedError,
    RecordTooLargeError,
)
from eoslog.producer.producer import Producer
from eoslog.producer.producer_internals import check_appendable, known_partition, known_topic
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.store import engine_of

if TYPE_CHECKING:
    from eoslog.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")

# Who sends more than this faster than it is appended waits. Telling the senders of so many records
# takes the event loop some milliseconds.
GATHERED_BYTES_MAX = 32 << 20
GATHERED_RECORDS_MAX = 8192
BATCH_BYTES_MAX = 1 << 20
# What one record of a batch may be guilty of alone.
OF_ONE_RECORD = (RecordTooLargeError, InvalidTimestampError, TypeError, ValueError)

GivenHeaders = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


@with_methods_of_other_clients
class AsyncProducer(ClosedByBlock):
    """Writes records; `AsyncStore.producer` makes it. The tasks of one event loop may share it.

    `send` gives a future of where the record is; `send_and_wait` awaits it. What a producer is, and
    which errors it raises, is as `eoslog.Producer` has it. A record that could not be appended
    fails its future and the next `flush` or `close`, so that no failure goes unseen.
    """

    _kind = "producer"

    def __init__(self, store: "Store", producer: Producer, calls: Calls) -> None:
        self._store = store
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._lane = Lane(calls, self._loop, self._call_over, self._fail_gathered)
        self._gathered = Round()
        # What a call took that has not ended, and its outcomes, until the senders are told.
        self._taken: Round | None = None
        self._untold: deque[Outcome] = deque()
        self._append_job: Job | None = None
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._keyless_turns: dict[str, int] = {}
        self._bytes_max: dict[str, tuple[TopicDescription, int]] = {}
        self._failure: BaseException | None = None
        self._closed = False

    def __reduce__(self) -> Never:
        raise TypeError("a producer cannot be pickled or copied: make one where it is needed")

    # Who it is.

    @property
    def name(self) -> str | None:
        """The name, or None."""
        return self._producer.name

    @property
    def producer_id(self) -> int:
        """The id in its batches; -1 before the first append."""
        return self._producer.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the id; -1 where there is none."""
        return self._producer.producer_epoch

    # Writing.

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Take one record; a future of where it is in the log.

        It is taken at once, unless 8,192 records or 32 MiB wait to be appended: then when there is
        room.
        A task that is cancelled while it waits for room has sent nothing. Cancelling the future
        takes the record back if its append was not begun; else the record is written all the same.

        Raises TypeError, ValueError, UnknownTopicOrPartitionError, ProducerFencedError,
        LogClosedError: the record was not taken. The future raises what `Producer.append` does.
        """
        self._check_loop()
        while self._gathered.is_full(GATHERED_BYTES_MAX, GATHERED_RECORDS_MAX):
            self._has_room.clear()
            await self._has_room.wait()
        self._check_appendable()
        description = known_topic(self._producer, topic)
        where = self._place(description, partition, key)
        moment_ms = clock.now_ms() if timestamp_ms is None else _checked_timestamp(timestamp_ms)
        record = GivenRecord(
            _bytes_or_none(value, "value"),
            key,
            _checked_headers(headers) if headers else (),
            moment_ms,
            self._loop.create_future(),
        )
        self._gathered.add(where, record, self._batch_bytes_max(description))
        if self._append_job is None:
            self._put_append_job()
        return record.told

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Append one record; where it is.

        On return it survives the death of the process, with durability "always" a power cut. A task
        that is cancelled takes the record back, or, if its append was begun, waits until that has
        ended: a note of the CancelledError says what became of it. Raises as `send` and its future.
        """
        told = await self.send(topic, value, key, partition, headers, timestamp_ms)
        ended = await until_ended(told, lambda: self._gathered.withdraw(told), self._lane.look)
        if ended.cancelled is not None and ended.error is None:
            ended.cancelled.add_note(f"the record is in the log: {ended.result}")
        return ended.value()

    async def append(
        self,
        topic: str,
        partition: int | None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> AppendResult | dict[int, AppendResult]:
        """Append the records of columns as `Producer.append` does; what was sent before goes first.

        An append that was begun ends, also if the task is cancelled meanwhile.
        """
        arguments: tuple[Any, ...] = (topic, partition, values, keys, timestamps, headers)
        return await self._call(self._producer.append, *arguments)

    async def flush(self) -> None:
        """Append all that was sent, and make all that this producer appended power-safe.

        With durability "process" nothing is synced. Raises the first error of a record that was
        sent since the last flush, or what `Producer.flush` raises.
        """
        try:
            await self._call(self._producer.flush)
        finally:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def next_sequence(self, topic: str, partition: int) -> int:
        """The number of the next record in the partition; see `Producer.next_sequence`."""
        return await self._call(self._producer.next_sequence, topic, partition)

    async def close(self) -> None:
        """Flush, then take nothing more. A second call does nothing.

        Raises what `flush` raises; the producer is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        await self._call(self._producer.close)
        if self._failure is not None:
            raise self._failure

    def _check_enter(self) -> None:
        self._check_loop()

    # What a record is, and where it goes.

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return True if the producer was made in that event loop."""
        return loop is self._loop

    def _check_loop(self) -> None:
        if not self.belongs_to(asyncio.get_running_loop()):
            raise ConcurrentAccessError(
                "this producer belongs to another event loop, which runs in another thread or has "
                "ended: make one in this loop"
            )

    def _check_appendable(self) -> None:
        """Raise an error if the producer takes no records now."""
        if self._closed:
            raise LogClosedError("the producer is closed")
        check_appendable(self._producer)

    def _place(
        self, topic: TopicDescription, partition: int | None, key: bytes | None
    ) -> TopicPartition:
        _bytes_or_none(key, "key")
        if partition is not None:
            return known_partition(self._producer, topic, partition)
        if key is not None:
            return TopicPartition(topic.name, partition_for_key(key, topic.partitions))
        chosen = self._gathered.keyless_partitions.get(topic.name)
        if chosen is None:
            turn = self._keyless_turns.get(topic.name, 0)
            self._keyless_turns[topic.name] = turn + 1
            chosen = self._gathered.keyless_partitions[topic.name] = turn % topic.partitions
        return TopicPartition(topic.name, chosen)

    def _batch_bytes_max(self, topic: TopicDescription) -> int:
        known = self._bytes_max.get(topic.name)
        if known is None or known[0] is not topic:
            config = engine_of(self._store).partitions.config_of(topic)
            known = (topic, min(config["max.message.bytes"], BATCH_BYTES_MAX))
            self._bytes_max[topic.name] = known
        return known[1]

    # How it is appended.

    def _begin_appending(self) -> Work:
        """Return the call that appends the records gathered so far."""
        return partial(self._append_and_tell, self._take_gathered().wanted())

    def _put_append_job(self) -> None:
        self._append_job = self._lane.put(self._begin_appending)
        # The records' futures report the errors.
        self._append_job.ended.add_done_callback(_looked_at)

    def _fail_gathered(self, error: Exception) -> None:
        """Fail the gathered records, and those taken for a call that was not begun."""
        if self._taken is not None:
            self._taken.fail(error)
        self._take_gathered().fail(error)
        self._taken = None

    def _take_gathered(self) -> Round:
        """Take the gathered records; the next ones go to a new round."""
        self._append_job = None
        taken = self._taken = self._gathered
        self._gathered = Round()
        self._has_room.set()
        return taken

    async def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Append all that was sent so far, then call the producer."""
        self._check_loop()
        work = partial(function, *arguments, **named)
        return (await self._lane.finish(lambda: work)).value()

    def _append_and_tell(self, batches: list[GatheredBatch]) -> Exception | None:
        """Append the batches; return the first failure. Runs in another thread."""
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
            if len(batch.records) == 1 or not self._may_go_on():
                return [Outcome(batch, None, error)]
        except Exception as error:
            return [Outcome(batch, None, error)]
        else:
            return [Outcome(batch, result, None)]
        # One record is wrong: append the others.
        return [found for one in batch.one_by_one() for found in self._append_batch(one)]

    def _may_go_on(self) -> bool:
        """Return True if records may follow one that was refused."""
        return True

    def _tell(self) -> None:
        """Set the futures of the senders. Runs in the loop."""
        while self._untold:
            outcome = self._untold[0]
            if outcome.failure is not None and self._failure is None:
                self._failure = outcome.failure
            outcome.tell()
            self._untold.popleft()

    def _call_over(self) -> None:
        self._tell()
        self._taken = None


def _looked_at(job: "asyncio.Future[Any]") -> None:
    if not job.cancelled():
        job.exception()


def _bytes_or_none(given: bytes | None, what: str) -> bytes | None:
    if given is not None and not isinstance(given, bytes):
        raise TypeError(f"{what}: bytes or None, not {type(given).__name__}")
    return given


def _checked_timestamp(timestamp_ms: int) -> int:
    moment_ms = whole_number(timestamp_ms, "a timestamp")
    if not 0 <= moment_ms <= INT64_MAX:
        raise ValueError(f"timestamp_ms {moment_ms}: not from 0 to {INT64_MAX}")
    return moment_ms


def _checked_headers(headers: GivenHeaders) -> Headers:
    pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
    for name, content in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, not {type(name).__name__}")
        _bytes_or_none(content, f"header {name!r}")
    return pairs
