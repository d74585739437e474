"""What a task attempt writes: files with its records, each once, and a message that says so."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from eoslog.bindings.partitioner import partition_for_key
from eoslog.bindings.record_batch import Record, crc32c, decode_records, iter_batches
from eoslog.common import clock
from eoslog.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    LogClosedError,
    NotAStoreError,
    RecordTooLargeError,
    StagedCommitError,
    StoreFullError,
    UnknownTopicOrPartitionError,
)
from eoslog.staging import attempt_files
from eoslog.staging.message import STAGED_PRODUCER_ID_MIN, StagedFile, StagedMessage
from eoslog.staging.names import directory_name
from eoslog.staging.writer import StagedWriter
from eoslog.storage.topics_file import write_entries
from eoslog.transactions import producer_ids

TOPIC = "orders"


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """What a writer needs of a store: that it is one."""
    (tmp_path / "meta.properties").write_text("version=1\n")
    return tmp_path


def writer_for(store_path: Path, attempt: str = "attempt-0", **options: object) -> StagedWriter:
    options = {"partitions": {TOPIC: 4}, "durability": "process", **options}
    return StagedWriter(store_path, "app", options.pop("run_id", "run"), attempt, **options)


def write_topic_settings(store_path: Path, partitions: int = 4, **config: int) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    entry = {"partitions": partitions, "topic_id": "x", "config": settings}
    (store_path / "state").mkdir()
    write_entries(store_path / "state", {TOPIC: entry})


def attempt_directory(store_path: Path, message: StagedMessage) -> Path:
    return store_path / "staging" / "app" / "run" / message.attempt


def records_of(store_path: Path, message: StagedMessage) -> dict[tuple[str, int], list[Record]]:
    """All records by topic and partition, after checking every claim of the message."""
    found: dict[tuple[str, int], list[Record]] = {}
    assert len({file.producer_id for file in message.files}) == len(message.files)
    for file in message.files:
        data = (attempt_directory(store_path, message) / file.name).read_bytes()
        assert (len(data), crc32c(data)) == (file.bytes, file.crc)
        assert file.producer_id >= STAGED_PRODUCER_ID_MIN
        sequence = 0
        for header in iter_batches(data):
            assert (header.producer_id, header.producer_epoch) == (file.producer_id, 0)
            assert (header.base_sequence, header.base_offset) == (sequence, 0)
            assert header.attributes == 0
            sequence += header.record_count
            batch = data[header.position_bytes : header.position_bytes + header.batch_bytes]
            found.setdefault((file.topic, file.partition), []).extend(decode_records(batch))
        assert sequence == file.records
    return found


def values_of(store_path: Path, message: StagedMessage) -> dict[int, list[bytes | None]]:
    return {
        partition: [record.value for record in records]
        for (_, partition), records in records_of(store_path, message).items()
    }


def columns(kind: str, cells: list[bytes]) -> object:
    """The same cells as each kind of column."""
    if kind == "list":
        return cells
    if kind == "numpy S":
        return np.array(cells, dtype="S")
    if kind == "numpy uint8":
        return np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), -1)
    pa = pytest.importorskip("pyarrow")
    if kind == "arrow sliced":
        return pa.array([b"before", *cells, b"after"], pa.binary()).slice(1, len(cells))
    if kind == "arrow chunked":
        return pa.chunked_array([cells[:3], cells[3:]], pa.binary())
    types = {
        "arrow binary": pa.binary(),
        "arrow large": pa.large_binary(),
        "arrow string": pa.string(),
        "arrow fixed": pa.binary(len(cells[0])),
    }
    return pa.array(cells, pa.binary()).cast(types[kind])


KINDS = [
    "list",
    "numpy S",
    "numpy uint8",
    "arrow binary",
    "arrow large",
    "arrow string",
    "arrow fixed",
    "arrow sliced",
    "arrow chunked",
]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_go_where_their_keys_go_in_the_order_they_came(store_path, kind):
    keys = [b"key-%02d" % (index * 7 % 50) for index in range(500)]
    values = [b"value-%05d" % index for index in range(500)]
    writer = writer_for(store_path)
    for first in range(0, 500, 100):
        part = slice(first, first + 100)
        writer.append(TOPIC, None, columns(kind, values[part]), columns(kind, keys[part]))
    message = writer.close()
    expected: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(partition_for_key(key, 4), []).append((key, value))
    found = {
        partition: [(record.key, record.value) for record in records]
        for (_, partition), records in records_of(store_path, message).items()
    }
    assert found == expected
    assert message.records == 500


def test_rows_of_a_named_partition_stay_together(store_path):
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 3, [b"a", None], keys=[None, b"k"])
        writer.append(TOPIC, 0, [b"b"])
        writer.append(TOPIC, 3, [b"c"])
    assert values_of(store_path, writer.message) == {3: [b"a", None, b"c"], 0: [b"b"]}


def test_a_column_of_keys_alone_stages_tombstones(store_path):
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 0, None, keys=[b"gone", b"too"])
    records = records_of(store_path, writer.message)[(TOPIC, 0)]
    assert [(record.key, record.value) for record in records] == [(b"gone", None), (b"too", None)]


@pytest.mark.parametrize("with_keys", [False, True])
def test_rows_without_a_key_spread_over_all_partitions(store_path, with_keys):
    values = [b"%05d" % index + b"x" * 95 for index in range(4000)]
    writer = writer_for(store_path, batch_bytes_max=4096)
    for first in range(0, 4000, 500):
        part = values[first : first + 500]
        writer.append(TOPIC, None, part, keys=[None] * len(part) if with_keys else None)
    found = values_of(store_path, writer.close())
    assert sorted(value for rows in found.values() for value in rows) == values
    assert all(500 < len(rows) < 1500 for rows in found.values()), "evenly"
    assert len(found) == 4
    assert all(rows == sorted(rows) for rows in found.values())


def test_the_small_tasks_of_a_job_go_to_as_many_partitions(store_path):
    """And those of the next job begin elsewhere."""
    firsts = []
    for job in range(8):
        partitions = []
        for task in range(4):
            writer = writer_for(store_path, f"{task:06d}-{task + 17}-0", run_id=f"job-{job}")
            writer.append(TOPIC, None, [b"one"])
            partitions.append(writer.close().files[0].partition)
        assert sorted(partitions) == [0, 1, 2, 3]
        firsts.append(partitions[0])
    assert len(set(firsts)) > 1


def test_small_attempts_do_not_all_begin_at_the_same_partition(store_path):
    first_partitions = set()
    for number in range(40):
        writer = writer_for(store_path, f"attempt-{number}")
        writer.append(TOPIC, None, [b"one"])
        first_partitions.add(writer.close().files[0].partition)
    assert len(first_partitions) > 1


def test_timestamps_and_headers_come_through(store_path):
    headers = [[("a", b"1"), ("b", None)], None, {"c": b""}]
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 1, [b"x", b"y", b"z"], timestamps=np.array([5, 0, -1]))
        writer.append(TOPIC, 1, [b"x", b"y", b"z"], None, [7, 8, 9], headers)
    records = records_of(store_path, writer.message)[(TOPIC, 1)]
    assert [record.timestamp_ms for record in records] == [5, 0, -1, 7, 8, 9]
    assert [record.headers for record in records] == [
        (), (), (), (("a", b"1"), ("b", None)), (), (("c", b""),)
    ]  # fmt: skip


def test_headers_follow_their_rows_to_their_partitions(store_path):
    keys = [b"%d" % (index % 9) for index in range(100)]
    headers = [[("row", b"%d" % index)] for index in range(100)]
    with writer_for(store_path) as writer:
        writer.append(TOPIC, None, [b"%d" % index for index in range(100)], keys, None, headers)
    for records in records_of(store_path, writer.message).values():
        assert all(record.headers == (("row", record.value),) for record in records)


def test_rows_without_a_time_have_that_of_their_append(store_path, monkeypatch):
    moments_ms = iter([1000, 2000])
    monkeypatch.setattr(clock, "now_ms", lambda: next(moments_ms))
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 0, [b"a"])
        writer.append(TOPIC, 0, [b"b"])
    records = records_of(store_path, writer.message)[(TOPIC, 0)]
    assert [record.timestamp_ms for record in records] == [1000, 2000]


def test_what_the_caller_changes_after_an_append_is_not_staged(store_path):
    cells = [b"before"]
    rows = np.full((1, 6), ord("b"), np.uint8)
    stamps = np.array([1], np.int64)
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 0, cells, None, stamps)
        writer.append(TOPIC, 1, rows)
        cells[0], stamps[0] = b"after", 2
        rows[:] = ord("a")
    found = records_of(store_path, writer.message)
    assert [(one.value, one.timestamp_ms) for one in found[(TOPIC, 0)]] == [(b"before", 1)]
    assert [one.value for one in found[(TOPIC, 1)]] == [b"bbbbbb"]


def test_kinds_of_columns_may_change_from_call_to_call(store_path):
    pa = pytest.importorskip("pyarrow")
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 0, [b"list"])
        writer.append(TOPIC, 0, pa.array([b"arrow"], pa.binary()))
        writer.append(TOPIC, 0, pa.array(["text"]), [b"key"])
        writer.append(TOPIC, 0, pa.nulls(1), pa.array([b"key"], pa.binary()))
    assert values_of(store_path, writer.message) == {0: [b"list", b"arrow", b"text", None]}


def test_batches_stay_below_the_limits_of_writer_and_topic(store_path):
    write_topic_settings(store_path, max_message_bytes=3000)
    for batch_bytes_max, limit in ((1000, 1000), (1 << 20, 3000)):
        writer = writer_for(store_path, f"a{batch_bytes_max}", batch_bytes_max=batch_bytes_max)
        writer.append(TOPIC, 2, [bytes(index % 700) for index in range(1000)])
        message = writer.close()
        data = (attempt_directory(store_path, message) / message.files[0].name).read_bytes()
        sizes = [header.batch_bytes for header in iter_batches(data)]
        assert limit * 0.3 < max(sizes) <= limit
        assert message.records == 1000


@pytest.mark.parametrize("known", [True, False])
def test_a_record_too_large_is_refused_in_the_task_and_the_attempt_goes_on(store_path, known):
    limit = 1_048_588
    if known:
        limit = 5000
        write_topic_settings(store_path, max_message_bytes=limit)
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [b"small"])
    with pytest.raises(RecordTooLargeError, match="record 1 makes a batch of"):
        writer.append(TOPIC, 0, [b"fits", bytes(limit)])
    fitting = limit - 61 - 12
    writer.append(TOPIC, 0, [bytes(fitting)])
    assert [len(value) for value in values_of(store_path, writer.close())[0]] == [5, fitting]


def test_a_timestamp_that_the_topic_does_not_take_is_refused_in_the_task(store_path):
    write_topic_settings(store_path, message_timestamp_before_max_ms=1000)
    writer = writer_for(store_path)
    for wrong in (-2, 5):
        with pytest.raises(InvalidTimestampError):
            writer.append(TOPIC, 0, [b"a", b"b"], timestamps=[-1, wrong])
    writer.append(TOPIC, 0, [b"now"])
    assert writer.close().records == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((TOPIC, 0, None), TypeError),
        ((TOPIC, 0, b"bytes"), TypeError),
        ((TOPIC, 0, ["text"]), TypeError),
        ((TOPIC, 0, [b"a"], [1]), TypeError),
        ((TOPIC, 0, np.zeros(3)), TypeError),
        ((TOPIC, 0, [b"a"], [b"k", b"l"]), ValueError),
        ((TOPIC, 0, [b"a"], None, [1, 2]), ValueError),
        ((TOPIC, 0, [b"a"], None, ["now"]), TypeError),
        ((TOPIC, 0, [b"a"], None, None, [[(1, b"v")]]), TypeError),
        ((TOPIC, 0, [b"a"], None, None, [[("k", "v")]]), TypeError),
        ((TOPIC, 0, [b"a"], None, None, []), ValueError),
        ((TOPIC, "0", [b"a"]), TypeError),
        ((TOPIC, True, [b"a"]), TypeError),
        ((TOPIC, 4, [b"a"]), UnknownTopicOrPartitionError),
        ((TOPIC, -1, [b"a"]), UnknownTopicOrPartitionError),
        (("other", 0, [b"a"]), UnknownTopicOrPartitionError),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_added(store_path, arguments, error):
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [b"good"])
    with pytest.raises(error):
        writer.append(*arguments)
    assert values_of(store_path, writer.close()) == {0: [b"good"]}


def test_wrong_options_are_refused(store_path, tmp_path):
    with pytest.raises(ValueError, match="durability"):
        writer_for(store_path, durability="perhaps")
    with pytest.raises(ValueError, match="partitions"):
        writer_for(store_path, partitions={})
    with pytest.raises(ValueError, match="partitions"):
        writer_for(store_path, partitions={TOPIC: 0})
    with pytest.raises(InvalidTopicError):
        writer_for(store_path, partitions={"__transaction_state": 50})
    with pytest.raises(ValueError, match="batch_bytes_max"):
        writer_for(store_path, batch_bytes_max=1)
    with pytest.raises(ValueError, match="attempt"):
        writer_for(store_path, "")
    with pytest.raises(TypeError, match="attempt"):
        writer_for(store_path, 7)
    with pytest.raises(NotAStoreError):
        writer_for(tmp_path / "elsewhere")
    write_topic_settings(store_path, partitions=5)
    with pytest.raises(ValueError, match="has 5 partitions, not 4"):
        writer_for(store_path)
    assert not (store_path / "staging").exists()


def test_an_attempt_without_rows_leaves_no_trace(store_path):
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [])
    assert writer.close().files == ()
    assert not (store_path / "staging").exists()


def test_no_attempt_writes_into_the_files_of_another(store_path):
    first, second = writer_for(store_path), writer_for(store_path)
    first.append(TOPIC, 0, [b"first"])
    message = first.close()
    second.append(TOPIC, 0, [b"second"])
    with pytest.raises(StagedCommitError, match="name of its own"):
        second.close()
    second.abandon()
    assert values_of(store_path, message) == {0: [b"first"]}


def test_a_closed_writer_takes_nothing_more_and_keeps_its_files(store_path):
    writer = writer_for(store_path)
    with pytest.raises(LogClosedError, match="not closed yet"):
        assert writer.message
    writer.append(TOPIC, 0, [b"kept"])
    message = writer.close()
    assert writer.close() is message is writer.message
    with pytest.raises(LogClosedError):
        writer.append(TOPIC, 0, [b"late"])
    writer.abandon()
    assert values_of(store_path, message) == {0: [b"kept"]}


def test_an_abandoned_writer_removes_its_files_and_only_those(store_path):
    kept = writer_for(store_path, "kept")
    kept.append(TOPIC, 0, [b"kept"])
    message = kept.close()
    with pytest.raises(ZeroDivisionError), writer_for(store_path, batch_bytes_max=100) as writer:
        writer.append(TOPIC, 0, [b"gone" * 200])
        assert attempt_directory(store_path, message).with_name("attempt-0").exists()
        raise ZeroDivisionError
    assert [path.name for path in (store_path / "staging/app/run").iterdir()] == ["kept"]
    with pytest.raises(LogClosedError, match="abandoned"):
        writer.close()


def test_a_full_disk_is_named_and_ends_the_attempt(store_path, monkeypatch):
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [b"a"])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attempt_files.os, "write", full)
    with pytest.raises(StoreFullError, match="No space"):
        writer.close()
    monkeypatch.undo()
    with pytest.raises(LogClosedError, match="failed"):
        writer.append(TOPIC, 0, [b"b"])
    with pytest.raises(LogClosedError, match="failed"):
        writer.close()
    writer.abandon()
    assert list((store_path / "staging/app/run").iterdir()) == []


def test_short_writes_are_continued(store_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(attempt_files.os, "write", lambda fd, data: write(fd, data[:7]))
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [b"a longer value than seven bytes"])
    message = writer.close()
    monkeypatch.undo()
    assert values_of(store_path, message) == {0: [b"a longer value than seven bytes"]}


@pytest.mark.parametrize("durability", ["commit", "always", "process"])
def test_files_and_their_names_are_synced_as_the_durability_asks(
    store_path, monkeypatch, durability
):
    synced: list[Path] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    writer = writer_for(store_path, durability=durability)
    writer.append(TOPIC, 0, [b"a"])
    writer.append(TOPIC, 1, [b"b"])
    message = writer.close()
    attempt = attempt_directory(store_path, message)
    files = [attempt / file.name for file in message.files]
    directories = [attempt, *attempt.parents[:4]]
    assert directories[-1] == store_path
    wanted = [] if durability == "process" else files + directories
    assert sorted(synced) == sorted(wanted)
    assert message.synced == (durability != "process")


def test_a_directory_swept_under_a_zombie_is_named(store_path):
    import shutil

    writer = writer_for(store_path, durability="commit", batch_bytes_max=100)
    writer.append(TOPIC, 0, [b"x" * 500])
    shutil.rmtree(store_path / "staging")
    with pytest.raises(StagedCommitError, match="job of this attempt is over"):
        writer.append(TOPIC, 1, [b"x" * 500])
    writer.abandon()
    assert not (store_path / "staging").exists()


@pytest.mark.parametrize("durability", ["process", "commit"])
@pytest.mark.parametrize("gone", ["directory", "file"])
def test_what_was_swept_before_the_close_is_named(store_path, durability, gone):
    """Else the message would name files that nobody can commit."""
    import shutil

    writer = writer_for(store_path, durability=durability, batch_bytes_max=100)
    writer.append(TOPIC, 0, [b"x" * 500])
    writer.append(TOPIC, 1, [b"x" * 500])
    if gone == "directory":
        shutil.rmtree(store_path / "staging")
    else:
        next((store_path / "staging").rglob("*.0.*")).unlink()
    with pytest.raises(StagedCommitError, match="job of this attempt is over"):
        writer.close()
    writer.abandon()


def test_more_partitions_than_open_files(store_path, monkeypatch):
    monkeypatch.setattr(attempt_files, "OPEN_FILES_MAX", 3)
    others = len(list(Path("/proc/self/fd").iterdir()))  # Of other tests in this process.
    with writer_for(
        store_path, partitions={TOPIC: 20}, batch_bytes_max=200, durability="commit"
    ) as writer:
        for number in range(400):
            writer.append(TOPIC, number % 20, [b"%d" % number + b"x" * 100])
        assert len(list(Path("/proc/self/fd").iterdir())) - others < 20
    found = values_of(store_path, writer.message)
    assert {partition: len(rows) for partition, rows in found.items()} == dict.fromkeys(
        range(20), 20
    )


def test_a_file_ends_long_before_its_sequences_wrap(store_path, monkeypatch):
    monkeypatch.setattr(attempt_files, "FILE_RECORDS_MAX", 10)
    writer = writer_for(store_path, batch_bytes_max=300)
    writer.append(TOPIC, 0, [b"%02d" % index + b"x" * 50 for index in range(25)])
    message = writer.close()
    assert [file.name for file in message.files] == [
        f"{TOPIC}-0.{number}.batches" for number in range(len(message.files))
    ]
    assert len(message.files) >= 3
    assert max(file.records for file in message.files) <= 10
    assert [value[:2] for value in values_of(store_path, message)[0]] == [
        b"%02d" % index for index in range(25)
    ]


def test_a_file_is_no_larger_than_a_segment_of_its_topic(store_path):
    """Such a file can become a segment of the log as it is."""
    limit = 20_000
    write_topic_settings(store_path, segment_bytes=limit)
    writer = writer_for(store_path, batch_bytes_max=3000)
    values = [b"%04d" % index + bytes(196) for index in range(400)]
    for first in range(0, 400, 50):
        writer.append(TOPIC, 1, values[first : first + 50])
    message = writer.close()
    sizes = [file.bytes for file in message.files]
    assert [file.name for file in message.files] == [
        f"{TOPIC}-1.{number}.batches" for number in range(len(sizes))
    ]
    assert max(sizes) <= limit
    assert min(sizes[:-1]) > limit - 3000, "a file is filled before the next one begins"
    assert values_of(store_path, message) == {1: values}


def test_no_space_is_kept_beyond_the_end_of_a_file(store_path):
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [bytes(1000)] * 1500)
    (path,) = (store_path / "staging").rglob("*.batches")
    # One batch is in the file, and space for more on file systems that can reserve it.
    before = path.stat()
    assert 1_000_000 < before.st_size <= 1 << 20
    message = writer.close()
    after = path.stat()
    assert after.st_size == message.bytes > 1_500_000
    assert after.st_blocks * 512 < after.st_size + (64 << 10)
    assert len(values_of(store_path, message)[0]) == 1500


@pytest.mark.parametrize("durability", ["commit", "process"])
def test_the_disk_begins_before_the_sync(store_path, monkeypatch, durability):
    begun: list[tuple[int, int]] = []

    def noting(descriptor: int, position_bytes: int, byte_count: int) -> None:
        begun.append((position_bytes, byte_count))

    monkeypatch.setattr(attempt_files, "begin_writeback", noting)
    monkeypatch.setattr(attempt_files, "WRITEBACK_STEP_BYTES", 2000)
    writer = writer_for(store_path, durability=durability, batch_bytes_max=1000)
    for _ in range(10):
        writer.append(TOPIC, 0, [bytes(900)])
    message = writer.close()
    if durability == "process":
        assert begun == []
        return
    assert len(begun) > 3
    ends = [0, *(position + count for position, count in begun)]
    assert [position for position, _ in begun] == ends[:-1], "without gaps"
    assert ends[-1] == message.bytes


def test_keyed_and_keyless_rows_keep_their_order_in_a_partition(store_path):
    writer = writer_for(store_path, partitions={TOPIC: 1}, batch_bytes_max=300)
    values = [b"%03d" % index for index in range(300)]
    for index, value in enumerate(values):
        partition = 0 if index % 3 == 0 else None
        writer.append(TOPIC, partition, [value], [b"k"] if index % 2 else None)
    assert values_of(store_path, writer.close()) == {0: values}


def test_two_topics_share_what_may_be_held(store_path, monkeypatch):
    monkeypatch.setattr("eoslog.staging.writer.HELD_BYTES_MAX", 1 << 17)
    writer = writer_for(store_path, partitions={"a": 8, "b": 8})
    for index in range(3000):
        for topic in ("a", "b"):
            writer.append(topic, index % 8, [b"%05d" % index + bytes(495)])
    written = sum(path.stat().st_size for path in (store_path / "staging").rglob("*.batches"))
    message = writer.close()
    assert written > message.bytes - (1 << 17)
    found = records_of(store_path, message)
    assert len(found) == 16
    for (_, partition), records in found.items():
        numbers = [int(record.value[:5]) for record in records]
        assert numbers == list(range(partition, 3000, 8))


def test_a_message_survives_json_and_pickle(store_path):
    with writer_for(store_path) as writer:
        writer.append(TOPIC, None, [b"a", b"b"], [b"k", b"l"])
    message = writer.message
    assert StagedMessage(**json.loads(json.dumps(asdict(message)))) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert message.bytes == sum(file.bytes for file in message.files)


GOOD_FILE = {
    "topic": TOPIC,
    "partition": 0,
    "name": "orders-0.0.batches",
    "bytes": 70,
    "records": 1,
    "producer_id": STAGED_PRODUCER_ID_MIN,
    "crc": 1,
}


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("topic", 5, TypeError),
        ("topic", "a/b", InvalidTopicError),
        ("topic", "__consumer_offsets", InvalidTopicError),
        ("partition", -1, ValueError),
        ("partition", True, TypeError),
        ("name", "../../orders-0.0.batches", ValueError),
        ("name", "orders-0/0.batches", ValueError),
        ("name", "00000000000000000000.log", ValueError),
        ("topic", "others", ValueError),
        ("partition", 1, ValueError),
        ("name", "orders-00.0.batches", ValueError),
        ("name", "orders.0.batches", ValueError),
        ("bytes", 0, ValueError),
        ("records", "1", TypeError),
        ("producer_id", 5, ValueError),
        ("producer_id", 1 << 63, ValueError),
        ("crc", 1 << 32, ValueError),
        ("topic_id", None, TypeError),
    ],
)
def test_a_message_that_names_no_staged_file_is_refused(field, value, error):
    StagedFile(**GOOD_FILE)
    with pytest.raises(error):
        StagedMessage("app", "run", "attempt", [{**GOOD_FILE, field: value}])


def test_every_text_has_a_directory_of_its_own():
    names = ["a", "a.b", ".", "..", "a/b", "ab", "-a", "a~b", "é", "é" * 500, "x" * 81, "\ud800"]
    directories = [directory_name(name, "app_id") for name in names]
    assert len(set(directories)) == len(names)
    for name, directory in zip(names, directories, strict=True):
        assert Path(directory).name == directory
        assert len(directory.encode()) <= 80
        assert not directory.startswith((".", "-"))
        assert (directory == name) == (name in ("a", "a.b", "ab"))


def test_staged_producer_ids_are_those_a_store_never_gives_out():
    assert STAGED_PRODUCER_ID_MIN == producer_ids.STAGED_PRODUCER_ID_MIN


def test_a_worker_that_stages_loads_neither_spark_nor_the_store():
    code = (
        "import sys, eoslog.staging.writer; print(*[name for name in "
        "('pyspark', 'lmdb', 'pyarrow', 'pandas', 'eoslog.store.store') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


def test_the_writer_holds_a_bounded_number_of_bytes(store_path):
    writer = writer_for(store_path, batch_bytes_max=1000)
    written: Counter[str] = Counter()
    for _ in range(50):
        writer.append(TOPIC, None, [b"x" * 100] * 10)
        for path in (store_path / "staging").rglob("*.batches"):
            written[path.name] = path.stat().st_size
    assert sum(written.values()) > 50_000 - 4 * 1000 - 2000
    assert writer.close().records == 500


class ForeignArray:
    """An Arrow array of a library that is not pyarrow: it offers the C interface and no more."""

    def __init__(self, array: object) -> None:
        self._array = array

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._array.__arrow_c_array__(requested_schema)


def test_arrow_arrays_of_other_libraries_are_taken(store_path):
    pa = pytest.importorskip("pyarrow")
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 2, ForeignArray(pa.array([b"a", None, b"c"], pa.binary())))
    assert values_of(store_path, writer.message) == {2: [b"a", None, b"c"]}


def test_arrow_arrays_of_other_types_are_refused(store_path):
    pa = pytest.importorskip("pyarrow")
    writer = writer_for(store_path)
    for wrong in (
        pa.array([1, 2]),
        pa.array([1, 1]).dictionary_encode(),
        pa.array([[b"a"]]),
    ):
        with pytest.raises(TypeError, match=r"values .*must be an Arrow binary or string array"):
            writer.append(TOPIC, 0, wrong)
    writer.append(TOPIC, 0, pa.array([b""], pa.binary(0)))
    writer.append(TOPIC, 0, pa.array([], pa.binary()))
    assert values_of(store_path, writer.close()) == {0: [b""]}


def test_columns_with_nulls_and_slices_are_measured_by_their_own_cells(store_path):
    pa = pytest.importorskip("pyarrow")
    cells = [None if index % 3 == 0 else b"x" * (index % 50) for index in range(1000)]
    for kind in (pa.binary(), pa.large_binary()):
        array = pa.array([b"y" * 10_000, *cells], kind).slice(1)
        writer = writer_for(store_path, f"attempt-{kind}", batch_bytes_max=500)
        writer.append(TOPIC, None, array, array)
        message = writer.close()
        found = values_of(store_path, message)
        assert Counter(value for rows in found.values() for value in rows) == Counter(cells)
        for file in message.files:
            data = (attempt_directory(store_path, message) / file.name).read_bytes()
            assert max(header.batch_bytes for header in iter_batches(data)) <= 500


def test_a_large_append_is_staged_in_pieces(store_path, monkeypatch):
    monkeypatch.setattr("eoslog.staging.writer.HELD_BYTES_MAX", 5000)
    values = [b"%06d" % index + b"x" * 60 for index in range(3000)]
    keys = [b"%d" % (index % 31) for index in range(3000)]
    with writer_for(store_path, batch_bytes_max=2000) as writer:
        writer.append(TOPIC, None, values, keys)
    found = values_of(store_path, writer.message)
    for partition, rows in found.items():
        expected = [
            value
            for value, key in zip(values, keys, strict=True)
            if partition_for_key(key, 4) == partition
        ]
        assert rows == expected


def test_headers_of_an_arrow_column(store_path):
    pa = pytest.importorskip("pyarrow")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "a", "value": b"1"}], None, []], kind)
    with writer_for(store_path) as writer:
        writer.append(TOPIC, 0, [b"x", b"y", b"z"], headers=headers)
    records = records_of(store_path, writer.message)[(TOPIC, 0)]
    assert [record.headers for record in records] == [(("a", b"1"),), (), ()]


def test_threads_share_a_writer(store_path, monkeypatch):
    began, go_on = threading.Event(), threading.Event()
    write = attempt_files.AttemptFiles.write

    def slow(*arguments):
        began.set()
        assert go_on.wait(60)
        write(*arguments)

    monkeypatch.setattr(attempt_files.AttemptFiles, "write", slow)
    writer = writer_for(store_path, batch_bytes_max=100)
    values = [b"%04d" % number for number in range(40)]
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(writer.append, TOPIC, 0, values[:20])
        assert began.wait(60)
        second = threads.submit(writer.append, TOPIC, 0, values[20:])
        with pytest.raises(TimeoutError):
            second.result(0.05)
        go_on.set()
        first.result()
        second.result()
    assert values_of(store_path, writer.close())[0] == values


def test_a_writer_that_failed_without_a_text_names_the_error(store_path, monkeypatch):
    def refuse(*_):
        raise MemoryError  # Python gives it no text.

    monkeypatch.setattr(attempt_files.AttemptFiles, "write", refuse)
    writer = writer_for(store_path)
    writer.append(TOPIC, 0, [b"x"])
    with pytest.raises(MemoryError):
        writer.close()
    with pytest.raises(LogClosedError, match="failed: MemoryError"):
        writer.append(TOPIC, 0, [b"x"])
