"""`commit` of what `stage` handed out, without Spark: offsets of groups by the same decision."""

import pytest
from read_back import values_in

import eoslog
from eoslog import TopicPartition
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.spark import commit, stage

READ = TopicPartition("orders", 0)


def staged(path, run_id="run"):
    """The messages of one task, which landed two rows."""
    names = {"topic": "orders", "partitions": 4, "app_id": "job", "run_id": run_id}
    return list(stage([b"one", b"two"], store=path, attempt="0", **names))


def test_offsets_are_committed_by_the_same_decision(store_path):
    offsets = {"readers": {READ: 0}}
    done = commit(staged(store_path), store=store_path, app_id="job", version=0, offsets=offsets)
    assert done.committed
    with eoslog.open(store_path) as store:
        assert store.groups()["readers"][READ].offset == 0
    assert sorted(values_in(store_path)) == [b"one", b"two"]


def test_offsets_of_a_version_that_is_in_are_left_out(store_path):
    commit(staged(store_path), store=store_path, app_id="job", version=0)
    offsets = {"readers": {READ: 1}}
    again = staged(store_path, "again")
    assert not commit(again, store=store_path, app_id="job", version=0, offsets=offsets).committed
    with eoslog.open(store_path) as store:
        assert "readers" not in store.groups()


def test_offsets_that_are_wrong_decide_nothing(store_path):
    offsets = {"readers": {TopicPartition("nowhere", 0): 0}}
    with pytest.raises(UnknownTopicOrPartitionError):
        commit(staged(store_path), store=store_path, app_id="job", version=0, offsets=offsets)
    assert values_in(store_path) == []
