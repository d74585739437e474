"""Every file but the log can be deleted: all is readable, and duplicates are still noticed."""

from __future__ import annotations

import itertools
import shutil

import pytest
from partition_files import all_records, same_records
from reference_model import batch_codec as codec
from reference_model.log_model import LogModel

NOW_MS = 1_790_000_000_000
DERIVED = (".index", ".timeindex", ".snapshot", "control", "spare", "cut")
SUBSETS = [
    subset for size in range(len(DERIVED) + 1) for subset in itertools.combinations(DERIVED, size)
]


def fill(files) -> LogModel:
    """Three producers, several segments; the model sees the same."""
    log = files.open()
    model = LogModel(segment_bytes=files.config["segment.bytes"])
    for index in range(60):
        producer_id = index % 3
        data = codec.simple_batch(
            [b"value %d" % index] * (1 + index % 2),
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=model.producers.entry(producer_id).last_sequence + 1,
            timestamp_ms=NOW_MS + index * 10,
        )
        ours, models = log.append_batch(data), model.append_batch(data)
        assert ours.base_offset == models.base_offset
    assert log.segment_count > 5
    return model


def delete(files, kinds) -> None:
    for kind in kinds:
        if kind == "control":
            files.control.unlink()
        elif kind in ("spare", "cut"):
            shutil.rmtree(files.root / kind)
        else:
            for path in files.directory.glob(f"*{kind}"):
                path.unlink()


def check_all(files, log, model) -> None:
    same_records(all_records(log), model.records(0))
    assert log.log_end_offset == model.log_end_offset
    assert [s["base_offset"] for s in log.segments()] == model.segments
    for record in model.records(0):
        found = log.offset_for_timestamp(record.timestamp_ms)
        assert found == model.offset_for_timestamp(record.timestamp_ms)
        records, _ = log.fetch_records(record.offset, 1, 1)
        assert records[0].offset == record.offset
    for producer_id in range(3):
        last = next(b for b in reversed(model.batches) if b.producer_id == producer_id)
        result = log.append_batch(codec.place_batch(last.data, 0))
        assert (result.duplicate, result.base_offset) == (True, last.base_offset)
    assert [problem for problem in log.verify() if problem["path"].endswith(".log")] == []


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("kinds", SUBSETS, ids=lambda kinds: "+".join(kinds) or "nothing")
def test_deleted(kinds, clean, make_partition):
    files = make_partition(segment_bytes=1000, index_interval_bytes=200)
    model = fill(files)
    files.close(clean=clean)
    delete(files, kinds)
    log = files.open(clean=clean, recovery_point=0)
    if ".snapshot" in kinds:
        assert files.restored_from == "log"
    check_all(files, log, model)
    files.close()
    log = files.open()
    check_all(files, log, model)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("kind", [".index", ".timeindex", ".snapshot", "control"])
@pytest.mark.parametrize("how", ["noise", "foreign", "empty", "cut", "zeros"])
def test_overwritten(kind, how, clean, make_partition):
    files = make_partition(segment_bytes=1000, index_interval_bytes=200)
    model = fill(files)
    files.close(clean=clean)
    paths = [files.control] if kind == "control" else sorted(files.directory.glob(f"*{kind}"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(
            {
                "noise": bytes((index * 7919 + 13) & 0xFF for index in range(len(data))),
                "foreign": b"#!/bin/sh\necho this is no file of the log\n" * 3,
                "empty": b"",
                "cut": data[:-5],
                "zeros": bytes(len(data)),
            }[how]
        )
    log = files.open(clean=clean, recovery_point=0)
    check_all(files, log, model)


def test_an_index_of_another_segment_is_not_believed(make_partition):
    """Entries that rise and lie within the file, but point between batches."""
    files = make_partition(segment_bytes=1000, index_interval_bytes=200)
    model = fill(files)
    files.close()
    for suffix in (".index", ".timeindex"):
        bases = files.names(suffix)
        contents = [files.path(base, suffix).read_bytes() for base in bases]
        for base, data in zip(bases, [*contents[1:], contents[0]], strict=True):
            files.write(base, data, suffix)
    check_all(files, files.open(), model)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_rows_restore_the_whole_window(clean, make_partition):
    """What dirty_producers handed out, with the replay of what came after it, is everything."""
    files = make_partition(segment_bytes=1000)
    model = fill(files)
    log = files.log
    rows, rows_offset = log.dirty_producers()
    for producer_id in range(3):
        data = codec.simple_batch(
            [b"later"],
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=model.producers.entry(producer_id).last_sequence + 1,
            timestamp_ms=NOW_MS,
        )
        log.append_batch(data)
        model.append_batch(data)
    before = [repr(state.batches) for state in log.producers()]
    files.close(clean=clean)
    log = files.open(clean=clean, rows=rows, rows_offset=rows_offset)
    assert files.restored_from == "rows"
    assert sorted(repr(state.batches) for state in log.producers()) == sorted(before)
    assert all(len(state.batches) == 5 for state in log.producers())


@pytest.mark.parametrize("source", ["snapshot", "log"])
def test_rows_after_a_restore_without_rows_hold_every_producer(source, make_partition):
    """The rows' store was lost: the next rows must bring back all, not the lately changed alone."""
    files = make_partition(segment_bytes=1000)
    fill(files)
    log = files.reopen(clean=source == "snapshot")
    if source == "log":
        delete(files, [".snapshot"])
        log = files.reopen(clean=False)
    assert files.restored_from == source
    log.append_batch(codec.simple_batch([b"later"]))
    rows, rows_offset = log.dirty_producers()
    log.producers_persisted(rows_offset)
    before = sorted(repr(state) for state in log.producers())
    assert len(before) == 3
    files.close()
    log = files.open(rows=rows, rows_offset=rows_offset)
    assert files.restored_from == "rows"
    assert sorted(repr(state) for state in log.producers()) == before


def test_rows_beyond_the_recovered_end_are_not_believed(make_partition):
    """Rows of batches that did not survive: a power cut took the log's tail."""
    files = make_partition()
    log = files.open()
    batches = [
        codec.simple_batch([b"v"], producer_id=1, producer_epoch=0, base_sequence=sequence)
        for sequence in range(4)
    ]
    for data in batches:
        log.append_batch(data)
    rows, rows_offset = log.dirty_producers()
    files.close(clean=False)
    whole = files.path(0).read_bytes()
    files.write(0, whole[: 2 * len(batches[0])])
    log = files.open(clean=False, rows=rows, rows_offset=rows_offset)
    assert log.log_end_offset == 2
    assert log.producer(1).last_sequence == 1
    assert log.append_batch(batches[1]).duplicate
    assert not log.append_batch(batches[2]).duplicate
    assert log.log_end_offset == 3


def test_truncated_producers_are_forgotten(make_partition):
    files = make_partition()
    log = files.open()
    for sequence in range(4):
        log.append_batch(
            codec.simple_batch([b"v"], producer_id=1, producer_epoch=0, base_sequence=sequence)
        )
    log.truncate(2)
    assert log.producer(1).last_sequence == 1
    rows, rows_offset = log.dirty_producers()
    assert rows_offset == 2
    files.close()
    log = files.open(rows=rows, rows_offset=rows_offset)
    assert log.producer(1).last_sequence == 1
