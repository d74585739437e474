"""A topic that another process deletes while this one has its files open: nothing is damaged."""

import errno
import os

import pytest
from harness.crew import started

import eoslog
from eoslog import TopicPartition
from eoslog.errors import (
    LogClosedError,
    StoreError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from eoslog.store.store import engine_of, parts_of

ROWS = TopicPartition("rows", 0)
COMES_AND_GOES = """
import eoslog, time
with eoslog.open({path!r}, durability=None) as store:
    for number in range(100):
        store.create_topic("rows", partitions=2)
        if number == 0:
            say("begun")
        time.sleep(0.02)
        store.delete_topic("rows")
    store.create_topic("over")
"""


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("rows", config={"segment.bytes": 4096, "max.message.bytes": 2048})
        yield store


class LogWhoseFilesWent:
    def __init__(self, deleted):
        self.deleted = deleted

    def store_abort_files(self, sync):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


@pytest.mark.parametrize(("deleted", "named"), [(True, LogClosedError), (False, StoreError)])
def test_an_abort_index_that_went_with_its_topic_is_no_loss(store, monkeypatch, deleted, named):
    partition = engine_of(store).partition("rows", 0)
    monkeypatch.setattr(partition.producer_state, "log", LogWhoseFilesWent(deleted))
    with pytest.raises(StoreError) as raised:
        partition.producer_state.store_abort_files()
    assert type(raised.value) is named


def test_a_commit_that_meets_a_closed_partition_names_the_topic(store, monkeypatch):
    store.producer().append("rows", 0, values=[b"one"])

    def commit(group, offsets):
        raise LogClosedError("rows-0 is closed")

    with store.consumer(group="readers") as consumer:
        consumer.assign([ROWS])
        consumer.poll(0)
        monkeypatch.setattr(parts_of(store).files.group_offsets, "commit", commit)
        with pytest.raises(UnknownTopicOrPartitionError, match="rows-0"):
            consumer.commit()


def test_commits_beside_deletions_do_not_take_them_for_losses(tmp_path):
    path, seen = tmp_path / "store", set()
    with eoslog.open(path, create=True) as store:
        producer = store.producer(transactional_id="loop")
        producer.init_transactions()
        with started(COMES_AND_GOES.format(path=str(path))) as other:
            other.hear("begun")
            while "over" not in store.topics():
                try:
                    producer.begin_transaction()
                    for number in range(6):
                        producer.send("rows", bytes(500), partition=number % 2)
                    producer.flush()
                    producer.commit_transaction()
                except (UnknownTopicOrPartitionError, TransactionAbortableError) as error:
                    # The latter where the background thread had noticed it before the flush did.
                    seen.add(type(error))
                    producer.abort_transaction()
            other.end()
        assert seen
        assert not store.verify()


DELETED = """
import eoslog
with eoslog.open({path!r}, durability=None) as store:
    store.delete_topic("rows")
"""


@pytest.mark.parametrize("first", ["flush", "send", "linger", "close"])
def test_what_was_gathered_for_it_is_told_once_and_no_more_is_taken(store, first):
    producer = store.producer(config={"linger.ms": 60_000})
    producer.send("rows", bytes(1500))
    with started(DELETED.format(path=str(store.path))) as other:
        other.end()
    lost = pytest.raises(UnknownTopicOrPartitionError, match="deleted with 1 records")
    if first == "send":
        with lost:
            producer.send("rows", bytes(1500))  # The batch before it is full.
    elif first == "linger":
        assert producer._append_waiting(0) is None
    if first in ("flush", "linger"):
        with lost:
            producer.flush()
    if first != "close":
        with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'rows'"):
            producer.send("rows", b"more")
        producer.flush()
        producer.close()
    else:
        with lost:
            producer.close()
