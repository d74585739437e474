"""The log directories of a broker: what is found, what is left out, what is refused, the lock."""

from pathlib import Path

import pytest
from broker_directory import (
    CLUSTER_ID,
    BrokerDirectory,
    locking_process,
    topic_id,
    try_lock,
)

from eoslog import TopicPartition
from eoslog.errors import CorruptRecordError, StoreError, StoreInUseError
from eoslog.exchange.broker_logs import BrokerLogs

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def logs(tmp_path):
    return BrokerDirectory(tmp_path / "logs")


def test_partitions_with_their_ids_and_checkpoints(logs, tmp_path):
    logs.partition("a-0", end=7, start=3)
    other = BrokerDirectory(tmp_path / "other")
    other.partition("b-0")
    other.metadata()
    paths = [logs.stop(), other.stop(clean=False)]
    with BrokerLogs(paths) as found:
        assert (found.cluster_id, found.node_id) == (CLUSTER_ID, 1)
        assert found.partitions.keys() == {A0, B0}
        a0 = found.partitions[A0]
        assert (a0.path, a0.topic_id) == (logs.path / "a-0", topic_id("a"))
        assert (a0.log_start_offset, a0.recovery_point, a0.was_closed) == (3, 7, True)
        assert not found.partitions[B0].was_closed
        assert found.metadata == other.path / "__cluster_metadata-0"
        assert (found.unclean, found.left_out) == ([other.path], [])


def test_what_is_no_partition_is_named(logs):
    digits = "0123456789abcdef0123456789abcdef"
    for change in ("delete", "stray", "future"):
        (logs.path / f"a-0.{digits}-{change}").mkdir()
    for name in ("remote-log-index-cache", "a", "a-01", "b%-0"):
        (logs.path / name).mkdir()
    (logs.path / "c-0").write_text("a file")
    # A topic's name may look like that of a deleted one.
    logs.partition(f"a.{digits}-delete-0")
    with BrokerLogs([logs.stop()]) as found:
        reasons = {Path(what).name: reason for what, reason in found.left_out}
        assert reasons.pop(f"a-0.{digits}-delete") == "its topic was deleted"
        assert reasons.pop(f"a-0.{digits}-stray") == "the broker did not know its topic"
        assert "not complete" in reasons.pop(f"a-0.{digits}-future")
        assert reasons == dict.fromkeys(
            ("a", "a-01", "b%-0", "c-0", "remote-log-index-cache"),
            "not a partition's directory",
        )
        assert len(found.partitions) == 1


def test_a_running_brokers_directory_is_refused_and_left_as_it_is(logs):
    logs.stop(clean=False)
    with locking_process(logs.path / ".lock") as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(StoreInUseError, match=r"a broker runs on .*stop it first"):
            BrokerLogs([logs.path]).__enter__()
        process.communicate("")


def test_no_broker_starts_while_the_directories_are_read(logs, tmp_path):
    other = BrokerDirectory(tmp_path / "other")
    locks = [one.stop() / ".lock" for one in (logs, other)]
    with BrokerLogs([logs.path, other.path]):
        assert [try_lock(lock) for lock in locks] == ["held", "held"]
        with BrokerLogs([logs.path]):
            pass  # Another reader is in nobody's way.
    assert [try_lock(lock) for lock in locks] == ["locked", "locked"]


def test_the_locks_are_free_after_a_refusal(logs, tmp_path):
    logs.stop()
    with pytest.raises(StoreError):
        BrokerLogs([logs.path, tmp_path]).__enter__()
    assert try_lock(logs.path / ".lock") == "locked"


def test_a_copy_without_a_lock_file_gets_none(logs):
    logs.stop()
    (logs.path / ".lock").unlink()
    with BrokerLogs([logs.path]):
        assert not (logs.path / ".lock").exists()


def refused(error, match, *paths):
    with pytest.raises(error, match=match):
        BrokerLogs(paths).__enter__()


def test_what_is_no_brokers_directory_is_refused_by_name(logs, tmp_path):
    import eoslog

    path = logs.stop()
    refused(StoreError, "nothing is no log directory .*there is no such", tmp_path / "nothing")
    refused(StoreError, "it has no meta.properties", tmp_path)
    with eoslog.open(tmp_path / "store", create=True):
        pass
    refused(StoreError, "is a store of eoslog", tmp_path / "store")
    (tmp_path / "again").symlink_to(path)
    refused(StoreError, "given twice", path, tmp_path / "again")
    properties = path / "meta.properties"
    for text, match in (
        ("version=2\n", "version '2'; known are 0 and 1"),
        ("version=1\nnode.id=1\n", "it has no cluster.id"),
        ("version=1\ncluster.id=x\nnode.id=one\n", "node.id='one' is not a number"),
    ):
        properties.write_text(text)
        refused((StoreError, CorruptRecordError), match, path)
    properties.write_bytes(b"\xff\xff")
    refused(CorruptRecordError, "not UTF-8", path)


def test_a_directory_from_the_time_of_zookeeper(logs):
    (logs.path / "meta.properties").write_text(f"version=0\nbroker.id=4\ncluster.id={CLUSTER_ID}\n")
    logs.partition("a-0")
    with BrokerLogs([logs.stop()]) as found:
        assert (found.node_id, len(found.partitions)) == (4, 1)
    (logs.path / "a-0" / "partition.metadata").unlink()
    refused(StoreError, r"a-0 has no partition\.metadata.*2\.8", logs.path)


@pytest.mark.parametrize("fields", [{"node": 2}, {"cluster": "BAAAAAAAAAAAAAAAAAAAAQ"}])
def test_directories_of_two_brokers_are_refused(logs, tmp_path, fields):
    other = BrokerDirectory(tmp_path / "other", **fields)
    refused(StoreError, "belongs to node .*one broker at a time", logs.stop(), other.stop())


@pytest.mark.parametrize("name", ["a-0", "__cluster_metadata-0"])
def test_two_directories_of_one_partition_are_refused(logs, tmp_path, name):
    other = BrokerDirectory(tmp_path / "other")
    for one in (logs, other):
        if name == "a-0":
            one.partition(name)
        else:
            one.metadata()
    refused(StoreError, f"{name} is there twice", logs.stop(), other.stop())


def test_damaged_files_are_named(logs):
    logs.partition("a-0")
    path = logs.stop()
    (path / "log-start-offset-checkpoint").write_text("0\n5\na 0 1\n")
    refused(CorruptRecordError, "log-start-offset-checkpoint", path)
    logs.stop()
    (path / "a-0" / "partition.metadata").write_text("version: 1\n")
    refused(CorruptRecordError, r"partition\.metadata", path)


def test_segments_that_were_just_being_replaced_are_refused(logs):
    directory = logs.partition("a-0")
    (directory / f"{0:020d}.log.cleaned").touch()
    with BrokerLogs([logs.stop()]):
        pass  # What the cleaner had not finished; the segments are there.
    (directory / f"{0:020d}.log.swap").touch()
    refused(StoreError, r"log\.swap: the broker was killed", logs.path)
