"""A process that may open nothing more is in nobody's way but its own."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest
from harness.crew import QUIET, Crew
from harness.member_main import Hand
from processes import store_calls

import eoslog
from eoslog.store.store import engine_of

TOPIC = "events"
SEGMENTS = 4


@contextlib.contextmanager
def no_file_left() -> Iterator[None]:
    """All descriptors that the limit leaves are in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def end_segments(hand: Hand, first: int, *, durable: bool = False) -> int:
    """Append a record to each of some segments, and end it; where the log ends."""
    partition = engine_of(hand.store).partition(TOPIC, 0)
    for number in range(first, first + SEGMENTS):
        partition.append_columns([b"value %d" % number])
        partition.roll()
    if durable:
        partition.flush()
    return partition.log_end_offset


def sync_without_files(hand: Hand, how: str) -> tuple[int, bool]:
    """Sync what others wrote, with no file to be opened; recovery point, whether the log failed."""
    partition = engine_of(hand.store).partition(TOPIC, 0)
    end = partition.log_end_offset  # Looked at: what is active now is open here.
    with no_file_left():
        if how == "flush":
            partition.flush()
        else:
            partition.sync_up_to(end)
    return partition.recovery_point, partition.failed


@pytest.mark.parametrize("how", ["flush", "sync"])
def test_a_sync_of_what_another_process_ended(tmp_path, how):
    """Each of its segments has to be opened for that: the file system is synced instead."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, 1, config={"segment.bytes": 1 << 20})
    with Crew(path, config=QUIET) as crew:
        writer, poor = crew.join("writer"), crew.join("poor")
        assert poor.call(store_calls.values_of, TOPIC) == []
        end = writer.call(end_segments, 0)
        assert poor.call(sync_without_files, how) == [end, False]
        # Nobody was refused, and what follows is synced as before.
        end = writer.call(end_segments, SEGMENTS, durable=True)
        assert poor.call(sync_without_files, how) == [end, False]
        crew.all_leave()
    with eoslog.open(path) as store:
        assert store.metrics()["cut_bytes"] == 0
        assert store.verify() == []
        with store.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([eoslog.TopicPartition(TOPIC, 0)])
            values = [record.value for record in consumer.poll(1.0, max_records=100)]
    assert values == [b"value %d" % number for number in range(2 * SEGMENTS)]
