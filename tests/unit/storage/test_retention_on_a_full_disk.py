"""Retention makes room where there is none: one whole copy of the producers is enough for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import QUIET

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreFullError
from eoslog.storage.producer_rows import ProducerRows
from eoslog.store.retention import apply_retention
from eoslog.store.store import abandon, engine_of, parts_of

WHERE = TopicPartition("rows", 0)
PRODUCERS = 20


@pytest.fixture
def store(tmp_path):
    """One batch of each producer, two in a segment."""
    with eoslog.open(tmp_path / "store", create=True, config=QUIET) as opened:
        parts_of(opened).checkpointer.stop()  # It writes rows down at each roll.
        opened.create_topic("rows", config={"segment.bytes": 1024})
        for producer_id in range(PRODUCERS):
            append(opened, producer_id)
        yield opened


def append(store: eoslog.Store, producer_id: int) -> None:
    engine_of(store).partition(*WHERE).append_columns(
        [bytes(300)], producer_id=producer_id, producer_epoch=0, base_sequence=0
    )


def retain(store: eoslog.Store, **config: int) -> int:
    wanted = {"retention.bytes": 1, "retention.ms": -1, **config}
    return apply_retention(
        engine_of(store).partition(*WHERE), parts_of(store).files.names, wanted, 1 << 60
    )


def bases(store: eoslog.Store) -> list[int]:
    directory = Path(store.path) / str(WHERE)
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def full_once(function):
    left = [StoreFullError("no room")]

    def call(*arguments, **named):
        if left:
            raise left.pop()
        return function(*arguments, **named)

    return call


def is_known_after_a_kill(store: eoslog.Store, *, without: str) -> bool:
    path = Path(store.path)
    abandon(store)
    lost = {"rows": [path / "state/lmdb/data.mdb"], "snapshot": path.glob("rows-0/*.snapshot")}
    for one in lost[without]:
        one.unlink()
    with eoslog.open(path, config=QUIET) as again:
        assert engine_of(again).partition(*WHERE).all_damage() == []
        return len(again.partition(*WHERE).producers()) == PRODUCERS


@pytest.mark.parametrize("without", ["rows", "snapshot"])
def test_with_a_snapshot_alone_all_that_is_due_goes_and_the_rows_follow(
    store, monkeypatch, without
):
    rows = ProducerRows.write_rows
    monkeypatch.setattr(ProducerRows, "write_rows", full_once(rows))
    count = len(bases(store))
    assert retain(store) == count - 1
    assert is_known_after_a_kill(store, without=without)


@pytest.mark.parametrize("without", ["rows", "snapshot"])
def test_with_rows_alone_what_they_tell_of_goes_and_the_rest_after_the_snapshot(
    store, monkeypatch, without
):
    partition = engine_of(store).partition(*WHERE)
    partition.producer_state.persist()
    told = partition.log_end_offset
    for producer_id in range(PRODUCERS - 10, PRODUCERS):
        partition.append_columns(
            [bytes(300)], producer_id=producer_id, producer_epoch=0, base_sequence=1
        )
    before = bases(store)
    producers = partition.producer_state
    monkeypatch.setattr(
        producers, "take_complete_snapshot", full_once(producers.take_complete_snapshot)
    )
    save_copies = producers.save_copies
    left = []

    def save_with_room():
        left.extend(bases(store))
        save_copies()

    monkeypatch.setattr(producers, "save_copies", save_with_room)
    assert retain(store) == len(before) - 1
    assert left[0] == max(base for base in before if base <= told)
    assert len(left) > 1
    assert len(bases(store)) == 1
    assert is_known_after_a_kill(store, without=without)


def test_without_any_copy_nothing_goes(store, monkeypatch):
    def full(*_, **__):
        raise StoreFullError("no room")

    before = bases(store)
    producers = engine_of(store).partition(*WHERE).producer_state
    monkeypatch.setattr(producers, "take_complete_snapshot", full)
    monkeypatch.setattr(producers, "persist", full)
    with pytest.raises(StoreFullError):
        retain(store)
    assert bases(store) == before


def test_the_snapshot_of_a_roll_is_made_complete(store):
    """It has those in memory alone, and is not synced."""
    partition = engine_of(store).partition(*WHERE)
    partition.producer_state.cached_max = 5
    partition.producer_state.persist()
    assert partition.log.evicted_producer_count > 0
    # All of it is too old: the active segment is rolled for that.
    assert retain(store, **{"retention.bytes": -1, "retention.ms": 1}) > 0
    assert bases(store) == [partition.log_end_offset]
    assert is_known_after_a_kill(store, without="rows")
