"""Bytes from encoders that others wrote, and theirs reading ours: both ways, field by field."""

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest
from format.golden_cases import CASES, ENCODERS, GoldenCase, golden_path
from partition_files import all_records, same_records
from reference_model import batch_codec as codec

from eoslog.bindings.record_batch import BatchEncoder, decode_records, iter_batches

READERS = {
    "aiokafka": aiokafka_records.DefaultRecordBatch,
    "kafka_python": kafka_python_records.DefaultRecordBatch,
}
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
EVERY_ENCODER = pytest.mark.parametrize("encoder", ENCODERS)
EVERY_READER = pytest.mark.parametrize("reader", READERS)


def encoded_by_eoslog(case: GoldenCase, base_offset: int = 0) -> bytes:
    timestamps, keys, values, headers = zip(*case.rows, strict=True)
    return bytes(
        BatchEncoder().encode_columns(
            list(values),
            list(keys),
            _int64(timestamps),
            [list(pairs) for pairs in headers],
            timestamp_ms=0,
            producer_id=case.producer_id,
            producer_epoch=case.producer_epoch,
            base_sequence=case.base_sequence,
            base_offset=base_offset,
        )
    )


def _int64(numbers):
    import numpy

    return numpy.array(numbers, dtype=numpy.int64)


@EVERY_CASE
@EVERY_ENCODER
def test_golden_bytes_decode_equal(case, encoder):
    data = golden_path(encoder, case).read_bytes()
    assert codec.decode_records(data) == case.records()
    same_records(decode_records(data), case.records())
    (header,) = iter_batches(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        case.producer_id,
        case.producer_epoch,
        case.base_sequence,
    )
    assert header.record_count == len(case.rows)
    assert header.max_timestamp == max(row[0] for row in case.rows)


@EVERY_CASE
@EVERY_ENCODER
def test_golden_bytes_are_appended_and_fetched(case, encoder, make_partition):
    data = golden_path(encoder, case).read_bytes()
    files = make_partition()
    log = files.open()
    before = log.append_batch(codec.simple_batch([b"before"]))
    result = log.append_batch(data)
    assert (before.last_offset, result.base_offset) == (0, 1)
    assert result.last_offset == len(case.rows)
    same_records(all_records(log, 1), case.records(1))
    # Kafka's own bytes, but for the two fields that an appender sets.
    assert log.read(1, 1 << 20) == codec.place_batch(data, 1)
    log = files.reopen()
    same_records(all_records(log, 1), case.records(1))


@EVERY_CASE
@EVERY_ENCODER
def test_the_installed_encoders_bytes_are_accepted(case, encoder, make_partition):
    log = make_partition().open()
    result = log.append_batch(ENCODERS[encoder](case))
    assert result.record_count == len(case.rows)
    same_records(all_records(log), case.records())


@EVERY_CASE
def test_eoslog_encodes_the_models_bytes(case):
    assert encoded_by_eoslog(case) == ENCODERS["model"](case)
    assert encoded_by_eoslog(case, 700)[:8] == (700).to_bytes(8, "big")


def read_by(reader: str, data: bytes) -> list[codec.ModelRecord]:
    batch = READERS[reader](bytearray(data))
    assert batch.validate_crc()
    return [
        codec.ModelRecord(
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((name, None if v is None else bytes(v)) for name, v in record.headers),
        )
        for record in batch
    ]


@EVERY_CASE
@EVERY_READER
def test_others_read_what_eoslog_encodes(case, reader):
    assert read_by(reader, encoded_by_eoslog(case, 55)) == case.records(55)


@EVERY_CASE
@EVERY_READER
def test_others_read_what_eoslog_stored(case, reader, make_partition):
    files = make_partition()
    log = files.open()
    timestamps, keys, values, headers = zip(*case.rows, strict=True)
    result = log.append_columns(
        list(values),
        list(keys),
        _int64(timestamps),
        [list(pairs) for pairs in headers],
        timestamp_ms=0,
        producer_id=case.producer_id,
        producer_epoch=case.producer_epoch,
        base_sequence=case.base_sequence,
    )
    assert (result.base_offset, result.record_count) == (0, len(case.rows))
    assert read_by(reader, log.read(0, 1 << 20)) == case.records()
    files.close()
    assert read_by(reader, files.path(0).read_bytes()) == case.records()
