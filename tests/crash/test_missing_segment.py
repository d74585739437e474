"""After a clean close nothing is recovered: a reader says itself that part of a log is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import CorruptRecordError

pytestmark = pytest.mark.crash

WHERE = TopicPartition("rows", 0)
RECORDS = 60


def cut_between_batches(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[-2].position_bytes])


def cut_in_a_batch(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[-2].position_bytes + 70])


@pytest.mark.parametrize("damage", [Path.unlink, cut_between_batches, cut_in_a_batch])
@pytest.mark.parametrize("number", [1, 2])
def test_nobody_steps_over_it(tmp_path, damage: Callable[[Path], object], number: int):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows", config={"segment.bytes": 2000})
        for index in range(RECORDS):
            store.producer().append("rows", 0, [b"%03d" % index + b"x" * 60])
    segments = sorted((path / str(WHERE)).glob("*.log"))
    assert len(segments) == 4
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
