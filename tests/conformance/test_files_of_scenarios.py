"""Storage scenarios that are about the bytes of files: S18, S58, S66, S87, S88, S89."""

from __future__ import annotations

import random
import struct

import pytest
from partition_files import all_records
from reference_model import batch_codec as codec
from reference_model.producer_model import (
    ProducerModel,
    WindowBatch,
    decode_snapshot,
    encode_snapshot,
)

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
BASE_MS = 1_700_000_000_000


def test_s18_a_snapshot_is_read_and_written_back_the_same(make_partition):
    entries = [
        ProducerModel(1, 2, 3, -1, 100, [WindowBatch(2**31 - 2, 1, -1, 2, -1)]),
        ProducerModel(11, 12, 13, 123456, -1, []),
    ]
    data = encode_snapshot(entries)
    # Without a batch, lastSequence, lastOffset and their distance are -1, -1, 0.
    assert data[10:56] == struct.pack(">qhiqiqiq", 1, 2, 1, 2, 3, -1, 3, 100)
    assert data[56:] == struct.pack(">qhiqiqiq", 11, 12, -1, -1, 0, 123456, 13, -1)
    files = make_partition()
    files.write(0, codec.simple_batch([b"v"] * 5))
    files.write(5, data, ".snapshot")
    log = files.open()
    assert log.producer(1).current_txn_first_offset == 100
    assert (log.producer(1).last_sequence, log.producer(1).last_offset) == (1, 2)
    assert (log.producer(11).producer_epoch, log.producer(11).coordinator_epoch) == (12, 13)
    assert log.producer(11).batches == ()
    log.append_batch(codec.simple_batch([b"one more"]))
    files.close()
    written = decode_snapshot(files.path(6, ".snapshot").read_bytes())
    assert sorted(written, key=lambda entry: entry.producer_id) == entries


@pytest.mark.parametrize("inside", [0, 1, 7, 8, 11, 14])
@pytest.mark.parametrize("kept", range(20))
def test_s58_garbage_from_the_start_of_a_batch_on_is_cut_off(kept, inside, make_partition):
    batches = [
        codec.simple_batch([b"v%d" % offset], base_offset=offset, timestamp_ms=BASE_MS + offset)
        for offset in range(20)
    ]
    data = b"".join(batches)
    start = sum(len(batch) for batch in batches[:kept]) + inside
    noise = random.Random(kept * 100 + inside).randbytes(len(data) - start)
    files = make_partition()
    files.write(0, data[:start] + noise)
    log = files.open(clean=False)
    assert log.log_end_offset == kept
    assert [record.value for record in all_records(log)] == [b"v%d" % o for o in range(kept)]
    # What was cut off is kept aside, and the log goes on where it ends.
    cut = b"".join(path.read_bytes() for path in files.cut.iterdir())
    assert noise.rstrip(b"\x00")[:-1] in cut
    assert log.append_batch(codec.simple_batch([b"next"])).base_offset == kept


@pytest.mark.parametrize("recovery_point", [0, 10, 50, 99, 100])
def test_s66_recovery_makes_the_same_indexes(recovery_point, make_partition):
    files = make_partition(segment_bytes=2000, index_interval_bytes=150)
    log = files.open()
    for offset in range(100):
        log.append_batch(codec.simple_batch([b"v"], timestamp_ms=BASE_MS + offset * 7 % 90))
    files.close()

    def indexes():
        return {
            path.name: path.read_bytes()
            for suffix in ("*.index", "*.timeindex")
            for path in files.directory.glob(suffix)
        }

    written_by_append = indexes()
    assert len(written_by_append) >= 8
    files.open(clean=False, recovery_point=recovery_point)
    files.close()
    assert indexes() == written_by_append


def write_four_batches(files) -> list[codec.ModelBatch]:
    """60 records in batches of 10, 20, 20 and 10, each with times of its own."""
    log = files.open()
    written = 0
    for count in (10, 20, 20, 10):
        records = [
            codec.ModelRecord(index, BASE_MS + 10 * (written + index) - 3 * (index % 2), b"k", b"v")
            for index in range(count)
        ]
        log.append_batch(codec.encode_batch(records))
        written += count
    log.flush()
    return list(codec.iter_batches(log.read(0, 1 << 20)))


def dump_check(files, batches: list[codec.ModelBatch]) -> list[str]:
    """What Kafka's dump tool looks for in the index files of the first segment."""
    problems = []
    by_position = {batch.position_bytes: batch for batch in batches}
    by_last_offset = {batch.last_offset: batch for batch in batches}
    for slot, (relative, position) in enumerate(
        OFFSET_ENTRY.iter_unpack(files.path(0, ".index").read_bytes())
    ):
        if relative == 0 and slot > 0:
            break
        if position not in by_position or by_position[position].last_offset != relative:
            problems.append(f"offset entry {slot}: {relative} -> {position}")
    last_ms = -1
    for slot, (timestamp_ms, relative) in enumerate(
        TIME_ENTRY.iter_unpack(files.path(0, ".timeindex").read_bytes())
    ):
        if timestamp_ms == 0 and slot > 0:
            break
        if timestamp_ms <= last_ms:
            problems.append(f"time entry {slot}: {timestamp_ms} after {last_ms}")
        last_ms = timestamp_ms
        batch = by_last_offset.get(relative)
        if batch is None:
            problems.append(f"time entry {slot}: no batch ends at {relative}")
        elif max(r.timestamp_ms for r in codec.decode_records(batch.data)) != timestamp_ms:
            problems.append(f"time entry {slot}: {timestamp_ms} is not the newest of its batch")
    return problems


def test_s87_s88_the_dump_tools_checks_pass(make_partition):
    files = make_partition(index_interval_bytes=128)
    batches = write_four_batches(files)
    assert len(batches) == 4
    assert dump_check(files, batches) == []
    files.close()
    assert dump_check(files, batches) == []
    assert files.path(0, ".index").stat().st_size == 3 * OFFSET_ENTRY.size
    assert files.path(0, ".timeindex").stat().st_size > 0


@pytest.mark.parametrize("clean", [True, False])
def test_s87_s88_untrimmed_indexes_are_read_as_trimmed_ones(clean, make_partition):
    files = make_partition(index_interval_bytes=128)
    batches = write_four_batches(files)
    files.close()
    for suffix, entry_bytes in ((".index", OFFSET_ENTRY.size), (".timeindex", TIME_ENTRY.size)):
        path = files.path(0, suffix)
        path.write_bytes(path.read_bytes() + bytes(1000 * entry_bytes))
    assert dump_check(files, batches) == []
    log = files.open(clean=clean)
    assert len(all_records(log, 55)) == 5
    assert log.offset_for_timestamp(BASE_MS + 550 - 3) == (55, BASE_MS + 547)
    assert log.verify() == []
    files.close()
    assert dump_check(files, batches) == []


@pytest.mark.parametrize("clean", [True, False])
def test_s89_empty_index_files_are_no_error(clean, make_partition):
    files = make_partition(index_interval_bytes=128)
    batches = write_four_batches(files)
    files.close()
    files.write(0, b"", ".index")
    files.write(0, b"", ".timeindex")
    assert dump_check(files, batches) == []
    log = files.open(clean=clean)
    assert len(all_records(log)) == 60
    assert log.offset_for_timestamp(BASE_MS + 590) is None
    assert log.offset_for_timestamp(BASE_MS + 587) == (59, BASE_MS + 587)
