"""`verify --repair` and staged jobs: what is complete was acknowledged, and is not cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_calls import DONE, FAILED, call
from staged_jobs import load
from stores import QUIET
from unclean_stops import as_of_a_crash

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.inspect.durable_bounds import job_parts
from eoslog.session.paths import StorePaths
from eoslog.staging import job as staged_job
from eoslog.staging import pending_jobs
from eoslog.staging.leftovers import Leftovers
from eoslog.staging.spans import JobSpan, OffsetRange, span_of_bounds
from eoslog.store.store import engine_of
from eoslog.transactions.state_key import RECENT_JOBS, state_key

pytestmark = pytest.mark.crash

T1 = TopicPartition("t", 1)


def stage_and_commit(store: Any, name: str = "jobs", **options: Any) -> None:
    values = [b"%d" % number for number in range(20)]
    offsets = {"readers": options["offsets"]} if options else None
    load(store, name, {("t", 0): values, ("t", 1): values}, offsets)


def make(path: Path, **options: Any) -> Path:
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("t", partitions=2)
        stage_and_commit(store, **options)
    as_of_a_crash(path)
    return path


def log_of(path: Path, partition: str = "t-1") -> Path:
    (log,) = (path / partition).glob("*.log")
    return log


def state_log_of(path: Path, key: bytes) -> Path:
    (log,) = [one for one in path.glob("__transaction_state-*/*.log") if key in one.read_bytes()]
    return log


def cut_last_batch(log: Path, bytes_left: int = 70, *, batches: int = 1) -> None:
    last = iter_batches(log.read_bytes())[-batches]
    with log.open("r+b") as file:
        file.truncate(last.position_bytes + bytes_left)


def repair(path: Path) -> tuple[int, Any]:
    answer = call("verify", "--repair", "--store", path, "--json")
    return answer.status, answer.json


def assert_refused(path: Path, *words: str) -> None:
    before = {one: one.read_bytes() for one in path.rglob("*.log")}
    status, said = repair(path)
    assert status == FAILED
    text = json.dumps(said["refused"])
    for word in words:
        assert word in text, text
    assert {one: one.read_bytes() for one in path.rglob("*.log")} == before


def count(path: Path, partition: int = 1) -> int:
    with eoslog.open(path) as store:
        return len(engine_of(store).partition("t", partition).fetch_records(0, 1000, 1 << 20)[0])


def test_a_complete_job_is_not_cut(tmp_path):
    path = make(tmp_path / "store")
    cut_last_batch(log_of(path))
    assert_refused(path, "staged job 0 of application 'jobs'", "up to offset 20")


@pytest.mark.parametrize("metadata", [None, b"damaged"])
def test_a_partition_without_its_id_has_the_job_all_the_same(tmp_path, metadata):
    path = make(tmp_path / "store")
    cut_last_batch(log_of(path))
    (path / "t-1" / "partition.metadata").unlink()
    if metadata is not None:
        (path / "t-1" / "partition.metadata").write_bytes(metadata)
    assert_refused(path, "staged job 0 of application 'jobs'", "up to offset 20")


def test_a_complete_job_among_records_of_others_is_not_cut(tmp_path, monkeypatch):
    """They came between its bound and its records: how many those are says too little."""
    path = tmp_path / "store"
    adopt_files = pending_jobs.adopt_files
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("t", partitions=2)

        def adopt_later(*args: Any, **options: Any) -> Any:
            with store.producer() as producer:
                producer.append("t", 1, [b"of somebody else"] * 30)
            return adopt_files(*args, **options)

        monkeypatch.setattr(pending_jobs, "adopt_files", adopt_later)
        stage_and_commit(store)
    as_of_a_crash(path)
    cut_last_batch(log_of(path))
    assert_refused(path, "staged job 0 of application 'jobs' was complete")


def test_a_complete_job_with_its_files_listed_apart_is_not_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 0)
    path = make(tmp_path / "store")
    cut_last_batch(log_of(path))
    assert_refused(path, "staged job 0 of application 'jobs'", "up to offset 1")


def test_a_job_whose_files_are_gone_is_not_cut(tmp_path):
    """Its completion was not on the disk, and the removal of its files was."""
    path = make(tmp_path / "store")
    cut_last_batch(state_log_of(path, b'"complete","process"'), 0)
    cut_last_batch(log_of(path))
    assert_refused(path, "staged job 0 of application 'jobs'", "up to offset 20")


def test_a_job_that_can_be_adopted_again_is_cut_and_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(Leftovers, "leave", lambda *args: None)
    path = make(tmp_path / "store")
    cut_last_batch(state_log_of(path, b'"complete","process"'), 0)
    cut_last_batch(log_of(path))
    status, said = repair(path)
    assert status == DONE, said
    assert [one["path"] for one in said["changes"]] == [str(log_of(path))]
    assert count(path, 0) == count(path, 1) == 20


def test_a_segment_that_is_a_staged_file_too_is_cut_in_a_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", 0)
    monkeypatch.setattr(Leftovers, "leave", lambda *args: None)
    path = make(tmp_path / "store")
    cut_last_batch(state_log_of(path, b'"complete","process"'), 0)
    (staged,) = path.glob("staging/*/*/*/t-1.0.batches")
    assert staged.samefile(log_of(path))
    with staged.open("r+b") as file:
        file.write(b"\1")  # As where the disk has only some of what told the batch its place.
    before = staged.read_bytes()
    status, said = repair(path)
    assert status == DONE, said
    assert [one["path"] for one in said["changes"]] == [str(log_of(path))]
    assert count(path, 0) == count(path, 1) == 20
    (kept,) = path.glob("state/cut/t-1/*")
    assert kept.read_bytes() == before.rstrip(b"\0")  # Zeros at the end are not kept.


def assert_last_batch_is_cut(path):
    """What a crash tears of the last batch was acknowledged by nobody: the repair takes it away."""
    as_of_a_crash(path)
    cut_last_batch(log_of(path))
    status, said = repair(path)
    assert status == DONE, said


def test_a_torn_end_behind_a_complete_job_is_cut(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("t", partitions=2)
        stage_and_commit(store)
        stage_and_commit(store, "more")
        with store.producer() as producer:
            producer.append("t", 1, [b"torn"])
    assert_last_batch_is_cut(path)
    assert count(path) == 40


def test_a_job_of_a_topic_that_was_deleted_says_nothing_of_the_next(tmp_path):
    path = make(tmp_path / "store")
    with eoslog.open(path, durability="process", config=QUIET) as store:
        store.delete_topic("t")
        store.create_topic("t", partitions=2)
        with store.producer() as producer:
            producer.append("t", 1, [b"torn"])
    assert_last_batch_is_cut(path)
    assert count(path) == 0


def log_of_readers(path: Path) -> Path:
    (log,) = [
        one for one in path.glob("__consumer_offsets-*/*.log") if b"readers" in one.read_bytes()
    ]
    return log


def test_a_torn_marker_of_a_complete_jobs_offsets_is_written_again(tmp_path):
    path = make(tmp_path / "store", offsets={T1: 7})
    cut_last_batch(log_of_readers(path))
    assert repair(path)[0] == DONE
    with eoslog.open(path) as store:
        assert store.groups()["readers"][T1].offset == 7
        assert store.verify() == []


def test_the_offsets_of_a_complete_job_are_not_cut(tmp_path):
    path = make(tmp_path / "store", offsets={T1: 7})
    cut_last_batch(log_of_readers(path), batches=2)
    assert_refused(path, "__consumer_offsets", "staged job 0 of application 'jobs' was complete")


def test_a_note_of_recent_jobs_tells_how_far_a_log_went(tmp_path):
    """Alone, as where the decisions were compacted away."""
    path = make(tmp_path / "store")
    with eoslog.open(path) as store:
        topic_id = store.partition("t", 1).topic_id
    paths = StorePaths(path)
    key = state_key(RECENT_JOBS, "")
    open_ended = span_of_bounds({"t": topic_id}, {T1: 3})
    ended = JobSpan(2, {"t": topic_id}, {T1: OffsetRange(3, 17)})
    spans = [open_ended.described(), ended.described()]
    records = [(key, b"{}"), (key, json.dumps({"spans": spans}).encode())]
    assert [(where, part.offset_min) for where, part in job_parts(paths, records)] == [(T1, 17)]
    shutil.rmtree(path / "t-1")
    assert list(job_parts(paths, records)) == []
