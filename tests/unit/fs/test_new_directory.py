"""A directory takes its name as a whole, durably, or not at all."""

import errno
import os
from pathlib import Path

import pytest

from eoslog.errors import StoreError, StoreFailedError
from eoslog.fs import new_directory as module
from eoslog.fs.new_directory import new_directory


def build(target: Path, inner: str) -> None:
    with new_directory(target, StoreError) as new:
        built = new.workspace / inner
        built.mkdir(exist_ok=True)
        (built / "folder").mkdir()
        (built / "folder" / "file").write_bytes(b"content")
        new.publish(built)


@pytest.mark.parametrize("inner", ["", "inner"])
@pytest.mark.parametrize("error", [StoreFailedError("a sync failed"), KeyboardInterrupt()])
def test_a_name_that_was_not_synced_is_taken_back(tmp_path, monkeypatch, inner, error):
    target = tmp_path / "target"

    def fail(path: Path) -> None:
        assert path == tmp_path
        assert (target / "folder" / "file").read_bytes() == b"content"
        raise error

    monkeypatch.setattr(module, "sync_directory", fail)
    with pytest.raises(type(error)):
        build(target, inner)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    build(target, inner)
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("taken", [True, False])
def test_a_name_that_somebody_else_took_stays_his(tmp_path, monkeypatch, taken):
    target = tmp_path / "target"
    replace = Path.replace

    def take(self: Path, to: Path) -> Path:
        if not target.exists():
            target.mkdir()
            if taken:
                (target / "his").touch()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return replace(self, to)

    monkeypatch.setattr(module, "check_free", lambda *_: None)
    monkeypatch.setattr(Path, "replace", take)
    with pytest.raises(StoreFailedError):
        build(target, "")
    assert [one.name for one in tmp_path.iterdir()] == ["target"]


def test_an_error_of_the_sync_of_all_names_the_directory(tmp_path, monkeypatch):
    def fail(_: int) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(module, "sync_file_system", fail)
    with pytest.raises(StoreFailedError, match=f"{tmp_path / 'target'}.*Input/output error"):
        build(tmp_path / "target", "")
    assert list(tmp_path.iterdir()) == []


def test_each_file_and_directory_is_synced_where_the_whole_cannot_be(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(module, "sync_file_system", lambda _: False)
    monkeypatch.setattr(module, "sync_file", lambda path: synced.append(path.name))
    monkeypatch.setattr(module, "sync_directory", lambda path: synced.append(path.name))
    build(tmp_path / "target", "inner")
    assert sorted(synced) == sorted(["file", "folder", "inner", tmp_path.name])


def test_a_directory_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    def refuse(path: os.PathLike[str]) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(module, "sync_file_system", lambda _: False)
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(StoreError, match="Permission denied"):
        build(tmp_path / "target", "inner")
    monkeypatch.undo()
    assert not (tmp_path / "target").exists()
