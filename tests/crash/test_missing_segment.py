"""After a clean close nothing is recovered: a reader says itself that part of a log is missing."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.transaction_trace import QUIET

import eoslog
from eoslog import TopicPartition, opened_partitions
from eoslog.bindings.record_batch import iter_batches
from eoslog.checkpoint_file import LOG_START_OFFSET
from eoslog.errors import CorruptRecordError
from eoslog.offset_checkpoints import last_offsets

pytestmark = pytest.mark.crash

WHERE = TopicPartition("rows", 0)
RECORDS = 60


def cut_between_batches(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[-2].position_bytes])


def cut_in_a_batch(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[-2].position_bytes + 70])


def take_out(path: Path, index: int) -> None:
    data = path.read_bytes()
    batches = list(iter_batches(data))
    start, end = batches[index].position_bytes, batches[index + 1].position_bytes
    path.write_bytes(data[:start] + data[end:])


def take_out_the_first_batch(path: Path) -> None:
    take_out(path, 0)


def take_out_a_batch_from_the_middle(path: Path) -> None:
    take_out(path, 3)


def fill(path: Path) -> list[Path]:
    """Four segments, closed cleanly."""
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows", config={"segment.bytes": 2000})
        for index in range(RECORDS):
            store.producer().append("rows", 0, [b"%03d" % index + b"x" * 60])
    segments = sorted((path / str(WHERE)).glob("*.log"))
    assert len(segments) == 4
    return segments


@pytest.mark.parametrize("closed", [True, False])
def test_a_flipped_log_start_hides_nothing(tmp_path: Path, closed: bool) -> None:
    path, killed = tmp_path / "store", tmp_path / "killed"
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows")
        store.producer().append("rows", 0, [b"%03d" % index for index in range(RECORDS)])
        store.flush()
        store._files.checkpoints.write({WHERE: last_offsets(store.partition("rows", 0))})
        shutil.copytree(path, killed)
    found = path if closed else killed
    checkpoint = found / LOG_START_OFFSET
    content = checkpoint.read_bytes()
    assert b"rows 0 0\n" in content
    checkpoint.write_bytes(content.replace(b"rows 0 0\n", b"rows 0 8\n"))
    with eoslog.open(found) as store:
        consumer = store.consumer()
        consumer.assign([WHERE])
        assert [record.offset for record in consumer.poll(0)] == list(range(RECORDS))
        # After a clean close it was put away at once.
        told = [problem["path"] for problem in store.verify()]
        assert told == ([] if closed else [str(checkpoint)])
    with eoslog.open(found) as store:
        assert store.verify() == []


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        *itertools.product([Path.unlink, cut_between_batches, cut_in_a_batch], [1, 2]),
        *itertools.product([take_out_the_first_batch, take_out_a_batch_from_the_middle], range(3)),
    ],
)
def test_nobody_steps_over_it(tmp_path, damage: Callable[[Path], object], number: int):
    path = tmp_path / "store"
    segments = fill(path)
    damage(segments[number])
    with eoslog.open(path) as store:
        consumer = store.consumer(auto_offset_reset="none")
        consumer.assign([WHERE])
        consumer.seek(WHERE, 0)
        offsets: list[int] = []
        with pytest.raises(CorruptRecordError) as caught:
            while True:
                found = [record.offset for record in consumer.poll(0)]
                assert found, offsets
                offsets += found
        assert offsets == list(range(len(offsets)))
        assert "rows-0" in str(caught.value)
        behind = int(segments[number + 1].stem)
        assert len(offsets) < behind
        consumer.seek(WHERE, behind)
        assert [record.offset for record in consumer.poll(0)] == list(range(behind, RECORDS))
        assert store.verify() != []


def test_a_beginning_that_is_gone_is_told_until_more_of_the_log_goes(tmp_path, caplog):
    """The log starts further up, as after a retention; but nothing here deleted it."""
    path = tmp_path / "store"
    segments = fill(path)
    segments[0].unlink()
    first = int(segments[1].stem)
    for _ in range(2):
        caplog.clear()
        with eoslog.open(path) as store:
            (found,) = store.verify()
            assert (
                f"began at offset 0 when it was closed, and its oldest segment begins at {first}"
                in (str(found["reason"]))
            )
            assert found["path"] == str(path / str(WHERE))
        assert "lost by the disk" in caplog.text
    with eoslog.open(path) as store:
        partition = store.partition(*WHERE)
        assert partition.delete_segments(int(segments[2].stem)) == 1
        assert store.verify() == []
    caplog.clear()
    with eoslog.open(path) as store:
        assert store.verify() == []
        assert store.partition(*WHERE).log_start_offset == int(segments[2].stem)
    assert caplog.text == ""


def test_the_beginning_of_an_internal_log_is_told_too(tmp_path, monkeypatch):
    small = dict.fromkeys(("segment.bytes", "max.message.bytes"), 1 << 14)
    monkeypatch.setattr(opened_partitions, "_INTERNAL_TOPIC_CONFIG", small)
    path = tmp_path / "store"
    fill(path)
    with eoslog.open(path, config=QUIET) as store:
        with store.consumer(group="g") as consumer:
            for number in range(400):
                consumer.commit({WHERE: number % 60})
        log = next(
            one for one in path.glob("__consumer_offsets-*") if len([*one.glob("*.log")]) > 1
        )
    min(log.glob("*.log")).unlink()
    with eoslog.open(path) as store:
        assert [one["path"] for one in store.verify()] == [str(log)]
