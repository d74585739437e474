"""Import of a broker's directories: what is in the store, what is named, what is refused."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib

import pytest
from broker_directory import (
    BASE_MS,
    OF_BROKER,
    OF_TOPIC,
    BrokerDirectory,
    batch,
    config_record,
    internal_partitions,
    locking_process,
    partition_record,
    topic_id,
    topic_record,
    try_lock,
)
from cli_calls import call
from partition_files import segment_name
from reference_model import batch_codec
from stores import QUIET, values_of

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.transaction_record import encode_transaction_value
from eoslog.common import clock
from eoslog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidTopicError,
    RecordTooLargeError,
    StoreError,
    StoreInUseError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from eoslog.exchange.import_plan import TopicSetting
from eoslog.exchange.kafka_import import EndedTransaction
from eoslog.groups.records import (
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.state_key import APPLICATION, state_partition_of, transaction_key

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TRANSACTIONAL = batch_codec.TRANSACTIONAL


@pytest.fixture
def logs(tmp_path):
    return BrokerDirectory(tmp_path / "logs")


def opened(path):
    return eoslog.open(path, durability="process", config=QUIET)


def tree(path):
    """Names, contents and times of all files."""
    return {
        one.relative_to(path).as_posix(): (one.read_bytes(), one.stat().st_mtime_ns)
        for one in path.rglob("*")
        if one.is_file()
    }


def refused(error, match, logs, path, **options):
    before = tree(logs.path)
    with pytest.raises(error, match=match):
        eoslog.import_kafka(logs.path, path, **options)
    assert tree(logs.path) == before
    assert not path.exists() or not any(path.iterdir())
    assert not list(path.parent.glob(".*.eoslog-*"))


def test_topics_with_their_ids_offsets_and_bytes(logs, tmp_path):
    other = BrokerDirectory(tmp_path / "other")
    # A segment, a hole within it, one before the next segment, a batch that is compressed.
    data = {
        0: batch([b"0", b"1"]) + batch([b"5"], 5, leader_epoch=3),
        9: batch_codec.place_batch(batch_codec.compress_batch(batch([b"9"]), 2), 9)
        + batch([b"10", b"11"], 10),
    }
    logs.partition("a-0", data)
    other.partition("a-1", {4: batch([b"4", b"5", b"6"], 4)}, start=5)
    logs.partition("empty-0")
    paths = [logs.stop(), other.stop()]
    before = [tree(path) for path in paths]
    made = eoslog.import_kafka(paths, tmp_path / "store")
    assert [tree(path) for path in paths] == before
    assert (made.path, made.topics, made.partitions) == (tmp_path / "store", 2, 3)
    assert made.copied_bytes == sum(map(len, data.values())) + len(batch([b"4", b"5", b"6"], 4))
    # The broker leaves a snapshot of the producers; here there is none.
    assert [(what, "producers of the deleted" in reason) for what, reason in made.left_out] == [
        ("a-1", True)
    ]
    assert (made.unclean, made.cut, made.missing) == ((), (), ())
    assert made.holes == ((A0, 9),)
    for base_offset, content in data.items():
        assert (tmp_path / "store" / "a-0" / segment_name(base_offset)).read_bytes() == content
    assert (tmp_path / "store" / ".kafka_cleanshutdown").exists()
    with opened(tmp_path / "store") as store:
        assert not parts_of(store).files.partitions.unrecovered
        topics = store.topics()
        assert {name: one.topic_id for name, one in topics.items()} == {
            name: topic_id(name) for name in ("a", "empty")
        }
        found = engine_of(store).partition("a", 0).fetch_records(0, 3, 1 << 20)[0]
        assert [(one.offset, one.timestamp_ms, one.value) for one in found] == [
            (offset, BASE_MS + offset, b"%d" % offset) for offset in (0, 1, 5)
        ]
        after = engine_of(store).partition("a", 0).fetch_records(10, 9, 1 << 20)[0]
        assert [one.value for one in after] == [b"10", b"11"]
        with pytest.raises(UnsupportedCompressionTypeError):
            engine_of(store).partition("a", 0).fetch_records(9, 1, 1 << 20)
        assert store.partition("a", 1).log_start_offset == 5
        assert values_of(store, "a", 1) == [b"5", b"6"]
        with store.producer() as producer:
            assert producer.append("a", partition=0, values=[b"12"]).base_offset == 12
        assert store.partition("a", 0).verify() == [
            {
                "path": str(tmp_path / "store" / "a-0" / segment_name(9)),
                "position_bytes": 0,
                "reason": "compressed with snappy: this version cannot read it",
            }
        ]
    with opened(tmp_path / "store") as store:
        assert store.partition("a", 0).log_end_offset == 13


def test_the_cluster_of_the_store_is_that_of_the_broker(logs, tmp_path):
    made = eoslog.import_kafka(str(logs.stop()), str(tmp_path / "store"))
    assert (made.cluster_id, made.node_id) == ("AAAAAAAAAAAAAAAAAAAAAQ", 1)
    text = (tmp_path / "store" / "meta.properties").read_text()
    assert f"cluster.id={made.cluster_id}\n" in text
    assert "node.id=0\n" in text
    with opened(tmp_path / "store") as store:
        assert store.topics() == {}


def of(topic):
    return f"topic {topic}"


def test_settings_are_taken_from_the_metadata_and_before_them_from_options(logs, tmp_path):
    logs.partition("a-0")
    logs.partition("b-0")
    logs.metadata(
        *(record for name in "ab" for record in (topic_record(name), partition_record(name, 0))),
        config_record(OF_TOPIC, "a", "retention.ms", "1000"),
        config_record(OF_TOPIC, "a", "segment.bytes", "2000000"),
        config_record(OF_TOPIC, "a", "compression.type", "producer"),
        config_record(OF_TOPIC, "a", "compression.type", "zstd"),
        config_record(OF_TOPIC, "a", "remote.storage.enable", "true"),
        config_record(OF_TOPIC, "b", "cleanup.policy", "compact"),
        config_record(OF_TOPIC, "b", "retention.ms", "1000"),
        config_record(OF_TOPIC, "b", "max.message.bytes", "3000000"),
        config_record(OF_TOPIC, "b", "segment.bytes", "2000000"),
        config_record(OF_BROKER, "", "log.segment.bytes", "4000000"),
        config_record(OF_BROKER, "", "log.index.interval.bytes", "1"),
        config_record(OF_BROKER, "1", "log.index.interval.bytes", "2"),
        config_record(OF_BROKER, "2", "log.index.interval.bytes", "3"),
        config_record(OF_BROKER, "", "min.insync.replicas", "1"),
        config_record(OF_BROKER, "", "log.cleaner.threads", "2"),
        config_record(32, "g", "consumer.session.timeout.ms", "5"),
    )
    options = {
        "config": {"segment.ms": 50, "retention.bytes": "77"},
        "topic_config": {"a": {"segment.ms": 60}},
    }
    made = eoslog.import_kafka(logs.stop(), tmp_path / "store", **options)
    with opened(tmp_path / "store") as store:
        configs = {name: dict(topic.config) for name, topic in store.topics().items()}
    both = {"index.interval.bytes": 2, "retention.ms": 1000, "retention.bytes": 77}
    assert configs == {
        "a": {
            **both,
            "compression.type": "zstd",
            "segment.bytes": 2_000_000,
            "segment.ms": 60,
        },
        "b": {
            **both,
            "cleanup.policy": "compact",
            "max.message.bytes": 3_000_000,
            "segment.bytes": 2_000_000,
            "segment.ms": 50,
        },
    }
    assert made.retention == (
        TopicSetting(of("a"), "retention.ms", "1000"),
        TopicSetting(of("a"), "retention.bytes", "77"),
    )
    assert made.not_applied == (
        TopicSetting(of("a"), "compression.type", "zstd"),
        TopicSetting(of("b"), "cleanup.policy", "compact"),
    )
    remote = "what is in remote storage does not come with the logs"
    assert set(made.not_taken_over) == {
        TopicSetting(of("a"), "remote.storage.enable", "true", remote),
        TopicSetting("broker *", "log.cleaner.threads", "2", "a store has no such setting"),
        TopicSetting("group g", "consumer.session.timeout.ms", "5", "a store has no such setting"),
    }


def test_a_record_that_may_be_larger_than_a_segment(logs, tmp_path):
    """As in Kafka the smaller of the two settings counts."""
    logs.partition("a-0")
    logs.metadata(
        topic_record("a"),
        partition_record("a", 0),
        config_record(OF_TOPIC, "a", "max.message.bytes", "2000000000"),
        config_record(OF_TOPIC, "a", "segment.index.bytes", "4"),
    )
    made = eoslog.import_kafka(logs.stop(), tmp_path / "store", config={"segment.bytes": 3000})
    reason = "segment.index.bytes must be from 48 to 2147483647, got 4"
    assert made.not_taken_over == (TopicSetting(of("a"), "segment.index.bytes", "4", reason),)
    with opened(tmp_path / "store") as store:
        assert store.topics()["a"].config == {
            "max.message.bytes": 2_000_000_000,
            "segment.bytes": 3000,
        }
        with pytest.raises(RecordTooLargeError):
            store.producer().append("a", partition=0, values=[bytes(3000)])


def test_settings_without_an_effect_here_are_kept_for_an_export(logs, tmp_path):
    logs.partition("a-0")
    logs.metadata(
        topic_record("a"),
        partition_record("a", 0),
        config_record(OF_TOPIC, "a", "message.timestamp.type", "LogAppendTime"),
        config_record(OF_TOPIC, "a", "max.message.bytes", "2000000000"),
        config_record(OF_TOPIC, "a", "min.insync.replicas", "2"),
        config_record(OF_TOPIC, "a", "a.setting.of.kafka.9", "x"),
    )
    path = tmp_path / "store"
    eoslog.import_kafka(logs.stop(), path)
    for _ in range(2):  # The list of topics is written again in between.
        with opened(path) as store:
            store.create_topic("more", exist_ok=True)
    said = call("topics", "describe", "a", "--store", path)
    kept = said.stdout.split("kept for Kafka")[1].splitlines()[2:]
    assert [one.split() for one in kept] == [
        ["a.setting.of.kafka.9", "x"],
        ["message.timestamp.type", "LogAppendTime"],
        ["min.insync.replicas", "2"],
    ]
    exported = eoslog.export_kafka(path, tmp_path / "exported")
    written = (tmp_path / "exported" / "bootstrap.checkpoint").read_bytes()
    assert b"message.timestamp.type\x0eLogAppendTime" in written
    assert b"a.setting.of.kafka.9\x02x" in written
    assert b"max.message.bytes\x0b2000000000" in written
    assert b"min.insync.replicas\x022" not in written
    assert [one for one in exported.notes if "min.insync.replicas=2 is left out" in one]


def test_a_directory_of_the_metadata_alone_has_no_mark_of_a_clean_stop(logs, tmp_path):
    """Kafka leaves none in a `metadata.log.dir` that is none of `log.dirs`."""
    logs.partition("a-0", {0: batch([b"0"]), 1: batch([b"1"], 1)}, end=2)
    metadata = BrokerDirectory(tmp_path / "metadata")
    metadata.metadata(topic_record("a"), partition_record("a", 0))
    metadata.stop(clean=False)
    made = eoslog.import_kafka([logs.stop(), metadata.path], tmp_path / "store", link=True)
    assert made.unclean == ()
    assert made.linked_bytes == len(batch([b"0"]))


def test_the_import_itself_deletes_nothing_by_its_age(logs, tmp_path):
    segments = {base: batch([b"old"], base) for base in (0, 1, 2)}
    logs.partition("kept-0", segments)
    logs.partition("gone-0", segments)
    policies = {"kept": {"cleanup.policy": "compact"}}
    eoslog.import_kafka(
        logs.stop(), tmp_path / "store", config={"retention.ms": 1000}, topic_config=policies
    )
    with opened(tmp_path / "store") as store:
        # The import itself deletes nothing.
        assert [store.partition(name, 0).log_start_offset for name in ("kept", "gone")] == [0, 0]
        parts_of(store).checkpointer.retain()
        assert [store.partition(name, 0).log_start_offset for name in ("kept", "gone")] == [0, 3]


def test_wrong_options_are_refused_before_anything(logs, tmp_path):
    logs.partition("a-0")
    logs.stop()
    path = tmp_path / "store"
    refused(InvalidConfigError, "no topic setting", logs, path, config={"nonsense": 1})
    refused(InvalidConfigError, "from 1024", logs, path, topic_config={"a": {"segment.bytes": 1}})
    unknown = {"b": {"segment.ms": 1}}
    refused(UnknownTopicOrPartitionError, "no users' topic 'b'", logs, path, topic_config=unknown)
    for wrong in (5, {"a": 5}):
        with pytest.raises(TypeError, match="topic_config"):
            eoslog.import_kafka(logs.path, path, topic_config=wrong)
    for sources, error in (([], ValueError), ("", ValueError), (5, TypeError), ([b"x"], TypeError)):
        with pytest.raises(error):
            eoslog.import_kafka(sources, path)


def test_partitions_that_are_missing(logs, tmp_path):
    logs.partition("a-1", batch([b"x"]))
    logs.metadata(
        *(record for name in ("a", "b", "far") for record in (topic_record(name),)),
        *(partition_record("a", number) for number in range(3)),
        partition_record("b", 0),
        partition_record("far", 0, 2, 3),
    )
    logs.stop()
    path = tmp_path / "store"
    refused(StoreError, "without a directory: a-0, a-2, b-0; name", logs, path)
    made = eoslog.import_kafka(logs.path, path, allow_missing=True)
    assert list(map(str, made.missing)) == ["a-0", "a-2", "b-0"]
    assert made.left_out == (("topic far", "node 1 has no partition of it"),)
    with opened(path) as store:
        assert {name: one.partitions for name, one in store.topics().items()} == {"a": 3, "b": 1}
        assert [store.partition("a", number).log_end_offset for number in range(3)] == [0, 1, 0]
        assert store.verify() == []


def test_without_metadata_the_directories_are_counted(logs, tmp_path):
    logs.partition("a-2")
    logs.stop()
    refused(StoreError, "without a directory: a-0, a-1; name", logs, tmp_path / "store")


def test_directories_of_topics_that_were_deleted_are_left_out(logs, tmp_path):
    logs.partition("a-0", batch([b"new"]))
    logs.partition("a-1", batch([b"old"]), of=topic_id("before"))
    logs.partition("gone-0", batch([b"old"]))
    logs.partition("a-5", batch([b"more than there are"]))
    logs.metadata(topic_record("a"), partition_record("a", 0))
    made = eoslog.import_kafka(logs.stop(), tmp_path / "store")
    reasons = {os.path.basename(what): reason for what, reason in made.left_out}  # noqa: PTH119
    assert reasons.keys() == {"a-1", "a-5", "gone-0"}
    assert "created again" in reasons["a-1"]
    assert "a-5 is on no node" in reasons["a-5"]
    assert "no topic gone" in reasons["gone-0"]
    with opened(tmp_path / "store") as store:
        assert values_of(store, "a") == [b"new"]
        assert store.topics()["a"].partitions == 1


def test_a_partition_that_was_moved_to_another_node_is_left_out(logs, tmp_path):
    logs.partition("a-0", batch([b"here"]))
    logs.partition("a-1", batch([b"old"]))
    logs.metadata(topic_record("a"), partition_record("a", 0), partition_record("a", 1, 2, 3))
    logs.stop()
    refused(StoreError, "without a directory: a-1;", logs, tmp_path / "store")
    made = eoslog.import_kafka(logs.path, tmp_path / "store", allow_missing=True)
    assert [reason for _, reason in made.left_out] == [
        "by the cluster's metadata a-1 is on 2, 3, not here"
    ]
    with opened(tmp_path / "store") as store:
        assert (values_of(store, "a"), values_of(store, "a", 1)) == ([b"here"], [])


def test_partitions_of_two_topics_of_one_name_are_refused(logs, tmp_path):
    logs.partition("a-0")
    logs.partition("a-1", of=topic_id("before"))
    logs.stop()
    refused(StoreError, "and other partitions of a are of", logs, tmp_path / "store")


def test_a_name_that_a_store_has_for_itself_is_refused(logs, tmp_path):
    logs.partition("eoslog-version-0")
    logs.stop()
    refused(InvalidTopicError, "eoslog-version", logs, tmp_path / "store")


# Internal topics.


def offset_record(group, where, offset):
    key = encode_offset_key(*OffsetKey(group, where))
    return key, encode_offset_value(OffsetValue(offset, -1, "", BASE_MS))


def transaction_record(transactional_id, state, producer_id, partitions=("a",)):
    value = encode_transaction_value(
        version=1,
        producer_id=producer_id,
        producer_epoch=3,
        timeout_ms=1000,
        state=state,
        partitions=[(name, 0) for name in partitions],
        last_update_ms=BASE_MS,
        start_ms=BASE_MS,
        client_transaction_version=0,
    )
    return transaction_key(transactional_id), value


def write_internal(logs, topic, records):
    by_partition = {}
    for name, record in records:
        by_partition.setdefault(state_partition_of(name), []).append(record)
    for number, found in by_partition.items():
        logs.partition(f"{topic}-{number}", batch(found))
    internal_partitions(logs, topic)


def test_what_cannot_be_taken_up_is_named_where_the_broker_has_it(logs, tmp_path):
    """And not in the temporary directory, which is gone."""
    logs.partition("a-0", batch([b"0"]))
    wrong = struct.pack(">h", APPLICATION) + b"x", b"no JSON"
    write_internal(logs, "__transaction_state", [("x", wrong)])
    directory = logs.path / f"__transaction_state-{state_partition_of('x')}"
    with pytest.raises(CorruptRecordError) as failed:
        eoslog.import_kafka(logs.stop(), tmp_path / "store")
    assert failed.value.path == str(directory)
    assert str(failed.value).startswith(f"{directory} at byte 0: the state record")


def test_transactions_groups_and_producers_go_on(logs, tmp_path):
    data = {"attributes": TRANSACTIONAL, "producer_epoch": 3}
    # As old producers are forgotten, this one's batch is new.
    newest = {"producer_id": 10, "producer_epoch": 0, "base_sequence": 4}
    newest["timestamp_ms"] = clock.now_ms()
    logs.partition(
        "a-0",
        batch([b"0"], 0, producer_id=7, base_sequence=0, **data)
        + batch([b"1"], 1, producer_id=8, base_sequence=0, **data)
        + batch([b"2"], 2, producer_id=9, base_sequence=0, **data)
        + batch_codec.simple_batch([b"3"], base_offset=3, **newest),
    )
    records = [
        ("open", transaction_record("open", "Ongoing", 7)),
        ("decided", transaction_record("decided", "PrepareCommit", 8)),
        ("done", transaction_record("done", "CompleteCommit", 11, ())),
    ]
    write_internal(logs, "__transaction_state", records)
    groups = [("g", offset_record("g", A0, 2)), ("new", (struct.pack(">hh3s", 3, 3, b"new"), b"x"))]
    write_internal(logs, "__consumer_offsets", [*groups, ("new", offset_record("new", A0, 3))])
    logs.partition("__share_group_state-0")
    path = tmp_path / "store"
    made = eoslog.import_kafka(logs.stop(), path)
    assert (made.topics, made.partitions) == (2, 2)
    assert (made.groups, made.transactional_ids) == (2, 3)
    assert made.ended_transactions == (
        EndedTransaction("decided", 8, "committed"),
        EndedTransaction("open", 7, "aborted"),
        EndedTransaction(None, 9, "aborted"),
    )
    assert made.other_groups == (("new", "consumer"),)
    assert made.kafkas_topics == ("__share_group_state",)
    for _ in range(2):
        with opened(path) as store:
            assert not parts_of(store).files.partitions.unrecovered
            with store.consumer(isolation_level="read_committed") as consumer:
                consumer.assign([A0])
                consumer.seek(A0, 0)
                assert [one.value for one in consumer.poll(timeout=0)] == [b"1", b"3"]
            found = {group: offsets[A0].offset for group, offsets in store.groups().items()}
            assert found == {"g": 2, "new": 3}
            states = {one.transactional_id: one.transaction_state for one in store.transactions()}
            assert states == {
                "decided": "CompleteCommit",
                "done": "CompleteCommit",
                "open": "CompleteAbort",
            }
            assert store.verify() == []
    with opened(path) as store:
        log = store.partition("a", 0)
        end = log.log_end_offset
        # The last batch of a producer is known: sent again, it is not written again.
        again = batch_codec.simple_batch([b"3"], **newest)
        assert log.append_batch(again).base_offset == 3
        assert log.log_end_offset == end
        producer = store.producer(transactional_id="done")
        producer.init_transactions()
        with producer.transaction():
            producer.send("a", b"after", partition=0)
        assert store.describe_transaction("done").producer_epoch > 3


def test_a_late_batch_is_not_committed_by_the_transaction_before_it(logs, tmp_path):
    """Of a version in which transactions share an epoch, so that the broker took it."""
    data = {"attributes": TRANSACTIONAL, "producer_epoch": 3, "producer_id": 7}
    logs.partition(
        "a-0",
        batch([b"0"], 0, base_sequence=0, **data)
        + batch_codec.encode_marker(
            batch_codec.COMMIT, producer_id=7, producer_epoch=3, coordinator_epoch=0, offset=1
        )
        + batch([b"late"], 2, base_sequence=1, **data),
    )
    logs.partition("b-0", batch([b"open"], 0, base_sequence=0, **data))
    records = [
        ("x", transaction_record("x", "PrepareCommit", 7)),
        ("x", transaction_record("x", "CompleteCommit", 7, ())),
        ("x", transaction_record("x", "Ongoing", 7, ("b",))),
    ]
    write_internal(logs, "__transaction_state", records)
    path = tmp_path / "store"
    made = eoslog.import_kafka(logs.stop(), path)
    assert made.ended_transactions == (
        EndedTransaction("x", 7, "aborted"),
        EndedTransaction(None, 7, "open"),
    )
    with opened(path) as store, store.consumer(isolation_level="read_committed") as consumer:
        consumer.assign([A0])
        assert [one.value for one in consumer.poll(timeout=0)] == [b"0"]


@pytest.mark.parametrize("with_metadata", [False, True])
def test_another_number_of_internal_partitions_is_refused(logs, tmp_path, with_metadata):
    count = 49 if with_metadata else 51
    internal_partitions(logs, "__consumer_offsets", count)
    if with_metadata:
        name = "__consumer_offsets"
        logs.metadata(topic_record(name), *(partition_record(name, one) for one in range(count)))
    logs.stop()
    match = f"__consumer_offsets has {count} partitions, and 50 in every store"
    refused(StoreError, match, logs, tmp_path / "store")


def test_a_missing_partition_of_an_internal_topic(logs, tmp_path):
    internal_partitions(logs, "__consumer_offsets", 49)
    logs.stop()
    path = tmp_path / "store"
    refused(StoreError, "without a directory: __consumer_offsets-49;", logs, path)
    assert len(eoslog.import_kafka(logs.path, path, allow_missing=True).missing) == 1
    with opened(path) as store:
        assert store.verify() == []


def test_internal_logs_whose_ends_were_compacted_away_are_taken_up(logs, tmp_path):
    """An empty segment follows a hole: there is nothing more to be read below the log's end."""
    done = ("x", transaction_record("x", "CompleteCommit", 7, ()))
    removed = ("g", (encode_offset_key("g", A0), None))
    for topic, (name, record) in (("__transaction_state", done), ("__consumer_offsets", removed)):
        segments = {0: batch([record]), 10: b""}
        logs.partition(f"{topic}-{state_partition_of(name)}", segments, end=10)
        internal_partitions(logs, topic)
    path = tmp_path / "store"
    made = eoslog.import_kafka(logs.stop(), path)
    assert (made.groups, made.transactional_ids) == (0, 1)
    with opened(path) as store:
        partitions = parts_of(store).files.partitions
        assert partitions.offsets_partition(state_partition_of("g")).log_end_offset == 10
        assert store.verify() == []


def test_a_compressed_internal_log_is_refused_before_anything(logs, tmp_path):
    packed = batch_codec.compress_batch(batch([offset_record("g", A0, 1)]), 1)
    logs.partition("__consumer_offsets-3", packed)
    internal_partitions(logs, "__consumer_offsets")
    logs.stop()
    refused(UnsupportedCompressionTypeError, "gzip", logs, tmp_path / "store")


# Damage.


def test_a_torn_end_of_a_broker_that_was_killed_is_named(logs, tmp_path):
    whole = batch([b"0"]) + batch([b"1"], 1)
    logs.partition("a-0", whole + batch([b"2"], 2)[:-3], end=0)
    logs.partition("b-0", whole + bytes(500))
    made = eoslog.import_kafka(logs.stop(clean=False), tmp_path / "store")
    assert made.unclean == (logs.path,)
    assert made.cut == ((A0, len(batch([b"2"], 2)) - 3),)
    with opened(tmp_path / "store") as store:
        assert values_of(store, "a") == values_of(store, "b") == [b"0", b"1"]
        assert store.verify() == []


def old_message(offset, value, magic):
    timestamp = struct.pack(">q", BASE_MS) if magic else b""
    body = bytes((magic, 0)) + timestamp + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_an_older_format_are_not_taken_for_a_torn_end(logs, tmp_path, magic, clean):
    old = old_message(0, b"0", magic) + old_message(1, b"1", magic)
    logs.partition("a-0", {0: old, 2: batch([b"2"], 2)}, end=3 if clean else 0)
    logs.stop(clean=clean)
    match = f"messages of format {magic} at byte 0"
    refused(UnsupportedForMessageFormatError, match, logs, tmp_path / "store")


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("place", ["first", "last", "missing"])
def test_damage_of_a_closed_log_is_refused_by_name(logs, tmp_path, place, link):
    segments = {base: batch([b"%d" % base], base) for base in range(3)}
    damaged = {"first": 0, "last": 2, "missing": 2}[place]
    if place == "missing":
        segments[damaged] = b""
    else:
        segments[damaged] = segments[damaged][:-1] + b"x"
    logs.partition("a-0", segments, end=3)
    logs.stop()
    match = segment_name(damaged) if place != "missing" else "below offset 3 .* ends at 2"
    refused(CorruptRecordError, match, logs, tmp_path / "store", link=link)


def test_damage_below_what_was_synced_is_refused_even_if_the_broker_was_killed(logs, tmp_path):
    data = batch([b"0"]) + batch([b"1"], 1)[:-1] + b"x" + batch([b"2"], 2)
    logs.partition("a-0", data, end=2)
    logs.stop(clean=False)
    refused(CorruptRecordError, segment_name(0), logs, tmp_path / "store")


# Links.


def test_sealed_segments_of_users_topics_become_links(logs, tmp_path):
    segments = {base: batch([b"%d" % base], base) for base in range(3)}
    directory = logs.partition("a-0", segments)
    rolled = logs.partition("rolled-0", {0: segments[0], 1: b""})
    internal = {0: batch([offset_record("g", A0, 1)]), 1: batch([offset_record("g", A0, 2)], 1)}
    logs.partition(f"__consumer_offsets-{state_partition_of('g')}", internal)
    internal_partitions(logs, "__consumer_offsets")
    before = tree(logs.stop())
    path = tmp_path / "store"
    made = eoslog.import_kafka(logs.path, path, link=True)
    assert made.linked_bytes == len(segments[0]) + len(segments[1])

    def linked():
        return {base: (path / "a-0" / segment_name(base)).stat().st_nlink for base in segments}

    assert linked() == {0: 2, 1: 2, 2: 1}
    assert (rolled / segment_name(0)).stat().st_nlink == 1
    assert all(one.stat().st_nlink == 1 for one in path.glob("__*/*.log"))
    assert tree(logs.path) == before
    for number in range(2):
        with opened(path) as store:
            expected = [b"0", b"1", b"2"] + [b"more"] * number
            assert values_of(store, "a") == expected
            assert values_of(store, "rolled") == [b"0"]
            assert store.verify() == []
            with store.producer() as producer:
                producer.append("a", 0, [b"more"])
    assert tree(logs.path) == before
    assert linked()[0] == 2
    assert (directory / segment_name(0)).read_bytes() == segments[0]


def test_linked_segments_are_deleted_in_the_store_alone(logs, tmp_path):
    segments = {base: batch([b"%d" % base], base) for base in range(4)}
    logs.partition("gone-0", segments)
    before = tree(logs.stop())
    path = tmp_path / "store"
    old = {"gone": {"retention.ms": 1000, "segment.bytes": 1024}}
    eoslog.import_kafka(logs.path, path, link=True, topic_config=old)
    with eoslog.open(path, config={**QUIET, "eoslog.spare.segments": 4}) as store:
        parts_of(store).checkpointer.retain()
        assert store.partition("gone", 0).log_start_offset == 4
        with store.producer() as producer:
            for _ in range(9):
                producer.append("gone", partition=0, values=[b"x" * 500])
    assert tree(logs.path) == before


def test_links_are_refused_of_a_broker_that_was_killed(logs, tmp_path):
    logs.partition("a-0", batch([b"0"]))
    logs.stop(clean=False)
    refused(StoreError, "import it without links", logs, tmp_path / "store", link=True)


# The destination, and crashes.


def test_a_destination_that_is_in_the_way_is_refused(logs, tmp_path):
    logs.partition("a-0", batch([b"0"]))
    logs.stop()
    refused(StoreError, "which an import only reads", logs, logs.path / "store")
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, match in (("file", "no directory"), ("full", "not empty"), ("link", "no directory")):
        before = tree(tmp_path)
        with pytest.raises(StoreError, match=match):
            eoslog.import_kafka(logs.path, tmp_path / name)
        assert tree(tmp_path) == before
    (tmp_path / "empty").mkdir()
    eoslog.import_kafka(logs.path, tmp_path / "empty")
    with opened(tmp_path / "empty") as store:
        assert values_of(store, "a") == [b"0"]


def test_a_destination_that_fills_meanwhile_is_left_as_it_is(logs, tmp_path):
    logs.partition("a-0", batch([b"0"]))
    path = tmp_path / "store"

    def fill(*_):
        path.mkdir(exist_ok=True)
        (path / "mine").touch()

    with pytest.raises(StoreError, match="not empty: it holds 'mine'"):
        eoslog.import_kafka(logs.stop(), path, progress=fill)
    assert [one.name for one in path.iterdir()] == ["mine"]
    assert not list(tmp_path.glob(".*.eoslog-*"))


def test_a_running_broker_is_refused(logs, tmp_path):
    logs.stop()
    with locking_process(logs.path / ".lock") as process:
        assert process.stdout.readline() == "locked\n"
        refused(StoreInUseError, "a broker runs", logs, tmp_path / "store")
        process.communicate("")
    seen = []

    def try_to_start(*_):
        seen.append(try_lock(logs.path / ".lock"))

    logs.partition("a-0", batch([b"0"]))
    eoslog.import_kafka(logs.path, tmp_path / "store", progress=try_to_start)
    assert seen == ["held", "held"]


KILLED = """
import os, signal, sys
from pathlib import Path
import eoslog
at, replace = int(sys.argv[3]), Path.replace
def die(): os.kill(os.getpid(), signal.SIGKILL)
def step(done, total):
    if done == at: die()
def last(self, target):
    if str(target) == sys.argv[2] and at == 90: die()
    result = replace(self, target)
    if str(target) == sys.argv[2] and at == 91: die()
    return result
Path.replace = last
eoslog.import_kafka(sys.argv[1], sys.argv[2], progress=step)
"""


@pytest.mark.parametrize("at", [1, 2, 3, 4, 90, 91])
def test_a_killed_import_leaves_a_whole_store_or_none(logs, tmp_path, at):
    logs.partition("a-0", batch([b"0"]))
    logs.partition("a-1", batch([b"1"]))
    before = tree(logs.stop())
    path = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(logs.path), str(path), str(at)],
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    assert tree(logs.path) == before
    left = list(tmp_path.glob(".store.eoslog-*"))
    assert (len(left), path.exists()) == ((0, True) if at == 91 else (1, False))
    if left:
        shutil.rmtree(left[0])
        eoslog.import_kafka(logs.path, path)
    with opened(path) as store:
        assert not parts_of(store).files.partitions.unrecovered
        assert [values_of(store, "a", number) for number in (0, 1)] == [[b"0"], [b"1"]]
