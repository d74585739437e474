"""Spare segment files: bounded in an open store, none in a closed one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from eoslog.common.topic_partition import TopicPartition
from eoslog.session.paths import StorePaths
from eoslog.storage import spare_files
from eoslog.storage.spare_files import make_spare_room, remove_spares, trim_spares
from eoslog.store.store import abandon, engine_of, parts_of

WHERE = TopicPartition("t", 0)
FILE_BYTES = 4096


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorePaths:
    """Of a store with room for three files."""
    monkeypatch.setattr(spare_files, "SPARE_BYTES_MAX", 3 * FILE_BYTES)
    return StorePaths(tmp_path)


def make_spare(
    paths: StorePaths, number: int, *, age_s: float = 0.0, name: str = "0.spare"
) -> Path:
    path = paths.spare(TopicPartition("t", number)) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(FILE_BYTES))
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


def test_there_is_room_until_the_bound(paths: StorePaths) -> None:
    assert make_spare_room(paths, WHERE, FILE_BYTES)
    for number in (1, 2):
        make_spare(paths, number)
    assert make_spare_room(paths, WHERE, FILE_BYTES)
    made = make_spare(paths, 3)
    assert not make_spare_room(paths, WHERE, FILE_BYTES)
    made.rename(paths.root / "a segment")
    assert make_spare_room(paths, WHERE, FILE_BYTES)


@pytest.mark.parametrize("name", ["0.spare", "0.stale"])
def test_a_partition_keeps_its_own(paths: StorePaths, name: str) -> None:
    made = [make_spare(paths, number, age_s=3600.0) for number in (1, 2, 3)]
    own = make_spare(paths, 0, name=name)
    assert make_spare_room(paths, WHERE, FILE_BYTES)
    assert all(path.exists() for path in [own, *made])


def test_what_lay_unused_makes_way(paths: StorePaths) -> None:
    old = make_spare(paths, 1, age_s=3600.0)
    older = make_spare(paths, 2, age_s=7200.0)
    filling = make_spare(paths, 3, age_s=9999.0, name="0.building")
    assert make_spare_room(paths, WHERE, FILE_BYTES)
    assert [path.exists() for path in (old, older, filling)] == [True, False, True]


def test_too_many_are_trimmed_the_oldest_first(paths: StorePaths) -> None:
    made = [make_spare(paths, number, age_s=10.0 - number) for number in range(5)]
    foreign = paths.spares / "notes" / "0.spare"
    foreign.parent.mkdir()
    foreign.write_bytes(bytes(10 * FILE_BYTES))
    trim_spares(paths)
    assert [path.exists() for path in made] == [False, False, True, True, True]
    remove_spares(paths)
    assert [path.name for path in paths.spares.iterdir()] == ["notes"]


def test_a_store_without_any(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path / "nothing")
    assert make_spare_room(paths, WHERE, FILE_BYTES)
    trim_spares(paths)
    remove_spares(paths)


def spares_of(store_path: Path) -> list[str]:
    return sorted(path.name for path in (store_path / "state" / "spare").rglob("*.*"))


def test_a_closed_store_has_none(open_store, store_path) -> None:
    store = open_store(eoslog__spare__segments=1)
    store.create_topic("t", partitions=2, config={"segment.bytes": 4096})
    for number in range(2):
        engine_of(store).partition("t", number).prepare_spare()
    assert len(spares_of(store_path)) == 2
    store.close()
    assert spares_of(store_path) == []


def test_nor_after_its_process_died(open_store, store_path) -> None:
    store = open_store(eoslog__spare__segments=1)
    store.create_topic("t", config={"segment.bytes": 4096})
    engine_of(store).partition("t", 0).prepare_spare()
    abandon(store)
    assert spares_of(store_path) == ["0.spare"]
    store = open_store(eoslog__spare__segments=1)
    assert spares_of(store_path) == ["0.spare"]
    store.close()
    assert spares_of(store_path) == []


def test_what_cannot_be_removed_is_left(open_store, store_path, monkeypatch, caplog) -> None:
    store = open_store(eoslog__spare__segments=1)
    store.create_topic("t", config={"segment.bytes": 4096})
    engine_of(store).partition("t", 0).prepare_spare()

    def refuse(path: Path) -> None:
        raise PermissionError(1, "not to be removed", str(path))

    monkeypatch.setattr(spare_files, "remove_directory", refuse)
    store.close()
    assert spares_of(store_path) == ["0.spare"]
    assert "spare files are left" in caplog.text
    assert (store_path / ".kafka_cleanshutdown").exists()


def test_a_store_that_is_open_for_a_moment_makes_none(open_store, store_path) -> None:
    config = {"segment.bytes": 4096}
    store = open_store(eoslog__spare__segments=1)
    store.create_topic("t", config=config)
    for _ in range(3):
        store.producer().append("t", 0, [bytes(1500)])
    store.close()
    store = open_store(eoslog__spare__segments=1)
    partition = engine_of(store).partition("t", 0)
    assert partition.log.fills_segments
    parts_of(store).checkpointer.prepare_spare(partition)
    assert spares_of(store_path) == []
    for _ in range(3):
        store.producer().append("t", 0, [bytes(1500)])
    parts_of(store).checkpointer.prepare_spare(partition)
    assert spares_of(store_path) == ["0.spare"]


def test_none_is_made_where_the_store_has_many(open_store, store_path, monkeypatch) -> None:
    store = open_store(eoslog__spare__segments=1)
    store.create_topic("t", partitions=2, config={"segment.bytes": 4096})
    monkeypatch.setattr(spare_files, "SPARE_BYTES_MAX", 4096)
    for number in range(2):
        for _ in range(3):
            store.producer().append("t", number, [bytes(1500)])
        parts_of(store).checkpointer.prepare_spare(engine_of(store).partition("t", number))
    assert spares_of(store_path) == ["0.spare"]
    assert parts_of(store).checkpointer.metrics()["error_count"] == 0
