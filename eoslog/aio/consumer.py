"""Consumer for an event loop.

Invariants: one task at a time uses the consumer. A position is after the last record that a task
got: a task that is cancelled or leaves a loop early loses no record, and no record counts as read
that no task got.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Concatenate, Never, ParamSpec, Self, TypeVar, overload

from eoslog.aio.calls import NOT_BEGUN, Calls, awaited, until_over
from eoslog.aio.opening import ClosedByBlock
from eoslog.aio.waiter import TailWaiter
from eoslog.bindings.record_batch import Record
from eoslog.common.arguments import seconds
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.consumer import (
    ARROW_BYTES_MAX,
    Consumer,
    ConsumerInternals,
)
from eoslog.consumer.record_iterator import record_iterator, take_back
from eoslog.errors import LogClosedError
from eoslog.groups.metadata import ConsumerGroupMetadata
from eoslog.storage.unified_log import UnifiedLog

if TYPE_CHECKING:
    import pyarrow

P = ParamSpec("P")
T = TypeVar("T")

# Up to so many records are read in the event loop, without a thread.
AT_ONCE_RECORDS_MAX = 64
# A member of a group that waits reads at least so often.
GROUP_LOOK_S = 0.5


@with_methods_of_other_clients
class AsyncConsumer(ClosedByBlock):
    """Consumer of an event loop, whose tasks may share it; `AsyncStore.consumer` makes it.

    Its methods and errors are those of `eoslog.Consumer` under the same names; `getone` and
    `getmany` are aiokafka's. `async for record in consumer` reads for ever and ends when the
    consumer is closed. A read that is cancelled has returned nothing: the records come with the
    next one. Any other call that was begun ends, also if the task is cancelled. A read calls what
    `subscribe` is given, in a thread, with the `eoslog.Consumer`.
    """

    _kind = "consumer"

    def __init__(self, consumer: Consumer, calls: Calls, waiter: TailWaiter) -> None:
        self._consumer = self._synchronous = consumer
        self._internals = ConsumerInternals(consumer)
        self._calls = calls
        self._waiter = waiter
        self._turn = asyncio.Lock()
        # Held by the thread that uses the consumer; the waiter thread checks only without it.
        self._used = threading.Lock()
        self._records: Iterator[Record] = iter(())
        # The partition with the group's offsets and its end, while the group's offsets are awaited.
        self._group_end: tuple[UnifiedLog, int] | None = None

    def __repr__(self) -> str:
        return f"<eoslog.aio.AsyncConsumer of {self._consumer!r}>"

    def __reduce__(self) -> Never:
        raise TypeError("a consumer cannot be pickled or copied: make one where it is needed")

    # Assignment and positions.

    assign = awaited(Consumer.assign, "_move")
    subscribe = awaited(Consumer.subscribe, "_move")  # type: ignore[arg-type]
    unsubscribe = awaited(Consumer.unsubscribe, "_move")
    subscription = awaited(Consumer.subscription)
    pause = awaited(Consumer.pause, "_move")
    resume = awaited(Consumer.resume, "_move")
    seek = awaited(Consumer.seek, "_move")
    seek_to_beginning = awaited(Consumer.seek_to_beginning, "_move")
    seek_to_end = awaited(Consumer.seek_to_end)
    seek_to_committed = awaited(Consumer.seek_to_committed, "_move")
    position = awaited(Consumer.position)
    lag = awaited(Consumer.lag)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, in the order of their assignment."""
        return self._consumer.assignment()

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that `pause` holds."""
        return self._consumer.paused()

    # The group's offsets.

    commit = awaited(Consumer.commit)  # type: ignore[arg-type]
    committed_metadata = awaited(Consumer.committed_metadata)

    @overload
    async def committed(self, topic_partition: TopicPartition) -> int | None: ...

    @overload
    async def committed(
        self, topic_partition: list[TopicPartition]
    ) -> dict[TopicPartition, int | None]: ...

    async def committed(
        self, topic_partition: TopicPartition | list[TopicPartition]
    ) -> int | dict[TopicPartition, int | None] | None:
        """Return the group's committed offset of a partition, or of each in a list; None if none.

        Errors are those of `Consumer.committed`.
        """
        return await self._call(self._consumer.committed, topic_partition)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group's metadata, for `send_offsets_to_transaction`."""
        return self._consumer.group_metadata()

    # What partitions hold; they need not be assigned.

    beginning_offsets = awaited(Consumer.beginning_offsets)
    end_offsets = awaited(Consumer.end_offsets)
    offsets_for_times = awaited(Consumer.offsets_for_times)

    # Reading.

    async def poll(
        self, timeout: float = 1.0, max_records: int | None = None, **others: Never
    ) -> list[Record]:
        """Return the next records: at once if there are any, else within `timeout` seconds.

        Arguments, result and errors are those of `Consumer.poll`.
        """
        return await self._read(timeout, lambda: self._consumer.poll(0, max_records, **others))

    async def poll_arrow(
        self, timeout: float = 1.0, max_bytes: int = ARROW_BYTES_MAX, **others: Never
    ) -> "pyarrow.RecordBatch":
        """Return the next records of one partition as an Arrow batch: see `Consumer.poll_arrow`."""

        def read() -> "pyarrow.RecordBatch":
            return self._consumer.poll_arrow(0, max_bytes, **others)

        return await self._read(timeout, read, lambda batch: batch.num_rows > 0)

    async def getone(self) -> Record:
        """Return the next record, without a limit of time. Raises LogClosedError once closed."""
        has_waited = False
        while True:
            self._internals.check_open()
            if not self._turn.locked():
                record = next(self._records, None)
                if record is not None:
                    return record
            async with self._turn:
                record = next(self._records, None)
                if record is None:
                    records = await self._read_in_turn(lambda: self._consumer.poll(0), has_waited)
                    # Before another task's turn: positions follow the records returned.
                    self._records = record_iterator(self._internals.positions, records)
                    record = next(self._records, None)
            if record is not None:
                return record
            has_waited = await self._wait(None)

    async def getmany(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Return the next records by partition; {} after `timeout_ms` milliseconds without any."""
        found: dict[TopicPartition, list[Record]] = {}
        for record in await self.poll(seconds(timeout_ms, "timeout_ms") / 1000, max_records):
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. A `commit` in the loop covers the record at hand."""
        try:
            return await self.getone()
        except LogClosedError:
            if self._consumer.closed:
                raise StopAsyncIteration from None
            raise

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._consumer.closed

    async def close(self) -> None:
        """Close the consumer; a poll that waits ends. A second call does nothing, and so does one
        in a forked child.

        A task that is cancelled waits for the end.
        """
        if self._calls.is_forked:
            return
        ended = await until_over(self._calls.submit(self._consumer.close), surely=True)
        self._waiter.wake(self)
        ended.value()

    def _check_enter(self) -> None:
        self._internals.check_open()

    # How it is done.

    async def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        try:
            await self._turn.acquire()
        except asyncio.CancelledError as error:
            error.add_note(NOT_BEGUN)
            raise
        try:
            return await self._calls.run(self._alone, partial(function, *arguments, **named))
        finally:
            self._turn.release()

    async def _move(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make a call that moves the consumer: a task that waits checks again."""
        found = await self._call(function, *arguments, **named)
        self._waiter.wake(self)
        return found

    def _alone(self, function: Callable[[], T]) -> T:
        with self._used:
            return function()

    async def _read(
        self, timeout_s: float, read: Callable[[], T], is_any: Callable[[T], bool] = bool
    ) -> T:
        """Read until there are records, or the timeout is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds(timeout_s, "timeout")
        has_waited = False
        while True:
            async with self._turn:
                found = await self._read_in_turn(read, has_waited)
            left_s = deadline_s - loop.time()
            if is_any(found) or left_s <= 0:
                return found
            has_waited = await self._wait(left_s)

    async def _wait(self, timeout_s: float | None) -> bool:
        """Wait until there may be something to read; return False after the timeout."""
        if not self._internals.is_plain():
            # A member sends heartbeats, expires dead members and follows the group by reading.
            timeout_s = GROUP_LOOK_S if timeout_s is None else min(timeout_s, GROUP_LOOK_S)
        with self._internals.deletions_named():
            has_waited = await self._waiter.wait(self, timeout_s)
        self._internals.check_open()
        return has_waited

    async def _read_in_turn(self, read: Callable[[], T], has_waited: bool) -> T:
        if has_waited and self._internals.is_plain():
            with self._internals.deletions_named():
                is_little = self._internals.lag() <= AT_ONCE_RECORDS_MAX
            if is_little:
                # New records are in memory: a thread would only cost time.
                return self._alone(read)
        ended = await self._calls.finish(self._alone, partial(self._read_and_look, read))
        if ended.cancelled is not None and ended.result:
            # No task gets these records: they count as not read.
            take_back(self._internals.positions, ended.result)
        return ended.value()

    def _read_and_look(self, read: Callable[[], T]) -> T:
        found = read()
        # The read waits until the group's offsets are decided.
        group = self._internals.group_partition()
        self._group_end = None if group is None else (group, group.log_end_offset)
        return found

    # For the thread that waits.

    def watched(self) -> list[UnifiedLog]:
        """Return the partitions whose appends may make it ready."""
        group = [] if self._group_end is None else [self._group_end[0]]
        return [*self._internals.positions.partitions.values(), *group]

    def is_ready(self) -> bool:
        """Return True if there may be something to read. Does not block."""
        if not self._used.acquire(blocking=False):
            return True  # Another thread seeks or assigns: check afterwards.
        try:
            return self._consumer.closed or self._has_grown()
        finally:
            self._used.release()

    def _has_grown(self) -> bool:
        if self._group_end is not None:
            partition, end = self._group_end
            if partition.log_end_offset > end:
                return True
        return self._internals.lag() > 0


async def with_consumer(
    consumer: AsyncConsumer,
    function: Callable[Concatenate[Consumer, P], T],
    *arguments: P.args,
    **named: P.kwargs,
) -> T:
    """Return `function(consumer, ...)` of the synchronous consumer: one call, in a thread."""
    return await consumer._call(function, consumer._consumer, *arguments, **named)
