"""Writing: a producer numbers its records, so that none enters the log twice.

Invariants: a partition's records enter the log in the order in which they were given; a record is
taken, or the call that gave it raises; a named producer's partition is in the name's record before
its first append there; a fenced or closed producer appends nothing more.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self, overload

from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.sender import PartitionBuffer
from eoslog.bindings.status import ProducerNotCached
from eoslog.columns.column_placement import placed_columns
from eoslog.common.arguments import whole_number
from eoslog.common.config import PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    FellBehindError,
    InvalidProducerEpochError,
    LogClosedError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer.gathering import GatheringSender, closed_error
from eoslog.producer.producer_identity import ProducerIdentity
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.transaction_calls import TransactionCalls
from eoslog.storage.partition import Partition
from eoslog.storage.sequenced_partition import SequencedPartition
from eoslog.storage.topic_registry import TopicDescription

RECORDS_PER_CALL_MAX = 1 << 30

_CUT_SHORT = (
    "the producer is closed, and its close was cut short by an interrupt, or failed in another "
    "thread: what it had gathered may not be in the log"
)


@with_methods_of_other_clients
class Producer(GatheringSender, TransactionCalls):
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
    """

    def __init__(
        self, parts: ProducerParts, name: str | None, config: Mapping[str, object] | None
    ) -> None:
        settings = with_defaults(
            parse_config(config, PRODUCER_SETTINGS, "producer"), PRODUCER_SETTINGS
        )
        super().__init__(parts, int(settings["batch.size"]), int(settings["linger.ms"]))
        self._idempotent = bool(settings["enable.idempotence"])
        self._lost: EoslogError | None = None
        self._keyless_turn = 0
        self._closed_whole = False  # All that was gathered is in, and there will be no more.
        self._is_close_over = False  # One of them; what it met was told.
        self._topic_ids: dict[str, str] = {}  # Of the topics that were written to.
        self._identity = ProducerIdentity(parts, name, self._idempotent)
        if name is not None:
            self._identity.take_name(name, self)
        self._written = self._identity.ready()
        self._set_ready(self._written)

    # Who it is.

    @property
    def name(self) -> str | None:
        """The name, or None."""
        return self._identity.name

    @property
    def producer_id(self) -> int:
        """The id in its batches; -1 before the first append, and without idempotence."""
        return self._identity.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the id; -1 where there is none. Each opening of a name takes a new one."""
        return self._identity.producer_epoch

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
                    return self._append_placed(description, values, keys, timestamps, headers)
                where = self._known_partition(description, partition)
                return self._append_columns(where, values, keys, timestamps, headers)
            except EoslogError as error:
                self._failed(error)
                raise

    def flush(self) -> None:
        """Append what was gathered, and make all that this producer appended power-safe.

        With durability "process" nothing is synced. All partitions are tried; the first error is
        raised, and what could not be synced is asked for again by the next flush. Raises what
        `append` raises, and UnknownTopicOrPartitionError if a topic was deleted with records that
        were gathered for it.
        """
        with self.lock:
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
        idempotence; ConcurrentAccessError from a handler of a signal in the middle of a call.
        """
        if not self._idempotent:
            raise ValueError("without enable.idempotence records are not numbered")
        with self.lock:
            self._check_usable()
            description = self._known_topic(topic)
            where = self._known_partition(description, partition)
            self._follow(description)
            buffers = self._buffers_of(topic)
            try:
                gathered = buffers[where.partition].accumulator.record_count if buffers else 0
                return self._identity.position(where) + gathered
            except LogClosedError as error:
                raise self._understood(error, where) from error

    def discard_gathered(self) -> int:
        """Forget the records that `send` gathered and that are not in the log; how many."""
        with self.lock:
            self._check_usable()
            return self._discard()

    def close(self) -> None:
        """Flush, and take nothing more. A second call does nothing, or ends what an interrupt left
        of the first, and raises LogClosedError if records may have gone with that.

        Another thread's `send` returned before, and its record is flushed, or it
        raises LogClosedError. If flushing fails, or is interrupted, the producer is closed all the
        same, and the error raised: what was gathered is lost then, and a close that another thread
        began meanwhile raises LogClosedError. A fenced producer raises ProducerFencedError if it
        held records.
        """
        meanwhile = not self._is_close_over
        try:
            errors = self._close(meanwhile)
            if errors:
                self._closed_whole = False
                self._unsynced.clear()  # Nobody asks for it any more.
                raise errors[0]
        finally:
            if self._refusal is not None:
                self._let_go()
                self._is_close_over = True

    def _close(self, meanwhile: bool) -> list[EoslogError]:
        """`meanwhile`: no close was over when this one began."""
        with self.lock:
            was_closed, self._closed = self._closed, True
            errors = self._end_gathering(was_closed)
            fenced = self._refusal is not closed_error
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
        refused = self._refusal
        if refused is not None:
            return [refused()] if self._discard() and not was_closed else []
        try:
            self._engine.check_open()
            errors = self._append_gathered()
            self._closed_whole = not errors
        finally:
            self._discard()
            self._refuse_from_now_on(closed_error)
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

    # How it appends. The caller holds the lock.

    def _drain(self, buffer: PartitionBuffer) -> None:
        """Append what a buffer holds, and empty it."""
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
        ready: SequencedPartition,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult | None:
        """The short way to a partition that was written to; None if it has to be the long one."""
        with self.lock:
            topic, number = ready.partition.topic_partition
            if self._refusal is not None or self._engine.is_closed():
                return None
            buffers = self._buffers_of(topic)
            if buffers and buffers[number].accumulator.record_count:
                return None
            if length_of(values if values is not None else keys) > RECORDS_PER_CALL_MAX:
                return None
            try:
                result = ready.append_columns(values, keys, timestamps, headers)
            except EoslogError as error:
                self._append_failed(ready, error)
                return None
            self._unsynced[ready.partition] = result.last_offset + 1
            return result

    def _append_failed(self, ready: SequencedPartition, error: Exception) -> None:
        if isinstance(error, (ProducerNotCached, FellBehindError)) and not getattr(
            error, "appended_record_count", 0
        ):
            ready.in_doubt = False  # Nothing was written, and there is a way.
            return
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
        self._append_earlier(where)
        count = length_of(values if values is not None else keys)
        if count > RECORDS_PER_CALL_MAX:
            raise ValueError(f"{count} records in one call; at most {RECORDS_PER_CALL_MAX}")
        try:
            sequenced = self._identity.sequenced(where)
            result = sequenced.append_columns(values, keys, timestamps, headers)
        except EoslogError as error:
            raise self._understood(error, where) from error
        self._unsynced[sequenced.partition] = result.last_offset + 1
        return result

    def _append_placed(
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
        for number, columns in placed_columns(
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

    def _append_earlier(self, where: TopicPartition) -> None:
        """Append first what `send` gathered for the partition."""
        self._follow(self._engine.topic(where.topic))
        buffers = self._buffers_of(where.topic)
        if buffers and buffers[where.partition].accumulator.record_count:
            self._drain(buffers[where.partition])

    def _append_gathered(self) -> list[EoslogError]:
        errors: list[EoslogError] = []
        self._follow_topics()
        for buffer in self._filled_buffers():
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
                partition.sync_up_to(end)
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
            self._refuse_from_now_on(lambda: kind(text))
        return error

    # For the names of the store.

    def renew_checkpoints(self, partitions: Iterable[TopicPartition]) -> bool:
        """Write down where the name stands at these partitions; whether this is still to say."""
        with self.lock:
            if self._refusal is not None:
                return False
            self._identity.renew(partitions)
            return True

    def fence(self, reason: str) -> None:
        """Take part in nothing more; waits for a call that is under way.

        Raises ConcurrentAccessError in the middle of a call of this producer by the same thread.
        """
        with self.lock:
            self._refuse_from_now_on(lambda: ProducerFencedError(reason))
        self._store_parts.linger.remove(self)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted, with what was gathered for it.

        What is of a new topic of the name stays.
        """
        with self.lock:
            self._forget_topic(topic)

    def _forget_topic(self, topic: str) -> None:
        now = self._engine.registry.id_of(TopicPartition(topic, 0))
        if self._topic_ids.get(topic) != now:
            buffers = self._buffers_of(topic)
            lost = sum(buffer.accumulator.record_count for buffer in buffers)
            if lost:
                self._lost = UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with {lost} records that were gathered for it"
                )
            self._drop_topic(topic)
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

    def _failed(self, error: Exception) -> None:
        if error is self._lost:
            self._lost = None  # Now the caller knows.

    def _known_topic(self, topic: str) -> TopicDescription:
        if not isinstance(topic, str):
            raise TypeError(f"a topic is a str, not {type(topic).__name__}")
        return self._engine.topic(topic)

    def _known_partition(self, topic: TopicDescription, partition: int) -> TopicPartition:
        number = whole_number(partition, "a partition")
        if not 0 <= number < topic.partitions:
            self._no_partition(topic.name, number, topic.partitions)
        return TopicPartition(topic.name, number)


def length_of(column: object) -> int:
    """Return how many records a column has."""
    try:
        return len(column)  # type: ignore[arg-type]
    except TypeError:
        return 0  # No column: the append says so.
