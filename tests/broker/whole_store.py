"""A store with everything that one has, and what its readers see, for moves to a broker."""

from __future__ import annotations

from typing import Any

from compacted_files import create_topic_of_kafka
from staged_jobs import load

from eoslog import TopicPartition
from eoslog.store.store import engine_of

T0 = TopicPartition("t", 0)
OFFSETS_CONSUMED = {T0: 7}


def started(store: Any, transactional_id: str, **options: Any) -> Any:
    producer = store.producer(transactional_id=transactional_id, **options)
    producer.init_transactions()
    return producer


def fill(store: Any) -> None:
    """Everything that a store has: headers, times, transactions, a name, staged jobs, groups."""
    store.create_topic("t", partitions=3)
    kept_as_keyed = {"cleanup.policy": "compact", "segment.bytes": 4096}
    create_topic_of_kafka(store, "kept", kept_as_keyed)
    store.create_topic("unused", partitions=2)
    with store.producer() as plain:
        for number in range(100):
            headers = [("h", b"%d" % number), ("none", None)]
            key = None if number % 3 else b"key-%d" % number
            plain.send(
                "t",
                b"plain-%d" % number,
                key=key,
                partition=0,
                headers=headers,
                timestamp_ms=1_700_000_000_000 + number,
            )
    with store.producer(name="named") as named:
        named.append("kept", 0, [b"x" * 500] * 30)
    kept = engine_of(store).partition("kept", 0)
    assert kept.delete_segments(kept.segment_sizes()[1][0]) == 1
    producer = started(store, "id")
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send("t", b"transactional-%d" % number, partition=partition)
        producer.send_offsets_to_transaction({T0: number}, "group-of-transactions")
        producer.flush()
        if number % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    values = [b"staged-%d" % number for number in range(1000)]
    load(store, "staged", {("t", 2): values}, {"group-of-a-job": {TopicPartition("t", 1): 3}})
    with store.consumer(group="group") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(timeout=5)
        consumer.commit(OFFSETS_CONSUMED)


def records_of(store: Any, isolation_level: str) -> dict[TopicPartition, list[Any]]:
    found: dict[TopicPartition, list[Any]] = {}
    with store.consumer(isolation_level=isolation_level) as consumer:
        for topic in store.topics().values():
            for where in topic.topic_partitions():
                consumer.assign([where])
                consumer.seek(where, store.partition(*where).log_start_offset)
                found[where] = []
                while records := consumer.poll(timeout=0):
                    found[where] += [plain(one) for one in records]
    return found


def plain(record: Any) -> tuple[Any, ...]:
    """A record of eoslog, or of kafka-python."""
    timestamp_ms = record.timestamp_ms if hasattr(record, "timestamp_ms") else record.timestamp
    headers = [tuple(one) for one in record.headers]
    return record.offset, timestamp_ms, record.key, record.value, headers
