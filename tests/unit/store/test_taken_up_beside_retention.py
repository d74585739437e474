"""A log is taken up, or followed, while another process deletes its oldest segments."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crash.shared_log import SharedLog
from harness.crew import Member

import eoslog
from eoslog.bindings import log_producers, opened_log
from eoslog.errors import FellBehindError
from eoslog.store.store import engine_of

SEGMENTS = 4


@pytest.fixture
def shared(tmp_path) -> SharedLog:
    return SharedLog(tmp_path / "shared")


def append_segments(log, count: int = SEGMENTS) -> None:
    """One record each; the last one is active."""
    for number in range(count):
        if number:
            log.roll()
        log.append_columns([b"%d" % number], timestamp_ms=1)


@contextmanager
def put_aside(path: Path, content: bytes) -> Iterator[None]:
    """As a deleter has it just before the file is moved to the spare ones."""
    path.write_bytes(content)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_file_that_becomes_a_spare_one_is_gone_for_who_opens(shared):
    log = shared.open()
    append_segments(log)
    content = shared.path(0).read_bytes()
    joiner = shared.open()
    assert log.delete_segments(1) == 1
    with put_aside(shared.path(0), content):
        assert joiner.restore_producers(None, 0) == "snapshot"
    assert joiner.first_base_offset == joiner.log_start_offset == 1


def test_a_file_that_becomes_a_spare_one_is_gone_for_who_follows(shared):
    log = shared.open()
    append_segments(log, 1)
    follower = shared.open()
    log.roll()
    append_segments(log, 1)
    content = shared.path(1).read_bytes()
    log.roll()
    append_segments(log, 1)
    assert log.delete_segments(2) == 2
    with put_aside(shared.path(1), content), pytest.raises(FellBehindError):
        follower.refresh()


def test_rows_that_tell_of_all_that_was_deleted_serve(shared):
    """A joiner that began anew with each deletion never came to its end."""
    log = shared.open()
    append_segments(log)
    joiner = shared.open()
    assert log.delete_segments(2) == 2
    assert joiner.restore_producers(b"", 2, 0, []) == "rows"
    assert joiner.first_base_offset == joiner.log_start_offset == 2


def test_rows_that_do_not_are_asked_for_again(shared):
    log = shared.open()
    append_segments(log)
    joiner = shared.open()
    assert log.delete_segments(2) == 2
    with pytest.raises(FellBehindError):
        joiner.restore_producers(b"", 1, 0, [])


def abort(log, producer_id: int) -> None:
    log.append_columns(
        [b"v"],
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append_marker(producer_id, 1, 0, False, timestamp_ms=1)


def aborts(log) -> list[int]:
    return [one.producer_id for one in log.aborted_transactions(0, log.log_end_offset)]


def append_aborts(log) -> None:
    """Two segments, each with the transaction of a producer of its number."""
    abort(log, 0)
    log.roll()
    abort(log, 1)
    log.store_abort_files()


def test_what_was_aborted_in_a_deleted_segment_is_forgotten(shared):
    log = shared.open()
    append_aborts(log)
    described, txnindex = log.abort_files(), shared.path(0).with_suffix(".txnindex")
    kept = txnindex.with_suffix(".kept")
    shutil.copy(txnindex, kept)
    joiner = shared.open()
    assert aborts(joiner) == [0, 1]
    assert log.delete_segments(2) == 1
    shutil.copy(kept, txnindex)  # As if it had been read before the deletion.
    assert joiner.restore_producers(b"", 2, 0, described) == "rows"
    assert aborts(joiner) == [1]


def test_a_file_of_aborts_that_goes_with_its_segment_needs_no_sync(shared, monkeypatch):
    log = shared.open()
    append_aborts(log)
    abort(log, 2)
    abort(log, 3)
    synced = []
    sync_path = log_producers.sync_path

    def sync(path, flags):
        if path.endswith(".txnindex"):
            Path(path).unlink()
        sync_path(path, flags)
        synced.append(path)

    monkeypatch.setattr(log_producers, "sync_path", sync)
    log.store_abort_files(True)
    assert synced == [str(shared.directory)]


def test_a_file_that_an_earlier_deleter_left_goes_before_younger_ones(shared):
    """He died between the log's page and the file: it must not stand in front of a hole."""
    log = shared.open()
    append_segments(log)
    content = shared.path(0).read_bytes()
    assert log.delete_segments(1) == 1
    shared.path(0).write_bytes(content)
    assert log.delete_segments(3) == 2
    assert sorted(shared.directory.glob("*.log")) == [shared.path(3)]


OTHERS = """
store = eoslog.open(path, durability='process')
partition = engine_of(store).partition('t', 0)
for number in range(3):
    partition.append_columns([b'x'])
    partition.roll()
deleted = partition.delete_segments(partition.log_end_offset)
"""


def test_whoever_fell_behind_is_told_nothing_of_it(tmp_path):
    """A background thread logged a warning of it, and left its round undone."""
    path = str(tmp_path / "store")
    with eoslog.open(path, create=True, durability="process") as store, Member() as other:
        store.create_topic("t")
        partition = engine_of(store).partition("t", 0)
        partition.append_columns([b"v"])
        other.run(OTHERS, path=path)
        assert other.value("deleted") == 3
        assert partition.log.fills_segments is False


def test_a_file_that_is_removed_as_a_joiner_lists_is_left_out(shared, monkeypatch):
    """It raised FileNotFoundError out of the opening."""
    log = shared.open()
    append_segments(log)
    content = shared.path(0).read_bytes()
    assert log.delete_segments(1) == 1
    shared.path(0).write_bytes(content)  # By a deleter that died before it came to that.
    getsize = opened_log.os.path.getsize

    def removed_first(path):
        if path == str(shared.path(0)):
            shared.path(0).unlink()
        return getsize(path)

    monkeypatch.setattr(opened_log.os.path, "getsize", removed_first)
    assert shared.open().first_base_offset == 1
