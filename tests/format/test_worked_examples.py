"""The worked examples of the formats, byte for byte, against the reference model."""

import struct

import pytest
from format import worked_examples as worked
from reference_model import batch_codec as codec
from reference_model.producer_model import (
    ModelError,
    decode_snapshot,
    encode_snapshot,
)


def test_crc32c_has_its_check_value_both_ways():
    assert codec.crc32c(b"123456789") == 0xE3069283
    assert codec.crc32c_bitwise(b"123456789") == 0xE3069283
    assert codec.crc32c(worked.DATA_BATCH) == codec.crc32c_bitwise(worked.DATA_BATCH)


@pytest.mark.parametrize(("number", "expected"), worked.VARINTS.items())
def test_varint(number, expected):
    data = bytes.fromhex(expected)
    assert codec.encode_varint(number) == data
    assert codec.decode_varint(data, 0) == (number, len(data))


@pytest.mark.parametrize(("sequence", "delta", "expected"), worked.SEQUENCE_SUMS)
def test_sequence_sum_wraps(sequence, delta, expected):
    assert codec.increment_sequence(sequence, delta) == expected


@pytest.mark.parametrize(("sequence", "delta", "expected"), worked.SEQUENCE_DIFFERENCES)
def test_sequence_difference_wraps(sequence, delta, expected):
    assert codec.decrement_sequence(sequence, delta) == expected


def test_data_batch():
    encoded = codec.encode_batch(
        worked.DATA_RECORDS,
        base_offset=100,
        producer_id=worked.PRODUCER_ID,
        producer_epoch=worked.PRODUCER_EPOCH,
        base_sequence=worked.BASE_SEQUENCE,
    )
    assert encoded == worked.DATA_BATCH
    assert codec.decode_header(encoded).crc == worked.DATA_CRC
    assert codec.decode_records(encoded) == worked.DATA_RECORDS
    sizes = tuple(len(codec.encode_record(r, 100, worked.BASE_MS)) for r in worked.DATA_RECORDS)
    assert sizes == worked.DATA_RECORD_BYTES


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(codec.COMMIT, worked.COMMIT_MARKER), (codec.ABORT, worked.ABORT_MARKER)],
    ids=["commit", "abort"],
)
def test_marker(kind, expected):
    encoded = codec.encode_marker(
        kind,
        producer_id=worked.PRODUCER_ID,
        producer_epoch=worked.PRODUCER_EPOCH,
        coordinator_epoch=worked.COORDINATOR_EPOCH,
        offset=worked.MARKER_OFFSET,
        timestamp_ms=worked.MARKER_MS,
    )
    assert encoded == expected
    assert len(encoded) == 78
    batch = codec.decode_header(encoded)
    assert batch.is_control
    assert batch.is_transactional
    assert codec.decode_records(encoded)[0].key == struct.pack(">hh", 0, kind)


def test_empty_batch():
    encoded = codec.encode_batch(
        [],
        base_offset=100,
        attributes=codec.TRANSACTIONAL,
        last_offset_delta=2,
        base_timestamp=-1,
        max_timestamp=worked.BASE_MS + 5,
        producer_id=worked.PRODUCER_ID,
        producer_epoch=worked.PRODUCER_EPOCH,
        base_sequence=worked.BASE_SEQUENCE,
    )
    assert encoded == worked.EMPTY_BATCH
    batch = codec.decode_header(encoded)
    assert (batch.last_offset, batch.last_sequence) == (102, 42)
    assert codec.decode_records(encoded) == []


def test_snapshot():
    assert encode_snapshot(worked.SNAPSHOT_PRODUCERS) == worked.SNAPSHOT
    assert decode_snapshot(worked.SNAPSHOT) == worked.SNAPSHOT_PRODUCERS
    assert encode_snapshot([]) == worked.EMPTY_SNAPSHOT
    assert decode_snapshot(worked.EMPTY_SNAPSHOT) == []


@pytest.mark.parametrize("cut_bytes", range(len(worked.SNAPSHOT)))
def test_a_cut_snapshot_is_corrupt(cut_bytes):
    with pytest.raises(ModelError):
        decode_snapshot(worked.SNAPSHOT[:cut_bytes])
