"""A small store of two partitions, written by a named producer, to be broken in every way."""

from __future__ import annotations

from pathlib import Path

import eoslog
from eoslog.store.store import engine_of

TOPIC = "orders"
PARTITIONS = 2
RECORDS = 90
PRODUCER = "writer"
CONFIG = {"segment.bytes": 2000, "index.interval.bytes": 200}


def value_of(partition: int, offset: int) -> bytes:
    return b"record %d of partition %d" % (offset, partition)


def append(store: eoslog.Store, partition: int, first: int, count: int) -> None:
    producer = store.producer(name=PRODUCER)
    assert producer.next_sequence(TOPIC, partition) == first
    for offset in range(first, first + count, 3):
        values = [value_of(partition, offset + index) for index in range(3)]
        producer.append(TOPIC, partition=partition, values=values)
    producer.close()


def make_store(path: Path) -> None:
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config=CONFIG)
        for partition in range(PARTITIONS):
            append(store, partition, 0, RECORDS)


def read_values(store: eoslog.Store, partition: int) -> list[bytes]:
    """All values of a partition, from its log start on."""
    log = engine_of(store).partition(TOPIC, partition)
    offset, values = log.log_start_offset, []
    while offset < log.log_end_offset:
        records, next_offset = log.fetch_records(offset, 1000, 1 << 20)
        assert next_offset > offset, f"a fetch at {offset} does not move on"
        values += [record.value for record in records]
        offset = next_offset
    return values


def check_whole(store: eoslog.Store, count: int = RECORDS) -> None:
    """Every record is there, at its place, and the producer knows where to go on."""
    producer = store.producer(name=PRODUCER)
    for partition in range(PARTITIONS):
        expected = [value_of(partition, offset) for offset in range(count)]
        assert read_values(store, partition) == expected
        assert producer.next_sequence(TOPIC, partition) == count
        log = engine_of(store).partition(TOPIC, partition)
        for offset in (0, count // 2, count - 1):
            records, _ = log.fetch_records(offset, 1, 1)
            assert records[0].value == value_of(partition, offset)
            found = log.offset_for_timestamp(records[0].timestamp_ms)
            assert found is not None and found[1] == records[0].timestamp_ms
    producer.close()
