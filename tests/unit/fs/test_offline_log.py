"""A log that nobody has open, read as it is: block by block, and without taking room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from staged_jobs import quick_directory

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.fs import offline_log
from eoslog.fs.offline_log import OfflineLog

HOLE_BYTES = 4 << 20


def make(path: Path) -> Path:
    """A log of one segment with ten batches; its file."""
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        for number in range(10):
            store.producer().append("t", 0, [b"%d" % number + b"x" * 100])
    (file,) = (path / "t-0").glob("*.log")
    return file


@pytest.mark.parametrize("block_bytes", [1, 16, 17, 61, 100, 101, 500, 1 << 20])
def test_blocks_of_any_size_show_the_same(tmp_path, monkeypatch, block_bytes: int):
    file = make(tmp_path / "store")
    monkeypatch.setattr(offline_log, "_BLOCK_BYTES", block_bytes)
    log = OfflineLog(file.parent)
    assert log.end_offset == 10
    assert [one.base_offset for one, _ in log.batches()] == list(range(10))
    assert b"".join(batch for _, batch in log.batches()) == file.read_bytes()
    assert log.broken_tail(0) is None
    whole = file.read_bytes()
    places = [one.position_bytes for one in iter_batches(whole)]
    file.write_bytes(whole[: places[4] + 70] + b"\1" + whole[places[4] + 71 :] + bytes(700))
    found = log.broken_tail(0)
    assert found is not None
    assert (found.position_bytes, found.offset) == (places[4], 4)
    assert found.bytes == len(whole.rstrip(b"\0")) - places[4]
    assert found.sound == (file, places[5], 5)


def test_a_hole_behind_the_batches_takes_no_room_by_being_read(tmp_path):
    """On tmpfs a page of a hole that is read through a map is one, and there may be none left."""
    with quick_directory(tmp_path) as directory:
        file = make(directory / "store")
        used_bytes = file.stat().st_size
        os.truncate(file, used_bytes + HOLE_BYTES)
        blocks = file.stat().st_blocks
        log = OfflineLog(file.parent)
        assert log.broken_tail(0) is None
        assert log.end_offset == 10
        assert file.stat().st_blocks == blocks
        with file.open("r+b") as opened:
            opened.seek(used_bytes)
            opened.write(b"torn")
        blocks = file.stat().st_blocks
        found = log.broken_tail(0)
        assert found is not None
        assert (found.position_bytes, found.bytes) == (used_bytes, 4)
        assert file.stat().st_blocks == blocks
