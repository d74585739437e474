"""Staged files that nobody needs go away; those of a decided job, and of tasks at work, stay."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    no_room,
    stage,
    stage_job,
    staged_files,
    visible_numbers,
)

import eoslog
from eoslog.errors import StagedCommitError, StagedJobIncompleteError
from eoslog.staging import leftovers as staged_leftovers
from eoslog.staging.writer import StagedWriter
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import parts_of

JOB = range(200)
WEEK_S = 7 * 24 * 3600


def runs_left(store: Any) -> set[str]:
    """The applications' runs that still have files, as `application/run`."""
    return {"/".join(Path(path).parts[:2]) for path in staged_files(store.path)}


def make_old(store: Any, run: str, age_s: float = WEEK_S + 60) -> None:
    """Pretend that nothing was written in a run for so long."""
    moment = time.time() - age_s
    root = store.path / "staging" / run
    for path in [*root.rglob("*"), root]:
        os.utime(path, (moment, moment))


def test_what_was_written_lately_stays(store):
    stage(store.path, "run-a", "0", JOB)
    parts_of(store).staged.sweep()
    assert runs_left(store) == {"app/run-a"}


def test_runs_that_nobody_writes_to_any_more_go_after_the_retention(store):
    stage(store.path, "old", "0", JOB)
    stage(store.path, "new", "0", JOB)
    stage(store.path, "old", "0", JOB, app_id="other")
    make_old(store, "app/old")
    make_old(store, "app/new")
    make_old(store, "other/old", age_s=WEEK_S - 3600)
    stage(store.path, "new", "1", JOB)
    parts_of(store).staged.sweep()
    assert runs_left(store) == {"app/new", "other/old"}


def test_an_application_without_runs_leaves_no_directory(store):
    stage(store.path, "old", "0", JOB)
    make_old(store, "app/old")
    parts_of(store).staged.sweep()
    assert not (store.path / "staging" / "app").exists()


def test_the_retention_is_a_setting(tmp_path):
    config = {"eoslog.staging.retention.ms": 0}
    with eoslog.open(tmp_path / "store", create=True, config=config) as opened:
        stage(opened.path, "run-a", "0", JOB)
        parts_of(opened).staged.sweep()
        assert staged_files(opened.path) == []


def test_losing_attempts_and_late_files_of_a_complete_job_go_at_once(store):
    messages = stage_job(store.path, "run-a", JOB)
    stage(store.path, "run-a", "loser", JOB)
    store.commit_staged(APP, 0, messages)
    assert staged_files(store.path) == []
    stage(store.path, "run-a", "zombie", JOB)
    parts_of(store).staged.sweep()
    assert staged_files(store.path) == []
    store.close()
    stage(store.path, "run-a", "zombie", JOB)
    with eoslog.open(store.path) as opened:
        parts_of(opened).staged.sweep()
        assert staged_files(opened.path) == []
        assert visible_numbers(opened) == expected_numbers(JOB)


def test_a_registered_run_keeps_what_it_staged_for_later_versions(store):
    run_id = store.begin_run(APP)
    first = stage(store.path, run_id, "first", range(50))
    second = stage(store.path, run_id, "second", range(50, 80))
    store.commit_staged(APP, 0, [first])
    parts_of(store).staged.sweep()
    assert store.commit_staged(APP, 1, [second]).committed
    stage(store.path, run_id, "late", JOB)
    parts_of(store).staged.sweep()
    assert runs_left(store) == {f"app/{run_id}"}
    store.begin_run(APP)
    parts_of(store).staged.sweep()
    assert runs_left(store) == set()


def test_overtaken_runs_go_and_unknown_ones_stay(store):
    for number in range(3):
        store.commit_staged(APP, number, [], run_id=f"own-{number}")
        stage(store.path, f"own-{number}", "late", JOB)
    stage(store.path, "own-3", "0", JOB)
    parts_of(store).staged.sweep()
    assert runs_left(store) == {"app/own-3"}


def test_a_replay_that_is_not_needed_is_removed_with_its_zombies(store):
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    replay = stage_job(store.path, "run-b", JOB)
    stage(store.path, "run-b", "loser", JOB)
    store.commit_staged(APP, 0, replay)
    assert staged_files(store.path) == []
    stage(store.path, "run-b", "zombie", JOB)
    parts_of(store).staged.sweep()
    assert staged_files(store.path) == []


def test_a_run_given_up_is_removed_with_what_its_zombies_write_later(store, monkeypatch):
    writer = StagedWriter(
        store.path, APP, "run-a", "zombie", partitions={TOPIC: PARTITIONS}, batch_bytes_max=200
    )
    writer.append(TOPIC, 0, [b"x" * 700])
    message = stage(store.path, "run-a", "0", JOB)
    assert store.sweep_run(APP, "run-a") == len(message.files) + 1
    assert staged_files(store.path) == []
    with pytest.raises(StagedCommitError, match="over"):
        writer.append(TOPIC, 1, [b"x" * 700])
    stage(store.path, "run-a", "zombie-2", JOB)
    parts_of(store).staged.sweep()
    assert staged_files(store.path) == []
    with pytest.raises(StagedCommitError, match="missing"):
        store.commit_staged(APP, 0, [message])
    monkeypatch.setattr(staged_leftovers, "ZOMBIES_GONE_S", -1.0)
    parts_of(store).staged.sweep()
    stage(store.path, "run-a", "next-life", JOB)
    parts_of(store).staged.sweep()
    assert runs_left(store) == {"app/run-a"}, "not watched for ever"


def test_a_decided_job_is_never_swept(store, monkeypatch):
    messages = stage_job(store.path, "run-a", JOB)

    monkeypatch.setattr(UnifiedLog, "adopt", no_room)
    with pytest.raises(StagedJobIncompleteError):
        store.commit_staged(APP, 0, messages)
    make_old(store, "app/run-a")
    parts_of(store).staged.sweep()
    assert store.sweep_run(APP, "run-a") == 0
    assert len(staged_files(store.path)) == sum(len(message.files) for message in messages)
    store.close()
    with eoslog.open(store.path) as opened:
        parts_of(opened).staged.sweep()
        assert len(staged_files(opened.path)) == sum(len(message.files) for message in messages)
        monkeypatch.undo()
        parts_of(opened).staged.sweep()
        assert visible_numbers(opened) == expected_numbers(JOB)
        assert staged_files(opened.path) == []


def test_a_decided_job_is_not_swept_though_its_run_was_over_before(store, monkeypatch):
    """A run's name is for one job; using it twice may cost a refusal, but never the data."""
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", range(10)))
    messages = stage_job(store.path, "run-a", range(10, 50))

    monkeypatch.setattr(UnifiedLog, "adopt", no_room)
    with pytest.raises(StagedJobIncompleteError):
        store.commit_staged(APP, 1, messages)
    parts_of(store).staged.sweep()
    monkeypatch.undo()
    parts_of(store).staged.sweep()
    assert visible_numbers(store) == expected_numbers(range(50))


def test_a_sweep_waits_for_nothing_while_a_job_is_decided(store, monkeypatch):
    stage(store.path, "old", "0", JOB)
    make_old(store, "app/old")
    adopt = UnifiedLog.adopt

    def sweeping(partition: UnifiedLog, *arguments: Any) -> tuple[int, int]:
        sweeper = threading.Thread(target=parts_of(store).staged.sweep)
        sweeper.start()
        sweeper.join(timeout=60)
        assert not sweeper.is_alive()
        return adopt(partition, *arguments)

    monkeypatch.setattr(UnifiedLog, "adopt", sweeping)
    messages = stage_job(store.path, "run-b", JOB, app_id="b")
    assert store.commit_staged("b", 0, messages).committed
    assert runs_left(store) == {"app/old"}


def test_foreign_files_below_staging_do_not_stop_a_sweep(store):
    staging = store.path / "staging"
    stage(store.path, "old", "0", JOB)
    make_old(store, "app/old")
    (staging / "a file").write_bytes(b"")
    (staging / "app" / "another").write_bytes(b"")
    outside = store.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"")
    (staging / "app" / "link").symlink_to(outside, target_is_directory=True)
    (staging / "link").symlink_to(outside, target_is_directory=True)
    parts_of(store).staged.sweep()
    assert (outside / "precious").exists()
    assert not (staging / "app" / "old").exists()


def test_sweeps_and_tasks_at_work_do_not_disturb_each_other(store):
    stopped = threading.Event()
    errors: list[BaseException] = []

    def sweep_on() -> None:
        while not stopped.is_set():
            try:
                parts_of(store).staged.sweep()
            except BaseException as error:
                errors.append(error)
                raise

    sweeper = threading.Thread(target=sweep_on)
    sweeper.start()
    try:
        for version in range(15):
            job = range(version * 30, version * 30 + 30)
            messages = stage_job(store.path, f"run-{version}", job, durability="process")
            assert store.commit_staged(APP, version, messages).committed
    finally:
        stopped.set()
        sweeper.join()
    assert errors == []
    assert visible_numbers(store) == expected_numbers(range(450))


def test_nothing_is_looked_up_when_nothing_is_staged(store, monkeypatch):
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    parts_of(store).staged.clear_leftovers()

    def fail(*_: Any) -> Any:
        raise AssertionError("a look-up")

    monkeypatch.setattr(type(parts_of(store).files.state_log), "get", fail)
    parts_of(store).staged.roll_forward()


# Links.


@pytest.mark.parametrize("at", ["app/run", "app", "app/run/0", "~trash"])
def test_nothing_is_removed_that_a_link_leads_to(tmp_path, store, at):
    outside = tmp_path / "outside"
    for path in (outside, outside / "run", outside / "run" / "0", outside / "0"):
        path.mkdir(parents=True)
        (path / "kept").touch()
        (path / "manifest-0.json").touch()
    there = sorted(outside.rglob("*"))
    link = store.path / "staging" / at
    link.parent.mkdir(parents=True, exist_ok=True)
    message = None
    if at == "~trash":
        message = stage(store.path, "run", "0", JOB)
    link.symlink_to(outside)
    make_old(store, "app")
    store.sweep_run(APP, "run")
    store.commit_staged(
        APP, 1, [] if message is None else [stage(store.path, "run", "1", JOB)], "run"
    )
    store.commit_staged(APP, 1, [], "run")
    parts_of(store).staged.sweep()
    parts_of(store).staged.clear_leftovers()
    assert sorted(outside.rglob("*")) == there
    assert staged_files(store.path) == []
