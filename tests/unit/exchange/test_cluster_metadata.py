"""The metadata of a cluster: records, transactions, snapshots; and bytes that are no metadata."""

import random
import shutil
from pathlib import Path

import pytest
from broker_directory import (
    ABORT,
    BEGIN,
    END,
    NO_OP,
    OF_BROKER,
    OF_TOPIC,
    BrokerDirectory,
    batch,
    change_record,
    config_record,
    control_batch,
    framed,
    partition_record,
    remove_record,
    snapshot,
    topic_id,
    topic_record,
)
from reference_model import batch_codec

from eoslog.errors import CorruptRecordError
from eoslog.exchange.cluster_metadata import ClusterMetadata, Resource, read_cluster_metadata

GOLDEN = Path(__file__).parent / "golden" / "cluster_metadata_4_4_0"
OTHER_ID = topic_id("other")


def replayed(*values):
    metadata = ClusterMetadata()
    for value in values:
        metadata.replay(value)
    return metadata


def test_topics_partitions_and_settings():
    metadata = replayed(
        topic_record("a"),
        partition_record("a", 0),
        partition_record("a", 1, 2, 3),
        config_record(OF_TOPIC, "a", "retention.ms", "5"),
        config_record(OF_TOPIC, "a", "segment.ms", "6"),
        config_record(OF_TOPIC, "a", "retention.ms", None),
        config_record(OF_BROKER, "", "log.segment.bytes", "7"),
        change_record("a", 0, 4, 5, 6),
    )
    topic = metadata.topics["a"]
    assert (topic.topic_id, topic.replicas) == (topic_id("a"), {0: (4, 5, 6), 1: (2, 3)})
    assert metadata.settings == {
        Resource(OF_TOPIC, "a"): {"segment.ms": "6"},
        Resource(OF_BROKER, ""): {"log.segment.bytes": "7"},
    }


def test_a_topic_that_is_created_again_has_nothing_of_the_one_before():
    metadata = replayed(
        topic_record("a"),
        partition_record("a", 0),
        partition_record("a", 1),
        config_record(OF_TOPIC, "a", "retention.ms", "5"),
        remove_record("a"),
        topic_record("a", OTHER_ID),
        partition_record("a", 0, of=OTHER_ID),
    )
    assert metadata.topics["a"].topic_id == OTHER_ID
    assert metadata.topics["a"].replicas == {0: (1,)}
    assert metadata.settings == {}


def test_a_setting_that_is_removed_twice():
    value = config_record(OF_TOPIC, "a", "retention.ms", None)
    assert replayed(value, value).settings == {}


@pytest.mark.parametrize(("end", "names"), [(END, {"a", "b"}), (ABORT, {"a"}), (None, {"a"})])
def test_records_of_a_transaction_count_when_it_has_ended(end, names):
    ends = [] if end is None else [framed(end, b"")]
    metadata = replayed(topic_record("a"), framed(BEGIN, b""), topic_record("b"), *ends)
    assert set(metadata.topics) == names


@pytest.mark.parametrize(
    "value", [framed(NO_OP, b""), framed(12, b"\4abc"), framed(999, b"anything"), framed(0, b"")]
)
def test_records_of_other_types_are_passed_over(value):
    assert replayed(topic_record("a"), value, topic_record("b")).topics.keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([b""], "the record ends within its frame version"),
        ([b"\2\2\0"], "frame version 2, known is 1"),
        ([framed(2, b"", version=1)], "version 1 of record type 2, known up to 0"),
        ([framed(3, b"", version=3)], "version 3 of record type 3, known up to 2"),
        ([topic_record("a")[:-1]], "ends within its count of tagged fields"),
        ([topic_record("a")[:9]], "ends within its topic id"),
        ([topic_record("a") + b"x"], "1 bytes follow the record"),
        ([topic_record("a"), topic_record("a", OTHER_ID)], "topic a is there already"),
        ([partition_record("a", 0)], "is of no topic"),
        ([remove_record("a")], "is of no topic"),
        ([topic_record("a"), change_record("a", 0, 1)], "a-0 changes, and is not there"),
        ([framed(END, b"")], "a transaction ends that did not begin"),
        ([framed(BEGIN, b""), framed(BEGIN, b"")], "begins within another one"),
        ([config_record(2, "a", "n", "v")[:-2] + b"\xff\0"], "not UTF-8"),
    ],
)
def test_records_that_are_none_are_named(tmp_path, values, reason):
    with pytest.raises(CorruptRecordError, match=reason):
        replayed(*values)
    directory = BrokerDirectory(tmp_path / "logs").metadata(*values)
    with pytest.raises(CorruptRecordError, match=f"the record at offset {len(values)} .*{reason}"):
        read_cluster_metadata(directory)


def test_the_newest_snapshot_and_the_log_after_it(tmp_path):
    logs = BrokerDirectory(tmp_path / "logs")
    records = [topic_record("a"), partition_record("a", 0)]
    directory = logs.metadata(topic_record("b"), from_offset=40, of_snapshot=snapshot(records))
    older = directory / f"{7:020d}-0000000009.checkpoint"
    older.write_bytes(snapshot([topic_record("old")]))
    for name in ("00000000000000000050-0000000001.checkpoint.part", "quorum-state", "x.deleted"):
        (directory / name).write_bytes(b"another file")
    assert read_cluster_metadata(directory).topics.keys() == {"a", "b"}


def test_records_of_the_log_that_the_snapshot_has_are_not_read_again(tmp_path):
    directory = BrokerDirectory(tmp_path / "logs").metadata(topic_record("a"), topic_record("b"))
    # Below offset 2 is the first topic.
    path = directory / f"{2:020d}-0000000001.checkpoint"
    path.write_bytes(snapshot([topic_record("a")]))
    assert read_cluster_metadata(directory).topics.keys() == {"a", "b"}


def test_a_log_without_the_snapshot_before_it_is_named(tmp_path):
    directory = BrokerDirectory(tmp_path / "logs").metadata(topic_record("a"), from_offset=40)
    with pytest.raises(CorruptRecordError, match="begins at offset 40, and no snapshot"):
        read_cluster_metadata(directory)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100, snapshot([topic_record("a")], whole=False), control_batch(4, 0)],
)
def test_a_snapshot_that_is_not_whole_is_named(tmp_path, data):
    directory = BrokerDirectory(tmp_path / "logs").metadata()
    path = directory / f"{9:020d}-0000000001.checkpoint"
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        read_cluster_metadata(directory)
    assert caught.value.path == str(path)


def copied(tmp_path, *patterns):
    target = tmp_path / "__cluster_metadata-0"
    target.mkdir()
    for pattern in patterns:
        for path in GOLDEN.glob(pattern):
            shutil.copy(path, target)
    return target


@pytest.mark.parametrize("patterns", [("*.log",), ("*",), ("*.log", "*19-*"), ("*.log", "*33-*")])
def test_what_a_broker_wrote(tmp_path, patterns):
    metadata = read_cluster_metadata(copied(tmp_path, *patterns))
    assert {name: topic.replicas for name, topic in metadata.topics.items()} == {
        "orders": {0: (1,), 1: (1,)},
        "again": {0: (1,)},
        "last": {0: (1,)},
    }
    assert metadata.settings == {
        Resource(OF_BROKER, ""): {"min.insync.replicas": "1"},
        # A third one was deleted, and those of `again` went with the first topic of that name.
        Resource(OF_TOPIC, "orders"): {
            "cleanup.policy": "compact",
            "max.message.bytes": "2000000",
        },
        Resource(OF_TOPIC, "last"): {"segment.ms": "70000"},
    }


def test_a_torn_log_is_refused_and_a_missing_end_is_not_taken_for_one(tmp_path):
    directory = copied(tmp_path, "*.log")
    [path] = directory.glob("*.log")
    data = path.read_bytes()
    ends = {one.position_bytes for one in batch_codec.whole_batches(data)} | {len(data)}
    for cut in random.Random(1).sample(range(1, len(data)), 60) + sorted(ends):
        path.write_bytes(data[:cut])
        # Of a batch that has no more than the zeros of its offset nothing is there.
        if cut in ends or not data[max(end for end in ends if end < cut) : cut].strip(b"\0"):
            read_cluster_metadata(directory)
        else:
            with pytest.raises(CorruptRecordError, match="metadata are torn"):
                read_cluster_metadata(directory)
    path.write_bytes(data + b"\0" * 5000)
    assert "last" in read_cluster_metadata(directory).topics


@pytest.mark.parametrize("pattern", ["*.log", "*33-*"])
def test_a_flipped_bit_is_found(tmp_path, pattern):
    directory = copied(tmp_path, "*")
    [path] = directory.glob(pattern)
    data = path.read_bytes()
    good = read_cluster_metadata(directory)
    for bit in random.Random(2).sample(range(8 * len(data)), 200):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read_cluster_metadata(directory)
        except CorruptRecordError:
            continue
        # No checksum covers the base offset and the leader's epoch.
        assert found == good


def test_records_in_a_compressed_batch_are_refused(tmp_path):
    from eoslog.errors import UnsupportedCompressionTypeError

    directory = BrokerDirectory(tmp_path / "logs").metadata()
    [path] = directory.glob("*.log")
    packed = batch_codec.compress_batch(batch([topic_record("a")], 1), 4)
    path.write_bytes(path.read_bytes() + packed)
    with pytest.raises(UnsupportedCompressionTypeError):
        read_cluster_metadata(directory)
