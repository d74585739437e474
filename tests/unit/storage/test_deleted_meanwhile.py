"""Questions to a whole store, or about partitions, while another process deletes a topic."""

from __future__ import annotations

import pytest
from harness.crew import Member
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.storage import topics_file
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of


@pytest.fixture
def stored(store):
    for topic in ("gone", "keep"):
        store.create_topic(topic)
        with store.producer(name="p") as producer:
            producer.append(topic, 0, [b"v"])
    yield store
    if "gone" in store.topics():
        store.delete_topic("gone")


def test_metrics_leave_its_partitions_out(stored):
    before = stored.metrics()
    engine_of(stored).partition(
        "gone", 0
    ).mark_deleted()  # As another process does, in the middle of it.
    after = stored.metrics()
    assert after["partitions"] == before["partitions"] - 1
    assert after["size_bytes"] < before["size_bytes"]


def test_producers_leave_it_out(stored, monkeypatch):
    producers = UnifiedLog.producers

    def deleted_first(partition):
        if partition.topic == "gone":
            stored.delete_topic("gone")
        return producers(partition)

    monkeypatch.setattr(UnifiedLog, "producers", deleted_first)
    assert list(stored.producers()) == [TopicPartition("keep", 0)]


def test_producers_of_a_topic_that_is_there_are_an_error_still(stored):
    engine_of(stored).partition("gone", 0).mark_deleted()
    with pytest.raises(LogClosedError):
        stored.producers()


@pytest.mark.parametrize("ask", ["beginning_offsets", "end_offsets", "offsets_for_times"])
def test_a_look_up_is_of_an_unknown_topic(stored, ask):
    """A consumer that is closed is fatal; this one is not."""
    where = TopicPartition("gone", 0)
    with stored.consumer() as consumer:
        engine_of(stored).partition("gone", 0).mark_deleted()
        with pytest.raises(UnknownTopicOrPartitionError) as caught:
            getattr(consumer, ask)({where: 0})
        assert not caught.value.fatal
        assert consumer.end_offsets([TopicPartition("keep", 0)])


def test_others_learn_of_a_change_that_was_interrupted(store_path, monkeypatch):
    """The one who made it could not say so; who finishes it does."""
    path = str(store_path)
    with (
        eoslog.open(path, create=True, durability="process", config=QUIET) as store,
        Member() as other,
    ):
        store.create_topic("gone")
        other.run("store = eoslog.open(path, durability='process')", path=path)
        write = topics_file.write_atomically

        def interrupted(*given):
            write(*given)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(topics_file, "write_atomically", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.delete_topic("gone")
        parts_of(store).files.registry.refresh()
        assert other.value("list(store.topics())") == []
