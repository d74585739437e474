"""The worked examples again, now through the engine: files it must read, files it must write."""

import struct

import pytest
from format import worked_examples as worked
from partition_files import all_records, same_records
from reference_model import batch_codec as codec
from reference_model.producer_model import decode_snapshot, encode_snapshot

from eoslog.bindings.record_batch import crc32c, decode_records, iter_batches
from eoslog.errors import CorruptRecordError

WHOLE_FILE = worked.DATA_BATCH + worked.COMMIT_MARKER


def test_crc32c_check_value():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"56789", crc32c(b"1234")) == 0xE3069283
    assert crc32c(b"") == 0


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64, 65, 1000, 4097])
def test_crc32c_agrees_with_the_bitwise_definition(size):
    data = bytes(index * 7 & 0xFF for index in range(size))
    assert crc32c(data) == codec.crc32c_bitwise(data)
    assert crc32c(memoryview(data)[1:]) == codec.crc32c_bitwise(data[1:])


def test_data_batch_header_and_records():
    (header,) = iter_batches(worked.DATA_BATCH)
    model = codec.decode_header(worked.DATA_BATCH)
    for name in (
        "base_offset", "attributes", "last_offset_delta", "base_timestamp", "max_timestamp",
        "producer_id", "producer_epoch", "base_sequence", "record_count", "position_bytes", "crc",
    ):  # fmt: skip
        assert getattr(header, name) == getattr(model, name), name
    assert (header.batch_bytes, header.magic, header.partition_leader_epoch) == (94, 2, 0)
    same_records(decode_records(worked.DATA_BATCH), worked.DATA_RECORDS)


def test_batches_back_to_back_have_their_positions():
    headers = list(iter_batches(WHOLE_FILE))
    assert [header.position_bytes for header in headers] == [0, 94]
    assert [header.base_offset for header in headers] == [100, 103]


@pytest.mark.parametrize("kind", ["commit", "abort"])
def test_a_hand_written_file_with_a_marker_is_read(kind, make_partition):
    marker = worked.COMMIT_MARKER if kind == "commit" else worked.ABORT_MARKER
    files = make_partition()
    files.write(100, worked.DATA_BATCH + marker)
    log = files.open(clean=False, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 104)
    # A marker takes an offset and is never handed to a user.
    same_records(all_records(log), worked.DATA_RECORDS)
    state = log.producer(worked.PRODUCER_ID)
    assert (state.producer_epoch, state.last_sequence, state.last_offset) == (7, 42, 102)
    assert state.coordinator_epoch == worked.COORDINATOR_EPOCH
    assert state.current_txn_first_offset == -1


def test_an_empty_batch_keeps_the_offsets_of_what_it_held(make_partition):
    files = make_partition()
    after = codec.place_batch(codec.simple_batch([b"after"]), 103)
    files.write(100, worked.EMPTY_BATCH + after)
    log = files.open(clean=False, log_start_offset=100)
    assert log.log_end_offset == 104
    same_records(all_records(log), codec.decode_records(after))
    assert log.producer(worked.PRODUCER_ID).last_sequence == 42


@pytest.mark.parametrize("clean", [True, False])
def test_the_worked_snapshot_is_loaded(clean, make_partition):
    files = make_partition()
    filler = codec.encode_batch(
        [codec.ModelRecord(104, worked.BASE_MS, None, b"v")], base_offset=104
    )
    files.write(100, filler)
    files.write(105, worked.SNAPSHOT, ".snapshot")
    # Entries this old have expired by default.
    files.config["producer.id.expiration.ms"] = 2**62
    log = files.open(clean=clean, log_start_offset=100)
    assert files.restored_from == "snapshot"
    state = log.producer(worked.PRODUCER_ID)
    assert state.batches == ((40, 42, 100, 102, worked.BASE_MS + 5),)
    assert state.coordinator_epoch == 5
    other = log.producer(9)
    assert (other.last_sequence, other.last_offset) == (0, 104)
    assert other.current_txn_first_offset == 104


def test_a_snapshot_is_written_as_the_model_writes_it(make_partition):
    files = make_partition()
    log = files.open()
    for producer_id, count in ((7, 2), (8, 5), (1 << 40, 1)):
        log.append_batch(
            codec.simple_batch(
                [b"v"] * count, producer_id=producer_id, producer_epoch=3, base_sequence=9
            )
        )
    files.close()
    data = files.path(8, ".snapshot").read_bytes()
    entries = decode_snapshot(data)
    assert encode_snapshot(entries) == data
    found = {entry.producer_id: entry for entry in entries}
    assert [found[i].last_sequence for i in (7, 8, 1 << 40)] == [10, 13, 9]
    assert [found[i].last_offset for i in (7, 8, 1 << 40)] == [1, 6, 7]
    assert [found[i].batches[0].first_sequence for i in (7, 8, 1 << 40)] == [9, 9, 9]
    assert {entry.producer_epoch for entry in entries} == {3}
    assert {entry.coordinator_epoch for entry in entries} == {-1}
    assert {entry.transaction_first_offset for entry in entries} == {-1}


def index_entries(data: bytes, entry: struct.Struct) -> list[tuple[int, int]]:
    assert len(data) % entry.size == 0
    return list(entry.iter_unpack(data))


def test_index_files_hold_the_entries_of_kafkas_rule(make_partition):
    """An entry for a batch before which more than the interval was written since the last entry."""
    files = make_partition(index_interval_bytes=1000)
    log = files.open()
    positions, expected_offsets, expected_times = [], [], []
    position = since_entry = 0
    newest = (-1, -1)
    for index in range(60):
        timestamp_ms = worked.BASE_MS + (index * 37) % 50
        batch = codec.simple_batch([b"x" * (index * 11 % 300)] * 2, timestamp_ms=timestamp_ms)
        last_offset = log.append_batch(batch).last_offset
        if timestamp_ms > newest[0]:
            newest = (timestamp_ms, last_offset)
        if since_entry > 1000:
            expected_offsets.append((last_offset, position))
            if not expected_times or newest[0] > expected_times[-1][0]:
                expected_times.append(newest)
            since_entry = 0
        since_entry += len(batch)
        positions.append(position)
        position += len(batch)
    files.close()
    if newest[0] > expected_times[-1][0]:
        expected_times.append(newest)
    offsets = index_entries(files.path(0, ".index").read_bytes(), struct.Struct(">ii"))
    times = index_entries(files.path(0, ".timeindex").read_bytes(), struct.Struct(">qi"))
    assert offsets == expected_offsets
    assert times == expected_times


def test_the_worked_index_entries(make_partition):
    """One batch of 4160 bytes up to offset 2, then one up to offset 5: the documented entry."""
    files = make_partition(index_interval_bytes=4096, segment_ms=2**62)
    log = files.open()
    overhead = len(codec.simple_batch([b"x" * 4000, b"", b""])) - 4000
    first = codec.simple_batch([b"x" * (4160 - overhead), b"", b""], timestamp_ms=1)
    assert len(first) == 4160
    log.append_batch(first)
    log.append_batch(codec.simple_batch([b"v"] * 3, timestamp_ms=worked.BASE_MS + 5))
    files.close()
    assert files.path(0, ".index").read_bytes() == worked.OFFSET_INDEX_ENTRY
    expected_time = worked.TIME_INDEX_ENTRY[:8] + (5).to_bytes(4, "big")
    assert files.path(0, ".timeindex").read_bytes() == expected_time


def test_a_stored_batch_of_other_compression_is_named(make_partition):
    """No codec is part of the engine: such a batch is refused, never half read."""
    files = make_partition()
    log = files.open()
    for codec_number in range(1, 8):
        batch = codec.simple_batch([b"v"], attributes=codec_number)
        with pytest.raises(Exception, match="compress") as caught:
            log.append_batch(batch)
        assert caught.value.outcome == "not_appended"
    assert log.log_end_offset == 0


@pytest.mark.parametrize("position", range(len(worked.DATA_BATCH)))
def test_a_flipped_bit_of_a_batch_is_noticed(position):
    data = bytearray(worked.DATA_BATCH)
    data[position] ^= 0x10
    if position < 8 or 12 <= position < 16:
        # Base offset and leader epoch lie outside the checksum: an appender sets them.
        assert len(decode_records(bytes(data))) == 3
        return
    with pytest.raises(CorruptRecordError):
        decode_records(bytes(data))
    with pytest.raises(CorruptRecordError):
        list(iter_batches(bytes(data)))


@pytest.mark.parametrize("cut_bytes", range(1, len(WHOLE_FILE)))
def test_cut_batches_are_noticed(cut_bytes):
    if cut_bytes == len(worked.DATA_BATCH):
        assert len(list(iter_batches(WHOLE_FILE[:cut_bytes]))) == 1
        return
    with pytest.raises(CorruptRecordError) as caught:
        list(iter_batches(WHOLE_FILE[:cut_bytes]))
    expected_position = 0 if cut_bytes < len(worked.DATA_BATCH) else len(worked.DATA_BATCH)
    assert caught.value.position_bytes == expected_position
    assert caught.value.reason
