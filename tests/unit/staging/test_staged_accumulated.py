"""Batches that were gathered record by record, on their way into staged files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.errors import (
    InvalidTimestampError,
    LogClosedError,
    StoreFullError,
    UnknownTopicOrPartitionError,
)
from eoslog.staging.attempt_files import AttemptFiles
from eoslog.staging.staged_writer import StagedWriter

pytestmark = pytest.mark.usefixtures("no_retries")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with eoslog.open(tmp_path / "store", create=True, durability="process") as opened:
        opened.create_topic("a", partitions=2)
        opened.create_topic("b", config={"message.timestamp.before.max.ms": 60_000})
        yield opened


def gathered(*values: bytes, timestamp_ms: int | None = None) -> RecordAccumulator:
    accumulator = RecordAccumulator(1 << 16)
    moment_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    for number, value in enumerate(values):
        accumulator.add(value, timestamp_ms=moment_ms + number)
    return accumulator


def writer_of(store: Any) -> StagedWriter:
    return StagedWriter(store.path, "app", "run", "0", partitions={"a": 2}, durability="process")


def test_an_accumulators_batch_has_the_numbers_it_was_asked_for():
    accumulator = gathered(b"one", b"two", timestamp_ms=50)
    batch = accumulator.encoded(1 << 62, 3, 9)
    (header,) = iter_batches(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 62, 3, 9)
    assert (header.base_offset, header.attributes, header.record_count) == (0, 0, 2)
    assert [record.value for record in decode_records(batch)] == [b"one", b"two"]
    assert accumulator.record_count == 2
    assert accumulator.encoded(1 << 62, 3, 9) == batch


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 1 << 15, 0)])
def test_numbers_that_no_batch_has_are_refused(numbers):
    with pytest.raises(ValueError, match="producer"):
        gathered(b"one").encoded(*numbers)
    with pytest.raises(ValueError, match="no records"):
        RecordAccumulator(1000).encoded(0, 0, 0)


def test_an_accumulator_knows_its_oldest_and_newest_timestamp():
    accumulator = RecordAccumulator(1000)
    assert accumulator.timestamps_ms == (-1, -1)
    for moment_ms in (50, 20, 90, 60):
        accumulator.add(b"v", timestamp_ms=moment_ms)
    assert accumulator.timestamps_ms == (20, 90)
    accumulator.clear()
    accumulator.add(b"v", timestamp_ms=70)
    assert accumulator.timestamps_ms == (70, 70)


def test_gathered_batches_and_columns_keep_their_order(store):
    with writer_of(store) as writer:
        for number in range(4):
            accumulator = gathered(b"gathered %d" % number, b"and %d" % number)
            writer.append_accumulated("a", 1, accumulator)
            assert accumulator.record_count == 0
            writer.append("a", 1, [b"column %d" % number])
    assert store.commit_staged("app", 0, [writer.message]).records == 12
    records, _ = store.partition("a", 1).fetch_records(0, 100, 1 << 20)
    kinds = (b"gathered %d", b"and %d", b"column %d")
    assert [one.value for one in records] == [
        kind % number for number in range(4) for kind in kinds
    ]


def test_a_topic_may_come_later(store):
    with writer_of(store) as writer:
        with pytest.raises(UnknownTopicOrPartitionError):
            writer.append_accumulated("b", 0, gathered(b"v"))
        writer.add_topic("b", 1)
        writer.append_accumulated("b", 0, gathered(b"v"))
        with pytest.raises(UnknownTopicOrPartitionError):
            writer.append_accumulated("b", 1, gathered(b"v"))
        with pytest.raises(ValueError, match="has 2 partitions, not 3"):
            writer.add_topic("a", 3)
    assert store.commit_staged("app", 0, [writer.message]).records == 1


@pytest.mark.parametrize("config", [None, {"message.timestamp.before.max.ms": 1 << 60}])
def test_timestamps_are_checked_by_the_topics_settings_or_those_given(store, config):
    with writer_of(store) as writer:
        writer.add_topic("b", 1, config)
        old = gathered(b"v", timestamp_ms=5)
        if config is None:
            with pytest.raises(InvalidTimestampError):
                writer.append_accumulated("b", 0, old)
            assert old.record_count == 1
        else:
            writer.append_accumulated("b", 0, old)
        writer.append_accumulated("b", 0, gathered(b"now"))
    assert len(writer.message.files) == 1
    assert writer.message.records == (1 if config is None else 2)


def test_after_a_failed_write_the_writer_says_why_it_takes_nothing(store, monkeypatch):
    def full(*_: Any) -> None:
        raise StoreFullError("no room")

    writer = writer_of(store)
    assert writer.failed is None
    monkeypatch.setattr(AttemptFiles, "write", full)
    with pytest.raises(StoreFullError):
        writer.append_accumulated("a", 0, gathered(b"v"))
    monkeypatch.undo()
    assert isinstance(writer.failed, StoreFullError)
    with pytest.raises(LogClosedError, match="no room"):
        writer.append_accumulated("a", 0, gathered(b"v"))
    writer.abandon()
