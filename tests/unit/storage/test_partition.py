"""A partition as its users see it: offsets, raw batches, syncs, producers, readers held back."""

import threading

import numpy as np
import pytest
from store_copies import copy_store

import eoslog
from eoslog.bindings.record_batch import BatchEncoder, iter_batches
from eoslog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StoreFailedError,
)
from eoslog.store.store import abandon, engine_of, parts_of


@pytest.fixture
def partition(store):
    store.create_topic("t", config={"segment.bytes": 4096})
    return engine_of(store).partition("t", 0)


def raw_batch(values, producer_id=-1, epoch=-1, sequence=-1):
    return bytes(
        BatchEncoder().encode_columns(
            values,
            timestamp_ms=1,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def test_offsets_and_sizes(partition):
    partition.append_columns([b"x"] * 5)
    assert (partition.log_start_offset, partition.log_end_offset) == (0, 5)
    assert (partition.high_watermark, partition.last_stable_offset) == (5, 5)
    assert partition.size_bytes == sum(one["size_bytes"] for one in partition.segments())
    assert (partition.topic, partition.partition, partition.path.name) == ("t", 0, "t-0")


def test_raw_batches_go_in_and_come_out(partition):
    batch = raw_batch([b"a", b"b"], 9, 0, 0)
    assert partition.append_batch(batch).base_offset == 0
    assert partition.append_batch(bytearray(batch)).duplicate
    assert partition.append_batch(memoryview(raw_batch([b"c"], 9, 0, 2))).base_offset == 2
    headers = iter_batches(partition.read(0))
    assert [(one.base_offset, one.record_count, one.base_sequence) for one in headers] == [
        (0, 2, 0),
        (2, 1, 2),
    ]
    assert partition.read(3) == b""
    for offset in (4, -1):
        with pytest.raises(OffsetOutOfRangeError):
            partition.read(offset)
    with pytest.raises(ValueError, match="read_committed"):
        partition.read(0, isolation_level="dirty")


@pytest.mark.parametrize(
    "batch", [b"", b"short", raw_batch([b"x"])[:-1], raw_batch([b"x"])[:-1] + b"!"]
)
def test_damaged_batches_are_refused(partition, batch):
    with pytest.raises(CorruptRecordError):
        partition.append_batch(batch)
    assert partition.log_end_offset == 0


def test_held_readers_see_nothing_new_until_they_are_released(partition):
    partition.append_columns([b"x"] * 3)
    partition.hold_readers()
    partition.append_columns([b"y"] * 3)
    assert (partition.visible_end, partition.last_stable_offset, partition.log_end_offset) == (
        3,
        3,
        6,
    )
    assert partition.fetch_records(0, 10, 1 << 20)[1] == 3
    assert partition.fetch_columns(0, 1 << 20).record_count == 3
    partition.hold_readers(1)
    partition.hold_readers(5)
    assert partition.visible_end == 1
    partition.release_readers()
    assert partition.fetch_records(0, 10, 1 << 20)[1] == 6


def test_threads_that_wait_for_a_sync_share_it(partition):
    partition.append_columns([b"x"] * 3)
    before = partition.log.sync_count
    threads = [threading.Thread(target=partition.sync_up_to, args=(3,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert partition.log.sync_count == before + 1
    assert partition.recovery_point == 3
    partition.sync_up_to(2)
    assert partition.log.sync_count == before + 1
    partition.flush()
    assert partition.log.sync_count == before + 2


def test_a_producer_evicted_in_the_middle_of_a_call_does_not_break_it(open_store):
    """A columnar append of many batches, beside a thread that evicts whatever is idle."""
    store = open_store(eoslog__producers__cached__max=1)
    store.create_topic("t", config={"max.message.bytes": 200})
    partition = engine_of(store).partition("t", 0)
    for producer_id in range(10):
        partition.append_columns([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    stop = threading.Event()

    def evict():
        while not stop.is_set():
            partition.producer_state.persist()

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        for count in range(100):
            for producer_id in (1, 2):
                result = partition.append_columns(
                    [bytes(50)] * 20,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=1 + 20 * count,
                )
                assert (result.record_count, result.duplicate) == (20, False)
    finally:
        stop.set()
        thread.join()
    assert partition.log_end_offset == 10 + 100 * 2 * 20


def test_rows_lost_while_open_stop_the_idle_producers_and_come_back(open_store):
    store = open_store(eoslog__producers__cached__max=1)
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    for producer_id in range(5):
        partition.append_columns([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    partition.producer_state.persist()
    assert partition.log.evicted_producer_count == 4
    parts_of(store).files.lmdb.begin_anew()
    with pytest.raises(StoreFailedError, match="reopen"):
        partition.append_columns([b"x"], producer_id=0, producer_epoch=0, base_sequence=1)
    with pytest.raises(StoreFailedError, match="reopen"):
        partition.producer_state.save_copies()
    abandon(store)
    partition = engine_of(open_store()).partition("t", 0)
    assert partition.append_columns([b"x"], producer_id=0, producer_epoch=0, base_sequence=1)
    with pytest.raises(OutOfOrderSequenceError):
        partition.append_columns([b"x"], producer_id=1, producer_epoch=0, base_sequence=5)


def test_an_adoption_in_progress_keeps_its_ids(partition):
    staged = raw_batch([b"a"], 1 << 62, 0, 0)
    partition.hold_readers()
    assert partition.adopt(memoryview(staged), 1 << 62) == (0, 1)
    assert partition.adopt(memoryview(staged), 1 << 62) == (-1, 0)
    assert partition.producer_state.expire(10**15, frozenset) == 0
    partition.release_readers()
    assert partition.producer_state.expire(10**15, frozenset) == 1


def test_a_producer_that_writes_while_idle_ones_are_looked_for_stays(partition):
    def append(sequence, timestamp):
        return partition.append_columns(
            [b"x"],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            timestamps=np.array([timestamp]),
        )

    def writes_meanwhile():
        append(1, 9000)
        return frozenset()

    append(0, 1000)
    assert partition.producer_state.expire(5000, writes_meanwhile) == 0
    assert append(1, 9000).duplicate
    assert partition.producer_state.expire(9001, frozenset) == 1
    assert partition.producers() == []


def test_a_producer_that_is_about_to_write_for_the_first_time_stays(partition):
    """It is in memory before its first batch where it could have a row in LMDB."""
    partition.producer_state._load(7)
    assert partition.producer_state.expire(10**15, frozenset) == 0

    def writes_meanwhile():
        partition.append_columns([b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
        return frozenset()

    partition.append_columns([b"y"], producer_id=8, producer_epoch=0, base_sequence=0)
    assert partition.producer_state.expire(10**15, writes_meanwhile) == 1
    assert [one.producer_id for one in partition.producers()] == [7]


def test_a_producer_that_is_forgotten_after_an_abort_leaves_the_abort_behind(tmp_path):
    with eoslog.open(tmp_path / "s", create=True, durability="process") as store:
        store.create_topic("t")
        partition = engine_of(store).partition("t", 0)
        partition.append_columns(
            [b"aborted"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        partition.producer_state.persist()
        partition.append_marker(7, 1, 0, False)
        # The row in LMDB still has the transaction open; it may not go like that.
        partition.producer_state.forget([7])
        copy_store(store.path, tmp_path / "killed")
    with eoslog.open(tmp_path / "killed") as store:
        partition = engine_of(store).partition("t", 0)
        assert partition.fetch_records(0, 10, 1 << 20, "read_committed") == ([], 2)
        assert len(partition.fetch_records(0, 10, 1 << 20)[0]) == 1


def adopted(partition, producer_id):
    partition.hold_readers()
    partition.adopt(memoryview(raw_batch([b"a", b"b"], producer_id, 0, 0)), producer_id)
    partition.release_readers()
    return producer_id


def test_an_adopted_producer_is_forgotten_without_a_write_to_lmdb(partition, monkeypatch):
    first, second = adopted(partition, 1 << 62), adopted(partition, (1 << 62) + 1)
    monkeypatch.setattr(partition.producer_state.rows, "write_rows", None)
    monkeypatch.setattr(partition.producer_state.rows, "delete_producers", None)
    partition.producer_state.forget_adopted([first])
    assert [one.producer_id for one in partition.producers()] == [second]


def test_the_row_of_an_adopted_producer_goes_with_it(partition, store, open_store):
    first, second = adopted(partition, 1 << 62), adopted(partition, (1 << 62) + 1)
    partition.producer_state.persist()
    partition.producer_state.forget_adopted([first])
    abandon(store)
    partition = engine_of(open_store()).partition("t", 0)
    assert [one.producer_id for one in partition.producers()] == [second]


def test_an_adopted_producer_that_a_crash_brought_back_expires(partition, store, open_store):
    first = adopted(partition, 1 << 62)
    partition.producer_state.persist()
    second = adopted(partition, (1 << 62) + 1)
    partition.producer_state.forget_adopted([second])
    abandon(store)
    partition = engine_of(open_store()).partition("t", 0)
    known = [(one.producer_id, one.last_sequence) for one in partition.producers()]
    assert known == [(first, 1), (second, 1)]
    assert partition.producer_state.expire(10**15, frozenset) == 2
    assert partition.producers() == []


@pytest.fixture
def two_batches(store):
    """A partition with two batches of 22 records, each in several pieces when it is read."""
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    for _ in range(2):
        partition.append_columns(CELLS, list(reversed(CELLS)))
    return partition


CELLS = [bytes([number]) * 5000 for number in range(20)] + [None, b""]


def cells_of(data, ends, validity):
    nulls = [validity is not None and not validity[n // 8] >> n % 8 & 1 for n in range(len(ends))]
    return [None if nulls[n] else bytes(data[ends[n] : ends[n + 1]]) for n in range(len(ends) - 1)]


def test_columns_begin_and_end_anywhere_in_a_batch(two_batches):
    for first in (0, 1, 19, 21, 22, 43):
        for count in (1, 2, 30, -1):
            found = two_batches.fetch_columns(first, 1 << 20, count)
            end = 44 if count < 0 else min(44, first + count)
            assert list(found.offsets) == list(range(first, end))
            assert found.next_offset == end
            values = cells_of(found.value_data, found.value_offsets, found.value_validity)
            assert values == (CELLS * 2)[first:end]
            keys = cells_of(found.key_data, found.key_offsets, found.key_validity)
            assert keys == (CELLS[::-1] * 2)[first:end]


@pytest.mark.parametrize("place", [22, 61, 62, 30_000, 120_000, -1], ids=str)
def test_nothing_of_a_batch_with_a_wrong_bit_is_given(two_batches, place):
    batch_bytes = two_batches.size_bytes // 2
    position = (2 * batch_bytes if place < 0 else batch_bytes) + place
    (log_path,) = two_batches.path.glob("*.log")

    def flip():
        with log_path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x40]))

    flip()
    found = two_batches.fetch_columns(0, 1 << 20)
    assert (found.record_count, found.next_offset) == (22, 22)
    for count in (-1, 1):
        with pytest.raises(CorruptRecordError, match="checksum"):
            two_batches.fetch_columns(22, 1 << 20, count)
    flip()
    assert two_batches.fetch_columns(22, 1 << 20).record_count == 22


def test_a_new_file_is_filled_in_small_steps(store):
    """Whoever fills it has the lock: other writers wait for him."""
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    (file,) = partition.path.glob("*.log")
    for _ in range(40):
        partition.append_columns([bytes(1 << 18)])
        assert file.stat().st_size - partition.size_bytes <= 1 << 20
