"""Producers of an event loop: records that tasks send are gathered, and appended together.

Invariants: a transaction is committed only with all records that were taken for it; a commit or an
abort that was begun ends, also if the task is cancelled meanwhile, and `outcome` says how.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Never, ParamSpec, TypeVar

from eoslog.aio.aio_accumulator import (
    AsyncAccumulator,
    GatheredBatch,
    GivenRecord,
    Headers,
    RecordMetadata,
)
from eoslog.aio.aio_calls import Calls, Ended, Work, until_ended
from eoslog.aio.aio_opening import ClosedByBlock
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.partitioner import partition_for_key
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.config import INT64_MAX
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    IllegalStateError,
    LogClosedError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.producer import Producer, check_appendable, known_partition, known_topic
from eoslog.producer.transaction_states import OPEN, ClientState
from eoslog.producer.transactional_producer import TransactionalProducer, transaction_manager_of
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.store import Store, engine_of

P = ParamSpec("P")
T = TypeVar("T")

BATCH_BYTES_MAX = 1 << 20

TransactionOutcome = Literal["committed", "aborted", "unknown"]
GivenHeaders = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


@with_methods_of_other_clients
class AsyncProducer(ClosedByBlock):
    """Writes records; `AsyncStore.producer` makes it. The tasks of one event loop may share it.

    `send` gives a future of where the record is; `send_and_wait` awaits it. What a producer is, and
    which errors it raises, is as `eoslog.Producer` has it. A record that could not be appended
    fails its future and the next `flush` or `close`, so that no failure goes unseen.
    """

    _kind = "producer"
    _skips_refused = True

    def __init__(self, store: Store, producer: Producer, calls: Calls) -> None:
        self._store = store
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._records = AsyncAccumulator(
            producer, calls, self._loop, skips_refused=self._skips_refused
        )
        self._lane = self._records.lane
        self._bytes_max: dict[str, tuple[TopicDescription, int]] = {}
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
        while self._records.is_full():
            await self._records.wait_for_room()
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
        self._records.add(where, record, self._batch_bytes_max(description))
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
        ended = await until_ended(told, lambda: self._records.withdraw(told), self._lane.look)
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
            failure, self._records.failure = self._records.failure, None
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
        if self._records.failure is not None:
            raise self._records.failure

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
        return TopicPartition(topic.name, self._records.keyless_partition(topic))

    def _batch_bytes_max(self, topic: TopicDescription) -> int:
        known = self._bytes_max.get(topic.name)
        if known is None or known[0] is not topic:
            config = engine_of(self._store).partitions.config_of(topic)
            known = (topic, min(config["max.message.bytes"], BATCH_BYTES_MAX))
            self._bytes_max[topic.name] = known
        return known[1]

    async def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Append all that was sent so far, then call the producer."""
        self._check_loop()
        work = partial(function, *arguments, **named)
        return (await self._lane.finish(lambda: work)).value()


class AsyncTransactionalProducer(AsyncProducer):
    """Writes in transactions; `AsyncStore.producer(transactional_id=...)` makes it.

    First `await init_transactions()`; then, again and again, `async with producer.transaction():`.
    States, errors and what is durable are as `eoslog.TransactionalProducer` has them. Tasks of one
    event loop may share it, and with it its one open transaction.

    A task that is cancelled in a transaction's block aborts the transaction. One that is cancelled
    while the commit is under way waits for its end; `outcome` and a note of the CancelledError then
    say whether it is committed.
    """

    _producer: TransactionalProducer
    _skips_refused = False

    def __init__(self, store: Store, producer: TransactionalProducer, calls: Calls) -> None:
        super().__init__(store, producer, calls)
        # What became of which transaction. Said by the thread that ended it: the task that asked
        # for the end may be gone by then.
        self._turn = 0
        self._outcome: tuple[int, TransactionOutcome | None] = (0, None)
        self._is_ending = False
        self._is_answered = True  # The caller of prepare_transaction has the answer.

    @property
    def transactional_id(self) -> str:
        """The id that makes one producer the successor of another, over restarts too."""
        return self._producer.transactional_id

    @property
    def outcome(self) -> TransactionOutcome | None:
        """Outcome of the last transaction; None while that is open, or not decided yet, and if it
        could not even be begun.

        "unknown": the disk failed at the decision; only the next opening of the store finds out.
        """
        turn, outcome = self._outcome
        return outcome if turn == self._turn else None

    async def init_transactions(self, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Take the transactional id over; see `TransactionalProducer.init_transactions`."""
        return await self._call(self._producer.init_transactions, keep_prepared)

    def transaction(self) -> "AsyncTransaction":
        """A block: begun at its start, committed at its end, aborted by an exception."""
        return AsyncTransaction(self)

    async def begin_transaction(self) -> None:
        """Begin one. Raises IllegalStateError if one is open, ProducerFencedError."""
        cancelled = await self._begin()
        if cancelled is not None:
            raise cancelled

    async def _begin(self) -> asyncio.CancelledError | None:
        """Begin one; the cancellation of a task whose begin was made all the same."""
        self._check_loop()
        if self._lane.is_idle:
            self._begin_now()  # It only changes the producer's own state.
            return None
        ended = await self._lane.finish(lambda: self._begin_now)
        if ended.error is not None:
            ended.value()
        return ended.cancelled

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Have a group's offsets committed with the transaction; `group` as a consumer's
        `group_metadata()` gives it.
        """
        await self._call(self._producer.send_offsets_to_transaction, offsets, group)

    async def commit_transaction(self) -> None:
        """Append what was sent, and commit: visible and durable on return.

        Raises TransactionAbortableError if a record was refused: abort it; and what
        `TransactionalProducer.commit_transaction` raises. A task that is cancelled before the
        commit was begun leaves the transaction open; later it waits for the end.
        """
        turn = self._turn
        ended = await self._end(lambda: partial(self._commit, turn, self._records.take()))
        if ended.error is None and ended.cancelled is not None:
            ended.cancelled.add_note("the transaction is committed")
        ended.value()

    async def abort_transaction(self) -> None:
        """Abort: what the transaction sent is never read as committed.

        What was not appended yet fails with TransactionAbortedError. A task that is cancelled
        meanwhile waits for the end.
        """
        turn = self._turn
        ended = await self._end(lambda: self._begin_aborting(turn), surely=True)
        if ended.error is None and ended.cancelled is not None:
            ended.cancelled.add_note("the transaction is aborted")
        ended.value()

    async def prepare_transaction(self) -> PreparedTransaction:
        """Append and sync all of it, and leave the decision to the caller, who has the answer.

        A task that is cancelled meanwhile waits for the end. If that leaves the block of the
        transaction, it is aborted: no caller has the answer. Outside of a block it stays
        prepared, and a note of the CancelledError has the answer.
        """
        ended = await self._end(lambda: partial(self._prepare, self._records.take()))
        if ended.error is None and ended.cancelled is not None:
            ended.cancelled.add_note(f"the transaction is prepared: {ended.result}")
        answer = ended.value()
        self._is_answered = True
        return answer

    async def complete_transaction(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it.

        A task that is cancelled meanwhile waits for the end.
        """
        self._check_loop()
        work = partial(self._complete, self._turn, prepared)
        ended = await self._lane.finish(lambda: work)
        if ended.error is None and ended.cancelled is not None:
            became = "committed" if ended.result else "aborted"
            ended.cancelled.add_note(f"the transaction is {became}")
        return ended.value()

    async def close(self) -> None:
        """Abort the open transaction, then take nothing more. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        turn = self._turn
        (await self._end(lambda: self._begin_closing(turn), surely=True)).value()

    # How it ends.

    def _check_appendable(self) -> None:
        if self._is_ending:
            raise IllegalStateError("the transaction is being ended: send records before that")
        super()._check_appendable()

    async def _end(self, begin: Callable[[], Callable[[], T]], surely: bool = False) -> Ended[T]:
        """Call the producer in the lane's turn, with what was gathered; no record comes between."""
        self._check_loop()
        self._is_ending = True
        self._records.hold_append()  # One call for both.
        try:
            return await self._lane.finish(begin, surely=surely)
        finally:
            self._is_ending = False
            # If it was cancelled before it was begun, all is as if it had not been made.
            self._records.resume_append()

    # In a thread of the store.

    def _begin_now(self) -> None:
        # Also where none is begun: who asks then must not hear of the one before.
        self._turn += 1
        self._producer.begin_transaction()
        self._is_answered = True
        self._records.failure = None

    def _commit(self, turn: int, batches: list[GatheredBatch]) -> None:
        self._append_or_refuse(batches)
        try:
            self._producer.commit_transaction()
        except Exception as error:
            if self._is_in_doubt(error):
                self._outcome = turn, "unknown"
            elif transaction_manager_of(self._producer).was_late:
                self._outcome = turn, "aborted"
            raise
        self._outcome = turn, "committed"

    def _complete(self, turn: int, prepared: PreparedTransaction | str | None) -> bool:
        committed = self._producer.complete_transaction(prepared)
        self._outcome = turn, "committed" if committed else "aborted"
        return committed

    def _abort(self, turn: int) -> None:
        self._producer.abort_transaction()
        self._outcome = turn, "aborted"

    def _abort_left(self, turn: int, error: BaseException) -> None:
        """Abort what a block leaves open; if that fails too, the error says so."""
        if turn != self._turn:
            return  # It is another task's by now.
        try:
            if self._is_in(OPEN):
                transaction_manager_of(self._producer).abort_after(error)
                if self._is_in((ClientState.READY,)):
                    self._outcome = turn, "aborted"
            elif self._is_prepared_for_nobody():
                self._complete(turn, None)
        except EoslogError as second:
            error.add_note(f"aborting the transaction failed too: {second}")

    def _is_prepared_for_nobody(self) -> bool:
        """Return True if the prepared transaction's answer was lost with its cancelled task."""
        return not self._is_answered and self._is_in((ClientState.PREPARED_TRANSACTION,))

    def _close(self, turn: int) -> None:
        was_open = self._is_in((*OPEN, ClientState.ABORTING_TRANSACTION))
        manager = transaction_manager_of(self._producer)
        was_refused = manager.accumulator.refusal is not None
        self._producer.close()
        if was_open and not was_refused:
            self._outcome = turn, "aborted"

    def _prepare(self, batches: list[GatheredBatch]) -> PreparedTransaction:
        self._append_or_refuse(batches)
        answer = self._producer.prepare_transaction()
        self._is_answered = False
        return answer

    def _append_or_refuse(self, batches: list[GatheredBatch]) -> None:
        """Append what is left; raises if a record of the transaction was refused."""
        failure = self._records.append_and_tell(batches) or self._records.failure
        if failure is not None and self._is_in((ClientState.IN_TRANSACTION,)):
            raise TransactionAbortableError(f"a record was refused: {failure}") from failure

    # In the event loop, as the turn has come.

    def _begin_aborting(self, turn: int) -> Work:
        self._give_up_gathered()
        return partial(self._abort, turn)

    def _begin_closing(self, turn: int) -> Work:
        self._give_up_gathered()
        return partial(self._close, turn)

    def _give_up_gathered(self) -> None:
        self._records.fail(
            TransactionAbortedError("the transaction was aborted before this record was appended")
        )

    def _is_in_doubt(self, error: BaseException) -> bool:
        """Return True if a failed commit may be decided."""
        fatal = self._is_in((ClientState.FATAL_ERROR,))
        return fatal and isinstance(error, EoslogError) and error.outcome == "unknown"

    # For the block.

    async def _leave_block(self) -> None:
        if transaction_manager_of(self._producer).is_ended:
            return  # Ended in the block; a close, of whomever, is no end that was asked for there.
        try:
            await self.commit_transaction()
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """Abort what is open still; if that fails too, the error says so."""
        turn = self._turn

        def begin() -> Work:
            if turn == self._turn and self._is_in(OPEN):
                self._give_up_gathered()
            return partial(self._abort_left, turn, error)

        # What is under way may be its commit, whose caller an interrupt has cut off.
        if not self._lane.is_idle or self._is_in(OPEN) or self._is_prepared_for_nobody():
            await self._end(begin, surely=True)

    def _is_in(self, states: tuple[ClientState, ...]) -> bool:
        return transaction_manager_of(self._producer).state in states


class AsyncTransaction:
    """The block of one transaction."""

    def __init__(self, producer: AsyncTransactionalProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> AsyncTransactionalProducer:
        cancelled = await self._producer._begin()
        if cancelled is not None:
            await self._producer._abort_after(cancelled)
            raise cancelled
        return self._producer

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self._producer._leave_block()
        else:
            await self._producer._abort_after(error)


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
