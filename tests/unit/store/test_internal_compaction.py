"""Compaction of the internal topics: what holds stays, in this life of the store and the next."""

import shutil
import time

import pytest

import eoslog
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.storage import topic_registry
from eoslog.store.store import parts_of
from eoslog.transactions.state_key import state_partition_of

SEGMENT_BYTES = 16_384


@pytest.fixture
def small_segments(monkeypatch):
    config = {"segment.bytes": SEGMENT_BYTES, "max.message.bytes": SEGMENT_BYTES}
    monkeypatch.setattr(topic_registry, "_INTERNAL_TOPIC_CONFIG", config)


@pytest.fixture
def store(tmp_path, small_segments):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as opened:
        opened.create_topic("t", partitions=2)
        parts_of(
            opened
        ).checkpointer.stop()  # It would compact by itself, and change what is copied.
        yield opened


def producer(store, transactional_id):
    made = store.producer(transactional_id=transactional_id)
    made.init_transactions()
    return made


def commit_some(made, count=200):
    for _ in range(count):
        with made.transaction():
            made.send("t", value=b"v", partition=0)


def state_partition(store, name):
    return parts_of(store).files.partitions.state_partition(state_partition_of(name))


def compact(store, partition, safe=None):
    def safe_offset(number):
        return partition.log_end_offset if safe is None else safe

    return parts_of(store).files.state_log.compact(partition, safe_offset)


def same_partition_ids(name, count):
    """Ids whose records are in the same partition as those of a name."""
    wanted = state_partition_of(name)
    found = []
    number = 0
    while len(found) < count:
        if state_partition_of(f"id-{number}") == wanted:
            found.append(f"id-{number}")
        number += 1
    return found


def test_an_unfilled_partition_is_left_alone(store):
    made = producer(store, "one")
    commit_some(made, 2)
    assert compact(store, state_partition(store, "one")) == 0


def test_sealed_segments_go_and_the_newest_record_of_each_id_stays(store, tmp_path):
    idle = same_partition_ids("busy", 3)
    for name in idle:
        producer(store, name).close()
    store.producer(name=idle[0]).close()
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert partition.segment_count > 3
    before = {one.transactional_id: one for one in store.transactions()}
    assert compact(store, partition) >= 3
    assert partition.segment_count == 1
    assert partition.log_start_offset > 0
    assert {one.transactional_id: one for one in store.transactions()} == before
    commit_some(busy, 3)
    # As it is, and with the index lost: everything comes from what the log still has.
    for number, lost in enumerate((False, True)):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(store.path, copy)
        if lost:
            shutil.rmtree(copy / "state" / "lmdb")
        with eoslog.open(copy, durability="process") as opened:
            again = {one.transactional_id: one for one in opened.transactions()}
            assert again.keys() == before.keys()
            for name in idle:
                assert again[name].producer_id == before[name].producer_id
            assert opened.producer(name=idle[0]).producer_epoch == 1
            after = producer(opened, "busy")
            # This store syncs nothing, so after an unclean stop the id gets a new producer id.
            assert after.producer_id > busy.producer_id
            assert after.producer_epoch == 0


def test_a_second_compaction_copies_only_what_was_sealed_since(store):
    names = same_partition_ids("busy", 20)
    for name in names:
        producer(store, name).close()
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert compact(store, partition) > 0
    assert compact(store, partition) == 0
    end = partition.log_end_offset
    assert compact(store, partition) == 0
    assert partition.log_end_offset == end


def test_an_open_transactions_record_keeps_its_segment(store):
    (held_id,) = same_partition_ids("busy", 1)
    held = producer(store, held_id)
    held.begin_transaction()
    held.append("t", partition=1, values=[b"held"])
    described = store.describe_transaction(held_id)
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert compact(store, partition) == 0
    assert store.describe_transaction(held_id).topic_partitions == described.topic_partitions
    held.commit_transaction()
    assert compact(store, partition) > 0


def test_a_decision_whose_markers_may_be_lost_keeps_its_segment(store):
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert compact(store, partition, safe=0) == 0
    assert partition.log_start_offset == 0
    assert compact(store, partition) > 0


def test_the_topic_is_internal(store):
    producer(store, "one")
    assert TRANSACTION_STATE_TOPIC not in store.topics()


# The offsets of groups.


def commit_offsets(store, group, count):
    consumer = store.consumer(group=group)
    where = eoslog.TopicPartition("t", 0)
    for number in range(count):
        consumer.commit({where: number})


def offsets_partition(store, group):
    return parts_of(store).files.partitions.offsets_partition(
        parts_of(store).files.group_offsets.log.partition_of(group)
    )


def test_offsets_of_groups_are_compacted_and_stay(store, tmp_path):
    where = eoslog.TopicPartition("t", 0)
    store.consumer(group="busy").commit({eoslog.TopicPartition("t", 1): 7})
    commit_offsets(store, "busy", 400)
    partition = offsets_partition(store, "busy")
    assert partition.segment_count > 2
    assert parts_of(store).files.compact(partition) > 1
    assert partition.segment_count == 1
    before = store.groups()
    assert before["busy"][where].offset == 399
    assert before["busy"][eoslog.TopicPartition("t", 1)].offset == 7
    for number, lost in enumerate((False, True)):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(store.path, copy)
        if lost:
            shutil.rmtree(copy / "state" / "lmdb")
        with eoslog.open(copy, durability="process") as opened:
            assert opened.groups() == before


def test_offsets_stay_as_they_are_while_a_transaction_is_open(store):
    commit_offsets(store, "busy", 400)
    where = eoslog.TopicPartition("t", 0)
    made = producer(store, "one")
    made.begin_transaction()
    made.send_offsets_to_transaction({where: 1000}, "busy")
    made.flush()
    partition = offsets_partition(store, "busy")
    assert parts_of(store).files.compact(partition) == 0
    made.commit_transaction()
    assert parts_of(store).files.compact(partition) > 0
    assert store.groups()["busy"][where].offset == 1000


def test_a_full_segment_is_compacted_in_the_background(tmp_path, small_segments):
    config = {"eoslog.checkpoint.interval.ms": 50}
    with eoslog.open(tmp_path / "s", create=True, durability="process", config=config) as opened:
        opened.create_topic("t")
        commit_some(producer(opened, "busy"), 400)
        partition = state_partition(opened, "busy")
        deadline_s = time.monotonic() + 30
        while partition.log_start_offset == 0 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert partition.log_start_offset > 0
        assert opened.metrics()["checkpointer"]["errors"] == []
