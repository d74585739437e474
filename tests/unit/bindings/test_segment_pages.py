"""Which pages of a segment a process has in its map that lets others append."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest
from harness.crew import Member
from harness.system_abilities import needs_populated_maps

from eoslog import TopicPartition

TOTAL_BATCHES = 100
BATCH_BYTES = 40_000
PAGE_BYTES = 4096
MIB = 1 << 20
ROUNDS = 12
APPENDED = TOTAL_BATCHES * BATCH_BYTES
WRITES = f"""
for _ in range({TOTAL_BATCHES}):
    producer.append("t", partition=0, values=[bytes({BATCH_BYTES})])
store.flush()
"""


@pytest.fixture
def tmp_path(disk_path):
    """Files in memory have other pages."""
    return disk_path


@pytest.fixture
def beside(open_store, store_path):
    """The partition in a store that syncs, and a producer's process beside it."""
    store = open_store("commit")
    store.create_topic("t")
    with Member() as other:
        other.run("store = eoslog.open(path); producer = store.producer()", path=str(store_path))
        yield store, other


def dirty_bytes(store_path: Path) -> int:
    """Of the pages of the partition's only segment that are in this process's map, those that no
    sync has written: whoever maps a page to store to it makes it dirty.
    """
    text = Path("/proc/self/smaps").read_text()
    name = re.escape(f"{store_path}/t-0/{0:020}.log")
    found = re.search(rf"^[0-9a-f]+-[0-9a-f]+ .*{name}\n((?:[A-Z].*\n)+)", text, re.MULTILINE)
    assert found is not None
    return 1024 * sum(int(one) for one in re.findall(r"_Dirty: +(\d+) kB", found[1]))


@needs_populated_maps
def test_a_writer_stores_without_a_fault_for_each_page(open_store, store_path):
    """Between the looks at what another process wrote to the same stretch of the file.

    A sync of the whole file system by anybody makes its pages read-only, and each costs a fault
    then: the best quarter of the rounds counts.
    """
    store = open_store()
    store.create_topic("t")
    producer = store.producer()
    with Member() as other:
        other.run(
            "store = eoslog.open(path, durability='process'); producer = store.producer()",
            path=str(store_path),
        )
        append = f"producer.append('t', partition=0, values=[bytes({PAGE_BYTES})])"
        producer.append("t", partition=0, values=[b"this process appends"])
        faults = []
        for _ in range(ROUNDS):
            other.run(f"for _ in range({MIB // PAGE_BYTES}): {append}")
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            for _ in range(100):
                producer.append("t", partition=0, values=[bytes(PAGE_BYTES)])
            faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    assert sorted(faults)[ROUNDS // 4] < 100 // 4


def test_a_reader_leaves_clean_pages_clean(beside, store_path):
    store, other = beside
    other.run(WRITES)
    assert store.partition("t", 0).log_end_offset == TOTAL_BATCHES
    assert dirty_bytes(store_path) < APPENDED // 4


def test_who_has_not_written_for_long_is_a_reader(beside, store_path):
    store, other = beside
    store.producer().append("t", partition=0, values=[b"once"])
    for number in range(3):
        other.run(WRITES)
        assert store.partition("t", 0).log_end_offset == 1 + (number + 1) * TOTAL_BATCHES
    assert dirty_bytes(store_path) < APPENDED // 4


def test_a_segment_that_another_process_began_is_mapped_too(open_store, store_path):
    store = open_store(log__segment__bytes=1 << 20)
    store.create_topic("t")
    producer = store.producer()
    with Member() as other:
        other.run(
            "store = eoslog.open(path, durability='process'); producer = store.producer()",
            path=str(store_path),
        )
        for number in range(200):
            other.run("producer.append('t', partition=0, values=[bytes(30_000)])")
            producer.append("t", partition=0, values=[number.to_bytes(4, "big")])
        partition = store.partition("t", 0)
        assert partition.log_end_offset == 400
        assert partition.verify() == []
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", 0)])
    consumer.seek_to_beginning()
    values = [one.value for one in consumer.poll(max_records=400) if len(one.value) == 4]
    assert [int.from_bytes(one, "big") for one in values] == list(range(200))
