"""Snapshots of a log's producers: which ones stay, and which a power cut may spoil."""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import QUIET

import eoslog
from eoslog.bindings import snapshot_files
from eoslog.bindings.snapshot_files import remove_stray_snapshots, snapshot_offsets, snapshot_path
from eoslog.store.retention import apply_retention
from eoslog.store.store import abandon, engine_of, parts_of

EMPTY = bytes.fromhex("00014867 4bc700000000")  # A whole one, without producers.
ID = 123_456
CONFIG = {"retention.bytes": 3000, "retention.ms": -1}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("spoiled", [b"", EMPTY[:9], EMPTY + b"x", bytes(len(EMPTY))])
def test_spoiled_ones_go_before_an_older_one_does(tmp_path, clean, spoiled):
    for offset, data in {3: EMPTY, 8: EMPTY, 10: spoiled, 12: spoiled, 40: EMPTY}.items():
        (tmp_path / f"{offset:020d}.snapshot").write_bytes(data)
    for base_offset in (0, 10, 12):
        (tmp_path / f"{base_offset:020d}.log").touch()
    remove_stray_snapshots(str(tmp_path), 20, clean=clean)
    # After a clean close nothing is read: it synced the newest.
    assert snapshot_offsets(str(tmp_path)) == ([10, 12] if clean else [8])


def test_the_one_that_stays_is_on_the_disk_before_an_older_one_goes(tmp_path, monkeypatch):
    for offset in (3, 8):
        (tmp_path / f"{offset:020d}.snapshot").write_bytes(EMPTY)
    synced = []

    def sync(path: str, flags: int) -> None:
        assert Path(snapshot_path(str(tmp_path), 3)).exists()
        synced.append(path)

    monkeypatch.setattr(snapshot_files, "sync_path", sync)
    remove_stray_snapshots(str(tmp_path), 20, clean=False)
    assert synced == [snapshot_path(str(tmp_path), 8), str(tmp_path)]
    assert snapshot_offsets(str(tmp_path)) == [8]


def begin(path: Path) -> eoslog.Store:
    """A store with a producer whose only batch retention has deleted."""
    store = eoslog.open(path, create=True, config=QUIET)
    store.create_topic("t", config={"segment.bytes": 1024})
    partition = engine_of(store).partition("t", 0)
    partition.append_columns([b"x"], producer_id=ID, producer_epoch=0, base_sequence=0)
    fill(store, 60)
    assert apply_retention(partition, parts_of(store).files.names, CONFIG, 0) > 0
    assert partition.log_start_offset > 0
    return store


def fill(store: eoslog.Store, count: int) -> None:
    producer = store.producer()
    for _ in range(count):
        producer.append("t", 0, [b"c" * 300])


@pytest.mark.parametrize("rolls", [0, 1, 10])
def test_a_power_cut_after_rolls_leaves_the_copy_of_a_deletion(tmp_path, rolls):
    """The rolls' own are not synced; at a roll of where the copy stands, there is that one."""
    store = begin(tmp_path / "store")
    partition = engine_of(store).partition("t", 0)
    copy = partition.log.snapshots()[-1]
    assert copy == partition.log_end_offset
    kept = (partition.path / f"{copy:020d}.snapshot").stat().st_ino
    partition.roll()
    assert (partition.path / f"{copy:020d}.snapshot").stat().st_ino == kept
    fill(store, 3 * rolls)
    path = partition.path
    abandon(store)
    for unsynced in path.glob("*.snapshot"):
        if int(unsynced.stem) != copy:
            unsynced.write_bytes(b"")
    (tmp_path / "store/state/lmdb/data.mdb").unlink()
    with eoslog.open(tmp_path / "store", config=QUIET) as again:
        partition = engine_of(again).partition("t", 0)
        assert partition.producer_state.restored_from == "snapshot"
        assert partition.producer(ID) is not None
        assert partition.all_damage() == []
        assert again.verify() == []


def test_a_clean_close_after_a_roll_syncs_its_snapshot(tmp_path, monkeypatch):
    store = begin(tmp_path / "store")
    fill(store, 1)
    partition = engine_of(store).partition("t", 0)
    end = partition.roll()
    path = partition.path / f"{end:020d}.snapshot"
    unsynced = path.stat().st_ino
    store.close()
    assert path.stat().st_ino != unsynced, "it was not written again, with a sync"
