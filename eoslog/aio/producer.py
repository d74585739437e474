"""Producers of an event loop: records that tasks send are gathered, and appended together.

Invariants: a transaction is committed only with all records that were taken for it; a commit or an
abort that was begun ends, also if the task is cancelled, and `outcome` says how.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Never, ParamSpec, TypeVar, cast

from eoslog.aio.calls import Calls, Ended, awaited, until_done
from eoslog.aio.opening import ClosedByBlock
from eoslog.aio.rounds import Rounds
from eoslog.bindings.accumulator import encoded_headers
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.partitioner import partition_for_key
from eoslog.columns.topic_limits import NO_TIMESTAMP, TopicLimits
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.config import INT64_MAX
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.record_metadata import RecordMetadata
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    IllegalStateError,
    InvalidTimestampError,
    LogClosedError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from eoslog.producer.producer import Producer, ProducerInternals
from eoslog.producer.transaction_manager import TransactionManager
from eoslog.producer.transaction_states import OPEN, ClientState
from eoslog.producer.transactional_producer import TransactionalProducer
from eoslog.storage.topic_registry import TopicDescription, partition_of
from eoslog.store.store import Store, engine_of

P = ParamSpec("P")
T = TypeVar("T")

# A record so close to a topic's oldest timestamp may be beyond it when it is appended.
NEAR_LIMIT_MS = 60_000

TransactionOutcome = Literal["committed", "aborted", "unknown"]
GivenHeaders = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


@with_methods_of_other_clients
class AsyncProducer(ClosedByBlock):
    """Producer of an event loop, whose tasks may share it; `AsyncStore.producer` makes it.

    `send` returns a future of the record's place; `send_and_wait` awaits it. Its identity and its
    errors are those of `eoslog.Producer`. A record that could not be appended fails its future and
    the next `flush` or `close`, so that no failure goes unseen.
    """

    _kind = "producer"

    def __init__(
        self, store: Store, producer: Producer, calls: Calls, unfinished: set[Rounds]
    ) -> None:
        self._store = store
        self._producer = self._synchronous = producer
        self._check_producer = ProducerInternals(producer).check_appendable
        self._loop = asyncio.get_running_loop()
        self._rounds = Rounds(producer, calls, self._loop, unfinished)
        self._limits: dict[str, tuple[TopicDescription, TopicLimits]] = {}
        self._closed = False  # It takes nothing more.
        self._is_over = False  # The producer under it is closed too.

    def __repr__(self) -> str:
        return f"<eoslog.aio.{type(self).__name__} of {self._producer!r}>"

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
        """Take one record, and return a future of its place in the log.

        It is taken at once, unless 8,192 records or 32 MiB wait to be appended: then when there is
        room. A task that is cancelled while it waits for room has sent nothing. A record that was
        taken is appended, also if the future is cancelled.

        Parameters
        ----------
        topic, value, key, partition, headers, timestamp_ms
            As of `Producer.send`.

        Returns
        -------
        Future of RecordMetadata
            Raises what `Producer.append` does.

        Raises
        ------
        TypeError, ValueError, UnknownTopicOrPartitionError, ProducerFencedError, LogClosedError
            The record was not taken.
        """
        self._check_loop()
        while self._rounds.is_full():
            await self._rounds.wait_for_room()
        self._check_appendable()
        description = engine_of(self._store).topic(topic)
        limits = self._limits_of(description)
        where = self._place(description, partition, key)
        encoded = encoded_headers(headers)
        alone = False
        try:
            if timestamp_ms is None:
                timestamp_ms = clock.now_ms()
            elif _checked_timestamp(timestamp_ms) != NO_TIMESTAMP:
                limits.check_timestamps(timestamp_ms, timestamp_ms)
                age_ms = clock.now_ms() - timestamp_ms
                alone = limits.timestamp_before_max_ms - age_ms < NEAR_LIMIT_MS
            return self._rounds.add(
                description,
                where,
                limits.message_bytes_max,
                value,
                key,
                encoded,
                timestamp_ms,
                alone=alone,
            )
        except (RecordTooLargeError, InvalidTimestampError) as error:
            return self._rounds.refused(error)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Append one record, and return its place in the log.

        On return it survives the death of the process, with durability "always" a power cut. A task
        that is cancelled after the record was taken waits until it is appended; a note of the
        CancelledError gives its place. Arguments and errors are those of `send` and its future.
        """
        told = await self.send(topic, value, key, partition, headers, timestamp_ms)
        ended = await until_done(told, told, self._rounds.go_on, lambda: False)
        return ended.value(lambda found: f"the record is in the log: {found}")

    async def append(
        self,
        topic: str,
        partition: int | None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> AppendResult | dict[int, AppendResult]:
        """Append the records of columns, after what was sent before.

        Arguments, result and errors are those of `Producer.append`. An append that was begun ends,
        also if the task is cancelled.
        """
        arguments: tuple[Any, ...] = (topic, partition, values, keys, timestamps, headers)
        return await self._call(self._producer.append, *arguments)

    async def flush(self, *timeout: Never, **others: Never) -> None:
        """Append all that was sent, and make all that this producer appended power-safe.

        With durability "process" nothing is synced. Raises what `Producer.flush` raises, or the
        first error of a record that no flush has raised yet.
        """
        await self._call(self._producer.flush, *timeout, **others)
        self._check_failure()

    def _check_failure(self) -> None:
        """Raise the first error of a record that no call has raised yet."""
        found = [self._rounds.failures.popleft() for _ in range(len(self._rounds.failures))]
        if found:
            raise found[0]

    next_sequence = awaited(Producer.next_sequence)

    async def close(self) -> None:
        """Flush, or abort the open transaction, then take nothing more. A second call does nothing,
        and so does one in a forked child.

        Raises what `flush` raises; the producer is closed all the same. A task that is cancelled
        waits for the end; the next call then raises what this one would have raised.
        """
        self._closed = True
        if self._rounds.is_forked:
            return
        if not self._is_over:
            (await self._end(self._close, surely=True)).value()
        self._check_failure()

    async def _end(self, work: Callable[[], T], surely: bool = False) -> Ended[T]:
        return await self._make(work, surely)

    async def _make(self, work: Callable[[], T], surely: bool = False) -> Ended[T]:
        self._check_loop()
        return await self._rounds.finish(work, surely=surely)

    def _close(self) -> None:
        try:
            self._producer.close()
        finally:
            self._is_over = True

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
        self._check_producer()

    def _place(
        self, topic: TopicDescription, partition: int | None, key: bytes | None
    ) -> TopicPartition:
        if partition is not None:
            return partition_of(topic, partition)
        if key is not None:
            return TopicPartition(topic.name, partition_for_key(key, topic.partitions))
        return TopicPartition(topic.name, self._rounds.keyless_partition(topic))

    def _limits_of(self, topic: TopicDescription) -> TopicLimits:
        known = self._limits.get(topic.name)
        if known is None or known[0] is not topic:
            config = engine_of(self._store).partitions.config_of(topic)
            known = self._limits[topic.name] = (topic, TopicLimits.of(config))
        return known[1]

    async def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Append all that was sent so far, then call the producer."""
        return (await self._make(partial(function, *arguments, **named))).value()


class AsyncTransactionalProducer(AsyncProducer):
    """Producer that writes in transactions; `AsyncStore.producer(transactional_id=...)` makes it.

    First `await init_transactions()`; then, again and again, `async with producer.transaction():`.
    States, errors and durability are those of `eoslog.TransactionalProducer`. Tasks of one event
    loop may share it, and with it its one open transaction. It has the calls of `AsyncProducer`
    too.

    A task that is cancelled in a transaction's block aborts the transaction. One that is cancelled
    while the commit is under way waits for its end; `outcome` and a note of the CancelledError then
    say whether it is committed.
    """

    _producer: TransactionalProducer

    def __init__(
        self, store: Store, producer: TransactionalProducer, calls: Calls, unfinished: set[Rounds]
    ) -> None:
        super().__init__(store, producer, calls, unfinished)
        self._transactions = cast(TransactionManager, ProducerInternals(producer).transactions)
        # The transaction begun last; and that which `outcome` is of: it may not have been begun.
        self._current = self._last = AsyncTransaction(self)
        self._end_count = 0  # Calls under way, or waiting, that end the transaction.
        self._is_answered = True  # The caller of prepare_transaction has the answer.

    @property
    def transactional_id(self) -> str:
        """The id that makes one producer the successor of another, over restarts too."""
        return self._producer.transactional_id

    @property
    def outcome(self) -> TransactionOutcome | None:
        """Outcome of the last transaction; None while it is open or undecided, and after a begin
        that failed.

        "unknown": the disk failed at the decision; the next opening of the store finds out. Tasks
        that share the producer ask their block: see `AsyncTransaction.outcome`.
        """
        return self._last.outcome

    init_transactions = awaited(TransactionalProducer.init_transactions)
    send_offsets_to_transaction = awaited(TransactionalProducer.send_offsets_to_transaction)

    def transaction(self) -> "AsyncTransaction":
        """Return a block that begins a transaction, commits it at its end, or aborts it after an
        exception.
        """
        return AsyncTransaction(self)

    async def begin_transaction(self) -> None:
        """Begin a transaction.

        Raises
        ------
        IllegalStateError
            One is open.
        ProducerFencedError
        """
        cancelled = await self._begin(AsyncTransaction(self))
        if cancelled is not None:
            raise cancelled

    async def _begin(self, transaction: "AsyncTransaction") -> asyncio.CancelledError | None:
        """Begin one; the cancellation of a task whose begin was made all the same."""
        self._check_loop()
        self._forget_outcome(transaction)
        if self._rounds.is_idle:
            self._begin_now(transaction)  # It only changes the producer's own state.
            return None
        ended = await self._rounds.finish(partial(self._begin_now, transaction))
        if ended.error is not None:
            ended.value()
        return ended.cancelled

    async def commit_transaction(self) -> None:
        """Append what was sent, and commit: visible and durable on return.

        A task that is cancelled before the commit was begun leaves the transaction open; later it
        waits for the end.

        Raises
        ------
        TransactionAbortableError
            A record was refused: abort the transaction. Also raises what
            `TransactionalProducer.commit_transaction` raises.
        """
        ended = await self._end(self._commit)
        ended.value(lambda _: "the transaction is committed")

    async def abort_transaction(self) -> None:
        """Abort: what the transaction sent is never read as committed.

        What was not appended yet fails with TransactionAbortedError. A task that is cancelled
        here waits for the end.
        """
        ended = await self._end(self._abort, surely=True)
        ended.value(lambda _: "the transaction is aborted")

    async def prepare_transaction(self) -> PreparedTransaction:
        """Append and sync all of the transaction, and leave the decision to the caller.

        A task that is cancelled here waits for the end. If that leaves the block of the
        transaction, it is aborted. Outside of a block it stays prepared, and a note of the
        CancelledError has the result. Raises what `TransactionalProducer.prepare_transaction`
        raises.
        """
        ended = await self._end(self._prepare)
        answer = ended.value(lambda found: f"the transaction is prepared: {found}")
        self._is_answered = True
        return answer

    async def complete_transaction(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it.

        A task that is cancelled here waits for the end. Argument, result and errors are those of
        `TransactionalProducer.complete_transaction`.
        """
        ended = await self._make(partial(self._complete, prepared))
        return ended.value(lambda done: f"the transaction is {'committed' if done else 'aborted'}")

    # How it ends.

    def _check_failure(self) -> None:
        """Raise TransactionAbortableError if a record of the open transaction failed."""
        failures = self._rounds.failures
        if failures and self._is_in((ClientState.IN_TRANSACTION,)):
            raise TransactionAbortableError(f"a record was refused: {failures[0]}") from failures[0]

    def _check_appendable(self) -> None:
        if self._end_count:
            raise IllegalStateError("the transaction is being ended: send records before that")
        super()._check_appendable()

    async def _end(self, work: Callable[[], T], surely: bool = False) -> Ended[T]:
        """End the transaction in its turn; no record comes between. An end that is sure gives up
        what is gathered.
        """
        self._check_loop()
        self._end_count += 1
        try:
            if surely:
                self._rounds.fail_gathered(
                    TransactionAbortedError(
                        "the transaction was aborted before this record was appended"
                    )
                )
            return await self._make(work, surely)
        finally:
            self._end_count -= 1

    # In a thread of the store. The outcome is noted there: the task that asked for an end may be
    # gone when it comes.

    def _begin_now(self, transaction: "AsyncTransaction") -> None:
        self._forget_outcome(transaction)
        if self._is_in((ClientState.READY,)):
            # Before it begins: from then on the failures are those of its records, and its end is
            # no other's outcome, also where Ctrl-C comes next.
            self._rounds.failures.clear()
            self._current = self._last = transaction
            self._is_answered = True
        self._producer.begin_transaction()

    def _forget_outcome(self, asked_for: "AsyncTransaction") -> None:
        """Forget how the last transaction ended: another one was asked for, begun or not."""
        if self._current.outcome is not None:
            self._last = asked_for

    def _commit(self) -> None:
        self._check_failure()
        try:
            self._producer.commit_transaction()
        except Exception as error:
            if self._is_in_doubt(error):
                self._current.outcome = "unknown"
            elif self._transactions.was_late:
                self._current.outcome = "aborted"
            raise
        self._current.outcome = "committed"

    def _complete(self, prepared: PreparedTransaction | str | None) -> bool:
        committed = self._producer.complete_transaction(prepared)
        self._current.outcome = "committed" if committed else "aborted"
        return committed

    def _abort(self) -> None:
        self._producer.abort_transaction()
        self._current.outcome = "aborted"

    def _abort_left(self, transaction: "AsyncTransaction", error: BaseException) -> None:
        """Abort what a block leaves open; if that fails too, the error says so."""
        if transaction is not self._current:
            return  # It is another task's by now.
        try:
            if self._is_in(OPEN):
                self._transactions.abort_after(error)
                if self._is_in((ClientState.READY,)):
                    transaction.outcome = "aborted"
            elif self._is_prepared_for_nobody():
                self._complete(None)
        except EoslogError as second:
            error.add_note(f"aborting the transaction failed too: {second}")

    def _is_prepared_for_nobody(self) -> bool:
        """Return True if the prepared transaction's answer was lost with its cancelled task."""
        return not self._is_answered and self._is_in((ClientState.PREPARED_TRANSACTION,))

    def _close(self) -> None:
        was_open = self._is_in((*OPEN, ClientState.ABORTING_TRANSACTION))
        was_refused = self._transactions.accumulator.refusal is not None
        super()._close()
        if was_open and not was_refused:
            self._current.outcome = "aborted"

    def _prepare(self) -> PreparedTransaction:
        self._check_failure()
        answer = self._producer.prepare_transaction()
        self._is_answered = False
        return answer

    def _is_in_doubt(self, error: BaseException) -> bool:
        """Return True if a failed commit may be decided."""
        fatal = self._is_in((ClientState.FATAL_ERROR,))
        return fatal and isinstance(error, EoslogError) and error.outcome == "unknown"

    # For the block.

    async def _leave_block(self) -> None:
        if self._transactions.is_ended:
            return  # Ended in the block; a close, of whomever, is no end that was asked for there.
        try:
            await self.commit_transaction()
        except BaseException as error:
            await self._abort_after(error)
            raise

    async def _abort_after(self, error: BaseException) -> None:
        """Abort what is open still; if that fails too, the error says so."""
        # What is under way may be its commit, whose caller an interrupt has cut off.
        if not self._rounds.is_idle or self._is_in(OPEN) or self._is_prepared_for_nobody():
            await self._end(partial(self._abort_left, self._current, error), surely=True)

    def _is_in(self, states: tuple[ClientState, ...]) -> bool:
        return self._transactions.state in states


class AsyncTransaction:
    """The block of one transaction. `outcome` is its own, whatever other tasks begin."""

    def __init__(self, producer: AsyncTransactionalProducer) -> None:
        self._producer = producer
        self.outcome: TransactionOutcome | None = None

    def __repr__(self) -> str:
        return f"<eoslog.aio.AsyncTransaction of {self._producer!r}, outcome {self.outcome}>"

    async def __aenter__(self) -> AsyncTransactionalProducer:
        self.outcome = None
        cancelled = await self._producer._begin(self)
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


def synchronous(producer: AsyncTransactionalProducer) -> TransactionalProducer:
    """Return the producer under it."""
    return producer._producer


def _checked_timestamp(timestamp_ms: int) -> int:
    moment_ms = whole_number(timestamp_ms, "a timestamp")
    if not NO_TIMESTAMP <= moment_ms <= INT64_MAX:
        raise ValueError(f"timestamp_ms {moment_ms}: not from 0 to {INT64_MAX}, nor -1 (none)")
    return moment_ms
