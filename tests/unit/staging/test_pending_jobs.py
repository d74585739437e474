"""Jobs that are decided and not complete: found by their records, and let go of everywhere."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    leave_undone,
    stage,
    stage_job,
    staged_files,
    staged_producers,
    visible_numbers,
)
from store_copies import copy_store

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StagedCommitError, StoreFullError
from eoslog.groups.offsets import GroupOffsets
from eoslog.staging import adoption as staged_adoption
from eoslog.staging import job as staged_job
from eoslog.staging.application import ApplicationRecord
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.state_key import APPLICATION

JOB = range(200)
SOURCE = TopicPartition("source", 0)
OFFSETS = {"readers": {SOURCE: 7}}


@pytest.fixture
def store(store: Any) -> Any:
    store.create_topic("source")
    return store


def held_offsets(store: Any) -> list[int]:
    return [engine_of(store).partition(TOPIC, number).hold_offset for number in range(PARTITIONS)]


def interrupt_decision(store: Any, messages: Any = (), **options: Any) -> None:
    """Have Ctrl-C come right after the decision's record."""
    write = ApplicationRecord.write

    def interrupted(record: ApplicationRecord, *arguments: Any, **rest: Any) -> None:
        write(record, *arguments, **rest)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ApplicationRecord, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.commit_staged(APP, 0, list(messages), **options)


def without_staging(store: Any, *, clean: bool) -> Path:
    """A copy of the store, closed or as its process would leave it, without a staged file."""
    copy = Path(store.path).with_name("copy")
    if clean:
        store.close()
    copy_store(store.path, copy, symlinks=True)
    shutil.rmtree(copy / "staging", ignore_errors=True)
    return copy


# Found by their records.


@pytest.mark.parametrize("clean", [True, False])
def test_an_adopted_job_without_directory_is_completed_by_the_next_opening(store, clean):
    """Its completion is lost; its files are in the log. Once it was forgotten, its bounds came back
    with the next commit, and the readers never passed them again.
    """
    messages = stage_job(store.path, "run-a", JOB)
    leave_undone(store, ApplicationRecord, "completed", messages)
    with eoslog.open(without_staging(store, clean=clean)) as opened:
        assert opened.application(APP).state == "complete"
        assert visible_numbers(opened) == expected_numbers(JOB)
        assert held_offsets(opened) == [-1] * PARTITIONS
        assert opened.verify() == []
        later = stage_job(opened.path, "run-b", range(200, 220))
        assert opened.commit_staged(APP, 1, later).committed
        assert visible_numbers(opened) == expected_numbers(JOB, range(200, 220))


@pytest.mark.parametrize("clean", [True, False])
def test_a_job_of_offsets_without_directory_is_completed_before_others_commit(store, clean):
    leave_undone(store, GroupOffsets, "adopt", offsets=OFFSETS)
    with eoslog.open(without_staging(store, clean=clean)) as opened:
        assert opened.groups()["readers"][SOURCE].offset == 7
        parts_of(opened).files.group_offsets.commit("readers", {SOURCE: 80})
        opened.begin_run(APP)
        assert opened.groups()["readers"][SOURCE].offset == 80


@pytest.mark.parametrize("name", ["completed", "adopt"])
def test_a_named_decision_of_an_earlier_version_is_completed(store, name):
    """A staged producer gave each of its decisions a name, which no later one has."""
    owner = ApplicationRecord if name == "completed" else UnifiedLog
    leave_undone(store, owner, name, stage_job(store.path, "run-a", JOB), offsets=OFFSETS)
    state_log = parts_of(store).files.state_log
    named = {**state_log.get(APPLICATION, APP), "decision": "0123456789abcdef"}
    state_log.append(APPLICATION, APP, named)
    copy = Path(store.path).with_name("copy")
    copy_store(store.path, copy)
    with eoslog.open(copy) as opened:
        assert opened.application(APP).state == "complete"
        assert visible_numbers(opened) == expected_numbers(JOB)
        assert opened.groups()["readers"][SOURCE].offset == 7
        later = stage_job(opened.path, opened.begin_run(APP), range(200, 220))
        assert opened.commit_staged(APP, 1, later).committed
        assert "decision" not in parts_of(opened).files.state_log.get(APPLICATION, APP)
        assert opened.verify() == []


def test_a_job_whose_files_are_gone_is_named_by_verify(store):
    leave_undone(store, UnifiedLog, "adopt", stage_job(store.path, "run-a", JOB))
    with eoslog.open(without_staging(store, clean=True)) as opened:
        assert opened.application(APP).state == "prepared"
        assert any("this file of it is gone" in str(one["reason"]) for one in opened.verify())


def test_a_job_is_completed_in_segments_smaller_than_its_batches(store):
    """The topic was altered since the decision: nothing may refuse the job any more."""
    messages = stage_job(store.path, "run-a", JOB, batch_bytes_max=100_000)
    leave_undone(store, UnifiedLog, "adopt", messages)
    store.alter_topic(TOPIC, {"segment.bytes": 1024, "max.message.bytes": 1024})
    store.commit_staged(APP, 1, stage_job(store.path, "run-b", range(200, 220)))
    assert visible_numbers(store) == expected_numbers(JOB, range(200, 220))
    assert store.verify() == []


def test_a_job_of_offsets_makes_no_directory(store):
    store.commit_staged(APP, 0, [], offsets=OFFSETS)
    assert not (store.path / "staging").exists()


# Let go of.


def test_a_decision_that_is_taken_back_lets_readers_in_that_another_process_held(store):
    messages = stage_job(store.path, "run-a", JOB)
    interrupt_decision(store, messages)
    for number in range(PARTITIONS):  # A process that died as it began to adopt it.
        engine_of(store).partition(TOPIC, number).hold_readers()
    parts_of(store).staged.sweep()
    assert store.application(APP).version == -1
    assert held_offsets(store) == [-1] * PARTITIONS
    assert store.commit_staged(APP, 0, messages).committed
    assert visible_numbers(store) == expected_numbers(JOB)


def test_an_interrupt_as_readers_are_let_in_leaves_the_job_to_the_next_look(store, monkeypatch):
    """The second Ctrl-C comes as the first one is cleaned up."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    messages = stage_job(store.path, "run-a", JOB)
    monkeypatch.setattr(staged_adoption.HeldPartitions, "sync", interrupt)
    monkeypatch.setattr(staged_adoption.HeldPartitions, "release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 0, messages)
    monkeypatch.undo()
    assert held_offsets(store) == [0] * PARTITIONS
    parts_of(store).staged.sweep()
    assert held_offsets(store) == [-1] * PARTITIONS
    assert store.application(APP) is None
    assert store.commit_staged(APP, 0, messages).committed


def test_verify_names_readers_that_are_held_for_no_job(store):
    engine_of(store).partition(TOPIC, 1).hold_readers(0)
    found = store.verify()
    assert [(one["path"], one["reason"]) for one in found] == [
        (str(engine_of(store).partition(TOPIC, 1).path), "readers are held at offset 0 for no job")
    ]
    engine_of(store).partition(TOPIC, 1).release_readers()
    leave_undone(store, UnifiedLog, "adopt", stage_job(store.path, "run-a", JOB))
    assert store.verify() == []


# Offsets.


def test_a_decision_whose_offsets_are_in_is_not_taken_back(store):
    """Another process committed them, and could not write that the job is complete."""
    interrupt_decision(store, offsets=OFFSETS)
    staged = parts_of(store).staged
    (one,) = staged.pending.by_name[APP].job.offsets
    find_topic_id = parts_of(store).files.registry.id_of
    parts_of(store).files.group_offsets.adopt(
        one.number, lambda: one.columns(find_topic_id), one.producer_id
    )
    staged.sweep()
    assert store.application(APP).version == 0
    assert store.groups()["readers"][SOURCE].offset == 7


def test_offsets_are_stable_once_another_process_completed_their_job(store):
    """This one knows the job, and does not look for others while none is undone."""
    leave_undone(store, GroupOffsets, "adopt", offsets=OFFSETS)
    parts = parts_of(store)
    pending = parts.staged.pending.by_name[APP]
    groups = parts.files.group_offsets
    assert not groups.is_stable("readers", SOURCE)
    (one,) = pending.job.offsets
    groups.adopt(one.number, lambda: one.columns(parts.files.registry.id_of), one.producer_id)
    assert groups.is_stable("readers", SOURCE)
    pending.record.completed().write(parts.files.state_log)
    parts.staged.pending.undone.flag.settle()
    assert groups.fetch("readers", SOURCE, require_stable=True).offset == 7


# Syncs that failed.


def test_a_file_that_could_not_be_synced_is_never_committed(store, monkeypatch):
    """A second sync would succeed, whatever the first one lost."""
    messages = stage_job(store.path, "run-a", JOB, durability="process")
    fsync = os.fsync
    failed: list[Path] = []

    def fail_once(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not failed and path.suffix == ".batches":
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(StagedCommitError, match="could not be synced"):
        store.commit_staged(APP, 0, messages)
    with pytest.raises(StagedCommitError, match="missing"):
        store.commit_staged(APP, 0, messages)
    assert not failed[0].exists()
    assert store.application(APP) is None
    assert visible_numbers(store) == expected_numbers()
    again = stage_job(store.path, "run-b", JOB, durability="process")
    assert store.commit_staged(APP, 0, again).committed
    assert visible_numbers(store) == expected_numbers(JOB)


def test_a_directory_is_synced_until_that_succeeded(store, monkeypatch):
    """It exists by the second time, and its name may not be on disk."""
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    sync_directory = staged_job.sync_directory
    synced: list[Path] = []

    def fail_first(path: Path) -> None:
        synced.append(path)
        if len(synced) <= 3:
            raise StoreFullError("no room")
        sync_directory(path)

    monkeypatch.setattr(staged_job, "sync_directory", fail_first)
    with pytest.raises(StoreFullError):
        store.commit_staged(APP, 0, [], "run-a", offsets=OFFSETS)
    assert store.application(APP) is None
    assert store.commit_staged(APP, 0, [], "run-a", offsets=OFFSETS).committed
    above = {store.path, store.path / "staging", store.path / "staging" / APP}
    assert set(synced[:3]) == set(synced[3:]) == above


# Put away.


def test_files_that_cannot_be_moved_are_removed(store, monkeypatch):
    def no_trash(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_id = store.begin_run(APP)
    messages = stage_job(store.path, run_id, JOB)
    monkeypatch.setattr("eoslog.staging.leftovers.make_directory", no_trash)
    assert store.commit_staged(APP, 0, messages).committed
    assert staged_files(store.path) == []


def test_the_ids_of_files_that_stay_are_not_forgotten(store, monkeypatch):
    monkeypatch.setattr("eoslog.staging.leftovers.remove_tree", lambda *_: 0)
    monkeypatch.setattr(Path, "rename", no_rename)
    run_id = store.begin_run(APP)
    messages = stage_job(store.path, run_id, JOB)
    assert store.commit_staged(APP, 0, messages).committed
    monkeypatch.undo()
    parts_of(store).staged.clear_leftovers()
    assert staged_files(store.path)
    with pytest.raises(StagedCommitError, match="committed before"):
        store.commit_staged(APP, 1, messages)
    assert visible_numbers(store) == expected_numbers(JOB)
    shutil.rmtree(store.path / "staging")
    parts_of(store).staged.clear_leftovers()
    assert staged_producers(store) == set()


def no_rename(*_: Any) -> None:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_list_of_files_goes_once_its_job_is_complete_on_disk(store, monkeypatch):
    """A power cut would bring the decision back, and nobody could complete it without its list."""
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    stage(store.path, "run-a", "late", JOB)
    log = parts_of(store).files.state_log
    log.append(1001, APP, {"state": "a record of the same partition"}, sync=False)
    partition = log.partition_of(APP)
    assert partition.log.durable_offset < partition.log_end_offset
    store.sweep_run(APP, "run-a")
    assert partition.log.durable_offset == partition.log_end_offset
