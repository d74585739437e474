"""A segment cut at every byte, with anything that may stand behind the cut: whole batches stay."""

from __future__ import annotations

import random

import pytest
from partition_files import all_records, same_records
from reference_model import batch_codec as codec
from reference_model.producer_model import ProducerTable

BASE_MS = 1_700_000_000_000
PRODUCER_ID = 5
COUNTS = (1, 3, 2, 1)


def golden_batches() -> list[codec.ModelBatch]:
    """Four batches of one producer, with keys, headers and a null value."""
    batches = []
    offset = 0
    for count in COUNTS:
        records = [
            codec.ModelRecord(
                offset + index,
                BASE_MS + offset - index,
                b"key" if index % 2 else None,
                None if index == 2 else b"value-%d" % (offset + index),
                (("header", b"x"),) if index == 1 else (),
            )
            for index in range(count)
        ]
        data = codec.encode_batch(
            records,
            base_offset=offset,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=offset,
        )
        batches.append(codec.decode_header(data))
        offset += count
    return batches


BATCHES = golden_batches()
SEGMENT = b"".join(batch.data for batch in BATCHES)


def stale_segment() -> bytes:
    """What a recycled file held before: sound batches of lower offsets, all over it."""
    return b"".join(
        codec.simple_batch([b"stale"] * 2, base_offset=offset, producer_id=9, producer_epoch=0,
                           base_sequence=offset)
        for offset in range(0, 40, 2)
    )  # fmt: skip


STALE_BASE = 1000
TERMINATOR_BYTES = 17


def kept_below(cut_bytes: int) -> list[codec.ModelBatch]:
    """The golden batches that end at or before the cut."""
    kept, end = [], 0
    for batch in BATCHES:
        end += len(batch.data)
        if end <= cut_bytes:
            kept.append(batch)
    return kept


def check_recovered(files, kept, *, log_start_offset: int = 0, cut: bytes = b"") -> None:
    """Exactly `kept` is there, its producers too, and the log goes on from there."""
    log = files.open(clean=False, log_start_offset=log_start_offset)
    end = kept[-1].last_offset + 1 if kept else log_start_offset
    assert log.log_end_offset == end
    expected = [record for batch in kept for record in codec.decode_records(batch.data)]
    same_records(all_records(log), expected)
    assert log.verify() == []
    entry = ProducerTable.rebuilt(kept).entries.get(PRODUCER_ID)
    state = log.producer(PRODUCER_ID)
    assert (state.last_sequence if state else -1) == (entry.last_sequence if entry else -1)
    for batch in kept:
        sent = codec.place_batch(batch.data, 0)
        result = log.append_batch(sent)
        assert (result.duplicate, result.base_offset) == (True, batch.base_offset)
    assert log.append_batch(codec.simple_batch([b"next"])).base_offset == end
    files.close()
    log = files.open(log_start_offset=log_start_offset)
    assert log.log_end_offset == end + 1
    assert [record.value for record in all_records(log, end)] == [b"next"]
    if cut:
        aside = b"".join(path.read_bytes() for path in sorted(files.cut.iterdir()))
        assert cut in aside


@pytest.mark.parametrize("cut_bytes", range(len(SEGMENT) + 1))
def test_cut(cut_bytes, make_partition):
    files = make_partition()
    files.write(0, SEGMENT[:cut_bytes])
    kept = kept_below(cut_bytes)
    rest = SEGMENT[sum(len(batch.data) for batch in kept) : cut_bytes]
    check_recovered(files, kept, cut=rest.rstrip(b"\x00"))


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("cut_bytes", range(len(SEGMENT) + 1))
def test_cut_with_zeros_behind(cut_bytes, make_partition):
    """Space that was reserved ahead of need and not written."""
    files = make_partition()
    files.write(0, SEGMENT[:cut_bytes] + bytes(4096))
    check_recovered(files, _kept_with_zeros_behind(cut_bytes))


def _kept_with_zeros_behind(cut_bytes: int) -> list[codec.ModelBatch]:
    """Bytes that are cut off may have been zeros: then nothing is missing."""
    return codec.whole_batches(SEGMENT[:cut_bytes] + bytes(len(SEGMENT) - cut_bytes))


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("cut_bytes", range(len(SEGMENT) + 1))
def test_cut_with_garbage_behind(cut_bytes, make_partition):
    files = make_partition()
    noise = random.Random(cut_bytes).randbytes(200)
    if cut_bytes < len(SEGMENT) and noise[0] == SEGMENT[cut_bytes]:
        noise = bytes([noise[0] ^ 0xFF]) + noise[1:]
    files.write(0, SEGMENT[:cut_bytes] + noise)
    check_recovered(files, kept_below(cut_bytes), cut=noise.rstrip(b"\x00"))


SHIFTED = [
    codec.decode_header(codec.place_batch(batch.data, STALE_BASE + batch.base_offset))
    for batch in BATCHES
]
SHIFTED_SEGMENT = b"".join(batch.data for batch in SHIFTED)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("cut_bytes", range(len(SEGMENT) + 1))
def test_cut_with_the_batches_of_a_recycled_file_behind(cut_bytes, make_partition):
    """The tail holds sound batches, but of offsets that this segment is past: none is taken in.

    As an appender leaves it: behind the last whole batch there are zeros where the next one's
    length and magic will stand, and the header goes in last.
    """
    whole_bytes = sum(len(batch.data) for batch in kept_below(cut_bytes))
    stale = stale_segment()
    torn = SHIFTED_SEGMENT[:whole_bytes] + bytes(TERMINATOR_BYTES)
    torn += stale[len(torn) : whole_bytes + codec.HEADER_BYTES]
    torn += SHIFTED_SEGMENT[len(torn) : cut_bytes]
    torn += stale[len(torn) :]
    files = make_partition()
    files.write(STALE_BASE, torn)
    kept = SHIFTED[: len(kept_below(cut_bytes))]
    check_recovered(files, kept, log_start_offset=STALE_BASE)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("cut_bytes", range(12, len(SEGMENT) + 1))
def test_cut_with_a_recycled_files_batches_right_behind(cut_bytes, make_partition):
    """The same without the zeros, as after a power cut that lost one of two sectors."""
    torn = SHIFTED_SEGMENT[:cut_bytes] + stale_segment()[cut_bytes:]
    files = make_partition()
    files.write(STALE_BASE, torn)
    # Bytes that are the same in both are not missing.
    same = next((i for i, byte in enumerate(SHIFTED_SEGMENT) if torn[i] != byte), len(SEGMENT))
    kept = SHIFTED[: len(kept_below(same))]
    check_recovered(files, kept, log_start_offset=STALE_BASE)


@pytest.mark.parametrize("cut_bytes", range(0, len(SEGMENT), 3))
def test_a_cut_in_an_older_segment_sets_the_later_ones_aside(cut_bytes, make_partition):
    """Also a cut between two batches: the next segment begins where this one should have ended."""
    files = make_partition()
    files.write(0, SEGMENT[:cut_bytes])
    later = codec.place_batch(codec.simple_batch([b"later"]), 7)
    files.write(7, later)
    kept = kept_below(cut_bytes)
    check_recovered(files, kept)
    aside = [path.read_bytes() for path in files.cut.iterdir()]
    assert any(later in data for data in aside), "the later segment is kept aside"


def test_only_what_the_recovery_point_does_not_cover_is_checked(make_partition):
    """A bit flipped below the recovery point is not looked at on opening; reading it names it."""
    files = make_partition(index_interval_bytes=0)
    data = bytearray(SEGMENT)
    data[70] ^= 1
    files.write(0, bytes(SEGMENT))
    files.open(clean=False)
    files.close()
    files.write(0, bytes(data))
    log = files.open(clean=False, recovery_point=len(SEGMENT))
    assert log.log_end_offset == sum(COUNTS)
    in_the_log = [p for p in log.verify() if p["path"].endswith(".log")]
    assert [problem["position_bytes"] for problem in in_the_log] == [0]
