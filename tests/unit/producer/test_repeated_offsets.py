"""Offsets of the same partitions, for the same group, transaction after transaction.

From the second transaction on less is looked at; nothing may be refused, taken or seen otherwise.
"""

import pytest

from eoslog import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from eoslog.errors import (
    IllegalStateError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.store.store import parts_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(params=["process", "commit"])
def store(open_store, request):
    store = open_store(durability=request.param)
    store.create_topic("t", partitions=2)
    return store


@pytest.fixture
def producer(store):
    """A producer that sent an offset of T0 for the group before."""
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    commit(producer, {T0: 1})
    return producer


def commit(producer, offsets, group="g"):
    with producer.transaction():
        producer.send("t", b"value", partition=1)
        producer.send_offsets_to_transaction(offsets, group)


def test_each_commit_is_seen(store, producer):
    for offset in (7, 8, 2**63 - 1, 0):
        commit(producer, {T0: offset})
        assert store.groups() == {"g": {T0: OffsetAndMetadata(offset)}}
    commit(producer, {T0: 5}, "h")
    commit(producer, {T0: 6, T1: 7})
    commit(producer, {T1: 9})
    assert store.groups() == {
        "g": {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(9)},
        "h": {T0: OffsetAndMetadata(5)},
    }
    assert store.verify() == []


def test_a_text_and_an_epoch_are_kept(store, producer):
    given = OffsetAndMetadata(3, "text", 4)
    commit(producer, {T0: given})
    assert store.groups() == {"g": {T0: given}}


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.5, True, "1", None])
def test_an_offset_that_is_none_is_refused(store, producer, wrong):
    with pytest.raises((TypeError, ValueError)):
        commit(producer, {T0: wrong})
    assert store.groups() == {"g": {T0: OffsetAndMetadata(1)}}


def test_it_is_pending_until_the_decision(store, producer):
    groups = parts_of(store).files.group_offsets
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.send_offsets_to_transaction({T0: 5}, "g")
        with pytest.raises(UnstableOffsetCommitError):
            groups.fetch("g", T0, require_stable=True)
        end()
    assert groups.fetch("g", T0, require_stable=True) == OffsetAndMetadata(5)


def test_it_belongs_into_a_transaction(store, producer):
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        producer.send_offsets_to_transaction({T0: 5}, "g")
    assert store.groups() == {"g": {T0: OffsetAndMetadata(1)}}


def test_a_fenced_producer_is_refused(store, producer):
    producer.begin_transaction()
    store.producer(transactional_id="x").init_transactions()
    with pytest.raises(ProducerFencedError, match="initialized again"):
        producer.send_offsets_to_transaction({T0: 5}, "g")
    assert store.groups() == {"g": {T0: OffsetAndMetadata(1)}}


def test_a_late_transaction_is_aborted(store):
    producer = store.producer(transactional_id="x", transaction_timeout_ms=1)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({T0: 1}, "g")
    with pytest.raises(ProducerFencedError, match="timeout"):
        while True:
            producer.send_offsets_to_transaction({T0: 2}, "g")
    assert parts_of(store).files.group_offsets.fetch("g", T0) is None


def test_a_topic_that_was_made_again_is_another_one(store, producer):
    before = ConsumerGroupMetadata("g", topic_ids={"t": store.partition("t", 0).topic_id})
    commit(producer, {T0: 2}, before)
    commit(producer, {T0: 3}, before)
    store.delete_topic("t")
    store.create_topic("t", partitions=2)
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
        commit(producer, {T0: 4}, before)
    assert store.groups() == {}
    commit(producer, {T0: 5})
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
        commit(producer, {T0: 6}, before)
    with pytest.raises(TypeError, match="topic_ids"):
        commit(producer, {T0: 6}, ConsumerGroupMetadata("g", topic_ids=5))
    assert store.groups() == {"g": {T0: OffsetAndMetadata(5)}}
