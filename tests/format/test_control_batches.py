"""Markers, the abort index and snapshots of open transactions, byte for byte as Kafka's."""

from __future__ import annotations

import struct

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from format import worked_examples as worked
from kafka.record.memory_records import MemoryRecords
from partition_files import all_records, same_records
from reference_model import batch_codec as codec
from reference_model.abort_model import AbortedModel, decode_abort_index, encode_abort_index
from reference_model.producer_model import SNAPSHOT_ENTRY, SNAPSHOT_HEADER, decode_snapshot

from eoslog.bindings.record_batch import decode_records, iter_batches

READERS = {
    "aiokafka": aiokafka_records.DefaultRecordBatch,
    "kafka_python": kafka_python_records.DefaultRecordBatch,
}
EVERY_KIND = pytest.mark.parametrize("kind", ["commit", "abort"])
EVERY_READER = pytest.mark.parametrize("reader", READERS)
MARKERS = {"commit": worked.COMMIT_MARKER, "abort": worked.ABORT_MARKER}
KINDS = {"commit": codec.COMMIT, "abort": codec.ABORT}
LIMITS = [
    (0, 0, 0, 0),
    (2**63 - 1, 32767, 2**31 - 1, worked.BASE_MS),
    (2**40, 1, 300, 2**53),
]


def write_transaction(log, kind: str, *, newer_epoch: bool) -> None:
    """The worked example's records as a transaction of one producer, and its end."""
    epoch = worked.PRODUCER_EPOCH
    data = codec.encode_batch(
        [
            codec.ModelRecord(index, one.timestamp_ms, one.key, one.value, one.headers)
            for index, one in enumerate(worked.DATA_RECORDS)
        ],
        attributes=codec.TRANSACTIONAL,
        producer_id=worked.PRODUCER_ID,
        producer_epoch=epoch - 1 if newer_epoch else epoch,
        base_sequence=0,
    )
    log.append_batch(data, verified=True)
    result = log.append_marker(
        worked.PRODUCER_ID,
        epoch,
        worked.COORDINATOR_EPOCH,
        kind == "commit",
        timestamp_ms=worked.MARKER_MS,
        newer_epoch=newer_epoch,
    )
    assert (result.base_offset, result.last_offset, result.record_count) == (103, 103, 1)


@EVERY_KIND
@pytest.mark.parametrize("newer_epoch", [True, False])
def test_the_worked_marker_is_written(kind, newer_epoch, make_partition):
    files = make_partition()
    log = files.open(log_start_offset=100)
    write_transaction(log, kind, newer_epoch=newer_epoch)
    assert log.read(103, 1 << 20) == MARKERS[kind]
    files.close()
    assert files.path(100).read_bytes()[-78:] == MARKERS[kind]


@EVERY_KIND
@pytest.mark.parametrize(("producer_id", "epoch", "coordinator_epoch", "timestamp_ms"), LIMITS)
def test_markers_at_the_limits(
    kind, producer_id, epoch, coordinator_epoch, timestamp_ms, make_partition
):
    """Of an unknown producer too: it is fenced, with nothing to end."""
    log = make_partition().open()
    log.append_batch(codec.simple_batch([b"before"]))
    log.append_marker(
        producer_id, epoch, coordinator_epoch, kind == "commit", timestamp_ms=timestamp_ms
    )
    expected = codec.encode_marker(
        KINDS[kind],
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        offset=1,
        timestamp_ms=timestamp_ms,
    )
    assert log.read(1, 1 << 20) == expected
    (header,) = iter_batches(expected)
    assert (header.attributes, header.base_sequence, header.record_count) == (0x30, -1, 1)
    assert header.batch_bytes == 78
    assert log.last_stable_offset == 2
    assert log.open_transactions() == []
    assert log.aborted_transactions(0, 2) == []


@EVERY_KIND
@EVERY_READER
def test_others_read_the_marker(kind, reader, make_partition):
    files = make_partition()
    log = files.open(log_start_offset=100)
    write_transaction(log, kind, newer_epoch=True)
    files.close()
    whole = files.path(100).read_bytes()
    batch = READERS[reader](bytearray(whole[-78:]))
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch) == (103, 1234, 7)

    (record,) = batch
    assert (record.offset, record.timestamp) == (103, worked.MARKER_MS)
    assert bytes(record.key) == struct.pack(">hh", 0, KINDS[kind])
    assert bytes(record.value) == struct.pack(">hi", 0, worked.COORDINATOR_EPOCH)


@EVERY_KIND
def test_aiokafka_knows_what_the_marker_says(kind, make_partition):
    files = make_partition()
    log = files.open(log_start_offset=100)
    write_transaction(log, kind, newer_epoch=True)
    (record,) = aiokafka_records.DefaultRecordBatch(bytearray(log.read(103, 1 << 20)))
    expected = {"commit": COMMIT_MARKER, "abort": ABORT_MARKER}[kind]
    assert ControlRecord.parse(bytes(record.key)) == expected


def test_kafka_python_reads_the_whole_file(make_partition):
    files = make_partition()
    log = files.open(log_start_offset=100)
    write_transaction(log, "abort", newer_epoch=True)
    log.append_batch(codec.simple_batch([b"after"]))
    files.close()
    batches = MemoryRecords(files.path(100).read_bytes())
    kinds = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        kinds.append((batch.is_transactional, batch.is_control_batch, batch.base_offset))
    assert kinds == [(True, False, 100), (True, True, 103), (False, False, 104)]


@pytest.mark.parametrize("clean", [True, False])
@EVERY_KIND
def test_a_hand_written_marker_is_read_back(kind, clean, make_partition):
    files = make_partition()
    data = bytearray(worked.DATA_BATCH)
    data[22] = codec.TRANSACTIONAL
    files.write(100, codec.seal(bytes(data)) + MARKERS[kind])
    log = files.open(clean=clean, log_start_offset=100)
    assert log.last_stable_offset == log.log_end_offset == 104
    same_records(all_records(log), worked.DATA_RECORDS)
    records, position = log.fetch_records(100, 100, 1 << 20, committed=True)
    same_records(records, worked.DATA_RECORDS if kind == "commit" else [])
    assert position == 104
    aborted = log.aborted_transactions(100, 104)
    assert len(aborted) == (kind == "abort")
    files.close()
    if kind == "abort":
        assert files.path(100, ".txnindex").read_bytes() == worked.ABORT_INDEX_ENTRY


@EVERY_KIND
def test_a_client_cannot_write_a_marker(kind, make_partition):
    log = make_partition().open()
    with pytest.raises(Exception, match=r".") as refusal:
        log.append_batch(codec.place_batch(MARKERS[kind], 0), verified=True)
    assert type(refusal.value).__name__ == "InvalidRecordError"
    assert log.log_end_offset == 0


def test_the_worked_abort_entry_is_written(make_partition):
    files = make_partition()
    log = files.open(log_start_offset=100)
    write_transaction(log, "abort", newer_epoch=True)
    assert decode_abort_index(worked.ABORT_INDEX_ENTRY) == [AbortedModel(1234, 100, 103, 104)]
    (entry,) = log.aborted_transactions(100, 104)
    assert (entry.producer_id, entry.first_offset) == (1234, 100)
    assert (entry.last_offset, entry.last_stable_offset) == (103, 104)
    files.close()
    assert files.path(100, ".txnindex").read_bytes() == worked.ABORT_INDEX_ENTRY


def test_a_segment_without_an_abort_has_no_abort_index(make_partition):
    files = make_partition()
    log = files.open(log_start_offset=100)
    write_transaction(log, "commit", newer_epoch=True)
    log.append_marker(5, 0, 0, False, timestamp_ms=worked.BASE_MS)
    log.roll()
    files.close()
    assert files.names(".txnindex") == []


def test_each_abort_is_in_the_segment_of_its_marker(make_partition):
    """34 bytes each, in the order of the markers, no byte between or after them."""
    files = make_partition()
    log = files.open()
    expected: dict[int, list[AbortedModel]] = {}
    for producer_id in range(3):
        append_data(log, producer_id)
    for producer_id, rolls in ((1, True), (0, False), (2, False)):
        if rolls:
            log.roll()
        opened = [one for one in log.open_transactions() if one.producer_id != producer_id]
        result = log.append_marker(producer_id, 1, 0, False, timestamp_ms=worked.BASE_MS)
        stable = min((one.first_offset for one in opened), default=result.last_offset + 1)
        entry = AbortedModel(producer_id, producer_id, result.last_offset, stable)
        expected.setdefault(log.active_base_offset, []).append(entry)
    files.close()
    assert files.names(".txnindex") == sorted(expected) == [3]
    for base, entries in expected.items():
        data = files.path(base, ".txnindex").read_bytes()
        assert data == encode_abort_index(entries)
        assert len(data) == 34 * len(entries)


def append_data(log, producer_id: int, *, epoch: int = 0, sequence: int = 0) -> None:
    data = codec.simple_batch(
        [b"v"],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=codec.TRANSACTIONAL,
    )
    log.append_batch(data, verified=True)


def test_the_worked_snapshot_is_written(make_partition):
    """One producer whose transaction was committed, and one whose is open."""
    files = make_partition()
    data = bytearray(worked.DATA_BATCH)
    data[22] = codec.TRANSACTIONAL
    files.write(100, codec.seal(bytes(data)))
    log = files.open(clean=False, log_start_offset=100)
    log.append_marker(
        worked.PRODUCER_ID,
        worked.PRODUCER_EPOCH,
        worked.COORDINATOR_EPOCH,
        True,
        timestamp_ms=worked.BASE_MS + 5,
        newer_epoch=False,
    )
    other = codec.simple_batch(
        [b"v"],
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        timestamp_ms=worked.BASE_MS + 20,
        attributes=codec.TRANSACTIONAL,
    )
    log.append_batch(other, verified=True)
    files.close()
    written = files.path(105, ".snapshot").read_bytes()
    assert len(written) == len(worked.SNAPSHOT)
    rows = set(SNAPSHOT_ENTRY.iter_unpack(written[SNAPSHOT_HEADER.size :]))
    assert rows == set(SNAPSHOT_ENTRY.iter_unpack(worked.SNAPSHOT[SNAPSHOT_HEADER.size :]))
    assert len(decode_snapshot(written)) == 2
    log = files.open(log_start_offset=100)
    assert files.restored_from == "snapshot"
    (opened,) = log.open_transactions()
    assert (opened.producer_id, opened.producer_epoch, opened.first_offset) == (9, 0, 104)
    assert (opened.last_timestamp_ms, opened.coordinator_epoch) == (worked.BASE_MS + 20, -1)
    assert log.last_stable_offset == 104


def test_the_record_of_a_marker_can_be_decoded(make_partition):
    log = make_partition().open(log_start_offset=100)
    write_transaction(log, "commit", newer_epoch=True)
    same_records(decode_records(log.read(103, 1 << 20)), codec.decode_records(worked.COMMIT_MARKER))
