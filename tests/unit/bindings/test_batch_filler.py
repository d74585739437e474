"""Batches that are filled record by record from columns: what is in them, and what stops a fill."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from eoslog.bindings.batch_filler import DONE, NO_ROOM, BatchFiller
from eoslog.bindings.column_set import open_columns
from eoslog.bindings.partitioner import partition_for_key
from eoslog.bindings.record_batch import batch_crc32c, crc32c, decode_records, iter_batches
from eoslog.errors import ConcurrentAccessError, RecordTooLargeError

OWN = -1
ROOM = 1 << 30
PRODUCER = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}


def records_for(values, keys=None, timestamps=None, headers=None, batch_bytes_max=1 << 20):
    columns = open_columns(values, keys, timestamps, headers, 1000)
    columns.check_sizes(batch_bytes_max)
    return columns


def drained(filler: BatchFiller, partition: int) -> bytes:
    with filler.finish(partition, **PRODUCER) as batch:
        copy = bytes(batch)
    filler.empty(partition)
    return copy


def filled(filler: BatchFiller, records, partition: int = OWN) -> list[tuple[int, bytes]]:
    """All batches that the records fill, with the rest that is held afterwards."""
    batches = []
    first, stopped = 0, NO_ROOM
    while stopped != DONE:
        first, stopped = filler.fill(records, first, partition, ROOM)
        if stopped != DONE:
            batches.append((stopped, drained(filler, stopped)))
    return batches


def test_records_are_what_the_columns_say():
    filler = BatchFiller(3, 1 << 16)
    values = [b"a", None, b"", b"longer value"]
    keys = [b"k", b"", None, b"key"]
    headers = [[("h", b"1")], [], None, [("i", None)]]
    stamps = np.array([50, 20, 90, 60], np.int64)
    assert filler.fill(records_for(values, keys, stamps, headers), 0, 2, ROOM) == (4, DONE)
    assert filler.held(0) == filler.held(1) == (0, 0)
    count, batch_bytes = filler.held(2)
    batch = drained(filler, 2)
    assert (count, batch_bytes) == (4, len(batch))
    (header,) = iter_batches(batch)
    assert (header.base_timestamp, header.max_timestamp) == (50, 90)
    assert (header.producer_id, header.base_offset, header.attributes) == (7, 0, 0)
    found = [(one.key, one.value, one.timestamp_ms, one.headers) for one in decode_records(batch)]
    assert found == [
        (b"k", b"a", 50, (("h", b"1"),)),
        (b"", None, 20, ()),
        (None, b"", 90, ()),
        (b"key", b"longer value", 60, (("i", None),)),
    ]
    assert filler.held(2) == (0, 0)


def test_random_columns_come_out_whole_and_in_order():
    source = random.Random(5)
    filler = BatchFiller(5, 2000, 3)
    expected: dict[int, list[tuple[bytes, bytes | None]]] = {}
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for _ in range(40):
        count = source.randrange(60)
        keys = [b"%d" % source.randrange(100) for _ in range(count)]
        values = [
            None if source.random() < 0.1 else source.randbytes(source.randrange(300))
            for _ in range(count)
        ]
        for key, value in zip(keys, values, strict=True):
            expected.setdefault(partition_for_key(key, 5), []).append((key, value))
        for partition, batch in filled(filler, records_for(values, keys)):
            assert len(batch) <= 2000
            found.setdefault(partition, []).extend(
                (one.key, one.value) for one in decode_records(batch)
            )
    for partition in range(5):
        if filler.held(partition) != (0, 0):
            batch = drained(filler, partition)
            found.setdefault(partition, []).extend(
                (one.key, one.value) for one in decode_records(batch)
            )
    assert found == expected
    assert filler.record_count == 0


def test_records_without_a_key_fill_one_batch_after_the_other():
    filler = BatchFiller(3, 1000, 1)
    batches = filled(filler, records_for([bytes(100)] * 50))
    assert [partition for partition, _ in batches] == [1, 2, 0, 1, 2, 0][: len(batches)]
    assert len(batches) >= 5
    assert min(len(batch) for _, batch in batches) > 1000 - 100 - 36, "batches are full"


def test_a_record_larger_than_a_batch_is_alone_in_one():
    filler = BatchFiller(1, 500)
    batches = filled(filler, records_for([b"a", bytes(2000), b"b"]))
    batches.append((0, drained(filler, 0)))
    assert [[len(one.value) for one in decode_records(batch)] for _, batch in batches] == [
        [1], [2000], [1]
    ]  # fmt: skip


@pytest.mark.parametrize("shape", ["value", "key", "header"])
def test_a_record_is_measured_exactly_before_it_is_refused(shape):
    def columns(size: int):
        columns = {
            "value": ([b"", bytes(size)], None, None, None),
            "key": ([None, None], [b"", bytes(size)], None, None),
            "header": ([b"", b""], None, None, [[], [("h", bytes(size))]]),
        }
        return columns[shape]

    limit = 5000
    largest = max(
        size for size in range(limit - 120, limit) if len(drained_alone(columns(size))) <= limit
    )
    records_for(*columns(largest), batch_bytes_max=limit)
    with pytest.raises(RecordTooLargeError, match=f"record 1 makes a batch of {limit + 1} bytes"):
        records_for(*columns(largest + 1), batch_bytes_max=limit)


def drained_alone(columns) -> bytes:
    filler = BatchFiller(1, 1 << 20)
    values, keys, stamps, headers = (None if one is None else one[1:] for one in columns)
    filler.fill(records_for(values, keys, stamps, headers), 0, 0, ROOM)
    return drained(filler, 0)


def test_no_more_memory_is_held_than_was_allowed():
    filler = BatchFiller(100, 1 << 20)
    records = records_for([bytes(900)] * 1000, [b"%d" % index for index in range(1000)])
    first, stopped = filler.fill(records, 0, OWN, 1 << 18)
    assert stopped == NO_ROOM
    assert 0 < first < 1000
    assert 0 < filler.held_bytes <= 1 << 18
    assert filler.record_count == first
    filler.release()
    assert (filler.held_bytes, filler.record_count) == (0, 0)
    # A filler that holds nothing takes one record in any case.
    after, stopped = filler.fill(records, first, OWN, 0)
    assert after > first
    assert stopped == NO_ROOM


def test_a_batch_that_is_looked_at_does_not_change():
    filler = BatchFiller(2, 1000)
    records = records_for([b"a"])
    filler.fill(records, 0, 0, ROOM)
    batch = filler.finish(0, **PRODUCER)
    assert batch.readonly
    before = bytes(batch)
    for change in (
        lambda: filler.fill(records, 0, 1, ROOM),
        lambda: filler.empty(0),
        lambda: filler.release(),
        lambda: filler.finish(0, **PRODUCER),
    ):
        with pytest.raises(BufferError, match="looked at"):
            change()
    assert bytes(batch) == before
    batch.release()
    filler.empty(0)
    with pytest.raises(BufferError, match="no batch"):
        memoryview(filler)
    with pytest.raises(ValueError, match="no records"):
        filler.finish(0, **PRODUCER)


def test_a_second_thread_is_refused_while_batches_are_filled():
    records = records_for([bytes(1000)] * 20_000)
    for _ in range(100):
        filler = BatchFiller(1, 1 << 30)
        other = threading.Thread(target=filler.fill, args=(records, 0, 0, ROOM))
        other.start()
        refused = 0
        while other.is_alive():
            try:
                filler.held(0)
                filler.empty(0)
            except ConcurrentAccessError as error:
                assert "two threads" in str(error)
                refused += 1
        other.join()
        if refused:
            return
    pytest.fail("no call met the other thread at work")


def test_a_batch_outlives_its_filler():
    filler = BatchFiller(1, 1000)
    filler.fill(records_for([b"kept"]), 0, 0, ROOM)
    batch = filler.finish(0, **PRODUCER)
    del filler
    assert [one.value for one in decode_records(batch)] == [b"kept"]


@pytest.mark.parametrize(
    "arguments", [(0, 1000, 0), (1, 60, 0), (1, 1 << 31, 0), (2, 1000, 2), (2, 1000, -1)]
)
def test_a_filler_of_wrong_numbers_is_refused(arguments):
    with pytest.raises(ValueError, match=r"partition|batch_bytes_max"):
        BatchFiller(*arguments)


def test_wrong_places_are_refused():
    filler = BatchFiller(2, 1000)
    records = records_for([b"a"])
    for partition in (-2, 2):
        with pytest.raises(ValueError, match="partition"):
            filler.fill(records, 0, partition, ROOM)
    for first in (-1, 2):
        with pytest.raises(ValueError, match="record"):
            filler.fill(records, first, 0, ROOM)
    with pytest.raises(ValueError, match="partition"):
        filler.held(2)
    with pytest.raises(ValueError, match="partition"):
        filler.empty(-1)
    with pytest.raises(RuntimeError, match="once"):
        filler.__init__(2, 1000)
    filler.fill(records, 0, 0, ROOM)
    with pytest.raises(ValueError, match="producer"):
        filler.finish(0, producer_id=-1, producer_epoch=0, base_sequence=0)


def test_the_checksum_of_batches_is_joined_from_their_own():
    source = random.Random(9)
    filler = BatchFiller(1, 1 << 22)
    joined, everything = 0, b""
    for size in (0, 1, 7, 100, 5000, 70_000, 1_000_000):
        filler.fill(records_for([source.randbytes(size)]), 0, 0, ROOM)
        batch = drained(filler, 0)
        joined, everything = batch_crc32c(batch, joined), everything + batch
        assert joined == crc32c(everything)
    for wrong in (b"", batch[:60], batch[:-1], batch + b"\0"):
        with pytest.raises(ValueError, match="not one whole batch"):
            batch_crc32c(wrong)
    with pytest.raises(ValueError, match="32 bits"):
        batch_crc32c(batch, -1)
