"""A log whose start is written down above where its batches end: it goes on at its start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from partition_files import PartitionFiles
from reference_model import batch_codec as codec

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.checkpoint_file import write_checkpoints
from eoslog.storage.offset_checkpoints import LOG_START_OFFSET, RECOVERY_POINT
from eoslog.store.store import engine_of

pytestmark = pytest.mark.crash


def batch(base_offset: int, count: int = 1) -> bytes:
    values = [b"%d" % offset for offset in range(base_offset, base_offset + count)]
    return codec.simple_batch(values, base_offset=base_offset)


def damaged(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


WHOLE = [(0, batch(0)), (1, batch(1, 2) + batch(3, 3))]
# Name, segments, log start, where the log ends then, base offsets of the segments then.
CASES = [
    ("damaged below the start", [(0, batch(0)), (1, damaged(batch(1, 5)))], 4, 4, [4]),
    ("damaged in the first segment", [(0, damaged(batch(0))), WHOLE[1]], 4, 4, [4]),
    ("all of it damaged", [(0, damaged(batch(0))), (1, damaged(batch(1, 5)))], 6, 6, [6]),
    ("the end was lost", [(0, batch(0))], 9, 9, [9]),
    ("an empty segment", [(0, b"")], 3, 3, [3]),
    (
        "damaged at the start",
        [(0, batch(0)), (1, batch(1, 2) + damaged(batch(3, 3)))],
        3,
        3,
        [0, 1],
    ),
    (
        "damaged above the start",
        [(0, batch(0)), (1, batch(1, 2) + damaged(batch(3)))],
        2,
        3,
        [0, 1],
    ),
    ("a start in a segment", WHOLE, 2, 6, [0, 1]),
    ("a start at the end", WHOLE, 6, 6, [0, 1]),
    ("a start at a segment", WHOLE, 1, 6, [0, 1]),
]


@pytest.fixture
def files(tmp_path: Path) -> PartitionFiles:
    return PartitionFiles(tmp_path)


@pytest.mark.parametrize(
    ("segments", "start", "end", "bases"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_log_goes_on_at_its_start_or_its_end(
    files: PartitionFiles, segments: list[tuple[int, bytes]], start: int, end: int, bases: list[int]
) -> None:
    for base_offset, raw in segments:
        files.write(base_offset, raw)
    log = files.open(clean=False, log_start_offset=start)
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    assert (files.names(".log"), [one["base_offset"] for one in log.segments()]) == (bases, bases)
    assert log.verify() == []
    kept = sum(path.stat().st_size for path in files.cut.iterdir())
    assert kept == log.cut_bytes
    if bases == [start]:
        assert kept == sum(len(raw) for _, raw in segments)
    assert log.append_columns([b"next"], timestamp_ms=1).base_offset == end
    log = files.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (start, end + 1)
    # Without the checkpoint too nothing is missing between two segments.
    files.close()
    log = files.open(clean=False)
    assert log.log_start_offset == bases[0]
    assert log.log_end_offset == end + 1
    assert log.verify() == []


def test_what_was_cut_off_replaces_no_file_that_was_kept_before(files: PartitionFiles) -> None:
    files.write(0, damaged(batch(0)))
    files.write(1, batch(1, 2))
    now_ms = int(time.time() * 1000)
    taken = [f"{base:020d}.log.0.{now_ms + ahead}" for base in (0, 1) for ahead in range(5000)]
    for name in taken:
        (files.cut / name).write_bytes(b"kept before")
    files.open(clean=False, log_start_offset=4)
    assert {(files.cut / name).read_bytes() for name in taken} == {b"kept before"}
    kept = {path.read_bytes() for path in files.cut.iterdir() if path.name not in taken}
    assert {damaged(batch(0)), batch(1, 2)} <= kept


def test_after_a_clean_stop_too(files: PartitionFiles) -> None:
    for base_offset, raw in WHOLE:
        files.write(base_offset, raw)
    log = files.open(clean=True, recovery_point=6, log_start_offset=8)
    assert (log.log_start_offset, log.log_end_offset, files.names(".log")) == (8, 8, [8])
    assert log.verify() == []
    assert len(list(files.cut.iterdir())) == 2


def test_files_made_from_the_segments_go_with_them(files: PartitionFiles) -> None:
    log = files.open()
    for sequence in range(2):
        log.append_columns(
            [b"x"], timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        log.roll()
    files.close()
    assert files.names(".snapshot") == [1, 2]
    log = files.open(clean=False, log_start_offset=5)
    assert files.names(".snapshot") == []
    assert {path.suffix for path in files.directory.iterdir()} <= {".log", ".index", ".timeindex"}
    assert files.names(".log") == [5]
    assert log.producers() == []


def test_a_store_reports_what_was_cut_and_goes_on(tmp_path: Path) -> None:
    path, where = tmp_path / "store", TopicPartition("t", 0)
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        store.producer().append("t", 0, [b"0"])
        engine_of(store).partition("t", 0).roll()
        store.producer().append("t", 0, [b"%d" % number for number in range(1, 6)])
    (path / ".kafka_cleanshutdown").unlink()
    segment = path / "t-0" / f"{1:020d}.log"
    segment.write_bytes(damaged(segment.read_bytes()))
    write_checkpoints({path / RECOVERY_POINT: {}})
    write_checkpoints({path / LOG_START_OFFSET: {where: 4}})
    with eoslog.open(path) as store:
        partition = engine_of(store).partition("t", 0)
        assert partition.cut_bytes > 0
        assert sorted(one.name for one in partition.path.glob("*.log")) == [f"{4:020d}.log"]
        assert (partition.log_start_offset, partition.log_end_offset) == (4, 4)
        reasons = [str(problem["reason"]) for problem in store.verify()]
        assert [one for one in reasons if "its batches end" in one] == []
        assert store.producer().append("t", 0, [b"next"]).base_offset == 4
    (path / LOG_START_OFFSET).unlink()
    with eoslog.open(path) as store:
        consumer = store.consumer()
        consumer.assign([where])
        assert [(one.offset, one.value) for one in consumer.poll(0)] == [(4, b"next")]
        assert store.verify() == []
