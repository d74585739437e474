"""What complete jobs leave: away at once, removed later, and no power cut makes it matter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import eventually
from staged_jobs import (
    APP,
    expected_numbers,
    keep_leftovers,
    stage,
    stage_job,
    staged_files,
    staged_producers,
    trash,
    visible_numbers,
)

import eoslog
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import StoreFailedError
from eoslog.staging import job as staged_job
from eoslog.staging import leftovers as staged_leftovers
from eoslog.staging.leftovers import remove_tree
from eoslog.staging.names import TRASH_DIRECTORY
from eoslog.store import checkpointer, parts
from eoslog.store.store import abandon, parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION, state_partition_of

JOB = range(300)
LATER = range(300, 500)
WAIT_S = 30.0


def state_log_file(store_path: Path) -> Path:
    (found,) = (store_path / f"__transaction_state-{state_partition_of(APP)}").glob("*.log")
    return found


def cut_last_batch(file: Path) -> None:
    """As a power cut leaves a log of which the last record was not synced."""
    content = file.read_bytes()
    last = iter_batches(content[: used_bytes(content)])[-1]
    assert b'"state":"complete"' in content[last.position_bytes :]
    with file.open("r+b") as log:
        log.seek(last.position_bytes)
        log.write(bytes(len(content) - last.position_bytes))


def used_bytes(content: bytes) -> int:
    """Up to where there are batches, in front of space that was reserved."""
    position = 0
    while int.from_bytes(content[position + 8 : position + 12], "big"):
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    return position


def test_the_background_thread_removes_them(store):
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    assert staged_files(store.path) == []
    eventually(lambda: not trash(store.path) and not staged_producers(store))
    eventually(lambda: list((store.path / "staging").iterdir()) == [])
    assert store.metrics()["checkpointer"]["error_count"] == 0


def test_those_of_a_replay_go_too(store):
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    again = stage_job(store.path, "run-b", JOB)
    assert not store.commit_staged(APP, 0, again).committed
    assert staged_files(store.path) == []
    eventually(lambda: not trash(store.path))


def test_a_close_leaves_none(path):
    with eoslog.open(path) as store:
        store.commit_staged(APP, 0, stage_job(path, "run-a", JOB))
    assert list((path / "staging").iterdir()) == []
    with eoslog.open(path) as store:
        assert staged_producers(store) == set()


def test_whoever_clears_while_another_is_at_it_returns_when_all_is_gone(store, monkeypatch):
    at_it, go_on = threading.Event(), threading.Event()

    def remove_slowly(path: Path, staging_path: Path, *rest: Any) -> int:
        at_it.set()
        assert go_on.wait(WAIT_S)
        return remove_tree(path, staging_path, *rest)

    monkeypatch.setattr(staged_leftovers, "remove_tree", remove_slowly)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    assert at_it.wait(WAIT_S)
    later = threading.Timer(0.2, go_on.set)
    later.start()
    parts_of(store).staged.clear_leftovers()
    assert go_on.is_set()
    assert trash(store.path) == []
    assert staged_producers(store) == set()
    later.join()


def test_those_of_a_process_that_died_are_swept(path):
    store = eoslog.open(path)
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(path, "run-a", JOB))
    abandon(store)
    assert trash(path)
    with eoslog.open(path) as store:
        parts_of(store).staged.sweep()
        assert trash(path) == []
        assert visible_numbers(store) == expected_numbers(JOB)


@pytest.mark.parametrize("by", ["close", "background thread"])
def test_the_next_opening_removes_them_too(path, by):
    """A store that is never open for long is never swept."""
    store = eoslog.open(path)
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(path, "run-a", JOB))
    abandon(store)
    assert trash(path)
    with eoslog.open(path) as store:
        assert visible_numbers(store) == expected_numbers(JOB)
        if by == "background thread":
            eventually(lambda: not trash(path))
    assert trash(path) == []


def test_a_close_leaves_files_to_the_next_opening(path, monkeypatch):
    """A large job has so many that their removal takes minutes."""
    monkeypatch.setattr(parts, "REMOVAL_S", -1.0)
    store = eoslog.open(path)
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(path, "run-a", JOB, tasks=20))
    left = trash(path)
    assert left
    store.close()
    assert trash(path) == left
    with eoslog.open(path) as store:
        assert staged_producers(store) == set()  # They were forgotten all the same.
        eventually(lambda: not trash(path))
    assert list((path / "staging").iterdir()) == []


def test_they_are_removed_some_at_a_time(store):
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB, tasks=20))
    count = len(trash(store.path))
    leftovers = parts_of(store).staged.leftovers
    for _ in range(count):
        asked = iter(range(7))
        parts_of(store).staged.clear_leftovers(lambda: next(asked, None) is None)  # noqa: B023
        assert len(trash(store.path)) < count
        count = len(trash(store.path))
        if count == 0:
            break
    parts_of(store).staged.clear_leftovers()
    assert trash(store.path) == []
    assert not leftovers.any


def test_a_close_does_not_wait_for_the_background_thread(path, monkeypatch):
    at_it = threading.Event()

    def remove_slowly(path: Path, staging_path: Path, enough: Callable[[], bool]) -> int:
        at_it.set()
        eventually(enough)
        return 0

    monkeypatch.setattr(checkpointer, "REMOVAL_S", 3600.0)
    monkeypatch.setattr(parts, "REMOVAL_S", -1.0)
    monkeypatch.setattr(staged_leftovers, "remove_tree", remove_slowly)
    with eoslog.open(path) as store:
        store.commit_staged(APP, 0, stage_job(path, "run-a", JOB))
        assert at_it.wait(WAIT_S)
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < WAIT_S / 3
    monkeypatch.undo()
    with eoslog.open(path):
        eventually(lambda: not trash(path))


def test_the_name_of_a_run_may_be_used_again_at_once(store):
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    later = stage_job(store.path, "run-a", LATER)
    parts_of(store).staged.clear_leftovers()
    assert store.commit_staged(APP, 1, later).committed
    assert visible_numbers(store) == expected_numbers(JOB, LATER)


def test_the_trash_is_no_application(store):
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    assert trash(store.path)
    stage(store.path, "run-a", "0", LATER, app_id=TRASH_DIRECTORY)
    parts_of(store).staged.sweep()
    assert trash(store.path) == []
    assert len({name.split("/")[0] for name in staged_files(store.path)}) == 1


def test_a_run_that_cannot_be_moved_is_removed(store, monkeypatch):
    def refuse(*_: Any) -> None:
        raise PermissionError("not to be moved")

    messages = stage_job(store.path, "run-a", JOB)
    monkeypatch.setattr(Path, "rename", refuse)
    store.commit_staged(APP, 0, messages)
    assert staged_files(store.path) == trash(store.path) == []


def test_a_full_disk_is_emptied_before_a_job_is_refused(store, monkeypatch):
    """What was put away takes up room until it is removed."""
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    later = stage_job(store.path, "run-b", LATER)

    class Disk:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            return 0 if trash(store.path) else 1 << 30

    monkeypatch.setattr("eoslog.staging.adoption.os.statvfs", lambda _: Disk())
    assert trash(store.path)
    assert store.commit_staged(APP, 1, later).committed


@pytest.mark.parametrize("removed", [True, False], ids=["files gone", "files there"])
def test_a_power_cut_takes_what_says_that_a_job_is_complete(path, removed):
    """It was not synced: the job is decided then, and all of it is in."""
    store = eoslog.open(path)
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(path, "run-a", JOB))
    abandon(store)
    if removed:
        remove_tree(path / "staging" / TRASH_DIRECTORY, path / "staging")
    else:
        (moved,) = (path / "staging" / TRASH_DIRECTORY).iterdir()
        moved.rename(path / "staging" / APP / "run-a")
    cut_last_batch(state_log_file(path))
    with eoslog.open(path) as store:
        assert store.application(APP).state == "complete"
        assert visible_numbers(store) == expected_numbers(JOB)
        assert store.verify() == []
        again = stage_job(path, "run-b", JOB)
        assert not store.commit_staged(APP, 0, again).committed
        assert visible_numbers(store) == expected_numbers(JOB)


def test_ids_are_kept_until_the_job_is_complete_on_disk(store, monkeypatch):
    def refuse(*_: Any) -> None:
        raise StoreFailedError("the disk refuses")

    messages = stage_job(store.path, "run-a", JOB)
    ids = {file.producer_id for message in messages for file in message.files}
    monkeypatch.setattr(CompactedLog, "sync", refuse)
    store.commit_staged(APP, 0, messages)
    parts_of(store).staged.clear_leftovers()
    assert staged_producers(store) == ids
    assert parts_of(store).staged.producer_ids() == ids
    monkeypatch.undo()
    parts_of(store).staged.clear_leftovers()
    assert staged_producers(store) == set()
    assert parts_of(store).staged.producer_ids() == set()


def test_before_ids_expire_all_complete_jobs_are_so_on_disk(store):
    """Those of other processes as well: nobody here knows their ids."""
    keep_leftovers(store)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    records = parts_of(store).files.state_log.partition_of(APP)
    assert records.recovery_point < records.log_end_offset
    with parts_of(store).staged.quiet() as is_quiet:
        assert is_quiet
        assert records.recovery_point == records.log_end_offset


def test_a_job_with_a_list_of_its_own_is_complete_on_disk_first(store, monkeypatch):
    """Its list of files goes with them: what decides it is worth nothing without."""
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    records = parts_of(store).files.state_log.partition_of(APP)
    assert records.recovery_point == records.log_end_offset
    assert parts_of(store).files.state_log.get(APPLICATION, APP)["state"] == "complete"
