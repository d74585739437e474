"""Topics whose files the operating system does not let go of when they are deleted."""

from __future__ import annotations

import pytest
from harness.crew import Member

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreError, UnknownTopicOrPartitionError


@pytest.fixture
def behind_a_link(open_store, store_path, tmp_path):
    """A store with the topics "keep" and "gone", of which the latter's directory is a link."""
    with open_store() as store:
        for topic in ("keep", "gone"):
            store.create_topic(topic, partitions=2)
            with store.producer() as producer:
                producer.append(topic, 0, [b"v"])
    link = store_path / "gone-1"
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    return link


def read(store) -> list[bytes]:
    with store.consumer() as consumer:
        consumer.assign([TopicPartition("keep", 0)])
        return [record.value for record in consumer.poll(timeout=0)]


def test_the_other_topics_go_on(behind_a_link, open_store, caplog):
    with open_store() as store:
        with pytest.raises(StoreError, match="removing gone-1: a link"):
            store.delete_topic("gone")
        assert list(store.topics()) == ["keep"]
        with pytest.raises(UnknownTopicOrPartitionError):
            store.partition("gone", 0)
    for _ in range(2):
        caplog.clear()
        with open_store() as store:
            assert read(store) == [b"v"]
            store.create_topic("new", exist_ok=True)
            assert "gone is deleted, and not all of it removed" in caplog.text
            (found,) = store.verify()
            assert "topic gone was deleted, and not all of it removed: " in found["reason"]


def test_its_name_is_not_free(behind_a_link, open_store, tmp_path):
    """What is left of it would become part of the new one."""
    with open_store() as store:
        with pytest.raises(StoreError):
            store.delete_topic("gone")
        with pytest.raises(StoreError, match="removing gone-1: a link") as caught:
            store.create_topic("gone", partitions=1)
        assert caught.value.__notes__ == ["an earlier topic 'gone' is not removed yet"]
    assert (tmp_path / "elsewhere").is_dir()


def test_it_goes_once_nothing_is_in_the_way(behind_a_link, open_store):
    with open_store() as store:
        with pytest.raises(StoreError):
            store.delete_topic("gone")
        behind_a_link.unlink()
        store.create_topic("gone")
        assert store.verify() == []
        assert store.partition("gone", 0).log_end_offset == 0


def test_verify_says_nothing_once_another_process_removed_it(behind_a_link, open_store, store_path):
    with open_store() as store, Member() as other:
        with pytest.raises(StoreError):
            store.delete_topic("gone")
        assert store.verify()
        behind_a_link.unlink()
        other.run("eoslog.open(path, durability='process').close()", path=str(store_path))
        assert store.verify() == []


def test_another_deletion_is_not_refused_for_it(behind_a_link, open_store, store_path):
    with open_store() as store:
        with pytest.raises(StoreError):
            store.delete_topic("gone")
        store.delete_topic("keep")
        assert store.topics() == {}
    assert not (store_path / "keep-0").exists()
    behind_a_link.unlink()
    with eoslog.open(store_path, durability="process") as store:
        assert store.verify() == []
