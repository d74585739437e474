"""An earlier copy of LMDB's files beside a log whose oldest segments were deleted since then: the
snapshot that was written before the deletion knows the producers, and no record is doubled.
"""

import logging
import shutil

import pytest
from unclean_stops import as_of_a_crash

import eoslog
from eoslog.store.retention import apply_retention
from eoslog.store.store import engine_of, parts_of

WRITTEN = {"producer_id": 123_456, "producer_epoch": 0, "base_sequence": 0}
CONFIG = {"retention.bytes": 3000, "retention.ms": -1}
VALUES = [b"pay 1", b"pay 2", b"pay 3"]


@pytest.fixture
def path(tmp_path):
    """After a crash: the producer's batch is deleted, and LMDB's files are of before it."""
    path, earlier = tmp_path / "store", tmp_path / "earlier"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("rows", config={"segment.bytes": 1024})
        store.producer().append("rows", 0, [b"0"] * 5)
    shutil.copytree(path / "state" / "lmdb", earlier)
    with eoslog.open(path, durability="process") as store:
        partition = engine_of(store).partition("rows", 0)
        assert not partition.append_columns(VALUES, **WRITTEN).duplicate
        other = store.producer()
        for _ in range(60):
            other.append("rows", 0, [b"c" * 300])
        assert apply_retention(partition, parts_of(store).files.names, CONFIG, 0) > 0
        assert partition.log_start_offset > 8
        assert partition.producer(123_456) is not None
    as_of_a_crash(path)
    shutil.rmtree(path / "state" / "lmdb")
    shutil.copytree(earlier, path / "state" / "lmdb")
    return path


def test_what_the_snapshot_knows_is_no_new_producer(path, caplog):
    with caplog.at_level(logging.INFO, "eoslog"), eoslog.open(path) as store:
        partition = engine_of(store).partition("rows", 0)
        assert "a snapshot is used" in caplog.text
        assert partition.producer_state.restored_from == "snapshot"
        end = partition.log_end_offset
        assert partition.append_columns(VALUES, **WRITTEN).duplicate
        assert partition.log_end_offset == end
        assert store.verify() == []
    with eoslog.open(path) as store:
        # From LMDB again, which has them now.
        partition = engine_of(store).partition("rows", 0)
        assert partition.producer_state.restored_from == "rows"
        assert partition.append_columns(VALUES, **WRITTEN).duplicate
        assert store.verify() == []


@pytest.mark.parametrize("rows", ["rows", "log"])
def test_without_a_snapshot_it_is_told(path, rows):
    """The old rows are better than none."""
    for snapshot in path.glob("rows-0/*.snapshot"):
        snapshot.unlink()
    if rows == "log":
        shutil.rmtree(path / "state" / "lmdb")
    with eoslog.open(path) as store:
        assert engine_of(store).partition("rows", 0).producer_state.restored_from == rows
        (problem,) = store.verify()
        assert "taken for new" in str(problem)
    with eoslog.open(path) as store:
        assert store.verify() == []
