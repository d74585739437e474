"""Creating, describing and deleting topics; what a crash in the middle leaves."""

import copy
import errno
import json
import pickle

import pytest
from stores import values_of

from eoslog import TopicDescription
from eoslog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogClosedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from eoslog.storage import partition_directory
from eoslog.storage.topics_file import write_entries
from eoslog.store.store import abandon, engine_of, parts_of


def test_a_topic_is_described_as_it_was_created(store, open_store):
    made = store.create_topic("orders", partitions=3, config={"segment.bytes": "4096"})
    assert (made.name, made.partitions, dict(made.config)) == ("orders", 3, {"segment.bytes": 4096})
    assert store.topics() == {"orders": made}
    assert pickle.loads(pickle.dumps(made)) == made
    store.close()
    assert open_store().topics() == {"orders": made}


def test_a_topics_directories_are_kafkas(store, store_path):
    made = store.create_topic("orders", partitions=2)
    for number in range(2):
        metadata = (store_path / f"orders-{number}" / "partition.metadata").read_bytes()
        assert metadata == b"version: 0\ntopic_id: " + made.topic_id.encode()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a b",
        "ä",
        "a/b",
        "x" * 250,
        "a\0",
        "__transaction_state",
        "__consumer_offsets",
    ],
)
def test_names_that_kafka_refuses(store, name):
    with pytest.raises(InvalidTopicError):
        store.create_topic(name)
    with pytest.raises(InvalidTopicError):
        store.delete_topic(name)
    assert store.topics() == {}


def test_names_of_other_types_are_refused(store):
    for name in (None, b"t", 7):
        with pytest.raises(TypeError):
            store.create_topic(name)


@pytest.mark.parametrize("partitions", [0, -1, 100_001, 1.5, "3", True, None])
def test_wrong_numbers_of_partitions(store, partitions):
    with pytest.raises(InvalidPartitionsError):
        store.create_topic("t", partitions)


def test_wrong_settings(store):
    for config in ({"segment.byte": 1}, {"segment.bytes": "many"}, {"cleanup.policy": "compress"}):
        with pytest.raises(InvalidConfigError):
            store.create_topic("t", config=config)
    for policy in ("compact", "compact,delete", "delete,compact"):
        with pytest.raises(InvalidConfigError, match=f"'{policy}' is not supported"):
            store.create_topic("t", config={"cleanup.policy": policy})
    store.create_topic("t", config={"cleanup.policy": "delete"})


def test_a_name_is_taken_once_dots_and_underscores_being_one(store):
    store.create_topic("a.b")
    with pytest.raises(TopicAlreadyExistsError):
        store.create_topic("a.b")
    with pytest.raises(InvalidTopicError, match=r"'a\.b'"):
        store.create_topic("a_b")


def test_settings_of_the_store_are_defaults_of_its_topics(open_store):
    store = open_store(log__segment__bytes=2048)
    store.create_topic("small")
    store.create_topic("large", config={"segment.bytes": 1 << 20})
    for name in ("small", "large"):
        store.producer().append(name, 0, [bytes(500)] * 40)
    assert engine_of(store).partition("small", 0).segment_count > 5
    assert engine_of(store).partition("large", 0).segment_count == 1


def test_what_was_not_set_follows_the_defaults_of_the_version_that_opens(open_store, store_path):
    with open_store() as store:
        store.create_topic("t", config={"segment.bytes": 2048})
    document = json.loads((store_path / "state" / "topics.json").read_text())
    assert document["topics"]["t"]["config"] == {"segment.bytes": 2048}
    with open_store() as store:
        effective = parts_of(store).files.partitions.config_of(store.topics()["t"])
    assert (effective["retention.ms"], effective["retention.bytes"]) == (-1, -1)


def test_a_deleted_topic_leaves_nothing(store, store_path, open_store):
    store.create_topic("t", partitions=2)
    store.create_topic("u")
    partition = engine_of(store).partition("t", 0)
    store.producer().append("t", 0, [b"x"])
    consumer = store.consumer()
    store.delete_topic("t")
    assert list(store.topics()) == ["u"]
    for call in (
        lambda: store.partition("t", 0),
        lambda: store.delete_topic("t"),
        lambda: store.producer().send("t", b"x"),
        lambda: consumer.assign([("t", 0)]),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            call()
    with pytest.raises(LogClosedError):
        partition.append_columns([b"x"])
    store.close()
    left = [
        str(path.relative_to(store_path)) for path in store_path.rglob("*") if "t-" in path.name
    ]
    assert [name for name in left if "checkpoint" not in name and not name.startswith("__")] == []
    assert "t 0" not in (store_path / "recovery-point-offset-checkpoint").read_text()
    store = open_store()
    store.create_topic("t")
    assert store.partition("t", 0).log_end_offset == 0


def test_nothing_is_kept_of_topics_that_come_and_go(store):
    for number in range(3):
        store.create_topic(f"t{number}")
        store.producer().append(f"t{number}", 0, [b"x"])
        store.delete_topic(f"t{number}")
    assert not parts_of(store).files.partitions._being_opened


@pytest.mark.parametrize(
    ("partitions", "known"), [(1, "partition 0 alone"), (3, "partitions 0 to 2")]
)
def test_the_error_for_a_partition_names_those_that_are_there(store, partitions, known):
    store.create_topic("t", partitions=partitions)
    with pytest.raises(UnknownTopicOrPartitionError, match=f"topic 't' has {known}, not 7$"):
        store.partition("t", 7)


def test_a_topic_that_goes_during_the_look_for_its_partition(store, monkeypatch):
    store.create_topic("t", partitions=3)
    with pytest.raises(UnknownTopicOrPartitionError, match="has partitions 0 to 2, not 3"):
        store.partition("t", 3)
    monkeypatch.setattr(parts_of(store).files.partitions, "find", lambda where: None)
    with pytest.raises(UnknownTopicOrPartitionError, match="'t' was deleted just now"):
        store.partition("t", 2)


def test_a_file_that_comes_while_a_topic_is_removed_goes_too(store, monkeypatch):
    """Of a process that was told only just, and was in the middle of a step."""
    store.create_topic("t")
    path = engine_of(store).partition("t", 0).path
    remove, late = partition_directory.remove_directory, [path / "late", path / "later"]

    def removed(directory):
        if directory == path and late:
            late.pop().touch()
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        remove(directory)

    monkeypatch.setattr(partition_directory, "remove_directory", removed)
    store.delete_topic("t")
    assert not path.exists()
    assert late == []


def test_a_consumer_of_a_deleted_topic_is_told(store):
    store.create_topic("t")
    consumer = store.consumer()
    consumer.assign([("t", 0)])
    consumer.poll(timeout=0)
    store.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.poll(timeout=5)


@pytest.mark.parametrize("way", ["opening", "making it again"])
def test_a_deletion_cut_short_is_finished(store, store_path, open_store, monkeypatch, way):
    store.create_topic("t", partitions=3)
    with store.producer(name="n") as producer:
        producer.append("t", 0, [b"x"])

    def stop(*_arguments):
        raise StoreFullError("here it stops")

    with monkeypatch.context() as patch:
        patch.setattr(parts_of(store).files.partitions, "remove", stop)
        with pytest.raises(StoreFullError):
            store.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            store.delete_topic("t")
        assert store.topics() == {}
        # It is finished first, or not at all.
        with pytest.raises(StoreFullError):
            store.create_topic("t")
    assert (store_path / "t-0").exists()
    if way == "opening":
        abandon(store)
        store = open_store()
        assert not list(store_path.glob("t-*"))
    store.create_topic("t", partitions=1)
    assert not (store_path / "t-1").exists()
    assert store.producer(name="n").next_sequence("t", 0) == 0


def test_a_creation_cut_short_leaves_no_topic_and_is_no_obstacle(store, store_path, monkeypatch):
    def stop(*_arguments):
        raise StoreFullError("here it stops")

    with monkeypatch.context() as patch:
        patch.setattr(parts_of(store).files.registry, "add", stop)
        with pytest.raises(StoreFullError):
            store.create_topic("t", partitions=2)
    assert store.topics() == {}
    assert (store_path / "t-1").exists()
    store.create_topic("t", partitions=2)
    assert store.partition("t", 1).log_end_offset == 0


def test_files_in_the_way_are_not_touched(store, store_path):
    (store_path / "t-0").mkdir()
    (store_path / "t-0" / f"{0:020d}.log").write_bytes(b"whose?")
    with pytest.raises(StoreError, match="in the way"):
        store.create_topic("t")
    assert (store_path / "t-0" / f"{0:020d}.log").read_bytes() == b"whose?"


def test_a_lost_list_of_topics_comes_back_from_the_directories(store, store_path, open_store):
    made = store.create_topic("t", partitions=3, config={"segment.bytes": 4096})
    store.producer().append("t", 2, [b"x"])
    store.close()
    (store_path / "state" / "topics.json").unlink()
    store = open_store()
    again = store.topics()["t"]
    assert isinstance(again, TopicDescription)
    assert (again.topic_id, again.partitions, dict(again.config)) == (made.topic_id, 3, {})
    assert values_of(store, "t", 2) == [b"x"]


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"partitions": 0, "topic_id": "x", "config": {}},
        {"partitions": 1, "topic_id": "AAAAAAAAAAAAAAAAAAAAAA", "config": {}},
        {"partitions": 1, "topic_id": 7, "config": {}},
        {"partitions": 1, "topic_id": "uyDb4gNaQmKtjSoW-vZ1xA", "config": {"nonsense": 1}},
    ],
)
def test_entries_that_nobody_wrote_are_noticed(store, store_path, open_store, entry):
    store.close()
    write_entries(store_path / "state", {"t": entry})
    with pytest.raises(CorruptRecordError):
        open_store()


def test_a_topic_that_exists_is_left_as_it_is_if_that_is_asked_for(store):
    made = store.create_topic("twice", partitions=2, config={"segment.bytes": 4096}, exist_ok=True)
    again = store.create_topic("twice", partitions=2, exist_ok=True)
    assert again == made
    assert store.topics()["twice"].config == {"segment.bytes": 4096}
    with pytest.raises(TopicAlreadyExistsError, match="with 2 partitions, not 3"):
        store.create_topic("twice", partitions=3, exist_ok=True)
    with pytest.raises(TopicAlreadyExistsError):
        store.create_topic("twice", partitions=2)
    with pytest.raises(InvalidConfigError):
        store.create_topic("twice", partitions=2, config={"no.such": 1}, exist_ok=True)


def test_many_topics_are_created_by_one_call(store, open_store):
    counts = {f"t{number}": 1 + number % 3 for number in range(20)}
    made = store.create_topics(counts, config={"segment.bytes": 4096})
    assert {name: topic.partitions for name, topic in made.items()} == counts
    assert all(dict(topic.config) == {"segment.bytes": 4096} for topic in made.values())
    assert store.topics() == made
    store.producer().append("t2", 2, [b"x"])
    assert values_of(store, "t2", 2) == [b"x"]
    assert store.create_topics({}) == {}
    store.close()
    assert open_store().topics() == made


def test_topics_that_exist_are_left_as_they_are_if_that_is_asked_for(store):
    old = store.create_topic("old", partitions=2)
    made = store.create_topics({"new": 1, "old": 2}, exist_ok=True)
    assert list(made) == ["new", "old"]
    assert made == store.topics()
    assert made["old"] == old
    assert store.create_topics({"new": 1, "old": 2}, exist_ok=True) == made


@pytest.mark.parametrize(
    ("partitions", "more", "error"),
    [
        ({"a": 1, "old": 1}, {}, TopicAlreadyExistsError),
        ({"a": 1, "old": 3}, {"exist_ok": True}, TopicAlreadyExistsError),
        ({"a": 1, "b.c": 1, "b_c": 1}, {}, InvalidTopicError),
        ({"a": 1, "old.name": 1}, {}, InvalidTopicError),
        ({"a": 1, "b": 0}, {}, InvalidPartitionsError),
        ({"a": 1, "b c": 1}, {}, InvalidTopicError),
        ({"a": 1, 7: 1}, {}, TypeError),
        ({"a": 1}, {"config": {"nonsense": 1}}, InvalidConfigError),
        ({"a": 1, "in-the-way": 1}, {}, StoreError),
        (["a", "b"], {}, TypeError),
        ("a", {}, TypeError),
        (None, {}, TypeError),
    ],
)
def test_all_topics_of_a_call_are_created_or_none_is(store, store_path, partitions, more, error):
    store.create_topics({"old": 2, "old_name": 1})
    (store_path / "in-the-way-0").mkdir()
    (store_path / "in-the-way-0" / "file").touch()
    with pytest.raises(error):
        store.create_topics(partitions, **more)
    assert list(store.topics()) == ["old", "old_name"]
    store.create_topics({"a": 1, "b": 1})


@pytest.mark.parametrize("tells", [True, False])
def test_the_directories_of_many_topics_are_synced_at_once(
    store, store_path, open_store, monkeypatch, tells
):
    """Where the system does not tell whether that failed, each is synced."""
    calls = []

    def noting(name, function):
        return lambda *given, **named: (calls.append(name), function(*given, **named))[1]

    monkeypatch.setattr("eoslog.fs.atomic_file.os.fsync", noting("file", lambda _: None))
    monkeypatch.setattr(partition_directory, "sync_directory", noting("directory", lambda _: None))
    monkeypatch.setattr(partition_directory, "sync_file", noting("file", lambda _: None))
    monkeypatch.setattr("eoslog.fs.atomic_file.sync_directory", noting("directory", lambda _: None))
    sync = partition_directory.sync_file_system if tells else lambda _: False
    monkeypatch.setattr(partition_directory, "sync_file_system", noting("all", sync))
    store.create_topics({f"t{number}": 1 for number in range(40)})
    # Of the list of topics and its name.
    if tells:
        assert sorted(calls) == ["all", "directory", "file"]
    else:
        assert (calls.count("directory"), calls.count("file")) == (41, 42)
    monkeypatch.undo()
    store.close()
    assert len(open_store().topics()) == 40


def test_directories_that_could_not_be_synced_belong_to_no_topic(store, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(partition_directory, "sync_file_system", refuse)
        with pytest.raises(StoreFailedError, match="syncing the file system"):
            store.create_topics({"a": 40})
    assert store.topics() == {}
    assert store.verify() == []
    store.create_topics({"a": 40})


@pytest.mark.parametrize("which", ["store", "producer", "transactional", "consumer"])
def test_what_is_bound_to_its_process_is_neither_pickled_nor_copied(store, which):
    bound = {
        "store": store,
        "producer": store.producer(),
        "transactional": store.producer(transactional_id="x"),
        "consumer": store.consumer(),
    }[which]
    for attempt in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            attempt(bound)
