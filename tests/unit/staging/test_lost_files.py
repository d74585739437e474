"""Decided jobs whose files are gone: a repair completes the rest, and says what is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_calls import DONE, FAILED, call
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    leave_undone,
    no_room,
    quick_directory,
    stage,
    stage_job,
    visible_numbers,
)

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import StoreFullError
from eoslog.staging import adoption as staged_adoption
from eoslog.staging import job as staged_job
from eoslog.staging.message import StagedMessage
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of

JOB = range(200)
SOURCE = TopicPartition("source", 0)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A closed store with a decided job of two tasks, of which nothing is in the log."""
    with quick_directory(tmp_path) as directory:
        path = directory / "store"
        with eoslog.open(path, create=True, durability="process") as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
            store.create_topic("source")
            decide(store)
        yield path


def decide(store: Any, messages: list[StagedMessage] | None = None) -> None:
    messages = messages or stage_job(store.path, "run-a", JOB)
    leave_undone(store, UnifiedLog, "adopt", messages, offsets={"readers": {SOURCE: 7}})


def check_repair(path: Path, numbers: range, said: str) -> None:
    """The repair completes the job with these numbers; then all goes on."""
    before = {one: one.read_bytes() for one in path.rglob("*.log")}
    rehearsed = call("verify", "--repair", "--dry-run", "--store", path)
    assert rehearsed.status == FAILED
    assert f"would be done: {path}/staging/app/run-a: {said}" in rehearsed.stdout
    assert {one: one.read_bytes() for one in path.rglob("*.log")} == before
    repaired = call("verify", "--repair", "--store", path, "--json")
    assert repaired.status == DONE
    (change,) = repaired.json["changes"]
    assert said in change["what"]
    with eoslog.open(path) as store:
        assert (store.application(APP).version, store.application(APP).state) == (0, "complete")
        assert visible_numbers(store) == expected_numbers(numbers)
        later = stage_job(path, "run-b", range(200, 240))
        assert store.commit_staged(APP, 1, later).committed
        with store.producer() as producer:
            producer.append(TOPIC, partition=0, values=[b"0000999"])
        now = expected_numbers(numbers, range(200, 240))
        now[0].append(999)
        assert visible_numbers(store) == now
        assert store.verify() == []
    assert call("verify", "--repair", "--store", path, "--json").json["changes"] == []


def test_the_rest_of_a_job_is_completed(path):
    shutil.rmtree(path / "staging" / APP / "run-a" / "000001-0")
    check_repair(path, JOB[:100], "completed without 3 files that are gone, of 100 records")
    with eoslog.open(path) as store:
        assert store.groups()["readers"][SOURCE].offset == 7


def test_a_job_of_which_all_is_gone_is_given_up(path):
    """As after a power cut with durability "process", which kept the decision alone."""
    shutil.rmtree(path / "staging")
    with eoslog.open(path) as store:
        with store.producer() as producer:
            producer.append(TOPIC, partition=0, values=[b"hidden"])
        found = [str(one["reason"]) for one in store.verify()]
        assert len(found) == 6
        assert all("a repair completes the job without it" in one for one in found)
        assert visible_numbers(store) == expected_numbers()
        (lost,) = parts_of(store).staged.give_up_lost_files()
        assert (lost.app_id, lost.version, lost.files, lost.records) == (APP, 0, 6, 200)
        assert (
            engine_of(store).partition(TOPIC, 0).fetch_records(0, 10, 1000)[0][0].value == b"hidden"
        )
        assert store.verify() == []


@pytest.mark.parametrize("damaged", [False, True])
def test_a_job_whose_list_of_files_is_lost_is_given_up(path, monkeypatch, damaged):
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)
    with eoslog.open(path) as store:
        assert store.application(APP).state == "complete"
    shutil.rmtree(path)
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)
        store.create_topic("source")
        decide(store)
    if damaged:
        (manifest,) = (path / "staging" / APP / "run-a").glob("manifest-*")
        manifest.write_bytes(bytes(10))
        assert call("verify", "--repair", "--store", path).status == DONE
        with eoslog.open(path) as store:
            assert store.application(APP).state == "complete"
        return
    shutil.rmtree(path / "staging")
    check_repair(path, range(0), "given up, since the list of its files is gone")


def test_a_damaged_file_is_kept_aside(path):
    damaged = path / "staging" / APP / "run-a" / "000001-0" / f"{TOPIC}-1.0.batches"
    content = damaged.read_bytes()[:-1]
    damaged.write_bytes(content)
    repaired = call("verify", "--repair", "--store", path, "--json")
    assert repaired.status == DONE
    aside, lost = repaired.json["changes"]
    assert aside["path"] == str(damaged)
    assert Path(aside["kept"]).read_bytes() == content
    assert lost["what"].startswith("completed without 1 files that are gone")
    with eoslog.open(path) as store:
        assert store.application(APP).state == "complete"
        expected = expected_numbers(JOB)
        expected[1] = expected_numbers(JOB[:100])[1]
        assert visible_numbers(store) == expected
        assert store.verify() == []


@pytest.mark.parametrize("nth", [1, 2])
def test_a_repair_cut_short_is_finished_by_the_next_opening(path, monkeypatch, nth):
    """Its decision is one record: before it nothing has changed, after it the rest is decided."""
    shutil.rmtree(path / "staging" / APP / "run-a" / "000001-0")
    with eoslog.open(path) as store:
        monkeypatch.setattr(UnifiedLog, "adopt", no_room)
        if nth == 1:
            monkeypatch.setattr("eoslog.transactions.compacted_log.CompactedLog.append", no_room)
            with pytest.raises(StoreFullError):
                parts_of(store).staged.give_up_lost_files()
        else:
            assert len(parts_of(store).staged.give_up_lost_files()) == 1
        assert visible_numbers(store) == expected_numbers()
    monkeypatch.undo()
    with eoslog.open(path) as store:
        assert store.application(APP).state == ("prepared" if nth == 1 else "complete")
        assert visible_numbers(store) == expected_numbers(JOB[:100] if nth == 2 else range(0))
        assert len(parts_of(store).staged.give_up_lost_files()) == 2 - nth
        assert visible_numbers(store) == expected_numbers(JOB[:100])


def test_a_large_file_of_another_owner_needs_room(tmp_path, monkeypatch):
    """It is copied into the log: nobody but its owner may make it a segment."""
    monkeypatch.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", 1)

    class Full:
        f_frsize = 1
        f_bavail = 0

    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)
        messages = [stage(store.path, "run-a", "0", JOB)]
        monkeypatch.setattr(staged_adoption.os, "statvfs", lambda _: Full)
        monkeypatch.setattr(staged_adoption.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(StoreFullError, match=f"needs {messages[0].bytes} bytes"):
            store.commit_staged(APP, 0, messages)
        monkeypatch.setattr(staged_adoption.os, "geteuid", os.getuid)
        assert store.commit_staged(APP, 0, messages).committed
