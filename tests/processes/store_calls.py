"""Single calls that members are told to make; values are text here, since JSON carries them."""

from __future__ import annotations

import time
from typing import Any

from harness.member_main import Hand

import eoslog
from eoslog import TopicPartition
from eoslog.store.store import parts_of


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def stop_background(hand: Hand) -> None:
    """Of one that will be stopped (SIGSTOP): not while its background thread holds a lock."""
    parts_of(hand.store).checkpointer.stop()


# Topics.


def make_topic(
    hand: Hand,
    name: str,
    partitions: int = 1,
    config: dict[str, int] | None = None,
    exist_ok: bool = False,
) -> str:
    """Create it; its id."""
    return hand.store.create_topic(name, partitions, config, exist_ok=exist_ok).topic_id


def delete_topic(hand: Hand, name: str) -> None:
    hand.store.delete_topic(name)


def topic_names(hand: Hand) -> list[str]:
    return sorted(hand.store.topics())


# Writing.


def _producer(hand: Hand, name: str | None) -> Any:
    producer = hand.kept.get(f"producer {name}")
    if producer is None:
        producer = hand.kept[f"producer {name}"] = hand.store.producer(name=name)
    return producer


def append(
    hand: Hand, topic: str, values: list[str], *, partition: int = 0, name: str | None = None
) -> list[int]:
    """Append with the member's producer (of a name): first and last offset."""
    columns = [value.encode() for value in values]
    result = _producer(hand, name).append(topic, partition=partition, values=columns)
    return [result.base_offset, result.last_offset]


def next_sequence(hand: Hand, topic: str, *, partition: int = 0, name: str) -> int:
    return int(_producer(hand, name).next_sequence(topic, partition))


def append_batch(hand: Hand, topic: str, batch_hex: str, *, partition: int = 0) -> list[Any]:
    """Append a client's batch as it is: base offset, whether it was there."""
    result = hand.store.partition(topic, partition).append_batch(bytes.fromhex(batch_hex))
    return [result.base_offset, result.duplicate]


# Transactions.


def init(hand: Hand, transactional_id: str, **options: Any) -> list[int]:
    """Take a transactional id; the producer id and epoch."""
    producer = hand.store.producer(transactional_id=transactional_id, **options)
    hand.kept[transactional_id] = producer
    producer.init_transactions()
    return [producer.producer_id, producer.producer_epoch]


def begin(hand: Hand, transactional_id: str) -> None:
    hand.kept[transactional_id].begin_transaction()


def send(hand: Hand, transactional_id: str, topic: str, values: dict[str, list[str]]) -> None:
    """Values for partitions, in the open transaction; they are in the log on return."""
    producer = hand.kept[transactional_id]
    for partition, ones in values.items():
        for value in ones:
            producer.send(topic, value=value.encode(), partition=int(partition))
    producer.flush()


def send_offset(
    hand: Hand, transactional_id: str, group: str, topic: str, partition: int, offset: int
) -> None:
    offsets = {TopicPartition(topic, partition): offset}
    hand.kept[transactional_id].send_offsets_to_transaction(offsets, group)


def commit(hand: Hand, transactional_id: str) -> None:
    hand.kept[transactional_id].commit_transaction()


def abort(hand: Hand, transactional_id: str) -> None:
    hand.kept[transactional_id].abort_transaction()


def prepare(hand: Hand, transactional_id: str) -> str:
    return str(hand.kept[transactional_id].prepare_transaction())


def commit_once(
    hand: Hand, transactional_id: str, topic: str, values: dict[str, list[str]]
) -> None:
    """One whole transaction."""
    begin(hand, transactional_id)
    send(hand, transactional_id, topic, values)
    commit(hand, transactional_id)


def transactions(hand: Hand) -> dict[str, str]:
    """The state of each transactional id."""
    return {one.transactional_id: one.transaction_state for one in hand.store.transactions()}


def abort_of(hand: Hand, transactional_id: str) -> None:
    """As an operator."""
    hand.store.abort_transaction(transactional_id)


# Reading.


def values_of(
    hand: Hand, topic: str, partition: int = 0, isolation_level: str = "read_committed"
) -> list[str | None]:
    """All that a new consumer reads."""
    with hand.store.consumer(isolation_level=isolation_level) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[str | None] = []
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [text(record.value) for record in records]
        return found


def keep_consumer(
    hand: Hand, topic: str, partitions: int = 1, group: str | None = None, **options: Any
) -> None:
    consumer = hand.store.consumer(group, **options)
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    hand.kept["consumer"] = consumer


def poll(hand: Hand, timeout: float = 0.0) -> list[str | None]:
    """What the member's consumer reads next."""
    return [text(record.value) for record in hand.kept["consumer"].poll(timeout=timeout)]


def poll_once(hand: Hand, timeout: float) -> list[int]:
    """Wait for records: how many came, and the moment at which they were there."""
    records = hand.kept["consumer"].poll(timeout=timeout)
    return [len(records), time.monotonic_ns()]


def commit_positions(hand: Hand) -> None:
    hand.kept["consumer"].commit()


def offsets_of(hand: Hand, topic: str, partition: int = 0) -> dict[str, int]:
    """Where a partition begins, ends, and is decided up to."""
    found = hand.store.partition(topic, partition)
    return {
        "log_start_offset": found.log_start_offset,
        "last_stable_offset": found.last_stable_offset,
        "log_end_offset": found.log_end_offset,
    }


def group_offsets(hand: Hand, group: str) -> dict[str, int]:
    offsets = hand.store.groups().get(group, {})
    return {str(where): found.offset for where, found in offsets.items()}


def verify(hand: Hand) -> list[Any]:
    return hand.store.verify()


def join_again(hand: Hand, **options: Any) -> None:
    """Open the store a second time in one process."""
    eoslog.open(hand.store.path, **options).close()
