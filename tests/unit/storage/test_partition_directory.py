"""Spare files of topics that are gone do not stay for ever."""

import errno
import os
from pathlib import Path

import pytest

from eoslog.errors import StoreFailedError
from eoslog.storage.topic_registry import partition_directories
from eoslog.store.store import abandon


def spares_of(store_path: Path, name: str) -> Path:
    folder: Path = store_path / "state" / "spare" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0.spare").write_bytes(bytes(4096))
    return folder


def test_those_of_a_deleted_topic_go_after_an_unclean_stop(open_store, store_path):
    store = open_store(eoslog__spare__segments=1)
    store.create_topic("t")
    store.producer().append("t", 0, [b"x"])
    abandon(store)
    ours = spares_of(store_path, "t-0")
    theirs = [spares_of(store_path, name) for name in ("t-1", "gone-0")]
    foreign = spares_of(store_path, "notes")
    store = open_store()
    assert (ours / "0.spare").exists()
    assert (foreign / "0.spare").exists()
    assert not any(path.exists() for path in theirs)
    assert store.verify() == []


def test_one_that_cannot_be_removed_is_left(open_store, store_path, monkeypatch, caplog):
    abandon(open_store())
    path = spares_of(store_path, "gone-0")

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("eoslog.storage.partition_directory.remove_directory", fail)
    open_store()
    assert path.exists()
    assert "gone-0" in caplog.text


@pytest.mark.parametrize("call", ["iterdir", "is_dir"])
def test_a_store_that_cannot_be_listed_is_named(tmp_path, monkeypatch, call):
    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    (tmp_path / "t-0").mkdir()
    assert [*partition_directories(tmp_path)] == [(("t", 0), tmp_path / "t-0")]
    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(StoreFailedError, match=f"reading {tmp_path}"):
        [*partition_directories(tmp_path)]
