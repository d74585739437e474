"""Records and calls of a producer's tasks, made round by round: one call of the thread pool each.

While a round is under way, the event loop gathers the next one. It encodes each record into a batch
of that round, and lists the producer's calls between the batches. The more tasks send, the larger
the batches, and no record waits for a timer.

A gathered round belongs to the loop, with its batches; a round under way belongs to its thread. So
the loop takes no lock. The thread makes the steps of the round in the order in which they were
asked for, and lists each batch that it is done with for the loop, which sets the senders' futures.

- A cancelled future or sender changes nothing: a record that was taken is appended. A call whose
  turn has not come can be cancelled; the thread skips it.
- After a batch that could not be appended, its partition takes no record that was sent before the
  failure was known: no batch of the same round, and none of the gathered one. A record that is
  refused by itself enters no batch.
- A round that cannot begin (the store is closed, or there is no thread) fails with all its steps.
- `failures` has the failures of records until a flush or a close raises them. A transaction with
  one of them is not committed.
- An abort and a close fail the gathered records of their transaction when they are asked for, and
  are then made in their turn. A begin, a commit and a fence need nothing here: they are calls.
- Ctrl-C may cut off a step of the loop at any line; `go_on` does the rest of it, for the next call
  or for a task that is cancelled.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Never, TypeVar

from eoslog.aio.calls import NOT_BEGUN, Calls, Ended, make_call, until_over
from eoslog.bindings.accumulator import PartitionBuffer
from eoslog.common.record_metadata import RecordMetadata
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InvalidTimestampError, RecordTooLargeError
from eoslog.producer.producer import Producer, ProducerInternals
from eoslog.storage.topic_registry import TopicDescription

T = TypeVar("T")

# Who sends more than this faster than it is appended waits. Setting the futures of so many records
# takes the event loop some milliseconds.
GATHERED_BYTES_MAX = 32 << 20
GATHERED_RECORDS_MAX = 8192
BATCH_BYTES_MAX = 1 << 20
FAILURES_MAX = 8
# Refusals of a batch for what is in it: the next one may be taken.
REFUSALS = (RecordTooLargeError, InvalidTimestampError)


class Batch:
    """Records of one partition for one append, and the futures of their senders."""

    def __init__(self, topic: TopicDescription, where: TopicPartition, bytes_max: int) -> None:
        self.where = where
        self.buffer = PartitionBuffer(*where, bytes_max, topic.topic_id)
        # By index in the batch: Ctrl-C may leave a record without a future.
        self.told: list[tuple[int, int, asyncio.Future[RecordMetadata]]] = []
        self.failure: BaseException | None = None
        self.is_told = False

    def tell(self) -> None:
        """Set the futures."""
        base_offset = self.buffer.accumulator.base_offset
        for index, timestamp_ms, told in self.told:
            if told.done():
                continue  # Its sender was cancelled.
            if self.failure is None:
                offset = base_offset + index
                told.set_result(RecordMetadata(*self.where, offset, timestamp_ms))
            else:
                told.set_exception(self.failure)
                told.exception()  # Retrieved: a flush raises it too.
        self.is_told = True


class Round:
    """Batches and calls, in the order of their requests."""

    def __init__(self) -> None:
        self.call: Future[None] = Future()
        self.is_submitted = False
        self.steps: list[Batch | tuple[Future[Any], Callable[[], Any]]] = []
        # The batches that take more records.
        self.open: dict[TopicPartition, Batch] = {}
        # The partition of each topic whose batch the records without a key fill.
        self.keyless_partitions: dict[str, int] = {}
        self.used_bytes = 0
        self.record_count = 0

    def is_over(self) -> bool:
        """Return True if the thread is done with it."""
        last = None if isinstance(self.steps[-1], Batch) else self.steps[-1][0]
        return self.call.done() or (last is not None and last.done() and not last.cancelled())

    def is_full(self) -> bool:
        """Return True if no more records fit."""
        return self.used_bytes >= GATHERED_BYTES_MAX or self.record_count >= GATHERED_RECORDS_MAX


class Rounds:
    """The rounds of one producer, for the tasks of one event loop."""

    def __init__(
        self,
        producer: Producer,
        calls: Calls,
        loop: asyncio.AbstractEventLoop,
        unfinished: "set[Rounds]",
    ) -> None:
        """`unfinished` has these rounds while something is gathered or under way: their producer
        may be dropped before that is over.
        """
        self._unfinished = unfinished
        self._producer = ProducerInternals(producer)
        self._calls = calls
        self._loop = loop
        # Those of records that no call has raised; a few of them.
        self.failures: deque[BaseException] = deque(maxlen=FAILURES_MAX)
        self._gathered = Round()
        self._under_way: Round | None = None
        self._done: deque[Batch] = deque()  # Their futures are to be set.
        self._has_room = asyncio.Event()
        self._keyless_turns: dict[str, int] = {}

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return True if they were made for that event loop."""
        return loop is self._loop

    # In the event loop.

    @property
    def is_idle(self) -> bool:
        """True if nothing is under way or gathered."""
        is_over = self._under_way is None or self._under_way.is_over()
        return is_over and not self._gathered.steps

    @property
    def is_forked(self) -> bool:
        """True in a forked child: what is gathered is the parent's."""
        return self._calls.is_forked

    def is_full(self) -> bool:
        """Return True if a task must wait before it adds a record."""
        return self._gathered.is_full()

    async def wait_for_room(self) -> None:
        """Wait until the next round begins."""
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

    def add(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        bytes_max: int,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        timestamp_ms: int,
        alone: bool = False,
    ) -> "asyncio.Future[RecordMetadata]":
        """Add a record, whose headers are encoded, in a batch of at most so many bytes, or alone in
        one.

        Raises TypeError, ValueError, RecordTooLargeError: nothing was added.
        """
        gathered = self._gathered
        batch = gathered.open.get(where)
        cut_bytes = min(bytes_max, BATCH_BYTES_MAX)
        if (
            alone
            or batch is None
            or not (batch.buffer.accumulator.has_room(value, key, headers, cut_bytes))
        ):
            batch = Batch(topic, where, bytes_max)
        records = batch.buffer.accumulator
        told: asyncio.Future[RecordMetadata] = self._loop.create_future()
        held_bytes = records.batch_bytes
        gathered.used_bytes += records.add(value, key, headers, timestamp_ms) - held_bytes
        gathered.record_count += 1
        batch.told.append((records.record_count - 1, timestamp_ms, told))
        if len(batch.told) == 1:
            if not gathered.steps:
                self._unfinished.add(self)
                self._loop.call_soon(self.go_on)  # After what others send in this step.
            gathered.steps.append(batch)
            if gathered.open.pop(where, None) is not None:
                # As in Kafka: keyless records fill one partition's batch after another.
                gathered.keyless_partitions.pop(where.topic, None)
            if not alone:
                gathered.open[where] = batch
        return told

    def refused(self, error: Exception) -> "asyncio.Future[RecordMetadata]":
        """Return the future of a record that is not taken."""
        told: asyncio.Future[RecordMetadata] = self._loop.create_future()
        told.set_exception(error)
        told.exception()  # Retrieved: a flush raises it too.
        self.failures.append(error)
        return told

    async def finish(self, work: Callable[[], T], *, surely: bool = False) -> Ended[T]:
        """Make a call after all that was asked for before; return how it ended, also to a cancelled
        task.

        Raises CancelledError only if the call was not begun; with `surely` it always begins. Raises
        ForkedProcessError in a forked child: no thread would end what is under way.
        """
        self._calls.check_process()
        call: Future[T] = Future()
        self._gathered.steps.append((call, work))
        self._gathered.open.clear()
        self.go_on()
        ended = await until_over(call, surely=surely, look=self.go_on)
        self.go_on()
        return ended

    def fail_gathered(self, error: BaseException, where: TopicPartition | None = None) -> None:
        """Fail the gathered records, or those of a partition: they will not be appended."""
        self._fail(self._gathered, error, where)
        self._tell()

    def go_on(self) -> None:
        """Set futures; begin the next round if none is under way."""
        under_way = self._under_way
        if under_way is not None and not under_way.is_submitted:
            # Ctrl-C came at its beginning.
            if under_way.call.cancel():
                self._refuse(under_way, RuntimeError(f"{NOT_BEGUN}: an interrupt came first"))
            else:
                self._follow(under_way)
        is_over = under_way is None or under_way.is_over()
        self._tell()
        if not is_over:
            return
        if not self._gathered.steps:
            self._under_way = None
            self._unfinished.discard(self)
            return
        gathered = Round()
        beginning = self._gathered
        self._under_way, self._gathered = beginning, gathered
        self._has_room.set()
        try:
            self._calls.start(beginning.call, partial(self._make, beginning))
        except Exception as error:
            self._refuse(beginning, error)
        self._follow(beginning)

    def _follow(self, beginning: Round) -> None:
        beginning.call.add_done_callback(self._go_on_in_loop)
        beginning.is_submitted = True

    def _refuse(self, refused: Round, error: Exception) -> None:
        """Fail all of a round that could not begin."""

        def refuse() -> Never:
            raise error

        self._fail(refused, error)
        self._tell()
        for step in refused.steps:
            if not isinstance(step, Batch) and not step[0].done():
                make_call(step[0], refuse)
        refused.call.cancel()

    def _fail(
        self, failing: Round, error: BaseException, where: TopicPartition | None = None
    ) -> None:
        for step in failing.steps:
            if isinstance(step, Batch) and step.failure is None and where in (None, step.where):
                failing.open.pop(step.where, None)
                self._end(step, error)

    def _tell(self) -> None:
        """Set the futures of the senders."""
        while self._done:
            batch = self._done[0]
            if not batch.is_told:
                if batch.failure is not None and not isinstance(batch.failure, REFUSALS):
                    self._fail(self._gathered, batch.failure, batch.where)
                batch.tell()
            self._done.popleft()

    # In a thread of the store.

    def _make(self, beginning: Round) -> None:
        broken: dict[TopicPartition, BaseException] = {}
        for step in beginning.steps:
            if not isinstance(step, Batch):
                if self._done:
                    self._call_in_loop(self._tell)
                make_call(*step)
            elif step.failure is None:
                self._append(step, broken)
            else:
                self._done.append(step)  # The loop may not have come to it.

    def _go_on_in_loop(self, _: "Future[None]") -> None:
        if not self._call_in_loop(self.go_on):
            self.make_left()

    def make_left(self) -> list[BaseException]:
        """Make what a loop that does not run has gathered: its records were taken. Return the
        failures.

        No round is under way.
        """
        if self._loop.is_running():
            return []
        left, self._gathered = self._gathered, Round()
        self._make(left)
        if not self.failures:
            self._unfinished.discard(self)  # Else the store's close raises them.
        return list(self.failures)

    def _append(self, batch: Batch, broken: dict[TopicPartition, BaseException]) -> None:
        failure = broken.get(batch.where)
        if failure is None:
            try:
                self._producer.append_batch(batch.buffer)
            except BaseException as error:
                failure = error
                if not isinstance(error, REFUSALS):
                    broken[batch.where] = error
        self._end(batch, failure)

    # In both.

    def _end(self, batch: Batch, failure: BaseException | None) -> None:
        # In this order, also where Ctrl-C comes: a commit finds the failure of what was left out.
        if failure is not None:
            self.failures.append(failure)
            batch.failure = failure
        self._done.append(batch)

    def _call_in_loop(self, function: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False  # The loop is closed.
        return True
