"""What the machines found once, each in the fewest steps, under a name."""

from __future__ import annotations

import struct

import pytest
from reference_model import batch_codec as codec
from store_copies import copy_store

import eoslog
from eoslog.bindings.record_batch import decode_records
from eoslog.errors import CorruptRecordError, InvalidRecordError
from eoslog.store.store import engine_of

PRODUCER_ID = 7


def sent(sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER_ID) -> bytes:
    return codec.simple_batch(
        [b"value"], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


PLAIN = codec.simple_batch([b"plain"])


def test_deleting_segments_never_lowers_the_log_start(make_partition):
    log = make_partition().open()
    log.append_batch(PLAIN)
    log.roll()
    for _ in range(3):
        log.append_batch(PLAIN)
    log.advance_log_start(2)
    assert log.delete_segments(2) == 1
    assert log.log_start_offset == 2


def test_a_snapshot_below_the_log_start_is_kept_as_long_as_the_log_begins_there(make_partition):
    """All batches of the producer are deleted: the snapshot alone remembers it."""
    files = make_partition()
    log = files.open()
    log.append_batch(sent(0))
    log.roll()
    log.append_batch(PLAIN)
    log.append_batch(PLAIN)
    assert log.delete_segments(1) == 1
    log.advance_log_start(2)
    log = files.reopen(clean=False)
    assert log.append_batch(sent(0)).duplicate


def test_a_snapshot_is_written_after_a_truncation_below_the_last_one(make_partition):
    files = make_partition()
    log = files.open()
    for _ in range(3):
        log.append_batch(PLAIN)
    assert log.take_snapshot() is not None
    log.truncate(1)
    log.append_batch(sent(0))
    assert log.take_snapshot() is not None
    assert files.names(".snapshot") == [2]


def test_a_truncation_inside_a_batch_comes_to_an_end(make_partition):
    """The batch goes as a whole, and its offsets are given out again: no gap is left."""
    log = make_partition().open()
    log.append_batch(PLAIN)
    log.append_batch(codec.simple_batch([b"a", b"b", b"c"]))
    log.truncate(2)
    assert log.log_end_offset == 1
    assert log.append_batch(sent(0)).base_offset == 1


def test_a_log_that_ends_below_its_start_is_opened_at_the_start(make_partition):
    """A power cut took the unsynced tail, and the log start had been written down."""
    files = make_partition()
    files.write(0, codec.simple_batch([b"a", b"b"], base_offset=0))
    log = files.open(clean=False, log_start_offset=5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert log.append_batch(sent(0)).base_offset == 5


def test_a_truncation_at_the_end_changes_nothing(make_partition):
    """Nothing is cut: the windows stay whole, and nobody is forgotten."""
    log = make_partition().open()
    for sequence in range(5):
        log.append_batch(sent(sequence))
    log.take_snapshot()
    log.truncate(5)
    assert len(log.producer(PRODUCER_ID).batches) == 5
    _, offset = log.dirty_producers()
    log.producers_persisted(offset)
    assert log.evict_producers(0) == 1
    log.truncate(9)
    assert log.evicted_producer_count == 1


def test_the_newest_snapshot_is_kept_when_a_later_roll_wrote_none(make_partition):
    """While producers are evicted a roll writes no snapshot: that of the retention is all."""
    files = make_partition()
    log = files.open()
    log.append_batch(sent(0))
    rows, offset = log.dirty_producers()
    log.producers_persisted(offset)
    assert log.evict_producers(0) == 1
    log.roll()
    log.append_batch(PLAIN)
    log.take_snapshot(sync=True, evicted_rows=rows)
    assert log.delete_segments(1) == 1
    log.append_batch(PLAIN)
    log.roll()
    log.append_batch(PLAIN)
    log = files.reopen(clean=False)
    assert files.restored_from == "snapshot"
    assert log.append_batch(sent(0)).duplicate


def test_a_batch_with_more_records_than_it_counts_is_refused(make_partition):
    """Its checksum is sound; the records behind the last counted one would never be read."""
    log = make_partition().open()
    whole = bytearray(codec.simple_batch([b"a", b"b", b"c"]))
    struct.pack_into(">i", whole, 23, 1)
    struct.pack_into(">i", whole, 57, 2)
    data = codec.seal(bytes(whole))
    with pytest.raises(CorruptRecordError):
        decode_records(data)
    with pytest.raises((CorruptRecordError, InvalidRecordError)):
        log.append_batch(data)
    assert log.log_end_offset == 0


def in_transaction(sequence: int, *, epoch: int = 0) -> bytes:
    return codec.simple_batch(
        [b"value"],
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=codec.TRANSACTIONAL,
    )


def test_the_last_stable_offset_is_not_below_the_log_start(make_partition):
    """A transaction whose first records are deleted is open all the same."""
    log = make_partition().open()
    log.append_batch(in_transaction(0), verified=True)
    log.append_batch(PLAIN)
    log.advance_log_start(1)
    assert log.last_stable_offset == 1
    assert log.fetch_records(1, committed=True) == ([], 1)
    log.append_marker(PRODUCER_ID, 1, 0, False, timestamp_ms=1)
    assert log.last_stable_offset == 3


@pytest.mark.parametrize("clean", [True, False])
def test_a_coordinators_batch_has_no_sequence_after_a_reopening_either(clean, make_partition):
    files = make_partition()
    log = files.open()
    log.append_columns(
        [b"one", b"two"],
        timestamp_ms=1,
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        transactional=True,
    )
    assert log.producer(PRODUCER_ID).last_sequence == -1
    log = files.reopen(clean=clean)
    assert log.producer(PRODUCER_ID).last_sequence == -1
    assert log.last_stable_offset == 0


def test_the_abort_of_a_producer_that_expired_is_known_after_a_kill(tmp_path):
    """Its row, deleted, had told that a transaction was open: the marker alone tells nothing."""
    where = eoslog.TopicPartition("orders", 0)
    with eoslog.open(tmp_path / "live", create=True) as store:
        store.create_topic("orders", partitions=1)
        producer = store.producer(transactional_id="mirror")
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("orders", partition=0, values=[b"aborted"])
        partition = engine_of(store).partition("orders", 0)
        partition.producer_state.persist()
        producer.abort_transaction()
        assert partition.producer_state.expire(2**62, frozenset) == 1
        copy_store(tmp_path / "live", tmp_path / "killed")
    with eoslog.open(tmp_path / "killed") as store:
        assert len(store.partition("orders", 0).aborted_transactions(0, 10)) == 1
        with store.consumer() as consumer:
            consumer.assign([where])
            assert consumer.poll(timeout=0) == []
            assert consumer.position(where) == 2


def test_what_a_truncation_took_is_not_in_the_abort_index(make_partition):
    """Given out again, the offsets of an aborted transaction may hold committed records."""
    files = make_partition()
    log = files.open()
    log.append_batch(in_transaction(0), verified=True)
    log.append_marker(PRODUCER_ID, 1, 0, False, timestamp_ms=1)
    log.store_abort_files()
    log.truncate(0)
    log.append_batch(in_transaction(0), verified=True)
    log.append_marker(PRODUCER_ID, 1, 0, True, timestamp_ms=1)
    files.close()
    assert not files.path(0, ".txnindex").exists() or not files.path(0, ".txnindex").stat().st_size
    records, _ = files.open().fetch_records(0, committed=True)
    assert [record.value for record in records] == [b"value"]


def test_an_abort_below_whose_first_offset_another_was_open_is_loaded_from_its_file(make_partition):
    """It need not be made anew from the log, whose beginning may be deleted."""
    files = make_partition()
    log = files.open()
    older = codec.simple_batch(
        [b"older"],
        producer_id=8,
        producer_epoch=0,
        base_sequence=0,
        attributes=codec.TRANSACTIONAL,
    )
    log.append_batch(older, verified=True)
    log.roll()
    log.append_batch(in_transaction(0), verified=True)
    log.append_marker(PRODUCER_ID, 1, 0, False, timestamp_ms=1)
    log.store_abort_files()
    rows, offset = log.dirty_producers()
    abort_files = log.abort_files()
    assert log.delete_segments(1) == 1
    before = [repr(one) for one in log.aborted_transactions(0, 10)]
    assert len(before) == 1 and "last_stable_offset=0" in before[0]
    files.close()
    log = files.open(rows=rows, rows_offset=offset, abort_files=abort_files, log_start_offset=1)
    assert [repr(one) for one in log.aborted_transactions(0, 10)] == before
