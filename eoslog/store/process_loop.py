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
from eoslog.common.arguments import check_ran, check_synchronous
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CommitFailedError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.store.store import engine_of

if TYPE_CHECKING:
    from eoslog.consumer.consumer import Consumer
    from eoslog.producer.producer import Producer
    from eoslog.storage.topic_registry import TopicDescription
    from eoslog.store.store import Store

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
    """Process records of `topics` exactly once; how many were processed.

    For each up to `max_records` records `process(producer, records)` is called in a transaction: it
    sends what it makes of them with `producer.send` or `producer.append`, and keeps nothing that it
    needs for the records after them. Then the group's offsets are committed with it. `topics` are
    whole topics, or single partitions of them; only committed records are read.

    `process` must do its work before it returns: an async function and a generator function are
    refused with TypeError. So is a result that is work not done yet, or a list of such: awaitables,
    iterators, futures, functions, threads that run. It aborts the transaction. The same holds for
    `stop`.

    The loop ends when `stop()` returns true; it is called before each transaction and at least
    every `poll_timeout_s` seconds. With `until_caught_up` it also ends when there is nothing left
    to read, after a wait for any transaction that may still move the group's offsets. An exception
    of `process` aborts its transaction, ends the loop and is raised; a later run has the
    same records again.

    `transactional_id` is the group's name if it is not given: a second loop of the group then takes
    over, and the first one ends with ProducerFencedError.

    With `share` any number of loops, in any processes, share the `topics`, which are whole ones
    then: each is a member of the group, and has an id of its own if none is given. What a loop was
    doing when it dies, or is too slow for "max.poll.interval.ms", is undone, and done by the loop
    that has its partitions next. With `until_caught_up` a loop ends when there is nothing left to
    read in those partitions that it has.

    A transaction, and so a call of `process`, may take `transaction_timeout_ms`.

    Raises TypeError; InvalidRequestError if `topics` is empty; UnknownTopicOrPartitionError, also
    as soon as one of the topics is deleted, though there may be a new one of its name; and what the
    producer and the consumer raise.
    """
    check_synchronous(process, "process")
    if stop is not None:
        check_synchronous(stop, "stop")
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
            if share:
                records = _polled(store, consumer, shared, poll_timeout_s, max_records)
            else:
                records = consumer.poll(timeout=poll_timeout_s, max_records=max_records)
            if not records:
                if until_caught_up and not _waits_for_a_decision(consumer):
                    break
                continue
            try:
                with producer.transaction():
                    check_ran(process(producer, records), "process")
                    producer.send_offsets_to_transaction(
                        next_offsets(consumer, records), consumer.group_metadata()
                    )
            except CommitFailedError as error:
                if not share:
                    raise
                # Others read them by now. The next poll joins the group again.
                _log.warning("%s of %s: %d records are left to others", error, group, len(records))
                consumer.seek_to_committed()
                continue
            count += len(records)
    return count


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
    """Return what a poll gives, while the topics are those of these ids: a subscription goes on
    without one that is deleted, and the loop does not.
    """
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
        raise TypeError("share: topics are names, not partitions")
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
        raise TypeError("topics: a list of names or partitions")
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
