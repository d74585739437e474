"""Consume-transform-produce loop: each poll's output and its offsets are one transaction.

Invariant: the output of some records, and the group's offsets after them, are in one transaction.
After an error, or the death of the process, the next run starts exactly after the records whose
output is in the log.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from eoslog.bindings.record_batch import Record
from eoslog.common.arguments import check_ran, check_synchronous, seconds, whole_number
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CommitFailedError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.producer.transactional_producer import TransactionalProducer, end_refused
from eoslog.store.store import engine_of

if TYPE_CHECKING:
    from eoslog.consumer.consumer import Consumer
    from eoslog.producer.producer import Producer
    from eoslog.storage.topic_registry import TopicDescription
    from eoslog.store.store import Store

_ENDS_BY_ITSELF = (
    "read_process_write ends its transactions itself, with the group's offsets: return from "
    "process to commit, or raise an exception to abort"
)
# How long a loop that shares its topics waits at most until it looks whether they are there.
_LOOK_EVERY_S = 0.5

_log = logging.getLogger(__name__)


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
    if stop is not None:
        check_synchronous(stop, "stop")
    seconds(poll_timeout_s, "poll_timeout_s")
    whole_number(max_records, "max_records")
    shared = _topic_ids(store, topics) if share else {}
    partitions = [] if share else _partitions(store, topics)
    if transactional_id is None:
        transactional_id = f"{group}-{uuid.uuid4()}" if share else group
    count = 0
    with (
        store.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        ) as producer,
        store.consumer(group=group, isolation_level="read_committed") as consumer,
    ):
        # First: an older loop must write nothing more before its offsets are looked at.
        producer.init_transactions()
        if share:
            consumer.subscribe(shared)
        else:
            consumer.assign(partitions)
        while stop is None or not _says_stop(stop):
            records = _polled(store, consumer, shared, poll_timeout_s, max_records)
            if records:
                by = group if share else None
                count += _process_once(producer, consumer, process, records, shared_by=by)
            elif until_caught_up and not _waits_for_a_decision(consumer):
                break
    return count


def _process_once(
    producer: TransactionalProducer,
    consumer: "Consumer",
    process: "Callable[[Producer, list[Record]], object]",
    records: list[Record],
    *,
    shared_by: str | None,
) -> int:
    """Process records in one transaction with the group's offsets; return how many are in it: none
    if the topics are shared by members of a group, and others have the partitions by now.
    """
    processed = False
    try:
        with producer.transaction():
            with end_refused(producer, _ENDS_BY_ITSELF):
                check_ran(process(producer, records), "process")
            processed = True
            producer.send_offsets_to_transaction(
                next_offsets(consumer, records), consumer.group_metadata()
            )
    except CommitFailedError as error:
        if shared_by is None or not processed:
            raise
        # The next poll joins the group again.
        _log.warning("%s of %s: %d records are left to others", error, shared_by, len(records))
        consumer.seek_to_committed()
        return 0
    return len(records)


def _says_stop(stop: Callable[[], bool]) -> bool:
    answer = stop()
    check_ran(answer, "stop")
    return answer


def next_offsets(consumer: "Consumer", records: Iterable[Record]) -> dict[TopicPartition, int]:
    """Return the offsets to commit after these records, which one poll gave."""
    partitions = {TopicPartition(record.topic, record.partition) for record in records}
    return {where: consumer.position(where) for where in sorted(partitions)}


def _polled(
    store: "Store",
    consumer: "Consumer",
    shared: Mapping[str, str],
    timeout_s: float,
    max_records: int,
) -> list[Record]:
    """Return what a poll gives, while shared topics are those of these ids: a subscription goes on
    without one that is deleted, and the loop does not.
    """
    if not shared:
        return consumer.poll(timeout=timeout_s, max_records=max_records)
    deadline_s = time.monotonic() + timeout_s
    wait_s = min(timeout_s, _LOOK_EVERY_S)
    while True:
        records = consumer.poll(timeout=wait_s, max_records=max_records)
        for name, topic_id in shared.items():
            found = engine_of(store).registry.get(name)
            if found is None or found.topic_id != topic_id:
                raise UnknownTopicOrPartitionError(f"topic {name!r} was deleted: it is shared here")
        wait_s = min(deadline_s - time.monotonic(), _LOOK_EVERY_S)
        if records or wait_s <= 0:
            return records


def _waits_for_a_decision(consumer: "Consumer") -> bool:
    """True if an open transaction of another loop may move the group: it cannot begin before."""
    for where in consumer.assignment():
        try:
            consumer.position(where)
        except UnstableOffsetCommitError:
            return True
    return False


def _topic_ids(store: "Store", topics: Iterable[str | TopicPartition]) -> dict[str, str]:
    """The topics, which must all exist, with their ids.

    Raises UnknownTopicOrPartitionError, TypeError.
    """
    given = _listed(topics)
    if any(isinstance(one, TopicPartition) for one in given):
        raise TypeError("with share, topics must be names, not partitions")
    known = store.topics()
    return {str(one): _described(store, known, one).topic_id for one in given}


def _partitions(store: "Store", topics: Iterable[str | TopicPartition]) -> list[TopicPartition]:
    known = store.topics()
    found: dict[TopicPartition, None] = {}
    for one in _listed(topics):
        if isinstance(one, TopicPartition):
            found[one] = None
        else:
            found.update(dict.fromkeys(_described(store, known, one).topic_partitions()))
    return list(found)


def _listed(topics: Iterable[str | TopicPartition]) -> list[str | TopicPartition]:
    if isinstance(topics, (str, TopicPartition)):
        raise TypeError("topics must be a list of names or partitions")
    listed = list(topics)
    if not listed:
        raise InvalidRequestError("topics is empty: name at least one topic or partition")
    return listed


def _described(
    store: "Store", known: Mapping[str, "TopicDescription"], name: object
) -> "TopicDescription":
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownTopicOrPartitionError(f"no topic {name!r} in {store.path}")
    return found
