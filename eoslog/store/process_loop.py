"""Consume-transform-produce loop: each poll's output and its offsets are one transaction.

Invariant: the output of some records, and the group's offsets after them, are in one transaction.
After an error, or the death of the process, the next run starts exactly after the records whose
output is in the log.
"""

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from eoslog.bindings.record_batch import Record
from eoslog.common.arguments import check_ran, check_synchronous, seconds, whole_number
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CommitFailedError,
    ConcurrentAccessError,
    EoslogError,
    IllegalStateError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    StoreError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.producer.transactional_producer import TransactionalProducer, end_refused
from eoslog.store.store import engine_of

if TYPE_CHECKING:
    from eoslog.consumer.consumer import Consumer
    from eoslog.producer.producer import Producer
    from eoslog.storage.engine import Engine
    from eoslog.storage.topic_registry import TopicDescription
    from eoslog.store.store import Store

ENDS_BY_ITSELF = (
    "read_process_write ends its transactions itself, with the group's offsets: return from "
    "process to commit, or raise an exception to abort"
)
# How long a loop that shares its topics waits at most until it looks whether they are there.
LOOK_EVERY_S = 0.5
# Whose headers a dead letter has.
_BY = ("connect", "streams")
_TRACE_CHARACTERS_MAX = 16_384

_log = logging.getLogger(__name__)


class UnfinishedWorkError(TypeError):
    """`process` returned work that is not done: it is no function for a loop."""


_NEVER_OF_A_RECORD = (
    StoreError,
    MemoryError,
    ConcurrentAccessError,
    IllegalStateError,
    OutOfOrderSequenceError,
    UnfinishedWorkError,
)


def read_process_write(
    store: "Store",
    process: "Callable[[Producer, list[Record]], object]",
    *,
    topics: Iterable[str | TopicPartition],
    group: str,
    share: bool = False,
    transactional_id: str | None = None,
    stop: Callable[[], bool] | None = None,
    until_caught_up: bool = False,
    max_records: int = 500,
    max_attempts: int = 1,
    dead_letter: str | None = None,
    poll_timeout_s: float = 1.0,
    transaction_timeout_ms: int = 60_000,
) -> int:
    """Process records exactly once, each poll's in one transaction; return how many.

    The output of `process` and the group's offsets are committed together. If it raises, so does
    the loop, after an abort: a later run gets the records again.

    Parameters
    ----------
    process : callable
        Called with the producer and up to `max_records` committed records; sends or appends its
        output, keeps no state for later records, and cannot end the transaction
        (IllegalStateError). Async and generator functions are refused, as is a result that is work
        not done yet.
    topics, group : iterable of str or TopicPartition, str
        Whole topics or single partitions; the consumer group that keeps the position.
    share : bool
        Loops in any processes share whole topics, each a member of the group. The work of a loop
        that dies, or exceeds "max.poll.interval.ms", is undone, and done by the partitions' next
        owner.
    transactional_id : str, optional
        By default the group's name: a second loop of the group takes over, and the first one ends
        with ProducerFencedError. With `share`, an id of the loop's own.
    stop : callable, optional
        Ends the loop when it returns true; called before each transaction and each poll.
    until_caught_up : bool
        End when nothing is left to read, in the loop's own partitions if they are shared, after a
        wait for transactions that may still move the group's offsets.
    max_attempts, dead_letter : int, str, optional
        With one of them, an error of a call is not the loop's end: its transaction is aborted, and
        its records are done again one by one, each in a transaction of its own. A record that fails
        `max_attempts` times by itself goes to the topic `dead_letter`, in the transaction that
        moves the group's offset, with its key, value, timestamp and headers, and the error in the
        headers that Kafka Connect ("__connect.errors.topic", ...) and Kafka Streams use; without
        that topic the error is raised. Errors of the store, of a topic that does not exist and of
        the group, and fatal ones, end the loop at once.
    poll_timeout_s, transaction_timeout_ms : float, int
        Longest wait for records, in seconds; longest time of a transaction, in milliseconds, after
        which it is aborted and the loop ends with ProducerFencedError.

    Raises
    ------
    InvalidRequestError, UnknownTopicOrPartitionError, TypeError
        `topics` is empty, or one does not exist, or was deleted (also if it was created again); an
        argument or a result is refused. Also raises what the producer and the consumer raise.
    """
    check_synchronous(process, "process")
    settings = checked_settings(
        store,
        topics=topics,
        group=group,
        share=share,
        transactional_id=transactional_id,
        stop=stop,
        max_records=max_records,
        max_attempts=max_attempts,
        dead_letter=dead_letter,
        until_caught_up=until_caught_up,
        poll_timeout_s=poll_timeout_s,
        transaction_timeout_ms=transaction_timeout_ms,
    )
    return _run(store, process, settings)


class LoopSettings(NamedTuple):
    """Arguments of a loop; of `shared` topics and `partitions` one is empty."""

    shared: dict[str, str]  # By name, the topics' ids.
    partitions: list[TopicPartition]
    group: str
    transactional_id: str
    stop: Callable[[], bool] | None
    max_records: int
    max_attempts: int
    dead_letter: str | None
    until_caught_up: bool
    poll_timeout_s: float
    transaction_timeout_ms: int

    def is_stopped(self) -> bool:
        """Return what `stop` answers. Raises TypeError for work that is not done yet."""
        if self.stop is None:
            return False
        answer = self.stop()
        check_ran(answer, "stop")
        return answer

    @property
    def is_retried(self) -> bool:
        """True if an error of a record is not the loop's end."""
        return self.max_attempts > 1 or self.dead_letter is not None


def checked_settings(
    store: "Store",
    *,
    topics: Iterable[str | TopicPartition],
    group: str,
    share: bool,
    transactional_id: str | None,
    stop: Callable[[], bool] | None,
    max_records: int,
    max_attempts: int,
    dead_letter: str | None,
    until_caught_up: bool,
    poll_timeout_s: float,
    transaction_timeout_ms: int,
) -> LoopSettings:
    """Return the arguments of a loop as it uses them.

    Raises TypeError, ValueError, UnknownTopicOrPartitionError, or InvalidRequestError, also if the
    dead-letter topic is one of those that are read.
    """
    _engine(store)  # TypeError for what is no store.
    given = _listed(topics)
    if stop is not None:
        check_synchronous(stop, "stop")
    seconds(poll_timeout_s, "poll_timeout_s")
    whole_number(max_records, "max_records")
    if whole_number(max_attempts, "max_attempts") < 1:
        raise ValueError(f"max_attempts must be 1 or more, got {max_attempts}")
    if dead_letter is not None:
        _described(store, store.topics(), dead_letter)
        if dead_letter in {one.topic if isinstance(one, TopicPartition) else one for one in given}:
            raise InvalidRequestError(f"dead_letter {dead_letter!r} is one of the topics to read")
    if transactional_id is None:
        transactional_id = f"{group}-{uuid.uuid4()}" if share else group
    return LoopSettings(
        _topic_ids(store, given) if share else {},
        [] if share else _partitions(store, given),
        group,
        transactional_id,
        stop,
        max_records,
        max_attempts,
        dead_letter,
        until_caught_up,
        poll_timeout_s,
        transaction_timeout_ms,
    )


class Piece(NamedTuple):
    """Records for one transaction, and the group's offsets after them. With an error, the one
    record goes to the dead-letter topic.
    """

    records: list[Record]
    offsets: dict[TopicPartition, int]
    error: Exception | None = None


class PolledWork:
    """The records of one poll, piece by piece: all at once, and after an error one by one.

    Invariant: the pieces that are left follow on those that are committed, in the poll's order.
    """

    def __init__(
        self, records: list[Record], ends: Mapping[TopicPartition, int], settings: LoopSettings
    ) -> None:
        """`ends` are the offsets after the records."""
        self.settings = settings
        self._pieces = deque([Piece(records, dict(ends))])
        self._failed_count = 0  # Of the next piece, if it is of one record.
        self.is_begun = False  # The transaction of the next piece.
        self.is_processed = False  # `process` did its part of it.
        # A loop that was stopped ends: a poll more would pass over the pieces that are left.
        self.is_stopped = False

    @property
    def next_piece(self) -> Piece | None:
        """The records of the next transaction; None if all are done."""
        return self._pieces[0] if self._pieces else None

    def done(self) -> int:
        """Note that the piece is committed; return how many records it has."""
        self._failed_count = 0
        self.is_begun = self.is_processed = False
        return len(self._pieces.popleft().records)

    def stops(self) -> bool:
        """Return True if `stop` ends the loop before the next piece."""
        self.is_stopped = self.next_piece is not None and self.settings.is_stopped()
        return self.is_stopped

    def goes_on_after(self, error: Exception) -> bool:
        """Note that the piece was aborted; return False if the error ends the loop."""
        records, _, failed_before = piece = self._pieces[0]
        dead_letter = self.settings.dead_letter
        is_retried = self.is_begun and self.settings.is_retried and failed_before is None
        if not is_retried or not _is_of_a_record(error):
            return False
        if self.is_processed and not isinstance(error, EoslogError):
            return False  # A signal handler's, maybe after the commit: nothing of it is done again.
        self.is_begun = self.is_processed = False
        if len(records) > 1:
            _log.warning("%d records are tried again, one by one: %r", len(records), error)
            self._pieces.popleft()
            self._pieces.extendleft(reversed(_one_by_one(piece)))
            return True
        self._failed_count += 1
        name = "{0.topic}-{0.partition}, offset {0.offset}".format(records[0])
        if self._failed_count < self.settings.max_attempts:
            _log.warning("%s: attempt %d failed: %r", name, self._failed_count, error)
            return True
        if dead_letter is None:
            return False
        _log.error("%s goes to %s: %r", name, dead_letter, error)
        self._pieces[0] = piece._replace(error=error)
        return True

    def dead_letter(self) -> tuple[Any, ...]:
        """Return the arguments with which the failed record is sent to the dead-letter topic."""
        ((record,), _, error) = self._pieces[0]
        assert error is not None
        headers = dead_letter_headers(record, error)
        topic = self.settings.dead_letter
        return topic, record.value, record.key, None, headers, record.timestamp_ms

    def is_left_to_others(self, error: Exception) -> bool:
        """True if the records are those of other members of the group by now."""
        is_lost = isinstance(error, CommitFailedError) and self.is_processed
        if not is_lost or not self.settings.shared:
            return False
        _log.warning("%s: %d records are left to others", error, len(self._pieces[0].records))
        return True


def _one_by_one(piece: Piece) -> list[Piece]:
    """Return a piece for each record of a piece."""
    found = []
    offsets = dict(piece.offsets)
    for record in reversed(piece.records):
        where = TopicPartition(record.topic, record.partition)
        # After a partition's last record its end, which may lie after markers.
        found.append(Piece([record], {where: offsets.pop(where, record.offset + 1)}))
    return found[::-1]


def _is_of_a_record(error: Exception) -> bool:
    """True if an error may be that of a record, and not of the store, a topic or the group. What
    caused it counts too: a transaction says by its own error that a call in it failed.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:  # "raise e from e" makes a circle.
        seen.add(id(one))
        if isinstance(one, TransactionAbortableError):
            if one.__cause__ is None:
                return False
        elif isinstance(one, _NEVER_OF_A_RECORD) or (
            isinstance(one, EoslogError) and (one.fatal or one.retriable or one.abortable)
        ):
            return False
        one = one.__cause__
    return True


def dead_letter_headers(record: Record, error: Exception) -> list[tuple[str, bytes | None]]:
    """Return a record's headers, and after them what Kafka Connect and Kafka Streams add in their
    dead-letter topics: where it was, and the error's class, text and traceback, as UTF-8.
    """
    import traceback

    kind = type(error)
    message = str(error) or None
    trace = "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS_MAX:]
    headers: list[tuple[str, bytes | None]] = list(record.headers)
    for names, text in (
        (("topic", "topic"), record.topic),
        (("partition", "partition"), str(record.partition)),
        (("offset", "offset"), str(record.offset)),
        (("exception.class.name", "exception"), f"{kind.__module__}.{kind.__qualname__}"),
        (("exception.message", "message"), message),
        (("exception.stacktrace", "stacktrace"), trace),
    ):
        value = None if text is None else text.encode(errors="backslashreplace")
        headers += [(f"__{by}.errors.{name}", value) for by, name in zip(_BY, names, strict=True)]
    return headers


def _run(
    store: "Store",
    process: "Callable[[Producer, list[Record]], object]",
    settings: LoopSettings,
) -> int:
    """Run the loop; return how many records it did."""
    count = 0
    with (
        store.producer(
            transactional_id=settings.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
        ) as producer,
        store.consumer(group=settings.group, isolation_level="read_committed") as consumer,
    ):
        # First: an older loop must write nothing more before its offsets are looked at.
        producer.init_transactions()
        if settings.shared:
            consumer.subscribe(settings.shared)
        else:
            consumer.assign(settings.partitions)
        while not settings.is_stopped():
            records = _polled(store, consumer, settings)
            if records:
                work = PolledWork(records, next_offsets(consumer, records), settings)
                count += _process_polled(producer, consumer, process, work)
                if work.is_stopped:
                    break
            elif settings.until_caught_up and is_caught_up(consumer):
                break
    return count


def _process_polled(
    producer: TransactionalProducer,
    consumer: "Consumer",
    process: "Callable[[Producer, list[Record]], object]",
    work: PolledWork,
) -> int:
    """Process the records of a poll, each piece in one transaction with the group's offsets; return
    how many were done: fewer if the topics are shared by members of a group, and others have the
    partitions by now.
    """
    count = 0
    while (piece := work.next_piece) is not None:
        try:
            with producer.transaction():
                work.is_begun = True
                if piece.error is None:
                    with end_refused(getattr(producer, "producer", producer), ENDS_BY_ITSELF):
                        check_done(process(producer, piece.records))
                else:
                    producer.send(*work.dead_letter())
                work.is_processed = True
                producer.send_offsets_to_transaction(piece.offsets, consumer.group_metadata())
        except Exception as error:
            if work.is_left_to_others(error):
                # The next poll joins the group again.
                consumer.seek_to_committed()
                break
            if not work.goes_on_after(error):
                raise
        else:
            count += work.done()
        if work.stops():
            break
    return count


def check_done(answer: object) -> None:
    """Raise UnfinishedWorkError for an answer of `process` that is work not done yet."""
    try:
        check_ran(answer, "process")
    except TypeError as error:
        raise UnfinishedWorkError(str(error)) from None


def next_offsets(consumer: "Consumer", records: Iterable[Record]) -> dict[TopicPartition, int]:
    """Return the offsets to commit after these records, which one poll gave."""
    partitions = {TopicPartition(record.topic, record.partition) for record in records}
    return {where: consumer.position(where) for where in sorted(partitions)}


def _polled(
    store: "Store",
    consumer: "Consumer",
    settings: LoopSettings,
) -> list[Record]:
    """Return what a poll gives, while shared topics are there."""
    timeout_s, max_records = settings.poll_timeout_s, settings.max_records
    if not settings.shared:
        return consumer.poll(timeout=timeout_s, max_records=max_records)
    deadline_s = time.monotonic() + timeout_s
    wait_s = min(timeout_s, LOOK_EVERY_S)
    while True:
        records = consumer.poll(timeout=wait_s, max_records=max_records)
        check_shared_topics(store, settings)
        wait_s = min(deadline_s - time.monotonic(), LOOK_EVERY_S)
        if records or wait_s <= 0:
            return records


def check_shared_topics(store: "Store", settings: LoopSettings) -> None:
    """Raise UnknownTopicOrPartitionError unless shared topics are those that they were: a
    subscription goes on without one that is deleted, and the loop does not.
    """
    for name, topic_id in settings.shared.items():
        found = _engine(store).registry.get(name)
        if found is None or found.topic_id != topic_id:
            raise UnknownTopicOrPartitionError(f"topic {name!r} was deleted: it is shared here")


def _engine(store: "Store") -> "Engine":
    """Return the parts of a store, also of one whose clients are recorded."""
    return engine_of(getattr(store, "unrecorded", store))


def is_caught_up(consumer: "Consumer") -> bool:
    """True if no record is left to read, nor a transaction that may move the group.

    Asked after a poll without records: what held that poll up may be decided by now.
    """
    try:
        return not any(map(consumer.lag, consumer.assignment()))
    except UnstableOffsetCommitError:
        return False


def _topic_ids(store: "Store", topics: Iterable[str | TopicPartition]) -> dict[str, str]:
    """The topics, which must all exist, with their ids.

    Raises UnknownTopicOrPartitionError, TypeError.
    """
    if any(isinstance(one, TopicPartition) for one in topics):
        raise TypeError("with share, topics must be names, not partitions")
    known = store.topics()
    return {str(one): _described(store, known, one).topic_id for one in topics}


def _partitions(store: "Store", topics: Iterable[str | TopicPartition]) -> list[TopicPartition]:
    known = store.topics()
    found: dict[TopicPartition, None] = {}
    for one in topics:
        if isinstance(one, TopicPartition):
            found[one] = None
        else:
            found.update(dict.fromkeys(_described(store, known, one).topic_partitions()))
    return list(found)


def _listed(topics: Iterable[str | TopicPartition]) -> list[str | TopicPartition]:
    """Return the topics that a loop was given. Raises TypeError, InvalidRequestError."""
    if isinstance(topics, (str, TopicPartition)):
        raise TypeError("topics must be a list of names or partitions")
    given = list(topics)
    if not given:
        raise InvalidRequestError("topics is empty: name at least one topic or partition")
    return given


def _described(
    store: "Store", known: Mapping[str, "TopicDescription"], name: object
) -> "TopicDescription":
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownTopicOrPartitionError(f"no topic {name!r} in {store.path}")
    return found
