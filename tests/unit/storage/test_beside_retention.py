"""Reading on while retention deletes what is read."""

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.transaction_cuts import TransactionCuts
from eoslog.consumer.consumer import ConsumerInternals
from eoslog.errors import OffsetOutOfRangeError
from eoslog.storage.unified_log import from_what_is_left
from eoslog.store.store import engine_of


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as opened:
        opened.create_topic("t", config={"segment.bytes": 4096})
        with opened.producer() as producer:
            for _ in range(60):
                producer.append("t", 0, [b"x" * 500])
        yield opened


def test_it_goes_on_where_the_log_begins_now(store):
    partition = engine_of(store).partition("t", 0)
    tried = []

    def read(offset):
        tried.append(offset)
        if len(tried) == 1:
            partition.delete_segments(20)
        return partition.read(offset, 1 << 20)

    assert from_what_is_left(partition, 0, read)
    assert tried == [0, partition.log_start_offset]
    assert tried[1] > 0


def test_an_offset_that_nobody_deleted_is_an_error(store):
    partition = engine_of(store).partition("t", 0)
    with pytest.raises(OffsetOutOfRangeError):
        from_what_is_left(partition, 1000, lambda offset: partition.read(offset, 1 << 20))


def test_a_lag_is_counted_from_where_the_log_begins_now(store, monkeypatch):
    partition = engine_of(store).partition("t", 0)
    where = TopicPartition("t", 0)
    with store.consumer() as consumer:
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        end_of = ConsumerInternals(consumer).positions.end_of
        read_headers = type(partition).read_headers

        def read(of, offset, *more):
            partition.delete_segments(20)
            return read_headers(of, offset, *more)

        monkeypatch.setattr(type(partition), "read_headers", read)
        assert consumer.lag(where) == end_of(partition) - partition.log_start_offset
    assert partition.log_start_offset > 0


def test_what_a_snapshot_asks_of_transactions_is_of_what_is_left(store):
    partition = engine_of(store).partition("t", 0)
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        with producer.transaction():
            for _ in range(30):
                producer.append("t", 0, [b"x" * 500])
            known = {(producer.producer_id, producer.producer_epoch)}
    first = partition.log_start_offset
    partition.delete_segments(70)
    assert partition.log_start_offset > 60 > first
    end = partition.log_end_offset
    cuts = TransactionCuts([end])
    partition.take_in_transactions(cuts, 0, first, end)
    assert cuts.transaction_count == 1
    assert all(cuts.met(*one) for one in known)
    assert partition.first_offset_of(known, end) == partition.log_start_offset
