"""Staged files that become segments of the log, and those that are copied instead."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.fork import in_child
from reference_model import batch_codec as codec
from staged_jobs import (
    APP,
    MEMORY,
    TOPIC,
    expected_numbers,
    stage,
    stage_job,
    value_of,
    visible_numbers,
)

import eoslog
from eoslog.errors import CorruptRecordError, StagedCommitError, StoreFailedError, StoreFullError
from eoslog.inspect.file_dump import dump_file
from eoslog.staging import job as staged_job
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of

NUMBERS = range(100)
HIGHEST = 1 << 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic(TOPIC, partitions=3)
        yield store


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of every size become segments."""
    monkeypatch.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", 0)


def staged_path(store: eoslog.Store, message: Any, number: int = 0) -> Path:
    run = store.path / "staging" / APP / message.run_id / message.attempt
    return run / message.files[number].name


def log_files(store: eoslog.Store, partition: int = 0) -> list[Path]:
    return sorted((store.path / f"{TOPIC}-{partition}").glob("*.log"))


def one_file(store: eoslog.Store, run_id: str = "run-0") -> tuple[Path, Any]:
    """A staged file of partition 0, and its description."""
    message = stage(store.path, run_id, "0", NUMBERS)
    file = next(file for file in message.files if file.partition == 0)
    return staged_path(store, message, message.files.index(file)), file


def adopt(store: eoslog.Store, path: Path, file: Any, **how: bool) -> tuple[int, int] | None:
    how = {"checked": False} | how
    return (
        engine_of(store).partition(TOPIC, 0).adopt_file(path, file.bytes, file.producer_id, **how)
    )


def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int] | None]:
    """What partitions answer from now on when a file is to become a segment."""
    answers = []
    real = UnifiedLog.adopt_file

    def adopt_file(*arguments: Any, **how: Any) -> Any:
        answers.append(real(*arguments, **how))
        return answers[-1]

    monkeypatch.setattr(UnifiedLog, "adopt_file", adopt_file)
    return answers


def numbers_in(store: eoslog.Store) -> list[int]:
    return visible_numbers(store)[0]


@pytest.mark.parametrize("mib", [1, 66])
def test_a_snapshot_in_front_of_a_file_is_written_now_and_then(store, mib):
    """If much of the log lies behind the newest. The file's producer, which has written nothing
    below, is not in it.
    """
    producer = store.producer()
    for _ in range(mib):
        producer.append(TOPIC, partition=0, values=[bytes(1_040_000)])
    path, file = one_file(store)
    assert adopt(store, path, file) is not None
    snapshots = list((store.path / f"{TOPIC}-0").glob("*.snapshot"))
    assert len(snapshots) == (mib >= 64)
    for snapshot in snapshots:
        listed = [one["producerId"] for one in dump_file(snapshot)]
        assert file.producer_id not in listed
        assert len(listed) == 1


@pytest.mark.usefixtures("whole")
def test_the_staged_file_is_the_segment(store):
    """Into an empty segment, and behind one: no byte is copied."""
    for version, numbers in enumerate((NUMBERS, range(100, 200))):
        messages = stage_job(store.path, f"run-{version}", numbers)
        staged = {
            staged_path(store, message, number).stat().st_ino
            for message in messages
            for number in range(len(message.files))
        }
        assert store.commit_staged(APP, version, messages).records == 100
        segments = {file.stat().st_ino for number in range(3) for file in log_files(store, number)}
        assert staged <= segments
    assert visible_numbers(store) == expected_numbers(NUMBERS, range(100, 200))
    assert store.verify() == []
    parts_of(store).staged.clear_leftovers()
    assert {file.stat().st_nlink for number in range(3) for file in log_files(store, number)} == {1}
    assert {file.stat().st_mode & 0o777 for file in log_files(store)} == {0o600}


def test_small_files_are_copied(store, monkeypatch):
    answers = asked(monkeypatch)
    store.commit_staged(APP, 0, stage_job(store.path, "run-0", NUMBERS))
    assert len(log_files(store)) == 1
    assert answers == []


@pytest.mark.usefixtures("whole")
def test_what_is_appended_next_goes_to_a_segment_of_its_own(store):
    path, file = one_file(store)
    before = path.read_bytes()
    assert adopt(store, path, file) == (0, file.records)
    with store.producer() as producer:
        producer.send(TOPIC, value=value_of(500), partition=0)
    assert len(log_files(store)) == 2
    assert path.stat().st_size == len(before)
    assert numbers_in(store) == [*expected_numbers(NUMBERS)[0], 500]


def test_an_adopted_file_is_there_after_a_restart(store):
    path, file = one_file(store)
    adopt(store, path, file)
    store.close()
    for _ in range(2):
        with eoslog.open(store.path) as again:
            assert numbers_in(again) == expected_numbers(NUMBERS)[0]
            state = engine_of(again).partition(TOPIC, 0).producer(file.producer_id)
            assert state is not None and state.last_sequence == file.records - 1
            assert again.verify() == []


def test_its_batches_stand_where_they_are_in_the_log(store):
    with store.producer() as producer:
        producer.append(TOPIC, partition=0, values=[value_of(number) for number in range(700, 705)])
    path, file = one_file(store)
    assert adopt(store, path, file) == (5, file.records)
    partition = store.partition(TOPIC, 0)
    assert numbers_in(store) == [*range(700, 705), *expected_numbers(NUMBERS)[0]]
    assert partition.log_end_offset == 5 + file.records
    assert partition.verify() == []
    assert [int(one.stem) for one in log_files(store)] == [0, 5]
    # A file that was told its place can be told another one: it is adopted elsewhere by a copy.
    assert adopt(store, path, file) is None


# Where a file is to be copied: None, and nothing has changed.


def copied(store: eoslog.Store, path: Path, file: Any, **how: bool) -> None:
    end = store.partition(TOPIC, 0).log_end_offset
    before = log_files(store)
    assert adopt(store, path, file, **how) is None
    assert store.partition(TOPIC, 0).log_end_offset == end
    assert log_files(store) == before
    assert engine_of(store).partition(TOPIC, 0).producer(file.producer_id) is None or end > 0
    data = memoryview(path.read_bytes())
    engine_of(store).partition(TOPIC, 0).adopt(data, file.producer_id)
    assert numbers_in(store) == expected_numbers(NUMBERS)[0]
    assert store.verify() == []


def test_a_file_with_another_name_is_copied(store, tmp_path):
    path, file = one_file(store)
    os.link(path, tmp_path / "another")
    before = path.read_bytes()
    copied(store, path, file)
    assert (tmp_path / "another").read_bytes() == before


def test_a_file_that_is_named_by_a_symbolic_link_is_copied(store, tmp_path):
    path, file = one_file(store)
    (tmp_path / "another").symlink_to(path)
    copied(store, tmp_path / "another", file)


def test_a_file_of_which_some_is_in_is_copied(store):
    path, file = one_file(store)
    data = path.read_bytes()
    half = eoslog.bindings.record_batch.iter_batches(data)[2].position_bytes
    engine_of(store).partition(TOPIC, 0).adopt(memoryview(data)[:half], file.producer_id)
    copied(store, path, file)


def test_a_file_that_is_all_in_is_not_adopted_again(store):
    path, file = one_file(store)
    data = path.read_bytes()
    engine_of(store).partition(TOPIC, 0).adopt(memoryview(data), file.producer_id)
    copied(store, path, file)


def test_a_file_of_another_length_is_copied(store):
    path, file = one_file(store)
    data = path.read_bytes()
    path.write_bytes(data + b"more")
    assert adopt(store, path, file) is None
    path.write_bytes(data)
    assert adopt(store, path, file) == (0, file.records)


def test_a_file_that_is_gone_is_left_to_the_copy(store):
    path, file = one_file(store)
    path.unlink()
    assert adopt(store, path, file) is None


@pytest.mark.skipif(not os.access(MEMORY, os.W_OK), reason="there is no second file system")
def test_a_file_of_another_file_system_is_copied(store, disk_path):
    path, file = one_file(store)
    in_memory = MEMORY.stat().st_dev == store.path.stat().st_dev
    elsewhere = (disk_path if in_memory else MEMORY) / f"eoslog-test-{os.getpid()}.batches"
    try:
        elsewhere.write_bytes(path.read_bytes())
        if elsewhere.stat().st_dev == store.path.stat().st_dev:
            pytest.skip("it is the same file system")
        copied(store, elsewhere, file)
        with store.producer() as producer:
            producer.send(TOPIC, value=value_of(1), partition=0)
    finally:
        elsewhere.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "config",
    [
        {"segment.bytes": 2048, "max.message.bytes": 1024},
        {"segment.index.bytes": 48, "index.interval.bytes": 1},
    ],
    ids=["a segment", "its index"],
)
def test_a_file_that_is_too_large_is_copied(store, config):
    """It was staged while the topic's segments were larger."""
    store.create_topic("small", partitions=3, config=config)
    message = stage(store.path, "run-0", "0", NUMBERS)
    for file, number in zip(message.files, range(3), strict=True):
        path = staged_path(store, message, number)
        partition = engine_of(store).partition("small", file.partition)
        assert partition.adopt_file(path, file.bytes, file.producer_id, checked=False) is None
        partition.adopt(memoryview(path.read_bytes()), file.producer_id)
    assert visible_numbers(store, "small") == expected_numbers(NUMBERS)
    assert store.verify() == []


# Bad files.


@pytest.mark.parametrize("empty", [True, False])
def test_a_damaged_file_is_refused(store, empty):
    if not empty:
        with store.producer() as producer:
            producer.send(TOPIC, value=value_of(900), partition=0)
    path, file = one_file(store)
    data = path.read_bytes()
    end = store.partition(TOPIC, 0).log_end_offset
    for position in (len(data) // 2, len(data) - 1, 8, 16, 43, 53, 57):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(CorruptRecordError) as caught:
            adopt(store, path, file)
        assert caught.value.path == str(path)
        assert store.partition(TOPIC, 0).log_end_offset == end
        assert engine_of(store).partition(TOPIC, 0).producer(file.producer_id) is None
    for position in (8, 16, 43, 53):  # Also where the checksums need no second look.
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(CorruptRecordError):
            adopt(store, path, file, checked=True)
    path.write_bytes(data)
    assert adopt(store, path, file) == (end, file.records)


# As long as the file has both names.


def test_a_deleted_segment_is_not_used_again(store):
    store.create_topic("rolling", partitions=3, config={"segment.bytes": 1 << 21})
    message = stage(store.path, "run-0", "0", NUMBERS, topic="rolling")
    file, path = message.files[0], staged_path(store, message)
    partition = engine_of(store).partition("rolling", file.partition)
    assert partition.adopt_file(path, file.bytes, file.producer_id, checked=False)
    data = path.read_bytes()
    with store.producer() as producer:
        producer.send("rolling", value=b"next", partition=file.partition)
    assert partition.delete_segments(file.records) == 1
    partition.prepare_spare()
    assert path.read_bytes() == data
    assert path.stat().st_nlink == 1


@pytest.mark.parametrize("keep", [0, 1, 20])
def test_a_log_that_is_cut_back_leaves_the_staged_file_whole(store, keep):
    path, file = one_file(store)
    adopt(store, path, file)
    data = path.read_bytes()
    partition = engine_of(store).partition(TOPIC, 0)
    partition.log.truncate(keep)
    end = partition.log.log_end_offset
    assert end <= keep
    assert path.read_bytes() == data
    records, _ = partition.fetch_records(0, 1000, 1 << 20)
    assert [int(one.value[:7]) for one in records] == expected_numbers(NUMBERS)[0][:end]


def test_recovery_cuts_a_damaged_segment_and_not_the_staged_file(store):
    path, file = one_file(store)
    adopt(store, path, file)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    copy = store.path.with_name("after")
    subprocess.run(["cp", "-a", store.path, copy], check=True)  # Hard links stay links.
    (copy / path.relative_to(store.path)).write_bytes(data)
    (copy / "clean").unlink(missing_ok=True)
    with eoslog.open(copy) as after:
        found = numbers_in(after)
        assert 0 < len(found) < file.records
        assert found == expected_numbers(NUMBERS)[0][: len(found)]
    assert (copy / path.relative_to(store.path)).read_bytes() == bytes(data)


# Room.


@pytest.mark.usefixtures("whole")
def test_files_that_become_segments_need_no_room(store, monkeypatch):
    messages = stage_job(store.path, "run-0", NUMBERS)
    real = os.statvfs

    def full(path: Any) -> Any:
        found = list(real(path))
        found[4] = 0  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    with monkeypatch.context() as patched:
        patched.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", HIGHEST)
        with pytest.raises(StoreFullError):
            store.commit_staged(APP, 0, messages)
    assert store.commit_staged(APP, 0, messages).committed
    assert visible_numbers(store) == expected_numbers(NUMBERS)


@pytest.mark.usefixtures("whole")
def test_others_append_while_files_are_adopted(store):
    """The end of the log moves on under the adoption; every record is in once, in order."""
    stop = threading.Event()
    sent = []

    def send() -> None:
        with store.producer() as producer:
            while not stop.is_set():
                number = 1000 + len(sent)
                producer.append(TOPIC, partition=0, values=[value_of(number)])
                sent.append(number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        for version in range(8):
            numbers = range(100 * version, 100 * version + 100)
            store.commit_staged(APP, version, stage_job(store.path, f"run-{version}", numbers))
    finally:
        stop.set()
        thread.join()
    found = numbers_in(store)
    assert [number for number in found if number >= 1000] == sent
    jobs = [range(100 * version, 100 * version + 100) for version in range(8)]
    assert [number for number in found if number < 1000] == expected_numbers(*jobs)[0]
    assert store.verify() == []


@pytest.mark.usefixtures("whole")
def test_a_large_file_that_is_missing_is_named(store):
    messages = stage_job(store.path, "run-0", NUMBERS)
    path = staged_path(store, messages[0])
    path.unlink()
    with pytest.raises(StagedCommitError, match="missing") as caught:
        store.commit_staged(APP, 0, messages)
    assert str(path) in str(caught.value)


def test_a_large_file_of_an_unknown_topic_is_refused(store, monkeypatch):
    monkeypatch.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", 0)
    messages = stage_job(store.path, "run-0", NUMBERS, topic="nowhere")
    with pytest.raises(StagedCommitError, match="no partition nowhere"):
        store.commit_staged(APP, 0, messages)
    assert store.application(APP) is None


# Many of them.


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("whole")
def test_a_log_of_many_segments_needs_few_open_files(tmp_path):
    """A job that makes more segments than a process may have files open, and who reads it."""
    path = tmp_path / "many"
    numbers = range(900)

    def work() -> None:
        gc.collect()  # What earlier tests left open is closed now, or never.
        limit = 2 * (open_files() + 50)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with eoslog.open(path, create=True) as store:
            store.create_topic(TOPIC, partitions=3)
            messages = stage_job(path, "run-0", numbers, tasks=150)
            store.commit_staged(APP, 0, messages)
            assert visible_numbers(store) == expected_numbers(numbers)
            assert len(log_files(store)) > limit // 2  # As many may be open.
        with eoslog.open(path) as store:
            for _ in range(2):
                assert visible_numbers(store) == expected_numbers(numbers)
            assert store.verify() == []
            with store.producer() as producer:
                producer.send(TOPIC, value=value_of(900), partition=0)
            assert open_files() < limit - 20

    in_child(work)


def test_a_close_behind_an_empty_segment_whose_file_was_replaced(make_partition):
    """A repair does so, after a writer's death just behind a roll: nothing is lost by it."""
    files = make_partition()
    log = files.open()
    log.append_batch(codec.simple_batch([b"v"]))
    log.roll()
    files.close()
    log = files.open(clean=False)
    fresh = files.path(1).with_suffix(".cleaned")
    fresh.touch(mode=0o600)
    fresh.rename(files.path(1))
    files.close()
    log = files.open()
    assert log.append_batch(codec.simple_batch([b"w"])).base_offset == 1
    log.flush()
    log.append_batch(codec.simple_batch([b"x"]))
    files.path(1).unlink()
    with pytest.raises(StoreFailedError, match="deleted or truncated"):
        log.flush()
