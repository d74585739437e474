"""The lock of a store: held by one, named, freed by death."""

import json
import os
import time

import pytest

from eoslog.errors import StoreInUseError, StoreReadOnlyError
from eoslog.store_lock import StoreLock, moment_text


def test_the_lock_is_held_once_and_names_its_holder(tmp_path):
    lock = StoreLock(tmp_path)
    assert lock.held
    holder = json.loads((tmp_path / "lock").read_text())
    assert holder["pid"] == os.getpid()
    assert abs(holder["opened_ms"] - time.time() * 1000) < 60_000
    with pytest.raises(StoreInUseError, match=rf"process {os.getpid()} \(this process\) on .* UTC"):
        StoreLock(tmp_path)
    lock.release()
    lock.release()
    assert not lock.held
    assert (tmp_path / "lock").read_text() == ""
    StoreLock(tmp_path).release()


def test_a_file_that_names_nobody_can_be_taken_and_described(tmp_path):
    (tmp_path / "lock").write_text("not json")
    lock = StoreLock(tmp_path)
    (tmp_path / "lock").write_text("{}")
    with pytest.raises(StoreInUseError, match="has not yet said who it is"):
        StoreLock(tmp_path)
    lock.release()


def test_a_lock_that_nobody_holds_any_more_is_free(tmp_path):
    lock = StoreLock(tmp_path)
    del lock
    StoreLock(tmp_path).release()


def test_a_fork_leaves_the_lock_to_the_parent(tmp_path):
    told = []
    lock = StoreLock(tmp_path, on_fork=lambda: told.append(os.getpid()))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"%d%d" % (told == [os.getpid()], lock.held))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 2) == b"10"
    assert told == []
    with pytest.raises(StoreInUseError):
        StoreLock(tmp_path)
    lock.release()


def test_a_lock_file_that_cannot_be_opened_has_a_named_error(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("eoslog.store_lock.os.open", refuse)
    with pytest.raises(StoreReadOnlyError, match="locking"):
        StoreLock(tmp_path)


def test_moments_are_utc_to_the_millisecond():
    assert moment_text(1_700_000_000_007) == "2023-11-14 22:13:20.007 UTC"
