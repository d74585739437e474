"""`verify` of a log in use: files are cut, deleted and recycled while it reads them.

No access to a file can end the process; what is reported is damage, and nothing else.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.fork import in_child
from partition_files import PartitionFiles

import eoslog.bindings.opened_log as opened_log
import eoslog.bindings.partition_log as partition_log
from eoslog.errors import LogClosedError

pytestmark = pytest.mark.crash

BASE_MS = 1_790_000_000_000
SEGMENT_BYTES = 1000
LARGE_BYTES = 1 << 23


@pytest.fixture
def files(make_partition) -> PartitionFiles:
    """Several segments, and a few batches in the active one."""
    files = make_partition(segment_bytes=SEGMENT_BYTES, eoslog_spare_segments=1)
    log = files.open()
    while log.segment_count < 5:
        append(log)
    append(log)
    return files


def append(log, value: bytes = b"0123456789" * 10) -> None:
    log.append_columns([value], timestamp_ms=BASE_MS)


@contextmanager
def around_opening(
    *, before: Callable[[str], object] | None = None, after: Callable[[str], object] | None = None
) -> Iterator[None]:
    """What happens to the log just before and just after verify opens a segment's file."""
    opened = partition_log.open_segment

    def open_segment(path: str) -> object:
        if before is not None:
            before(path)
        pieces = opened(path)
        if after is not None:
            after(path)
        return pieces

    partition_log.open_segment = open_segment
    try:
        yield
    finally:
        partition_log.open_segment = opened


def once(path: Path, work: Callable[[], object]) -> Callable[[str], object]:
    """The work, the first time that it is this file's turn."""
    left = [work]
    return lambda opened: left.pop()() if left and opened == str(path) else None


def paths(files: PartitionFiles) -> list[Path]:
    return [files.path(base) for base in files.names(".log")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_roll_cuts_the_file_to_its_batches(files, when):
    active = paths(files)[-1]
    reserved_bytes = active.stat().st_size
    with around_opening(**{when: once(active, files.log.roll)}):
        assert files.log.verify() == []
    assert active.stat().st_size < reserved_bytes


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [0, 2])
def test_a_segment_that_is_deleted_and_recycled_is_passed_over(files, when, which):
    def recycle() -> None:
        """The oldest files become spoiled spares, and then segments at the end."""
        for segment in paths(files)[1 : which + 2]:
            files.log.delete_segments(int(segment.name[:20]))
            files.log.prepare_spare()
            while files.names(".log")[-1] != files.log.log_end_offset:
                append(files.log)
                files.log.roll()
            append(files.log)

    gone = paths(files)[which]
    with around_opening(**{when: once(gone, recycle)}):
        assert files.log.verify() == []
    assert not gone.exists()
    assert files.log.verify() == []


def test_everything_that_was_listed_may_be_gone(files):
    def delete() -> None:
        files.log.roll()
        files.log.delete_segments(files.log.log_end_offset)

    first, *_ = paths(files)
    with around_opening(before=once(first, delete)):
        assert files.log.verify() == []


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("cut_bytes", [0, 1, 60, 61, 200, 350])
def test_a_file_that_somebody_else_cuts_is_damaged(files, which, cut_bytes):
    path = paths(files)[which]
    used_bytes = files.log.segments()[which]["size_bytes"]
    cut_bytes = min(cut_bytes, used_bytes - 1)
    with around_opening(after=once(path, lambda: os.truncate(path, cut_bytes))):
        problems = files.log.verify()
    assert [one["path"] for one in problems] == [str(path)]
    assert problems[0]["reason"] == f"the file is shorter than its {used_bytes} bytes"
    assert problems[0]["position_bytes"] <= cut_bytes


@pytest.mark.parametrize("which", [0, 2])
def test_a_file_that_somebody_else_removed_is_damage(files, which):
    path = paths(files)[which]
    with around_opening(before=once(path, path.unlink)):
        (problem,) = files.log.verify()
    assert problem["path"] == str(path)
    assert "gone" in str(problem["reason"])


def test_so_is_one_that_somebody_else_has_locked(files):
    path = paths(files)[1]
    copied = shutil.copy(path, files.root / "copy")  # Of which nobody holds a lock.
    Path(copied).replace(path)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (problem,) = files.log.verify()
    assert problem["path"] == str(path)
    assert "locked" in str(problem["reason"])
    assert files.log.verify() == []


def test_a_log_that_is_closed_or_deleted_meanwhile_is_named_so(files):
    first, *_ = paths(files)

    def delete() -> None:
        files.log.mark_deleted()
        first.unlink()

    with around_opening(before=once(first, delete)), pytest.raises(LogClosedError):
        files.log.verify()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("gone", range(1, 8))
def test_transactions_that_began_in_a_deleted_segment_are_no_problem(make_partition, when, gone):
    files = make_partition(segment_bytes=SEGMENT_BYTES)
    log = files.open()
    for epoch in range(12):
        for producer_id in (7, 8):
            for sequence in range(2):
                log.append_columns(
                    [b"x" * 100],
                    timestamp_ms=BASE_MS,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    transactional=True,
                )
        for producer_id in (7, 8):
            log.append_marker(producer_id, epoch + 1, 0, epoch % 3 == 0, timestamp_ms=BASE_MS)
    log.store_abort_files()
    segments = paths(files)
    assert len(segments) > 8
    upto = int(segments[gone].name[:20])
    with around_opening(**{when: once(segments[gone - 1], lambda: log.delete_segments(upto))}):
        assert log.verify() == []
    assert paths(files) == segments[gone:]
    assert log.verify() == []


def test_a_segment_that_goes_while_the_segments_are_listed_is_left_out(files, monkeypatch):
    rows, rows_offset = files.log.dirty_producers()
    files.close()
    # Nothing makes this opening look at the older segments.
    log = files.open(rows=rows, rows_offset=rows_offset, abort_files=[])
    _, second, *_ = paths(files)
    newest_timestamp = opened_log.newest_timestamp

    def delete_first(path: str) -> int | None:
        log.delete_segments(int(second.name[:20]))
        return newest_timestamp(path)

    monkeypatch.setattr(opened_log, "newest_timestamp", delete_first)
    assert [one["path"] for one in log.segments()][:1] == [str(second)]
    second.unlink()
    with pytest.raises(FileNotFoundError):
        log.segments()


def test_a_damaged_length_costs_no_memory_and_a_long_batch_is_checked(make_partition):
    files = make_partition(segment_bytes=1 << 24, max_message_bytes=1 << 24)
    log = files.open()
    append(log, bytes(5_000_000))
    append(log, b"behind")
    assert log.verify() == []
    with files.path(0).open("r+b") as file:
        file.seek(4_000_000)
        file.write(b"!")
    (problem,) = log.verify()
    assert problem["position_bytes"] == 0
    assert problem["reason"] == "batch checksum does not match its bytes"


def test_a_file_is_cut_at_any_moment(tmp_path):
    in_child(lambda: cut_at_any_moment(tmp_path))


def cut_at_any_moment(root: Path) -> None:
    noise = random.Random(3)
    files = PartitionFiles(root, {"segment.bytes": 2 * LARGE_BYTES})
    log = files.open()
    while log.size_bytes < LARGE_BYTES:
        append(log, bytes(100_000))
    log.roll()
    path = files.path(0)
    data = path.read_bytes()
    takes_s = 60.0
    found = set()
    # On a slow machine a cut may come too late again and again: then there are more.
    for number in itertools.count():
        if number >= 40 and found:
            break
        began_s = time.monotonic()
        assert log.verify() == []
        takes_s = min(takes_s, time.monotonic() - began_s)
        cut_bytes = noise.randrange(len(data))
        cutter = threading.Timer(noise.random() * takes_s, os.truncate, (path, cut_bytes))
        cutter.start()
        found.update(str(one["reason"]) for one in log.verify())
        cutter.join()
        path.write_bytes(data)
        assert found <= {f"the file is shorter than its {len(data)} bytes"}


def test_writers_roll_and_retention_deletes(tmp_path):
    in_child(lambda: rolls_and_deletions(tmp_path))


def rolls_and_deletions(root: Path) -> None:
    files = PartitionFiles(root, {"segment.bytes": 1 << 14, "eoslog.spare.segments": 2})
    log = files.open()
    append(log)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            append(log)
            if log.segment_count > 3:
                log.delete_segments(log.log_end_offset - 100)
                log.prepare_spare()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        until_s = time.monotonic() + 0.5
        while time.monotonic() < until_s or log.log_start_offset == 0:
            assert log.verify() == []
    finally:
        stop.set()
        worker.join()
    files.close()
