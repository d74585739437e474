"""When the files of deleted segments are let go of: not under the log's lock, and soon."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from harness.crew import Member
from harness.waiting import eventually
from stores import QUIET

import eoslog
from eoslog.store.store import engine_of, parts_of

CONFIG = {**QUIET, "eoslog.spare.segments": 0}
SEALED = 3


@pytest.fixture
def store(store_path):
    with eoslog.open(store_path, create=True, durability="process", config=CONFIG) as store:
        store.create_topic("t", 1)
        yield store


@pytest.fixture
def partition(store):
    """With sealed segments, each of one record."""
    partition = engine_of(store).partition("t", 0)
    for _ in range(SEALED):
        fill(partition)
        partition.roll()
    fill(partition)
    return partition


def read_all(partition) -> None:
    for offset in range(partition.log_end_offset):
        partition.read(offset)


def fill(partition) -> None:
    partition.append_columns([b"x"])


def deleted_logs(partition) -> int:
    """Segment files of it without a name that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(f"{partition.path}/" in one and one.endswith(".log (deleted)") for one in maps)


def test_who_deletes_frees(partition):
    assert partition.delete_segments(partition.log_end_offset) == SEALED
    assert deleted_logs(partition) == 0
    assert partition.log.free_deleted() == 0


DELETES = """
store = eoslog.open(path, durability='process')
partition = engine_of(store).partition('t', 0)
deleted = partition.delete_segments(partition.log_end_offset)
"""


@pytest.fixture
def deleted_elsewhere(partition, store_path):
    """Another process has deleted what this one has mapped, and this one has taken notice."""
    read_all(partition)
    with Member() as other:
        other.run(DELETES, path=str(store_path))
        assert other.value("deleted") == SEALED
        fill(partition)  # Under the lock.
        assert partition.segment_count == 1
        yield partition


def test_what_another_process_deleted_is_freed_in_the_background(deleted_elsewhere):
    eventually(lambda: not deleted_logs(deleted_elsewhere), "the files are held still")


def test_what_another_process_deleted_is_freed_by_a_close(deleted_elsewhere, store):
    store.close()
    assert deleted_logs(deleted_elsewhere) == 0


def test_nothing_is_freed_under_the_lock(partition, store, store_path):
    """Where every writer of every process would wait for the file system."""
    parts_of(store).checkpointer.stop()
    read_all(partition)
    with Member() as other:
        other.run(DELETES, path=str(store_path))
        fill(partition)
        assert deleted_logs(partition) == SEALED
        assert partition.log.free_deleted() == SEALED
        assert deleted_logs(partition) == 0


def test_where_many_files_are_open_they_are_freed_at_once(partition, store, store_path):
    """Else nothing could be opened until the background comes to it."""
    parts_of(store).checkpointer.stop()
    read_all(partition)
    with Member() as other:
        other.run(DELETES, path=str(store_path))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * SEALED, hard))
        try:
            fill(partition)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        # At the bound, no more of them need go.
        assert deleted_logs(partition) < SEALED
        partition.log.free_deleted()
        assert deleted_logs(partition) == 0
