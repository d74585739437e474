"""Batches of any content: encoded as the model does, decoded by both alike, and never a crash."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_model import batch_codec as codec

from eoslog.bindings.accumulator import RecordAccumulator, encoded_headers
from eoslog.bindings.record_batch import (
    BatchEncoder,
    crc32c,
    decode_records,
    iter_batches,
)
from eoslog.errors import CorruptRecordError

INT16_MAX = 2**15 - 1
cells = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=300)
header_lists = st.lists(
    st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=6)), max_size=3
).map(tuple)
times_ms = st.integers(-1, 2**61) | st.integers(1_700_000_000_000, 1_700_000_100_000)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[codec.ModelRecord], dict[str, int]]:
    """Records of one batch from offset 0, and the producer they come from."""
    count = draw(st.integers(1, 12) | st.integers(120, 140))
    one = st.tuples(times_ms, cells, cells, header_lists)
    if count > 12:
        one = st.tuples(st.just(5), st.none(), st.just(b"v"), st.just(()))
    rows = draw(st.lists(one, min_size=count, max_size=count))
    records = [codec.ModelRecord(index, *row) for index, row in enumerate(rows)]
    identity = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
    if draw(st.booleans()):
        identity = {
            "producer_id": draw(st.integers(0, 2**63 - 1)),
            "producer_epoch": draw(st.integers(0, INT16_MAX)),
            "base_sequence": draw(st.integers(0, codec.MAX_SEQUENCE)),
        }
    return records, identity


def as_model(records: list[object]) -> list[codec.ModelRecord]:
    return [codec.ModelRecord(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


def encode(records: list[codec.ModelRecord], **named: int) -> bytes:
    return BatchEncoder(0).encode_columns(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp_ms for record in records],
        [record.headers for record in records],
        timestamp_ms=-1,
        **named,
    )


@given(batches(), st.integers(0, 2**62))
def test_encoder_and_decoder_agree_with_the_model(batch, base_offset):
    records, identity = batch
    shifted = [
        codec.ModelRecord(base_offset + r.offset, r.timestamp_ms, r.key, r.value, r.headers)
        for r in records
    ]
    data = encode(records, base_offset=base_offset, **identity)
    assert data == codec.encode_batch(shifted, base_offset=base_offset, **identity)
    assert as_model(decode_records(data)) == shifted
    (header,) = iter_batches(data)
    model = codec.decode_header(data)
    for field in ("base_offset", "last_offset", "record_count", "producer_id", "base_sequence"):
        assert getattr(header, field) == getattr(model, field)
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert header.batch_bytes == len(data)


@given(batches())
def test_one_by_one_is_the_same_as_at_once(make_log, batch):
    records, _ = batch
    accumulator = RecordAccumulator(1 << 20)
    for record in records:
        held = accumulator.add(
            record.value, record.key, encoded_headers(record.headers), record.timestamp_ms
        )
    expected = codec.encode_batch(records)
    assert held == accumulator.batch_bytes == len(expected)
    log = make_log()
    log.append_accumulated(accumulator, -1, -1, -1)
    assert codec.place_batch(log.read(log.log_end_offset - 1), 0) == expected


@given(batches(), st.data())
def test_a_part_of_the_columns_is_a_batch_of_its_own(batch, data):
    records, identity = batch
    first = data.draw(st.integers(0, len(records) - 1))
    count = data.draw(st.integers(1, len(records) - first))
    found = encode(records, first=first, count=count, **identity)
    part = [
        codec.ModelRecord(index, r.timestamp_ms, r.key, r.value, r.headers)
        for index, r in enumerate(records[first : first + count])
    ]
    assert found == codec.encode_batch(part, **identity)


def both_decode(data: bytes) -> None:
    """The engine's answer to bytes of any kind is the model's, or a named error as the model's."""
    try:
        expected = codec.decode_records(data)
    except UnicodeDecodeError:
        # A header's name that is no text is shown as well as can be, if the rest is sound.
        with contextlib.suppress(CorruptRecordError):
            decode_records(data)
        return
    except codec.CodecError:
        expected = None
    try:
        found = as_model(decode_records(data))
    except CorruptRecordError as error:
        assert expected is None, f"{error}, but it is sound"
        assert error.reason
    else:
        assert found == expected


@given(st.binary(max_size=400))
@example(b"")
@example(bytes(61))
@example(bytes(200))
def test_any_bytes_are_an_error_or_a_batch(data):
    both_decode(data)
    try:
        headers = iter_batches(data)
    except CorruptRecordError:
        return
    assert sum(header.batch_bytes for header in headers) == len(data)


@given(batches(), st.data())
def test_a_sound_checksum_over_broken_records_is_an_error_or_a_batch(batch, data):
    """The bytes after the header are changed and sealed again: the decoder has to look closely."""
    whole = bytearray(codec.encode_batch(*batch[:1], **batch[1]))
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(codec.HEADER_BYTES, len(whole) - 1))
        whole[where] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(codec.HEADER_BYTES, len(whole))) :]
    both_decode(codec.seal(bytes(whole)))


@given(batches(), st.sampled_from((23, 57)), st.integers(-(2**31), 2**31 - 1))
def test_a_sound_checksum_over_strange_counts_is_an_error_or_a_batch(batch, position, number):
    """Counts that no sender would write: the engine may refuse more of them than the model."""
    whole = bytearray(codec.encode_batch(*batch[:1], **batch[1]))
    struct.pack_into(">i", whole, position, number)
    data = codec.seal(bytes(whole))
    try:
        found = as_model(decode_records(data))
    except CorruptRecordError:
        return
    assert found == codec.decode_records(data)


@given(st.binary(max_size=70), st.integers(0, 6), st.sampled_from((0, 1, 3, -1)))
def test_other_versions_are_not_read(tail, leader_epoch, magic):
    data = codec.HEADER.pack(0, 49 + len(tail), leader_epoch, magic, 0, *([0] * 8)) + tail
    with pytest.raises(CorruptRecordError):
        decode_records(data)


@given(batches(), batches(), st.integers(0, 60))
def test_batches_back_to_back_are_found_and_a_torn_one_is_named(first, second, cut):
    whole = [codec.encode_batch(records, **identity) for records, identity in (first, second)]
    found = iter_batches(b"".join(whole))
    assert [header.position_bytes for header in found] == [0, len(whole[0])]
    if cut:
        with pytest.raises(CorruptRecordError) as caught:
            iter_batches(b"".join(whole)[:-cut])
        assert caught.value.position_bytes == len(whole[0])


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_add_up(first, second):
    assert crc32c(first + second) == codec.crc32c(first + second)
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    data=st.data(),
    segment_bytes=st.sampled_from((400, 1000, 1 << 20)),
)
@settings(max_examples=20)
def test_an_adoption_cut_short_goes_on_where_it_stopped(make_log, counts, data, segment_bytes):
    """Whole batches up to any one of them, then all again, twice: each record stands once."""
    sequence, staged, ends = 0, b"", [0]
    for count in counts:
        values = [b"%d" % (sequence + index) for index in range(count)]
        staged += codec.simple_batch(
            values, producer_id=9, producer_epoch=0, base_sequence=sequence
        )
        ends.append(len(staged))
        sequence += count
    log = make_log(segment_bytes=segment_bytes)
    start = log.log_end_offset
    cut = data.draw(st.sampled_from(ends))
    _, adopted = log.adopt(staged[:cut], 9)
    assert adopted == sum(counts[: ends.index(cut)])
    _, rest = log.adopt(staged, 9)
    assert adopted + rest == sequence
    assert log.adopt(staged, 9) == (-1, 0)
    offset, values = start, []
    while offset < log.log_end_offset:
        records, offset = log.fetch_records(offset, 100)
        values += [record.value for record in records]
    assert values == [b"%d" % index for index in range(sequence)]
