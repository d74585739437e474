"""Writing: a producer numbers its records, so that none enters the log twice.

Invariants: a partition's records enter the log in the order in which they were given; a record is
taken, or the call that gave it raises; a named producer's partition is in the name's record before
its first append there; a fenced or closed producer appends nothing more.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, overload

from eoslog.bindings.accumulator import PartitionBuffer, TopicBuffers
from eoslog.bindings.column_set import ColumnSet, open_columns
from eoslog.bindings.column_stream import ColumnStream, open_column_stream
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.sender import Sender
from eoslog.columns.topic_limits import TopicLimits
from eoslog.common import clock
from eoslog.common.config import INT64_MAX, PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.other_clients import refuse_parameters, with_methods_of_other_clients
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
from eoslog.groups.metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.identity import ProducerIdentity
from eoslog.producer.linger import RETRY_S
from eoslog.producer.parts import ProducerParts
from eoslog.producer.sequenced_partition import SequencedPartition
from eoslog.producer.streamed_append import StreamedAppend
from eoslog.producer.transaction_manager import TransactionManager
from eoslog.storage.topic_registry import TopicDescription, partition_of
from eoslog.storage.unified_log import UnifiedLog

if TYPE_CHECKING:
    from eoslog.producer.deliveries import Deliveries, Failures


def closed_error() -> EoslogError:
    """Return the error with which a closed producer refuses a call."""
    return LogClosedError("the producer is closed")


def _undecided_error() -> EoslogError:
    error = LogClosedError("the producer was closed, and its transaction is not decided here")
    error.outcome = "unknown"
    return error


@with_methods_of_other_clients
class Producer(Sender):
    """Writer of records; `Store.producer` makes it. Threads may share it.

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
    - ProducerFencedError, OutOfOrderSequenceError: another producer has the name, or wrote under
      this one's id. It takes nothing more;
    - ConcurrentAccessError: called from within a call of this producer, by the same thread; the
      call did nothing (a `close` closed nothing), and the interrupted call goes on;
    - any other: the call's records were not taken. If a gathered batch is refused (a timestamp
      beyond the topic's limits), it stays until `discard_gathered`.

    The calls of transactions are for a producer with a transactional id: see
    `TransactionalProducer`. Without one they raise IllegalStateError.
    """

    _transactions: TransactionManager | None

    def __init__(
        self, parts: ProducerParts, name: str | None, config: Mapping[str, object] | None
    ) -> None:
        settings = with_defaults(
            parse_config(config, PRODUCER_SETTINGS, "producer"), PRODUCER_SETTINGS
        )
        self._store_parts = parts
        self._engine = parts.engine
        self._batch_bytes = int(settings["batch.size"])
        self._linger_ms = int(settings["linger.ms"])
        self._is_parents = False
        self._accumulator.set_batch_bytes(self._batch_bytes)
        self._idempotent = bool(settings["enable.idempotence"])
        self._lost: EoslogError | None = None
        self._keyless_turn = 0
        # The topics that were written to, as they were then.
        self._known_topics: dict[str, TopicDescription] = {}
        self._identity = ProducerIdentity(parts, self._accumulator, name, self._idempotent)
        if name is not None:
            self._identity.take_name(name)
        # The partitions that were written to: what an append to one of them needs.
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

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        closed = "closed, " if self._accumulator.refusal is closed_error else ""
        of = f"producer id {self.producer_id}, epoch {self.producer_epoch}"
        return f"<eoslog.Producer{name}, {closed}{of}>"

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
        """Append columns of records now, in batches of at most the topic's `max.message.bytes`.

        On return they survive the death of the process, with durability "always" a power cut. What
        `send` gathered for a partition goes first.

        Parameters
        ----------
        topic : str
            The topic.
        partition : int, optional
            By default keys choose it as in Kafka, and records without a key fill one partition's
            batch after the other.
        values, keys : column, optional
            Lists of bytes and None, numpy arrays of bytes, or Arrow data of any library (pyarrow,
            polars, DuckDB, pandas): binary or string arrays, dictionaries of them, streams. At most
            2**30 records, or in each chunk of a stream.

            Alone, `values` may also be a record batch, a table or a frame with a column `value`
            and, if wanted, `key`, `timestamp` and `headers`. A stream is appended chunk by chunk,
            and never held as a whole.
        timestamps : column, optional
            Milliseconds (0 or more, -1 for none) or times, without nulls, of any of these
            libraries; now by default. A time within a millisecond is rounded down.
        headers : list, optional
            For each record a list of (str, bytes or None), or Arrow lists of (key, value).

        Returns
        -------
        AppendResult or dict of int to AppendResult
            First and last offset of the call, or those of each partition that got records; with
            several threads records of others may lie between.

        Raises
        ------
        UnknownTopicOrPartitionError, RecordTooLargeError, InvalidTimestampError
            Nothing was written, of a stream nothing of the chunk; so it is after TypeError and
            ValueError. No records for a given partition are a ValueError: they have no offsets.
        ProducerFencedError, LogClosedError
            The producer takes nothing more.
        StoreFullError, StoreFailedError
            The error's `appended_record_count` is the number of records that are in; with a
            partition, these are the first ones.
        ArrowStreamError
            The stream's producer failed. After this and every other error of a stream
            `appended_record_count` counts the chunks before; a transaction with such records must
            be aborted.
        """
        if keys is None and timestamps is None and headers is None:
            few = self._append_few(topic, partition, values)
            if few is not None:
                return few
            stream = open_column_stream(values, clock.now_ms)
            if stream is not None:
                return self._append_stream(topic, partition, stream)
        with self._lock:
            self._check_appendable()
            try:
                columns = open_columns(values, keys, timestamps, headers, clock.now_ms())
                return self._append_opened(topic, partition, columns)
            except EoslogError as error:
                self._failed(error)
                raise

    def flush(self, *timeout: Never, **others: Never) -> None:
        """Append what was gathered, and make all that this producer appended power-safe.

        With durability "process" nothing is synced, nor in a transaction: the commit does that. All
        partitions are tried; the first error is raised, and the next flush tries the others again.
        It takes no timeout.

        Raises
        ------
        UnknownTopicOrPartitionError
            A topic was deleted with records that were gathered for it.
        EoslogError
            What `append` raises.
        """
        if timeout or others:
            refuse_parameters("flush", others or {"timeout": timeout})
        with self._lock:
            if self._transactions is not None:
                self._transactions.flush()
                return
            self._check_usable()
            errors = self._append_gathered()
            if not self._engine.syncs:
                self._unsynced.clear()  # Nothing is ever synced for a producer.
            unsynced = dict(self._unsynced)
            deliveries: Deliveries | None = self._deliveries
            batches = frozenset() if deliveries is None else deliveries.no_longer_gathered()
        failed = self._sync(unsynced)
        if deliveries is not None:
            deliveries.report_flushed(batches, failed)
        errors += failed.values()
        if errors:
            raise errors[0]

    def next_sequence(self, topic: str, partition: int) -> int:
        """Return the number of the next record of the name in a partition.

        It counts from 0, over restarts, crashes, retention and new producer ids, and includes
        records that `send` gathered. For a producer without a name it counts what this object
        wrote.

        Parameters
        ----------
        topic : str
        partition : int
            0 or more.

        Raises
        ------
        UnknownTopicOrPartitionError, ProducerFencedError, LogClosedError
            The partition does not exist, or the producer takes nothing more.
        ValueError
            The producer has no idempotence, or has a transactional id.
        """
        if self._transactions is not None:
            raise ValueError("a transactional producer's sequences begin at 0 in each transaction")
        if not self._idempotent:
            raise ValueError("without enable.idempotence records are not numbered")
        with self._lock:
            self._check_usable()
            description = self._engine.topic(topic)
            where = partition_of(description, partition)
            self._follow(description)
            buffers = self._accumulator.buffers_of(topic)
            try:
                gathered = buffers[where.partition].accumulator.record_count if buffers else 0
                return self._identity.position(where) + gathered
            except LogClosedError as error:
                raise self._understood(error, where) from error

    def discard_gathered(self) -> int:
        """Forget the records that `send` gathered and that are not in the log; return how many.

        Raises IllegalStateError with a transactional id: no part of a transaction is committed.
        """
        if self._transactions is not None:
            raise IllegalStateError("a part of a transaction cannot be taken back: abort it")
        with self._lock:
            self._check_usable()
            count = self._accumulator.discard()
        if self._deliveries is not None:
            discarded = IllegalStateError("discard_gathered() discarded the record")
            self._deliveries.report_discarded(discarded)
        return count

    # Transactions. `transaction`, `begin_transaction` and `commit_transaction` are inherited.

    def init_transactions(self, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Take the transactional id over: its earlier producer can write nothing from now on.

        What the predecessor left open is aborted, what it had decided is completed. Call it once,
        before anything else; again only after an error that is `retriable`, and after an interrupt:
        an IllegalStateError then says that it was through (a new producer returns the result of
        `keep_prepared` again).

        Parameters
        ----------
        keep_prepared : bool
            Keep a prepared transaction of the id, which can then be committed or aborted, and
            nothing else. False: abort it with the rest.

        Returns
        -------
        PreparedTransaction or None
            The prepared transaction that was kept.

        Raises
        ------
        IllegalStateError
            It was called before.
        ConcurrentTransactionsError
            A decided transaction cannot be completed now (a full disk).
        InvalidTransactionTimeoutError
            The timeout is out of its range.
        StoreFullError, StoreFailedError, LogClosedError
            The store refuses.
        """
        with self._lock:
            return self._manager().initialize(keep_prepared)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Commit a group's offsets with the transaction: they become visible together.

        Parameters
        ----------
        offsets : mapping of TopicPartition to int or OffsetAndMetadata
            The offset to be read next: that of the last record processed, plus one.
        group : str or ConsumerGroupMetadata
            A consumer's `group_metadata()`, or a group's name.

        Raises
        ------
        CommitFailedError
            The group was rebalanced since.
        UnknownTopicOrPartitionError
            A topic was deleted since the consumer got it, also if it was created again.
        IllegalStateError
            No transaction is open.
        OffsetMetadataTooLargeError
            The text beside an offset is too long. Also raises what `append` raises.
        """
        with self._lock:
            self._manager().send_offsets(offsets, group)

    def abort_transaction(self) -> None:
        """Abort: what the transaction sent is never read as committed; what was gathered is gone.

        On return the producer can begin the next transaction. After an error of the disk call it
        again.

        Raises
        ------
        IllegalStateError
            No transaction is open.
        ProducerFencedError, StoreFullError, StoreFailedError, LogClosedError
            The store refuses.
        """
        try:
            with self._lock:
                self._manager(ends=True).abort()
        finally:
            self._report_transactions()

    def prepare_transaction(self) -> PreparedTransaction:
        """Append and sync all of the transaction, and leave the decision to the result's holder.

        A prepared transaction has no timeout and outlives this producer, its process and a power
        cut. This producer may commit or abort it; so may any process, at any time, with
        `store.commit_prepared` or `store.abort_prepared`. An `init_transactions()` of its id aborts
        it, unless it keeps it.

        Returns
        -------
        PreparedTransaction
            Its `token`, a text, names the transaction from now on.

        Raises
        ------
        IllegalStateError
            No transaction is open, or it wrote nothing.
        EoslogError
            What `flush` raises.
        """
        with self._lock:
            return self._manager(ends=True).prepare()

    def complete_transaction(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it.

        After an interrupt or an error call it again with the same argument: until it is decided the
        transaction stays prepared, also if this producer is closed.

        Parameters
        ----------
        prepared : PreparedTransaction, str or None
            The result of `prepare_transaction`, or its text, as an external database kept it with
            its own commit; None or "" if that has none.

        Returns
        -------
        bool
            True if it is committed.

        Raises
        ------
        InvalidTxnStateError
            No transaction is prepared.
        TransactionCoordinatorFencedError
            A partition has another end of it: it stays prepared. Also raises what commit and abort
            raise.
        """
        try:
            with self._lock:
                return self._manager(ends=True).complete(prepared)
        finally:
            self._report_transactions()

    def close(self) -> None:
        """Flush, and take nothing more. A second call does nothing, or what an interrupt (Ctrl-C)
        left of the first.

        If the flush fails, the producer is closed, the error is raised, and gathered records are
        lost. A fenced producer raises ProducerFencedError if it held records. A concurrent `send`
        is flushed or raises LogClosedError.

        With a transactional id an undecided transaction is aborted, an interrupted commit with a
        decision is completed, and a prepared transaction stays prepared. If the abort fails, the
        error is raised, and the transaction is aborted after its timeout.
        """
        if self._is_parents:
            return
        if self._transactions is not None:
            self._close_transactions(self._transactions)
            return
        with self._lock:
            errors = self._end_gathering()
            is_fenced = self._accumulator.refusal is not closed_error
            if is_fenced or self._engine.is_closed() or not self._engine.syncs:
                self._unsynced.clear()
            unsynced = dict(self._unsynced)
        failed = self._sync(unsynced)
        errors += failed.values()
        self._store_parts.linger.remove(self._append_lingering)
        if self.name is not None:
            self._store_parts.names.release(self.name, self._identity)
        try:
            if self._deliveries is not None:
                refusal = self._accumulator.refusal or closed_error
                error = refusal() if is_fenced or not errors else errors[0]
                is_synced = not (is_fenced or self._engine.is_closed())
                self._deliveries.report_rest(error, failed, is_synced=is_synced)
            if errors:
                raise errors[0]
        finally:
            # Last, for a second call after an interrupt: it syncs again, or raises again.
            self._accumulator.discard()
            self._unsynced.clear()

    def _close_transactions(self, transactions: TransactionManager) -> None:
        with self._lock:
            refusal = self._accumulator.refusal
            failed = transactions.close()
            self._accumulator.discard()
            # Before another thread can find it ready for the next transaction.
            self._accumulator.refuse(closed_error)
        transactions.release()
        if self._deliveries is not None:
            error = failed or (refusal or _undecided_error)()
            self._deliveries.report_transactions(error, in_doubt=transactions.may_be_decided)
        if failed is not None:
            raise failed

    def _check_on_delivery(self, on_delivery: object) -> None:
        if self._deliveries is None:
            from eoslog.producer.deliveries import Deliveries  # Of producers that use it alone.

            self._deliveries = Deliveries(self._lock, self._unsettled)
        self._deliveries.check(on_delivery)

    def _report_transactions(self) -> None:
        if self._deliveries is not None:
            refusal = self._accumulator.refusal
            error = None if refusal is None else refusal()
            in_doubt = self._manager().may_be_decided
            self._deliveries.report_transactions(error, in_doubt=in_doubt)

    def _end_gathering(self) -> list[EoslogError | MemoryError]:
        """Append what was gathered, and take nothing more: one step for those who send. The caller
        holds the lock.
        """
        refused = self._accumulator.refusal
        if refused is not None:
            lost = self._accumulator.discard()
            if not lost:
                return []
            refusal = refused()
            refusal.add_note(f"{lost} records that were gathered may not be in the log")
            return [refusal]
        errors: list[EoslogError | MemoryError] = []
        try:
            self._engine.check_open()
            errors = self._append_gathered()
        except EoslogError as error:
            errors.append(error)
        self._accumulator.refuse(closed_error)  # Until here an interrupt leaves it open.
        return errors

    def __enter__(self) -> Self:
        with self._lock:
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

    def _manager(self, *, ends: bool = False) -> TransactionManager:
        manager = self._transactions or self._no_transactions()
        if ends:
            manager.check_end()
        return manager

    def _no_transactions(self) -> Never:
        raise IllegalStateError(
            "this producer has no transactions: make one with store.producer(transactional_id=...)"
        )

    # What `send` asks for. The caller holds the lock.

    def _add_topic(self, topic: str) -> TopicBuffers:
        description = self._engine.topic(topic)
        self._follow(description)
        buffers = TopicBuffers(
            topic,
            description.partitions,
            self._message_bytes_max(description),
            description.topic_id,
        )
        self._accumulator.keep_topic(topic, buffers)
        self._fit_batches()
        return buffers

    def _message_bytes_max(self, topic: TopicDescription) -> int:
        return self._engine.partitions.config_of(topic)["max.message.bytes"]

    def _fit_batches(self) -> None:
        """Have a gathered batch fit into every topic's limits."""
        of_topics = self._accumulator.batch_bytes_max() or self._batch_bytes
        self._accumulator.set_batch_bytes(min(self._batch_bytes, of_topics))

    def _start_lingering(self) -> None:
        if self._transactions is not None:
            return  # Its records wait for the commit.
        try:
            self._store_parts.linger.add(self._append_lingering, self._linger_ms / 1000)
        except OutOfMemoryError:
            # No thread would append them later. The record was taken: a flush raises what is wrong.
            self._append_waiting(0)

    def _append_lingering(self) -> float | None:
        """Append what waited for `linger.ms`; in how many seconds to call again, or None."""
        return self._append_waiting(self._linger_ms)

    def _append_waiting(self, waited_ms_min: int) -> float | None:
        """Append what waited for so long; in how many seconds to call again, or None."""
        accumulator = self._accumulator
        with self._lock:
            if accumulator.refusal is not None:
                return None
            errors = self._drain_filled(time.monotonic_ns() // 1_000_000 - waited_ms_min)
            # It stays gathered: the next flush, or the send that finds it full, raises.
            if any(isinstance(error, MemoryError) or not error.fatal for error in errors):
                return RETRY_S
            return max(self._linger_ms, 1) / 1000 if accumulator.has_lingering() else None

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

    def _find_partition(self, topic: str, partition: object) -> None:
        description = self._engine.topic(topic)
        partition_of(description, partition)
        self._follow(description)

    def _append_batch(self, batch: PartitionBuffer) -> None:
        with self._lock:
            self._check_appendable()
            try:
                if self._engine.topic(batch.topic).topic_id != batch.topic_id:
                    raise UnknownTopicOrPartitionError(
                        f"topic {batch.topic!r} was deleted with records that were gathered for it"
                    )
                self._drain(batch)
                if self._transactions is not None:
                    self._transactions.register(batch.owner)  # The accumulator does not have it.
            except EoslogError as error:
                self._failed(error)
                raise

    # How it appends. The caller holds the lock.

    def _drain(self, buffer: PartitionBuffer) -> None:
        """Append what a buffer holds, and empty it."""
        if self._transactions is not None:
            self._transactions.drain(buffer)
            return
        if self._is_gone(buffer.topic) and self._lost is not None:
            raise self._lost
        where = TopicPartition(buffer.topic, buffer.partition)
        try:
            sequenced = self._identity.sequenced(where)
            result = sequenced.append_accumulated(buffer.accumulator)
        except EoslogError as error:
            raise self._understood(error, where) from error
        if result is not None:
            self._unsynced[sequenced.partition] = result.last_offset + 1

    def _append_failed(self, ready: SequencedPartition, error: Exception) -> None:
        if isinstance(error, LogClosedError) and not self._engine.is_closed():
            return  # The topic was deleted, with all that is in it: there may be a new one.
        if not isinstance(error, EoslogError):
            raise error
        understood = self._understood(error, ready.partition.topic_partition)
        self._failed(understood)
        raise understood from error

    def _append_stream(
        self, topic: str, partition: int | None, stream: ColumnStream
    ) -> AppendResult | dict[int, AppendResult]:
        """Append the chunks of a stream as they come; takes the lock for each of them.

        Between two of them the stream's producer runs, which may take long, or call this producer.
        """
        appended = StreamedAppend(partition)
        with stream:
            with self._lock:
                self._check_appendable()
            try:
                # Before the stream is read, which may be gone then.
                partition_of(self._engine.topic(topic), 0 if partition is None else partition)
                while (columns := stream.next_columns()) is not None:
                    with self._lock:
                        appended.check_transaction(self._transactions)
                        self._check_appendable()
                        appended.add(self._append_opened(topic, partition, columns))
                        appended.note_transaction(self._transactions)
                    del columns  # Its chunk is released before the next one is read.
            except Exception as error:
                appended.explain(error)
                with self._lock:
                    if appended.is_in(self._transactions):
                        self._failed(appended.as_refusal(error))
                raise
        if appended.record_count:
            return appended.result
        with self._lock:
            return self._append_opened(topic, partition, open_columns([], None, None, None, 0))

    def _append_opened(
        self, topic: str, partition: int | None, columns: ColumnSet
    ) -> AppendResult | dict[int, AppendResult]:
        if partition is None:
            return self._append_by_partition(self._engine.topic(topic), columns)
        return self._append_to(topic, partition, columns)

    def _append_to(self, topic: str, partition: int, columns: ColumnSet) -> AppendResult:
        """Append columns to a partition, after what `send` gathered for it."""
        ready = None
        if type(topic) is str and type(partition) is int:
            ready = self._written.get((topic, partition))  # type: ignore[call-overload]
        if ready is None or ready.partition.deleted or self._accumulator.holds(topic, partition):
            description = self._engine.topic(topic)
            where = partition_of(description, partition)
            self._follow(description)
            if self._accumulator.holds(*where):
                self._drain(self._accumulator.buffers_of(topic)[where.partition])
            ready = self._opened(where)
        return self._append_columns(ready, columns)

    def _opened(self, where: TopicPartition) -> Any:
        """Return what `_append_columns` writes to."""
        try:
            return self._identity.sequenced(where)
        except EoslogError as error:
            raise self._understood(error, where) from error

    def _append_columns(self, ready: Any, columns: ColumnSet) -> AppendResult:
        try:
            result: AppendResult = ready.append_columns(columns)
        except EoslogError as error:
            raise self._understood(error, ready.partition.topic_partition) from error
        self._unsynced[ready.partition] = result.last_offset + 1
        return result

    def _append_by_partition(
        self, topic: TopicDescription, columns: ColumnSet
    ) -> dict[int, AppendResult]:
        """Append each record to the partition of its key; all are checked before the first."""
        if len(columns) == 0:
            return {}
        results: dict[int, AppendResult] = {}
        appended_record_count = 0
        limits = TopicLimits.of(self._engine.partitions.config_of(topic))
        limits.check(columns)
        first_partition = self._keyless_turn % topic.partitions
        self._keyless_turn += 1
        for number, part in columns.by_partition(
            topic.partitions, first_partition, limits.message_bytes_max
        ):
            try:
                result = self._append_to(topic.name, number, part)
            except EoslogError as error:
                appended_record_count += getattr(error, "appended_record_count", 0)
                error.appended_record_count = appended_record_count  # type: ignore[attr-defined]
                raise
            appended_record_count += result.record_count
            results[number] = result
        return results

    def _append_gathered(self) -> list[EoslogError | MemoryError]:
        errors = self._drain_filled()
        if self._lost is not None:
            errors.insert(0, self._lost)
            self._lost = None
        return errors

    def _drain_filled(self, first_ms_max: int = INT64_MAX) -> list[EoslogError | MemoryError]:
        """Append the batches begun by a time at the latest; what fails stays gathered."""
        errors: list[EoslogError | MemoryError] = []
        try:
            self._follow_topics()
        except EoslogError as error:
            return [error]
        for buffer in self._accumulator.filled_buffers(first_ms_max):
            try:
                self._drain(buffer)
            except (EoslogError, MemoryError) as error:
                if error is self._lost:  # With all batches of its topic.
                    return errors + self._drain_filled(first_ms_max)
                errors.append(error)
        return errors

    def _sync(self, unsynced: Mapping[UnifiedLog, int]) -> "Failures":
        """Sync partitions up to offsets; return the errors. What fails, or is interrupted, stays
        unsynced: no later flush may pass it over.
        """
        errors: dict[TopicPartition, EoslogError] = {}
        for partition, end in unsynced.items():
            try:
                partition.make_durable(end)
            except LogClosedError as error:
                if self._engine.is_closed():
                    errors[partition.topic_partition] = error
                    continue
                # Else another process has deleted the topic.
            except EoslogError as error:
                errors[partition.topic_partition] = error
                continue
            with self._lock:
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

    # For the store.

    def _leave_to_parent(self) -> None:
        """Leave the records to the parent process: this is a forked child. Takes no lock: a thread
        that held it is not here.

        What was gathered is the parent's, who appends it: nothing is left to close.
        """
        self._accumulator.leave_to_parent()
        if self._deliveries is not None:
            self._deliveries.forget()
        self._is_parents = True
        self._accumulator.refuse(
            lambda: ForkedProcessError("the store was opened before a fork: open it in the child")
        )

    def _forget_deleted(self, topic: str) -> None:
        with self._lock:
            self._forget_topic(topic)

    def _forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted, with what was gathered for it.

        What is of a new topic of the name stays. The caller holds the lock.
        """
        if self._transactions is not None:
            self._transactions.forget_topic(topic)
            return
        now = self._engine.registry.id_of(TopicPartition(topic, 0))
        known = self._known_topics.get(topic)
        if known is None or known.topic_id != now:
            lost = self._accumulator.record_count_of(topic)
            if lost:
                self._lost = UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with {lost} records that were gathered for it"
                )
            self._accumulator.drop_topic(topic)
            self._known_topics.pop(topic, None)
        for partition in self._identity.forget_topic(topic):
            self._unsynced.pop(partition, None)

    def _is_gone(self, topic: str) -> bool:
        """Forget a topic that another process has deleted, or made again; return True if so."""
        description = self._engine.registry.get(topic)
        if description is None:
            self._forget_topic(topic)
            return True
        # Each flush asks twice.
        known = self._known_topics.get(topic)
        return known is not description and self._follow(description)

    def _follow(self, topic: TopicDescription) -> bool:
        """Take a topic as it is now; return True if it was made again."""
        known = self._known_topics.setdefault(topic.name, topic)
        if known is topic:
            return False
        if known.topic_id != topic.topic_id:
            self._forget_topic(topic.name)
            self._known_topics[topic.name] = topic
            return True
        self._accumulator.alter_topic(topic.name, topic.partitions, self._message_bytes_max(topic))
        self._fit_batches()
        self._known_topics[topic.name] = topic
        return False

    def _follow_topics(self) -> None:
        for topic in list(self._known_topics):
            self._is_gone(topic)

    def _follow_alterations(self) -> None:
        with self._lock:
            self._follow_topics()


class ProducerInternals:
    """The internal face of a producer, for its store and its asyncio client."""

    def __init__(self, producer: Producer) -> None:
        self.transactions = producer._transactions
        self.check_appendable = producer._check_appendable
        self.forget_topic = producer._forget_deleted
        self.follow_topics = producer._follow_alterations
        self.leave_to_parent = producer._leave_to_parent
        self._producer = producer

    def append_batch(self, batch: PartitionBuffer) -> None:
        """Append a batch that a client gathered itself."""
        self._producer._append_batch(batch)
