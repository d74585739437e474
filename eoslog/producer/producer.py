"""Writing: a producer numbers its records, so that none enters the log twice.

Invariants: a partition's records enter the log in the order in which they were given; a record is
taken, or the call that gave it raises; a named producer's partition is in the name's record before
its first append there; a fenced or closed producer appends nothing more.
"""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Never, Self, overload

from eoslog.bindings.accumulator import PartitionBuffer, TopicBuffers
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.sender import Sender
from eoslog.columns.column_batch import columns_by_partition
from eoslog.common.arguments import whole_number
from eoslog.common.config import PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    ForkedProcessError,
    IllegalStateError,
    InvalidProducerEpochError,
    LogClosedError,
    OutOfMemoryError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.producer_identity import ProducerIdentity
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.sequenced_partition import SequencedPartition
from eoslog.producer.transaction_states import TransactionStates
from eoslog.storage.partition import Partition
from eoslog.storage.topic_registry import TopicDescription

RECORDS_PER_CALL_MAX = 1 << 30
# A batch that waited and could not be appended is tried again after so long.
RETRY_S = 1.0

_CUT_SHORT = (
    "the producer is closed, and its close was cut short by an interrupt, or failed in another "
    "thread: what it had gathered may not be in the log"
)


def closed_error() -> EoslogError:
    """Return the error with which a closed producer refuses a call."""
    return LogClosedError("the producer is closed")


@with_methods_of_other_clients
class Producer(Sender):
    """Writes records; `Store.producer` makes it. Threads may share it.

    `send` gathers records one by one, `append` takes columns of them, `flush` waits for the disk.
    An idempotent producer (the default) numbers its records at each partition: a batch is written
    once, whatever becomes of the answer.

    A producer without a name protects what it does itself; its id ends with it. A producer with a
    name keeps its identity in the store: `next_sequence` says how many records the name has in a
    partition, over restarts, crashes and retention, so that a program can go on exactly there.

    After an error:

    - StoreFullError: what was gathered stays, under the same numbers; a later flush tries again;
    - StoreFailedError: its partition takes nothing until the store was closed and opened again; the
      other partitions go on. Whether the call's records are in is not known; afterwards a named
      producer asks `next_sequence`;
    - ProducerFencedError, OutOfOrderSequenceError: somebody else has the name, or wrote under this
      producer's id. It takes nothing more;
    - ConcurrentAccessError: called from within a call of this producer, by the same thread;
      the call did nothing (a `close` closed nothing), and the append it came into goes on;
    - any other: the call's records were not taken. If a gathered batch is refused (a timestamp
      beyond the topic's limits), it stays until `discard_gathered`.

    The calls of transactions are for a producer with a transactional id: see
    `TransactionalProducer`. Without one they raise IllegalStateError.
    """

    _transactions: TransactionStates | None

    def __init__(
        self, parts: ProducerParts, name: str | None, config: Mapping[str, object] | None
    ) -> None:
        settings = with_defaults(
            parse_config(config, PRODUCER_SETTINGS, "producer"), PRODUCER_SETTINGS
        )
        self._store_parts = parts
        self._engine = parts.engine
        self._batch_bytes_max = int(settings["batch.size"])
        self._linger_ms = int(settings["linger.ms"])
        self._closed = self._is_parents = False
        self._accumulator.set_batch_bytes(self._batch_bytes_max)
        self._idempotent = bool(settings["enable.idempotence"])
        self._lost: EoslogError | None = None
        self._keyless_turn = 0
        self._closed_whole = False  # All that was gathered is in, and there will be no more.
        self._is_close_over = False  # One of them; what it met was told.
        self._topic_ids: dict[str, str] = {}  # Of the topics that were written to.
        self._identity = ProducerIdentity(parts, name, self._idempotent)
        if name is not None:
            self._identity.take_name(name, self)
        # For the short way of an append: the partitions that were written to.
        self._written: dict[TopicPartition, Any] = self._identity.ready()
        self._set_ready(self._written)

    # Who it is.

    @property
    def name(self) -> str | None:
        """The name, or None."""
        return self._identity.name

    @property
    def producer_id(self) -> int:
        """The id in its batches; -1 before the first append, and without idempotence."""
        return (self._transactions or self._identity).producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the id; -1 where there is none. Each opening of a name takes a new one."""
        return (self._transactions or self._identity).producer_epoch

    # Writing. `send` is inherited.

    @overload
    def append(
        self,
        topic: str,
        partition: int,
        values: object,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> AppendResult: ...

    @overload
    def append(
        self,
        topic: str,
        partition: None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> dict[int, AppendResult]: ...

    def append(
        self,
        topic: str,
        partition: int | None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> AppendResult | dict[int, AppendResult]:
        """Append the records of columns now, in batches of at most the topic's `max.message.bytes`.

        `values` and `keys` are lists of bytes and None, Arrow arrays of binary or string, numpy
        arrays of bytes, or a Series of bytes of pandas or polars. `timestamps` are milliseconds (0
        or more, -1 for none) or times, without nulls, of any of these libraries; now if not given.
        A time within a millisecond is rounded down, since Kafka's format has milliseconds.
        `headers` has for each record a list of (str, bytes or None). At most 2**30 records. Without
        a partition, keys choose it as in Kafka, and records without a key fill one partition's
        batch after the other. What `send` gathered for a partition goes first.

        Answers where the records are: one AppendResult, or one for each partition by its number
        (from the first to the last offset of the call; with several threads others' lie between).
        On return they survive the death of the process, with durability "always" a power cut.

        Raises TypeError, ValueError, UnknownTopicOrPartitionError, RecordTooLargeError,
        InvalidTimestampError: nothing was written; ProducerFencedError, LogClosedError;
        StoreFullError or StoreFailedError: the error's `appended_record_count` tells how many
        records are in (with a partition: the first so many of the columns).
        """
        if keys is None and timestamps is None and headers is None:
            few = self._append_few(topic, partition, values)
            if few is not None:
                return few
        if type(topic) is str and type(partition) is int:
            ready = self._written.get((topic, partition))  # type: ignore[call-overload]
            if ready is not None:
                result = self._append_to(ready, values, keys, timestamps, headers)
                if result is not None:
                    return result
        with self.lock:
            self._check_appendable()
            try:
                description = self._known_topic(topic)
                if partition is None:
                    return self._append_by_partition(description, values, keys, timestamps, headers)
                where = self._known_partition(description, partition)
                return self._append_columns(where, values, keys, timestamps, headers)
            except EoslogError as error:
                self._failed(error)
                raise

    def flush(self) -> None:
        """Append what was gathered, and make all that this producer appended power-safe.

        With durability "process" nothing is synced, nor in a transaction: the commit does that. All
        partitions are tried; the first error is raised, and what could not be synced is asked for
        again by the next flush. Raises what `append` raises, and UnknownTopicOrPartitionError if a
        topic was deleted with records that were gathered for it.
        """
        with self.lock:
            if self._transactions is not None:
                self._transactions.flush()
                return
            self._check_usable()
            errors = self._append_gathered()
            if not self._engine.syncs:
                self._unsynced.clear()  # Nothing is ever synced for a producer.
            unsynced = dict(self._unsynced)
        errors += self._sync(unsynced)
        if errors:
            raise errors[0]

    def next_sequence(self, topic: str, partition: int) -> int:
        """The number of the next record: how many records the name has put into the partition.

        Counted from 0, 64 bits wide; it counts on over restarts, crashes, retention and a new life
        of the producer id. Records that `send` gathered and that are not in the log yet are
        counted: the answer is the number that the next record given to this producer gets. For a
        producer without a name it counts what this object wrote.

        Raises UnknownTopicOrPartitionError, ProducerFencedError, LogClosedError; ValueError without
        idempotence, and with a transactional id.
        """
        if self._transactions is not None:
            raise ValueError("a transactional producer's sequences begin anew in each transaction")
        if not self._idempotent:
            raise ValueError("without enable.idempotence records are not numbered")
        with self.lock:
            self._check_usable()
            description = self._known_topic(topic)
            where = self._known_partition(description, partition)
            self._follow(description)
            buffers = self._accumulator.buffers_of(topic)
            try:
                gathered = buffers[where.partition].accumulator.record_count if buffers else 0
                return self._identity.position(where) + gathered
            except LogClosedError as error:
                raise self._understood(error, where) from error

    def discard_gathered(self) -> int:
        """Forget the records that `send` gathered and that are not in the log; how many.

        Raises IllegalStateError with a transactional id: no part of a transaction is committed.
        """
        if self._transactions is not None:
            raise IllegalStateError("a part of a transaction cannot be taken back: abort it")
        with self.lock:
            self._check_usable()
            return self._accumulator.discard()

    # Transactions. `transaction`, `begin_transaction` and `commit_transaction` are inherited.

    def init_transactions(self, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Take the transactional id over: whoever had it can write nothing from now on.

        What the predecessor left open is aborted, what it had decided is completed. To be called
        once, before anything else; again only after an error that is `retriable`, and after an
        interrupt: an IllegalStateError then says that it was through (a new producer gives the
        answer of `keep_prepared` again).

        With `keep_prepared` a prepared transaction of the id stays, and is the answer: it can then
        be committed or aborted, and nothing else. Else it is aborted with the rest, and the answer
        is None.

        Raises IllegalStateError if it was called before; ConcurrentTransactionsError if a decided
        transaction cannot be completed just now (a full disk); InvalidTransactionTimeoutError;
        StoreFullError, StoreFailedError, LogClosedError.
        """
        with self.lock:
            manager = self._manager()
            prepared = manager.initialize(keep_prepared)
        owners = self._store_parts.owners
        replaced = owners.get(manager.transactional_id)
        owners[manager.transactional_id] = self
        if replaced is not None and replaced is not self:
            replaced.notice_replacement()
        return prepared

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Have a group's offsets committed with the transaction: they become visible together.

        `offsets` has for each partition the offset of the record to be read next: that of the last
        record processed, plus one. Pass a consumer's `group_metadata()`, or a group's name.

        Raises CommitFailedError if the group was rebalanced meanwhile;
        UnknownTopicOrPartitionError for a topic that was deleted since the consumer was given it,
        though there may be a new one of its name; IllegalStateError outside of a transaction;
        OffsetMetadataTooLargeError, and whatever `append` raises.
        """
        with self.lock:
            self._manager().send_offsets(offsets, group)

    def abort_transaction(self) -> None:
        """Abort: what the transaction sent is never read as committed; what was gathered is gone.

        On return the producer can begin the next transaction. An error of the disk leaves the abort
        to be called again.

        Raises IllegalStateError outside of a transaction; ProducerFencedError, StoreFullError,
        StoreFailedError, LogClosedError.
        """
        with self.lock:
            self._manager().abort()

    def prepare_transaction(self) -> PreparedTransaction:
        """Append and sync all of the transaction, and leave its decision to whoever has the answer.

        A prepared transaction has no timeout and outlives this producer, its process and a power
        cut. This producer may commit or abort it; so may anybody, at any time, with
        `store.commit_prepared` or `store.abort_prepared`. An `init_transactions()` of its id aborts
        it unless told to keep it.

        Raises IllegalStateError outside of a transaction and for one that wrote nothing; what
        `flush` raises.
        """
        with self.lock:
            return self._manager().prepare()

    def complete_transaction(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it; whether committed.

        `prepared` is what `prepare_transaction` answered, or its text, as an external database kept
        it with its own commit; None or "" if that has none.

        To be called again, with the same, after an interrupt or an error: until it is decided the
        transaction stays prepared, also if this producer is closed.

        Raises InvalidTxnStateError if no transaction is prepared, or open; IllegalStateError if one
        is open that is not prepared; TransactionCoordinatorFencedError if a partition has another
        end of it already (it stays prepared then); what commit and abort raise.
        """
        with self.lock:
            return self._manager().complete(prepared)

    def close(self) -> None:
        """Flush, and take nothing more. A second call does nothing, or ends what an interrupt left
        of the first, and raises LogClosedError if records may have gone with that.

        Another thread's `send` returned before, and its record is flushed, or it
        raises LogClosedError. If flushing fails, or is interrupted, the producer is closed all the
        same, and the error raised: what was gathered is lost then, and a close that another thread
        began meanwhile raises LogClosedError. A fenced producer raises ProducerFencedError if it
        held records.

        With a transactional id an open transaction is aborted, also one whose commit was
        interrupted before its decision; behind that the commit is completed. A prepared transaction
        stays prepared. If the abort fails, the error is raised, and the transaction is aborted when
        its timeout has passed.
        """
        if self._transactions is not None:
            self._close_transactions(self._transactions)
            return
        meanwhile = not self._is_close_over
        try:
            errors = self._close(meanwhile)
            if errors:
                self._closed_whole = False
                self._unsynced.clear()  # Nobody asks for it any more.
                raise errors[0]
        finally:
            if self._accumulator.refusal is not None:
                self._let_go()
                self._is_close_over = True

    def _close_transactions(self, transactions: TransactionStates) -> None:
        if self._is_parents:
            return
        with self.lock:
            self._closed = True
            failed = transactions.close()
            self._accumulator.discard()
            # Before another thread can find it ready for the next transaction.
            self._accumulator.refuse(closed_error)
        transactions.release()
        if failed is not None:
            raise failed

    def _close(self, meanwhile: bool) -> list[EoslogError]:
        """`meanwhile`: no close was over when this one began."""
        with self.lock:
            was_closed, self._closed = self._closed, True
            errors = self._end_gathering(was_closed)
            fenced = self._accumulator.refusal is not closed_error
            if meanwhile and not errors and not fenced and not self._closed_whole:
                errors = [LogClosedError(_CUT_SHORT)]
            if fenced or self._engine.is_closed() or not self._engine.syncs:
                self._unsynced.clear()
            unsynced = dict(self._unsynced)
        return errors + self._sync(unsynced)

    def _end_gathering(self, was_closed: bool) -> list[EoslogError]:
        """Append what was gathered, and take nothing more: one step for those who send. The caller
        holds the lock.
        """
        refused = self._accumulator.refusal
        if refused is not None:
            return [refused()] if self._accumulator.discard() and not was_closed else []
        try:
            self._engine.check_open()
            errors = self._append_gathered()
            self._closed_whole = not errors
        finally:
            self._accumulator.discard()
            self._accumulator.refuse(closed_error)
        return errors

    def _let_go(self) -> None:
        """Let go of the producer: no caller uses it any more."""
        if self._is_parents:
            return
        self._store_parts.linger.remove(self)
        if self.name is not None:
            self._store_parts.names.release(self.name, self)

    def __enter__(self) -> Self:
        with self.lock:
            self._check_usable()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except EoslogError as second:
            error.add_note(f"closing the producer failed too: {second}")

    def _manager(self) -> TransactionStates:
        return self._transactions or self._no_transactions()

    def _no_transactions(self) -> Never:
        raise IllegalStateError(
            "this producer has no transactions: make one with store.producer(transactional_id=...)"
        )

    # What `send` asks for. The caller holds the lock.

    def _add_topic(self, topic: str) -> TopicBuffers:
        description = self._engine.topic(topic)
        self._follow(description)
        config = self._engine.partitions.config_of(description)
        # A gathered batch has to fit into every topic's limits.
        batch_bytes = config["max.message.bytes"]
        self._batch_bytes_max = min(self._batch_bytes_max, batch_bytes)
        self._accumulator.set_batch_bytes(self._batch_bytes_max)
        buffers = TopicBuffers(topic, description.partitions, batch_bytes, description.topic_id)
        self._accumulator.keep_topic(topic, buffers)
        return buffers

    def _start_lingering(self) -> None:
        if self._transactions is not None:
            return  # Its records wait for the commit.
        try:
            self._store_parts.linger.add(self, self._linger_ms / 1000)
        except OutOfMemoryError:
            # Nobody would come for them. The record was taken: what is wrong is told by a flush.
            self._append_waiting(0)

    def append_lingering(self) -> float | None:
        """Append what waited for `linger.ms`; in how many seconds to call again, or None."""
        return self._append_waiting(self._linger_ms)

    def _append_waiting(self, waited_ms_min: int) -> float | None:
        """Append what waited for so long; in how many seconds to call again, or None."""
        again_s: float | None = None
        accumulator = self._accumulator
        with self.lock:
            if accumulator.refusal is not None:
                return None
            self._follow_topics()
            for buffer in accumulator.filled_buffers(
                time.monotonic_ns() // 1_000_000 - waited_ms_min
            ):
                try:
                    self._drain(buffer)
                except (EoslogError, MemoryError) as error:
                    # It stays gathered: the next flush, or the send that finds it full, raises.
                    if isinstance(error, MemoryError) or error.retriable:
                        again_s = RETRY_S
            if again_s is None and accumulator.has_lingering():
                again_s = max(self._linger_ms, 1) / 1000
        return again_s

    def _check_usable(self) -> None:
        self._accumulator.check_refusal()
        self._engine.check_open()

    def _check_appendable(self) -> None:
        """Check that records are taken now."""
        self._check_usable()
        if self._transactions is not None:
            self._transactions.check_appendable()

    def _failed(self, error: Exception) -> None:
        if self._transactions is not None:
            self._transactions.record_refused(error)
        elif error is self._lost:
            self._lost = None  # Now the caller knows.

    def _no_partition(self, topic: str, partition: int, partition_count: int) -> None:
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} has partitions 0 to {partition_count - 1}, not {partition}"
        )

    # How it appends. The caller holds the lock.

    def _drain(self, buffer: PartitionBuffer) -> None:
        """Append what a buffer holds, and empty it."""
        if self._transactions is not None:
            self._transactions.drain(buffer)
            return
        if self._follow(self._engine.topic(buffer.topic)) and self._lost is not None:
            raise self._lost
        where = TopicPartition(buffer.topic, buffer.partition)
        try:
            sequenced = self._identity.sequenced(where)
            result = sequenced.append_accumulated(buffer.accumulator)
        except EoslogError as error:
            raise self._understood(error, where) from error
        if result is not None:
            self._unsynced[sequenced.partition] = result.last_offset + 1

    def _append_to(
        self,
        ready: Any,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult | None:
        """The short way to a partition that was written to; None if it has to be the long one."""
        with self.lock:
            topic, number = ready.partition.topic_partition
            if self._accumulator.refusal is not None or self._engine.is_closed():
                return None
            buffers = self._accumulator.buffers_of(topic)
            if buffers and buffers[number].accumulator.record_count:
                return None
            if length_of(values if values is not None else keys) > RECORDS_PER_CALL_MAX:
                return None
            try:
                result: AppendResult = ready.append_columns(values, keys, timestamps, headers)
            except EoslogError as error:
                self._append_failed(ready, error)
                return None
            self._unsynced[ready.partition] = result.last_offset + 1
            return result

    def _append_failed(self, ready: SequencedPartition, error: Exception) -> None:
        if isinstance(error, LogClosedError) and not self._engine.is_closed():
            return  # The topic was deleted, with all that is in it: there may be a new one.
        if not isinstance(error, EoslogError):
            raise error
        understood = self._understood(error, ready.partition.topic_partition)
        self._failed(understood)
        raise understood from error

    def _append_columns(
        self,
        where: TopicPartition,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult:
        """Append columns to a partition, behind what `send` gathered for it."""
        self._follow(self._engine.topic(where.topic))
        buffers = self._accumulator.buffers_of(where.topic)
        if buffers and buffers[where.partition].accumulator.record_count:
            self._drain(buffers[where.partition])
        count = length_of(values if values is not None else keys)
        if count > RECORDS_PER_CALL_MAX:
            raise ValueError(f"{count} records in one call; at most {RECORDS_PER_CALL_MAX}")
        return self._append_at(where, values, keys, timestamps, headers)

    def _append_at(
        self,
        where: TopicPartition,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult:
        try:
            sequenced = self._identity.sequenced(where)
            result = sequenced.append_columns(values, keys, timestamps, headers)
        except EoslogError as error:
            raise self._understood(error, where) from error
        self._unsynced[sequenced.partition] = result.last_offset + 1
        return result

    def _append_by_partition(
        self,
        topic: TopicDescription,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> dict[int, AppendResult]:
        results: dict[int, AppendResult] = {}
        appended_record_count = 0
        config = self._engine.partitions.config_of(topic)
        first_partition = self._keyless_turn % topic.partitions
        self._keyless_turn += 1
        for number, columns in columns_by_partition(
            topic.partitions, first_partition, config, values, keys, timestamps, headers
        ):
            try:
                result = self._append_columns(TopicPartition(topic.name, number), *columns)
            except EoslogError as error:
                appended_record_count += getattr(error, "appended_record_count", 0)
                error.appended_record_count = appended_record_count  # type: ignore[attr-defined]
                raise
            appended_record_count += result.record_count
            results[number] = result
        return results

    def _append_gathered(self) -> list[EoslogError]:
        errors: list[EoslogError] = []
        self._follow_topics()
        for buffer in self._accumulator.filled_buffers():
            try:
                self._drain(buffer)
            except EoslogError as error:
                if error is not self._lost:
                    errors.append(error)
        if self._lost is not None:
            errors.insert(0, self._lost)
            self._lost = None
        return errors

    def _sync(self, unsynced: Mapping[Partition, int]) -> list[EoslogError]:
        """Sync partitions up to offsets. What fails, or is interrupted, stays unsynced: no later
        flush may pass it over.
        """
        errors: list[EoslogError] = []
        for partition, end in unsynced.items():
            try:
                partition.make_durable(end)
            except LogClosedError as error:
                if self._engine.is_closed():
                    errors.append(error)
                    continue
                # Else another process has deleted the topic.
            except EoslogError as error:
                errors.append(error)
                continue
            with self.lock:
                if self._unsynced.get(partition) == end:
                    del self._unsynced[partition]
        return errors

    def _understood(self, error: EoslogError, where: TopicPartition) -> EoslogError:
        """The error as the caller is to see it; what it means for this producer is done."""
        if isinstance(error, ConcurrentAccessError):
            return error
        sequenced = self._identity.known(where)
        before = 0 if sequenced is None else sequenced.position
        if isinstance(error, LogClosedError) and not self._engine.is_closed():
            return self._engine.failure or UnknownTopicOrPartitionError(f"{where} was deleted")
        if sequenced is None:
            error.appended_record_count = 0  # type: ignore[attr-defined]
        if sequenced is not None and not isinstance(error, LogClosedError):
            sequenced.settle()
            if self._idempotent or not hasattr(error, "appended_record_count"):
                count = sequenced.position - before
                error.appended_record_count = count  # type: ignore[attr-defined]
        if isinstance(error, InvalidProducerEpochError) and self.name is not None:
            error = ProducerFencedError(f"producer {self.name!r}: {error}")
        if isinstance(error, (ProducerFencedError, OutOfOrderSequenceError)):
            text, kind = str(error), type(error)
            self._accumulator.refuse(lambda: kind(text))
        return error

    # For the names of the store.

    def renew_checkpoints(self, partitions: Iterable[TopicPartition]) -> bool:
        """Write down where the name stands at these partitions; whether this is still to say."""
        with self.lock:
            if self._accumulator.refusal is not None:
                return False
            self._identity.renew(partitions)
            return True

    def fence(self, reason: str) -> None:
        """Take part in nothing more; waits for a call that is under way.

        Raises ConcurrentAccessError in the middle of a call of this producer by the same thread.
        """
        with self.lock:
            self._accumulator.refuse(lambda: ProducerFencedError(reason))
        self._store_parts.linger.remove(self)

    # For the store.

    def notice_replacement(self) -> None:
        """Refuse records from now on if the transactional id was taken over. Takes no lock."""
        if self._transactions is not None:
            self._transactions.notice_replacement()

    def leave_to_parent(self) -> None:
        """Leave the records to the parent process: this is a forked child. Takes no lock: a thread
        that held it is not here.

        What was gathered is the parent's, who appends it: nothing is left to close.
        """
        self._accumulator.leave_to_parent()
        self._closed = self._is_parents = True
        self._accumulator.refuse(
            lambda: ForkedProcessError("the store was opened before a fork: open it in the child")
        )

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted, with what was gathered for it.

        What is of a new topic of the name stays.
        """
        with self.lock:
            self._forget_topic(topic)

    def _forget_topic(self, topic: str) -> None:
        if self._transactions is not None:
            self._transactions.forget_topic(topic)
            return
        now = self._engine.registry.id_of(TopicPartition(topic, 0))
        if self._topic_ids.get(topic) != now:
            lost = self._accumulator.record_count_of(topic)
            if lost:
                self._lost = UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with {lost} records that were gathered for it"
                )
            self._accumulator.drop_topic(topic)
            self._topic_ids.pop(topic, None)
        for partition in self._identity.forget_topic(topic):
            self._unsynced.pop(partition, None)

    def _follow_topics(self) -> None:
        for topic in list(self._topic_ids):
            description = self._engine.registry.get(topic)
            if description is not None:
                self._follow(description)

    def _follow(self, topic: TopicDescription) -> bool:
        if self._topic_ids.setdefault(topic.name, topic.topic_id) == topic.topic_id:
            return False
        self._forget_topic(topic.name)
        self._topic_ids[topic.name] = topic.topic_id
        return True

    def _known_topic(self, topic: str) -> TopicDescription:
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        return self._engine.topic(topic)

    def _known_partition(self, topic: TopicDescription, partition: int) -> TopicPartition:
        number = whole_number(partition, "a partition")
        if not 0 <= number < topic.partitions:
            self._no_partition(topic.name, number, topic.partitions)
        return TopicPartition(topic.name, number)


# For clients that gather records themselves.


def check_appendable(producer: Producer) -> None:
    """Raise the producer's error if it takes no records now."""
    producer._check_appendable()


def known_topic(producer: Producer, topic: str) -> TopicDescription:
    """Return a topic's description. Raises UnknownTopicOrPartitionError, TypeError."""
    return producer._known_topic(topic)


def known_partition(producer: Producer, topic: TopicDescription, partition: int) -> TopicPartition:
    """Return a partition of the topic. Raises UnknownTopicOrPartitionError, TypeError."""
    return producer._known_partition(topic, partition)


def notice_replacements(producers: Iterable[object]) -> None:
    """Have the producers whose transactional id was taken from them refuse records from now on."""
    for producer in producers:
        if isinstance(producer, Producer):
            producer.notice_replacement()


def length_of(column: object) -> int:
    """Return how many records a column has."""
    try:
        return len(column)  # type: ignore[arg-type]
    except TypeError:
        return 0  # No column: the append says so.
