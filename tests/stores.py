"""Stores of the tests: their settings, their values, and how a death leaves them."""

from __future__ import annotations

import time

import eoslog
from eoslog.bindings.transaction_entry import encode_transaction_value, transaction_key
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_partition import StateRecord

# The background thread does nothing by itself: tests that want it say when.
QUIET = dict.fromkeys(
    (
        "eoslog.checkpoint.interval.ms",
        "log.initial.task.delay.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.retention.check.interval.ms",
        "producer.id.expiration.check.interval.ms",
        "offsets.retention.check.interval.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
    ),
    3_600_000,
)


def start_at_epoch(store: eoslog.Store, transactional_id: str, epoch: int) -> None:
    """As if the id had been used for very long."""
    value = encode_transaction_value(
        producer_id=parts_of(store).files.producer_ids.take(),
        producer_epoch=epoch,
        last_producer_epoch=-1,
        previous_producer_id=-1,
        timeout_ms=60_000,
        state="Empty",
        partitions=None,
        last_update_ms=time.time_ns() // 1_000_000,  # One that was used long ago expires.
        start_ms=-1,
        client_transaction_version=2,
    )
    state_log = parts_of(store).files.state_log
    partition = state_log.partition_of(transactional_id)
    # Readers of the index ask those that have an id, and none has this one.
    with state_log.persist_lock:
        appended = partition.append_columns([value], [transaction_key(transactional_id)])
        partition.flush()
        state_log.moved(transactional_id, StateRecord(value, appended.base_offset))


def check_nothing_is_open(store: eoslog.Store) -> None:
    """No transaction of any log waits for its end."""
    for partition in parts_of(store).files.partitions.with_transactions(None, None):
        where = partition.topic_partition
        assert partition.open_transactions() == [], f"{where}: nothing ends these"
        assert partition.last_stable_offset == partition.log_end_offset, where
    for listing in store.transactions():
        assert listing.transaction_state in ("Empty", "CompleteCommit", "CompleteAbort"), listing


def values_of(store: eoslog.Store, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values of all records of a partition, in order."""
    with store.consumer() as consumer:
        consumer.assign([eoslog.TopicPartition(topic, partition)])
        found: list[bytes | None] = []
        while records := consumer.poll(timeout=0):
            found += [record.value for record in records]
        return found
