"""Exports to Kafka: what they refuse, what they leave, and that the store stays as it is.

`tests/broker/test_export_kafka.py` starts brokers on them.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from harness.fork import die, dies_in_child
from staged_jobs import load
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import BatchEncoder, crc32c, decode_records, iter_batches
from eoslog.errors import (
    CorruptRecordError,
    ExportRefusedError,
    InvalidRequestError,
    NotAStoreError,
    StoreInUseError,
)
from eoslog.exchange import closed_store, kafka_export
from eoslog.exchange.kafka_export import export_kafka
from eoslog.fs import new_directory
from eoslog.fs.offline_log import OfflineLog
from eoslog.inspect.record_decoders import decode_offset_record, decode_transaction_record
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.state_key import state_partition_of

T0 = TopicPartition("t", 0)


def started(store: Any, transactional_id: str) -> Any:
    producer = store.producer(transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def files_below(path: Path) -> dict[str, bytes]:
    """The content of all files, without those that are only locks."""
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and one.suffix != ".lock" and one.name != "lock"
    }


@pytest.fixture
def closed(open_store, store_path):
    """A closed store with some records, a transaction and a group."""
    store = open_store()
    store.create_topic("t", partitions=2, config={"segment.bytes": 4096})
    with store.producer() as plain:
        plain.append("t", 0, [b"x" * 100] * 200)
    producer = started(store, "id")
    with producer.transaction():
        producer.send("t", b"committed", partition=1)
        producer.send_offsets_to_transaction({T0: 3}, "group")
    store.close()
    return store_path


@pytest.fixture
def left_open(open_store, store_path, tmp_path):
    """A store that was killed with an open and a prepared transaction."""
    store = open_store()
    store.create_topic("t", partitions=2)
    undecided = started(store, "undecided")
    undecided.begin_transaction()
    undecided.send("t", b"open", partition=0)
    undecided.flush()
    prepared = started(store, "prepared")
    prepared.begin_transaction()
    prepared.send("t", b"prepared", partition=1)
    prepared.send_offsets_to_transaction({T0: 1}, "group")
    prepared.prepare_transaction()
    copy_store(store_path, tmp_path / "killed")
    return tmp_path / "killed"


def records_of(logs: Path, topic: str, decode: Any) -> dict[str, Any]:
    """The newest decoded record of each key of an exported internal topic."""
    found = {}
    for directory in logs.glob(f"{topic}-*"):
        for header, batch in OfflineLog(directory).batches():
            if not header.is_control:
                for record in decode_records(batch):
                    key, value = decode(record.key, record.value)
                    found[key.text] = value
    return found


def test_the_store_stays_as_it_is(closed, tmp_path):
    before = files_below(closed)
    done = export_kafka(closed, tmp_path / "logs")
    assert files_below(closed) == before
    assert (done.topics, done.partitions, done.groups, done.transactional_ids) == (1, 2, 1, 1)
    assert done.path == tmp_path / "logs"
    assert f"log.dirs={tmp_path / 'logs'}\n" in done.server_properties
    assert sorted(one.name for one in tmp_path.iterdir()) == ["logs", "store"]
    assert eoslog.export_kafka is export_kafka


def test_the_partitions_are_those_of_the_store_and_kafkas_files_alone(closed, tmp_path):
    export_kafka(closed, tmp_path / "logs", node_id=5)
    logs = tmp_path / "logs"
    for number in (0, 1):
        for one in (logs / f"t-{number}").iterdir():
            if one.name != "leader-epoch-checkpoint":
                assert one.read_bytes() == (closed / f"t-{number}" / one.name).read_bytes()
        end = OfflineLog(logs / f"t-{number}").end_offset
        assert (logs / f"t-{number}" / f"{end:020}.snapshot").exists()
    directories = {one.name for one in logs.iterdir() if one.is_dir()}
    assert directories == {
        "t-0",
        "t-1",
        *(f"__consumer_offsets-{number}" for number in range(50)),
        *(f"__transaction_state-{number}" for number in range(50)),
    }
    assert "node.id=5\n" in (logs / "meta.properties").read_text()
    with pytest.raises(NotAStoreError):
        eoslog.open(logs)


def test_internal_topics_have_what_holds_and_nothing_of_the_stores_own(
    open_store, store_path, tmp_path
):
    store = open_store()
    store.create_topic("t", partitions=2)
    with store.producer(name="named") as named:
        named.append("t", 0, [b"named"])
    producer = started(store, "id")
    for number in range(5):
        with producer.transaction():
            producer.send("t", b"", partition=0)
            producer.send_offsets_to_transaction({T0: number}, "group")
    load(store, "job", {("t", 1): [b"staged"]})
    with store.consumer(group="members") as consumer:
        consumer.subscribe(["t"])
        consumer.poll(timeout=0)
        generation = parts_of(store).files.group_members.describe("members").generation
        consumer.commit({T0: 2})
        abandon(store)
    done = export_kafka(store_path, tmp_path / "logs")
    states = records_of(tmp_path / "logs", "__transaction_state", decode_transaction_record)
    assert [value["data"]["transactionStatus"] for value in states.values()] == ["CompleteCommit"]
    offsets = records_of(tmp_path / "logs", "__consumer_offsets", decode_offset_record)
    assert {
        key: value["data"].get("offset", value["data"].get("generation"))
        for key, value in offsets.items()
    } == {
        '{"type":"1","data":{"group":"group","topic":"t","partition":0}}': 4,
        '{"type":"2","data":{"group":"group"}}': 0,
        '{"type":"1","data":{"group":"members","topic":"t","partition":0}}': 2,
        '{"type":"2","data":{"group":"members"}}': generation,
    }
    members = offsets['{"type":"2","data":{"group":"members"}}']["data"]
    assert generation > 0
    assert members["members"] == []
    assert any("named" in note for note in done.notes)
    # Nor is there a group by the name of a staged job, which committed no offset.
    assert done.groups == 2


def test_open_transactions_are_refused_by_name(left_open, tmp_path):
    with pytest.raises(ExportRefusedError) as refused:
        export_kafka(left_open, tmp_path / "logs")
    for words in ("'undecided' (open): t-0 from offset 0", "'prepared' (prepared): ", "t-1 from"):
        assert words in str(refused.value)
    assert not (tmp_path / "logs").exists()
    assert not list(tmp_path.glob(".logs*"))


def test_a_prepared_transaction_is_not_aborted(left_open, tmp_path):
    with pytest.raises(ExportRefusedError, match=r"1 in all: 'prepared' "):
        export_kafka(left_open, tmp_path / "logs", open_transactions="abort")


def test_open_transactions_are_aborted_if_asked_for(left_open, tmp_path):
    with eoslog.open(left_open) as store:  # Which aborts the open one.
        producer = store.producer(transactional_id="prepared")
        store.abort_transaction("prepared")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"again", partition=1)
        producer.flush()
        copy_store(left_open, tmp_path / "once-more")
    done = export_kafka(tmp_path / "once-more", tmp_path / "logs", open_transactions="abort")
    assert [one.transactional_id for one in done.aborted] == ["prepared"]
    *_, (header, _) = OfflineLog(tmp_path / "logs" / "t-1").batches()
    assert header.is_control


def test_kept_transactions_stay_open_and_their_offsets_pending(left_open, tmp_path):
    done = export_kafka(left_open, tmp_path / "logs", open_transactions="keep")
    assert [(one.transactional_id, one.prepared) for one in done.kept] == [
        ("prepared", True),
        ("undecided", False),
    ]
    for number in (0, 1):
        [(header, _)] = OfflineLog(tmp_path / "logs" / f"t-{number}").batches()
        assert header.is_transactional
    states = records_of(tmp_path / "logs", "__transaction_state", decode_transaction_record)
    assert {one["data"]["transactionStatus"] for one in states.values()} == {"Ongoing"}
    transactional = [
        header.producer_id
        for directory in (tmp_path / "logs").glob("__consumer_offsets-*")
        for header, _ in OfflineLog(directory).batches()
        if header.is_transactional
    ]
    assert transactional == [done.kept[0].producer_id]


def test_staged_files_without_a_decision_are_named(closed, tmp_path):
    (closed / "staging" / "nightly" / "run" / "attempt").mkdir(parents=True)
    done = export_kafka(closed, tmp_path / "logs")
    assert any("nightly" in note for note in done.notes)


@pytest.mark.parametrize(
    "lost", ["t-0/*.log", "__consumer_offsets-*/*.log", "__consumer_offsets-*"]
)
def test_a_store_that_lost_records_is_not_exported_as_whole(closed, tmp_path, lost):
    for path in closed.glob(lost):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(CorruptRecordError):
        export_kafka(closed, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_a_store_in_use_is_refused(open_store, store_path, tmp_path):
    store = open_store()
    with pytest.raises(StoreInUseError):
        export_kafka(store_path, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    store.close()


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(NotAStoreError):
        export_kafka(tmp_path / "other", tmp_path / "logs")
    assert [one.name for one in tmp_path.iterdir()] == ["other"]
    assert not list((tmp_path / "other").iterdir())


def test_a_destination_that_holds_something_is_refused(closed, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine").touch()
    with pytest.raises(ExportRefusedError, match="not empty: it holds 'mine'"):
        export_kafka(closed, tmp_path / "logs")
    with pytest.raises(ExportRefusedError, match="no directory"):
        export_kafka(closed, tmp_path / "logs" / "mine")
    (tmp_path / "logs" / "mine").unlink()
    export_kafka(closed, tmp_path / "logs")


@pytest.mark.parametrize("destination", ["store", "store/logs", "."])
def test_store_and_destination_are_not_in_one_another(closed, tmp_path, destination):
    with pytest.raises(InvalidRequestError, match="must not contain each other"):
        export_kafka(closed, tmp_path / destination)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"open_transactions": "commit"}, InvalidRequestError),
        ({"node_id": -1}, InvalidRequestError),
        ({"node_id": "1"}, TypeError),
        ({"config": {"nonsense": 1}}, eoslog.errors.InvalidConfigError),
    ],
)
def test_wrong_arguments_are_refused(closed, tmp_path, options, error):
    with pytest.raises(error):
        export_kafka(closed, tmp_path / "logs", **options)
    assert [one.name for one in tmp_path.iterdir()] == ["store"]


def test_a_topic_with_the_name_of_the_brokers_own_log_is_refused(closed, tmp_path):
    with eoslog.open(closed) as store:
        store.create_topic("__cluster_metadata")
    with pytest.raises(ExportRefusedError, match="topic __cluster_metadata"):
        export_kafka(closed, tmp_path / "logs")
    assert [one.name for one in tmp_path.glob("*logs*")] == []


def test_the_defaults_of_the_store_are_settings_of_its_topics(closed, tmp_path):
    export_kafka(closed, tmp_path / "logs", config={"log.retention.ms": 5000})
    assert b"retention.ms\x055000" in (tmp_path / "logs" / "bootstrap.checkpoint").read_bytes()


STEPS = [
    (closed_store, "copy_store"),
    (kafka_export, "opened_parts"),
    (kafka_export, "write_internal_topics"),
    (kafka_export, "write_top_files"),
    (new_directory, "sync_file_system"),
    (new_directory, "check_free"),
]
STEP_NAMES = [name for _, name in STEPS]


@pytest.mark.parametrize(("module", "step"), STEPS, ids=STEP_NAMES)
def test_a_killed_export_leaves_its_temporary_directory_alone(
    closed, tmp_path, monkeypatch, module, step
):
    before = files_below(closed)
    work = getattr(module, step)
    calls = []

    def then_die(*arguments, **named):
        result = work(*arguments, **named)
        calls.append(step)
        if step != "check_free" or len(calls) == 2:
            die()
        return result

    monkeypatch.setattr(module, step, then_die)
    assert dies_in_child(lambda: export_kafka(closed, tmp_path / "logs").topics)
    assert files_below(closed) == before
    left = [one for one in tmp_path.iterdir() if one.name != "store"]
    assert [one.name.startswith(".logs.eoslog-") for one in left] == [True]
    monkeypatch.undo()
    shutil.rmtree(left[0])
    export_kafka(closed, tmp_path / "logs")


@pytest.mark.parametrize(("module", "step"), STEPS, ids=STEP_NAMES)
def test_a_failed_export_leaves_nothing(closed, tmp_path, monkeypatch, module, step):
    def fail(*arguments, **named):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, step, fail)
    with pytest.raises((eoslog.errors.StoreError, OSError)):
        export_kafka(closed, tmp_path / "logs")
    assert [one.name for one in tmp_path.iterdir()] == ["store"]


# Links.


def linked_files(path: Path) -> list[str]:
    return sorted(one.name for one in path.rglob("*.log") if one.stat().st_nlink > 1)


def test_sealed_segments_are_linked(closed, tmp_path):
    export_kafka(closed, tmp_path / "logs", link=True)
    segments = [one.name for one in OfflineLog(closed / "t-0").segments]
    assert len(segments) > 2
    assert linked_files(tmp_path / "logs") == segments[:-1]
    for name in segments:
        exported = tmp_path / "logs" / "t-0" / name
        assert exported.read_bytes() == (closed / "t-0" / name).read_bytes()


def test_nothing_is_linked_of_a_store_that_was_not_closed(left_open, tmp_path):
    with eoslog.open(left_open) as store:
        store.create_topic("many", config={"segment.bytes": 4096})
        store.abort_transaction("prepared")
        with store.producer() as producer:
            producer.append("many", 0, [b"x" * 100] * 200)
        copy_store(left_open, tmp_path / "killed-again")
    export_kafka(tmp_path / "killed-again", tmp_path / "logs", link=True)
    assert linked_files(tmp_path / "logs") == []


def test_a_linked_segment_is_not_used_again_by_the_store(closed, tmp_path):
    export_kafka(closed, tmp_path / "logs", link=True)
    before = files_below(tmp_path / "logs")
    with eoslog.open(closed, durability="process") as store:
        partition = engine_of(store).partition("t", 0)
        assert partition.delete_segments(partition.active_base_offset) > 1
        with store.producer() as producer:
            producer.append("t", 0, [b"y" * 100] * 500)
        partition.prepare_spare()
        partition.log.free_deleted()
    assert files_below(tmp_path / "logs") == before


def test_a_log_that_is_cut_back_leaves_linked_segments_whole(closed, tmp_path):
    export_kafka(closed, tmp_path / "logs", link=True)
    before = files_below(tmp_path / "logs")
    store = eoslog.open(closed, durability="process")
    partition = engine_of(store).partition("t", 0)
    partition.log.truncate(5)  # Within the first batch.
    partition.append_columns([b"y" * 100] * 100)
    abandon(store)
    with eoslog.open(closed) as store:
        assert store.partition("t", 0).log_end_offset == 100
    assert files_below(tmp_path / "logs") == before


def test_an_export_of_a_store_with_links_does_not_write_to_them(closed, tmp_path):
    export_kafka(closed, tmp_path / "logs", link=True)
    before = files_below(tmp_path / "logs")
    export_kafka(closed, tmp_path / "again", link=True)
    assert files_below(tmp_path / "logs") == before
    assert files_below(tmp_path / "again").keys() == before.keys()


def test_each_partition_has_a_snapshot_at_its_end(closed, tmp_path):
    for snapshot in closed.glob("*/*.snapshot"):
        snapshot.unlink()
    export_kafka(closed, tmp_path / "logs")
    assert (tmp_path / "logs" / "t-0" / f"{200:020}.snapshot").exists()


def test_the_leaders_epoch_is_that_of_the_highest_marker(open_store, store_path, tmp_path):
    store = open_store()
    store.create_topic("t")
    producer = started(store, "id")
    with producer.transaction():
        producer.send("t", b"1")
    [state] = store.partition("t", 0).producers()
    engine_of(store).partition("t", 0).append_marker(
        state.producer_id, state.producer_epoch + 1, 5, True
    )
    store.close()
    export_kafka(store_path, tmp_path / "logs")
    assert leader_epoch_of(tmp_path / "logs") == 5


def leader_epoch_of(logs):
    """The leaders' epoch that all partitions of a directory begin with."""
    content = (logs / "bootstrap.checkpoint").read_bytes()
    epochs = [
        int.from_bytes(record.value[39:43], "big")
        for header in iter_batches(content)
        for record in decode_records(content[header.position_bytes :][: header.batch_bytes])
        if record.value[:3] == b"\1\3\1"  # A partition.
    ]
    assert len(epochs) > 100
    [epoch] = set(epochs)
    return epoch


def test_the_leaders_epoch_is_that_of_the_highest_batch(closed, tmp_path):
    *_, segment = OfflineLog(closed / "t-0").segments[:-1]
    content = bytearray(segment.read_bytes())
    content[12:16] = (9).to_bytes(4, "big")  # No checksum covers it.
    segment.write_bytes(content)
    with eoslog.open(closed) as store:
        assert engine_of(store).partition("t", 0).log.highest_leader_epoch() == 9
        assert engine_of(store).partition("t", 1).log.highest_leader_epoch() == 0
    export_kafka(closed, tmp_path / "logs")
    assert leader_epoch_of(tmp_path / "logs") == 9
    assert (tmp_path / "logs" / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_the_leaders_epoch_is_that_of_the_highest_committed_offset(closed, tmp_path):
    with eoslog.open(closed) as store, store.consumer(group="g") as consumer:
        consumer.commit({T0: eoslog.OffsetAndMetadata(3, leader_epoch=4)})
    export_kafka(closed, tmp_path / "logs")
    assert leader_epoch_of(tmp_path / "logs") == 4


def test_an_error_names_the_file_of_the_store(closed, tmp_path):
    (closed / "t-0" / "partition.metadata").write_text("not one")
    with pytest.raises(CorruptRecordError) as found:
        export_kafka(closed, tmp_path / "logs")
    assert found.value.path == str(closed / "t-0" / "partition.metadata")
    assert found.value.path in str(found.value)
    assert ".logs.eoslog-" not in str(found.value)
    assert [one.name for one in tmp_path.iterdir()] == ["store"]


def test_progress_is_called_with_the_bytes_that_were_copied(closed, tmp_path):
    calls = []
    export_kafka(closed, tmp_path / "logs", progress=lambda *call: calls.append(call))
    done, total = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert {done[-1]} == set(total)
    with pytest.raises(TypeError):
        export_kafka(closed, tmp_path / "again", progress=5)


def test_a_transaction_that_nothing_ends_is_named(closed, tmp_path):
    with eoslog.open(closed, durability="process") as store:
        batch = BatchEncoder().encode_columns(
            [b"x"], timestamp_ms=1, producer_id=2**50, producer_epoch=0, base_sequence=0
        )
        hanging = bytearray(batch)
        hanging[22] |= 0x10  # Transactional.
        hanging[17:21] = crc32c(bytes(hanging[21:])).to_bytes(4, "big")
        offset = store.partition("t", 1).append_batch(bytes(hanging), verified=True).base_offset
    done = export_kafka(closed, tmp_path / "logs")
    assert [note for note in done.notes if f"open from offset {offset}" in note]


def test_groups_of_kinds_that_only_kafka_has_stay_as_they_are(closed, tmp_path):
    def key(record_type, group):
        return struct.pack(">hh", record_type, len(group)) + group.encode()

    epoch = b"\0\0" + struct.pack(">i", 7) + b"\0"  # Of a group of the consumer protocol.
    connect = b"\0\3" + struct.pack(">h7s", 7, b"connect") + struct.pack(">ihhqi", 2, -1, -1, 0, 0)
    with eoslog.open(closed) as store:
        store.consumer(group="new").commit({T0: 2})
        partitions = parts_of(store).files.partitions
        for group, record_type, value in (("new", 3, epoch), ("workers", 2, connect)):
            partition = partitions.offsets_partition(state_partition_of(group))
            partition.append_columns([b"older", value], [key(record_type, group)] * 2)
            partition.append_columns([value, None], [key(record_type, f"gone-{group}")] * 2)
    export_kafka(closed, tmp_path / "logs")
    found = {}
    for directory in (tmp_path / "logs").glob("__consumer_offsets-*"):
        for header, batch in OfflineLog(directory).batches():
            if not header.is_control:
                found.update((one.key, one.value) for one in decode_records(batch))
    assert found[key(3, "new")] == epoch
    assert found[key(2, "workers")] == connect
    assert key(2, "new") not in found  # The coordinator would not load a group of both kinds.
    assert key(1, "new") + struct.pack(">h1si", 1, b"t", 0) in found
    assert key(2, "group") in found
    assert not [one for one in found if b"gone" in one]
