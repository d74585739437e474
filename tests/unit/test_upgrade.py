"""A store that an older version wrote is upgraded by the first opening."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from staged_jobs import STAGED_PRODUCER_ID_MIN, quick_directory
from store_copies import copy_store

import eoslog
from eoslog import OffsetAndMetadata, TopicPartition, upgrade
from eoslog.bindings.record_batch import crc32c, iter_batches
from eoslog.common import clock
from eoslog.errors import (
    CorruptRecordError,
    InvalidTxnStateError,
    StagedJobIncompleteError,
    StoreFullError,
    StoreVersionError,
)
from eoslog.fs import atomic_file
from eoslog.groups import offsets as group_offsets
from eoslog.groups.log import GroupPartition
from eoslog.groups.offsets import GroupOffsets
from eoslog.storage.lmdb_environment import LmdbEnvironment
from eoslog.storage.topics_file import read_entries
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_index import StateIndex
from eoslog.transactions.state_key import APPLICATION

# Three lives of a store. Each one commits a version of the staged jobs `bulk` and `nightly` with
# offsets, one transaction with an offset, and one offset by hand; between the second and the third
# a group with staged offsets is deleted. The last one leaves a prepared transaction with an offset.
OF_0_1_0 = Path(__file__).parents[1] / "format" / "golden" / "store_0_1_0.tar.gz"
ORDERS = TopicPartition("orders", 0)
VERSIONS = TopicPartition("eoslog-version", 0)
STAGED_BATCHES = 3 * 3  # Of `bulk` for two groups, of `nightly` for one; each in its own partition.
# The files of a version between 0.1.0 and this one.
IN_LOG = {"version": 2, "topics": "topics.log"}
LINES = [
    b"{}\t297bd0aa\n",
    b'{"a":{"partitions":1,"topic_id":"DkLaBYPjQQOlLM5HLGoVAA","config":{},'
    b'"created_ms":1795965999543},"b":{"partitions":2,"topic_id":"6yYUBWvdTXi4p0d1z8ngKQ",'
    b'"config":{"segment.bytes":4096},"created_ms":1795965999543}}\t49c76151\n',
    b'{"c":{"partitions":1,"topic_id":"b6TDPj6zR8uMVnBRcfQD2g","config":{},'
    b'"created_ms":1795965999553}}\t584c3472\n',
    b'{"b":{"partitions":2,"topic_id":"6yYUBWvdTXi4p0d1z8ngKQ","config":{"segment.bytes":4096},'
    b'"created_ms":1795965999543,"deleting":true}}\t0f8973e0\n',
    b'{"c":{"partitions":1,"topic_id":"b6TDPj6zR8uMVnBRcfQD2g","config":{},'
    b'"created_ms":1795965999553,"holes_below":{"0":7}}}\tec7b18c2\n',
    b'{"a":null}\t7b5625c7\n',
]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with quick_directory(tmp_path) as directory:
        with tarfile.open(OF_0_1_0) as archive:
            archive.extractall(directory, filter="data")
        yield directory / "store"


def batches(store: Any) -> dict[int, list[tuple[int, bool, bool]]]:
    """By partition of the groups' log: producer id, transactional, control; of each batch."""
    found = {}
    for groups in parts_of(store).files.group_offsets.log.existing():
        data = groups.partition.read(0, 1 << 20)
        found[groups.number] = [
            (one.producer_id, one.is_transactional, one.is_control) for one in iter_batches(data)
        ]
    return found


def check_marked(store: Any, count: int) -> None:
    """So many batches of staged jobs, each with one marker after it, and no transaction left."""
    staged = [
        (producer_id, is_control)
        for one in batches(store).values()
        for producer_id, _, is_control in one
        if producer_id >= STAGED_PRODUCER_ID_MIN
    ]
    data = [producer_id for producer_id, is_control in staged if not is_control]
    markers = [producer_id for producer_id, is_control in staged if is_control]
    assert len(data) == len(set(data)) == count
    assert sorted(markers) == sorted(data)
    assert all(staged.index((one, False)) < staged.index((one, True)) for one in data)


def check_upgraded(store: Any) -> None:
    check_marked(store, STAGED_BATCHES)
    assert store.groups() == {
        "bulk": {ORDERS: OffsetAndMetadata(2), VERSIONS: OffsetAndMetadata(2)},
        "nightly": {VERSIONS: OffsetAndMetadata(2)},
        "overtaken-group": {ORDERS: OffsetAndMetadata(3, "by hand")},
        "prepared-group": {},
        "staged-group": {ORDERS: OffsetAndMetadata(4)},
        "transactional-group": {ORDERS: OffsetAndMetadata(3)},
    }
    for groups in parts_of(store).files.group_offsets.log.existing():
        with parts_of(store).files.group_offsets.log.caught_up(groups) as state:
            assert list(state.keys_of_topic(VERSIONS.topic)) == []
    assert store.describe_group("nightly").state == "Empty"
    assert store.verify() == []


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_store_of_0_1_0_is_upgraded_once(path, was_clean):
    if not was_clean:
        (path / ".kafka_cleanshutdown").unlink()
    with eoslog.open(path) as store:
        check_upgraded(store)
        written = batches(store)
    with eoslog.open(path) as store:
        check_upgraded(store)
        assert batches(store) == written


def values_of(store: Any) -> dict[TopicPartition, list[bytes | None]]:
    found: dict[TopicPartition, list[bytes | None]] = {}
    with store.consumer() as consumer:
        consumer.assign(
            [one for topic in store.topics().values() for one in topic.topic_partitions()]
        )
        while records := consumer.poll(0):
            for record in records:
                found.setdefault(TopicPartition(record.topic, record.partition), []).append(
                    record.value
                )
    return found


def test_a_store_of_0_1_0_goes_on_and_is_read_back(path):
    with eoslog.open(path) as store:
        wanted = values_of(store)
        assert wanted
        with store.producer(name="later") as named:
            named.append(*ORDERS, values=[b"named"])
        with store.producer(transactional_id="later") as producer:
            producer.init_transactions()
            for value in (b"committed", b"aborted"):
                producer.begin_transaction()
                producer.send(ORDERS.topic, value, partition=ORDERS.partition)
                producer.send_offsets_to_transaction({ORDERS: 1}, "later")
                if value == b"aborted":
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        wanted[ORDERS] = [*wanted.get(ORDERS, []), b"named", b"committed"]
        assert values_of(store) == wanted
    with eoslog.open(path) as store:
        assert values_of(store) == wanted
        assert store.groups()["later"] == {ORDERS: OffsetAndMetadata(1)}
        with store.producer(name="later") as named:
            assert named.next_sequence(*ORDERS) == 1
        assert store.verify() == []


@pytest.mark.parametrize("lost", ["lmdb", "topics.json", "*"])
def test_an_upgraded_store_that_lost_its_state_gets_no_second_marker(path, lost):
    with eoslog.open(path) as store:
        written = batches(store)
    for one in (path / "state").glob(lost):
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    with eoslog.open(path) as store:
        check_upgraded(store)
        assert batches(store) == written


def test_a_partition_that_this_version_made_is_not_read(tmp_path, monkeypatch):
    """Opening costs the same, whatever was committed."""
    path = tmp_path / "store"
    read: list[GroupPartition] = []
    monkeypatch.setattr(upgrade, "_upgrade_partition", lambda _, groups: read.append(groups))
    for group in ("one", "two", "three", "four"):
        with eoslog.open(path, create=True) as store:
            if group == "one":
                store.create_topic("orders")
            with store.consumer(group=group) as consumer:
                consumer.assign([ORDERS])
                consumer.commit({ORDERS: 5})
    assert read == []


@pytest.mark.parametrize("killed_at", [0, 1, STAGED_BATCHES - 1])
def test_an_upgrade_that_is_cut_short_is_finished_by_the_next_opening(path, monkeypatch, killed_at):
    commit = upgrade.commit_staged_offsets
    markers = 0

    def full(*arguments: Any) -> bool:
        nonlocal markers
        if markers == killed_at:
            raise StoreFullError("no room")
        markers += 1
        return commit(*arguments)

    monkeypatch.setattr(upgrade, "commit_staged_offsets", full)
    with eoslog.open(path) as store:
        assert store.groups()["staged-group"] == {ORDERS: OffsetAndMetadata(4)}
        copy = path.with_name("killed")
        copy_store(path, copy)
    monkeypatch.undo()
    for one in (path, copy):
        with eoslog.open(one) as store:
            check_upgraded(store)


# The topics.


@pytest.fixture
def index(tmp_path: Path) -> StateIndex:
    return StateIndex(LmdbEnvironment(tmp_path / "lmdb"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The directory of the files of a version before this one."""
    (tmp_path / "topics.json").write_text(json.dumps(IN_LOG))
    (tmp_path / "topics.log").write_bytes(b"".join(LINES))
    return tmp_path


def files_of(state: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in state.glob("topics.*")}


def test_0_1_0_refuses_an_upgraded_store(path):
    """It read the whole file as JSON, and refused a version above its own, which was 1."""
    topics = path / "state" / "topics.json"
    assert json.loads(topics.read_text())["version"] == 1
    eoslog.open(path).close()
    assert json.loads(topics.read_text())["version"] > 1


def test_topics_in_a_log_are_upgraded(state, index):
    before = upgrade.read_topics(state)
    assert sorted(before) == ["b", "c"]
    assert before["b"].deleting
    assert before["b"].config == {"segment.bytes": 4096}
    assert before["c"].holes_below == {0: 7}
    index.write_states([(b"key", b"value")], [(0, 1)])
    upgrade.upgrade_topics(state, index)
    assert sorted(files_of(state)) == ["topics.json", "topics.json.tmp"]
    assert upgrade.read_topics(state) == before
    # What an older version wrote there is read from the log again.
    assert (index.read_state(b"key"), index.read_applied(0)) == (None, None)
    index.write_states([(b"key", b"value")], [(0, 1)])
    upgrade.upgrade_topics(state, index)
    assert upgrade.read_topics(state) == before
    assert index.read_state(b"key") == b"value"


class Crash(BaseException):
    """The process dies here; nothing else of it runs."""


def after(owner: Any, name: str) -> tuple[Any, str, Callable[..., None]]:
    """What `setattr` needs for a crash when that function has done its work."""
    done = getattr(owner, name)

    def last(*given: Any, **named: Any) -> None:
        done(*given, **named)
        raise Crash

    return owner, name, last


STEPS = {
    "U1": after(StateIndex, "clear"),
    "U2 aside": after(atomic_file, "write_aside"),
    "U2 renamed": after(atomic_file, "put_in_place"),
    "U2": after(upgrade, "write_entries"),
    "U3": after(upgrade, "_remove"),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_upgrade_of_topics_that_dies_is_done_by_the_next_opening(
    state, index, monkeypatch, step
):
    before = upgrade.read_topics(state)
    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step])
        with pytest.raises(Crash):
            upgrade.upgrade_topics(state, index)
    assert upgrade.read_topics(state) == before
    upgrade.upgrade_topics(state, index)
    assert upgrade.read_topics(state) == before
    assert [name for name in files_of(state) if not name.endswith(".tmp")] == ["topics.json"]


@pytest.mark.parametrize("step", [*STEPS, "U4", "U5"])
def test_an_upgrade_of_a_store_that_dies_is_done_by_the_next_opening(path, monkeypatch, step):
    later = {
        "U4": after(upgrade, "_upgrade_partition"),
        "U5": after(upgrade.TopicRegistry, "add"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*(STEPS | later)[step])
        with pytest.raises(Crash):
            eoslog.open(path)
    with eoslog.open(path) as store:
        check_upgraded(store)
        assert store.topics()["orders"].partitions == 2


def test_a_line_that_was_cut_short_did_not_count(state):
    expected = upgrade.read_topics(state)
    line = LINES[2].replace(b'"c"', b'"d"')
    torn = (line[:1], line[:-2], bytes(9) + line[9:], line[:9] + bytes(len(line) - 10) + b"\n")
    for rest in torn:
        (state / "topics.log").write_bytes(b"".join(LINES) + rest)
        assert upgrade.read_topics(state) == expected


def test_a_bit_that_flips_in_the_log_is_noticed(state, index):
    content = b"".join(LINES)
    for bit in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (state / "topics.log").write_bytes(flipped)
        with pytest.raises(CorruptRecordError, match=r"topics\.log"):
            upgrade.upgrade_topics(state, index)
    assert (state / "topics.log").read_bytes() == flipped


@pytest.mark.parametrize("content", [b"", b"{}", b"\n", b"[]\tbbd1c5ff\n", bytes(100)])
def test_a_log_without_its_first_line_is_damaged(state, index, content):
    (state / "topics.log").write_bytes(content)
    with pytest.raises(CorruptRecordError, match=r"topics\.log"):
        upgrade.upgrade_topics(state, index)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 1},
        {"version": 1, "topics": {}},
        {"version": 1, "crc32c": 7, "topics": {}},
        {"version": 1, "crc32c": 0, "topics": []},
        {"version": 2, "topics": {}},
        {"version": "2", "topics": "topics.log"},
        {"version": 3, "crc32c": 0, "topics": {}},
    ],
)
def test_lists_that_no_version_wrote_are_named(state, index, document):
    (state / "topics.json").write_text(json.dumps(document))
    with pytest.raises(CorruptRecordError, match=r"topics\.json"):
        upgrade.upgrade_topics(state, index)
    assert json.loads((state / "topics.json").read_text()) == document


def test_a_list_of_a_newer_version_is_refused(state, index):
    (state / "topics.json").write_text('{"version": 4, "topics": {}}')
    with pytest.raises(StoreVersionError, match="version 4"):
        upgrade.upgrade_topics(state, index)


def test_topics_whose_log_is_lost_come_back_from_the_directories(path):
    with eoslog.open(path) as store:
        topic_id = store.topics()["orders"].topic_id
    (path / "state" / "topics.json").write_text(json.dumps(IN_LOG))
    with eoslog.open(path) as store:
        assert store.topics()["orders"].topic_id == topic_id
        check_upgraded(store)


def test_a_full_disk_leaves_the_older_store(path, monkeypatch):
    def full(*_: Any) -> None:
        raise StoreFullError("no room")

    before = (path / "state" / "topics.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "write_entries", full)
        with pytest.raises(StoreFullError):
            eoslog.open(path)
    assert (path / "state" / "topics.json").read_bytes() == before
    with eoslog.open(path) as store:
        check_upgraded(store)


# What 0.1.0 could leave undone.


def adopt_as_0_1_0(self: GroupOffsets, number: int, columns: Any, producer_id: int) -> None:
    """The offsets of a staged job as version 0.1.0 appended them."""
    partition = self.log.of(number).partition
    if partition.producer(producer_id) is None:
        keys, values = columns()
        partition.append_columns(
            values, keys, producer_id=producer_id, producer_epoch=0, base_sequence=0
        )


def fail_to_complete(monkeypatch: Any) -> None:
    """Have the decision of a job written, and not that it is complete."""
    append = CompactedLog.append
    records = 0

    def full(log: CompactedLog, record_type: int, *rest: Any, **options: Any) -> None:
        nonlocal records
        records += record_type == APPLICATION
        if records > 1:
            raise StoreFullError("no room")
        append(log, record_type, *rest, **options)

    monkeypatch.setattr(CompactedLog, "append", full)


def test_a_job_that_0_1_0_left_undone_is_completed_with_one_batch_and_one_marker(
    tmp_path, monkeypatch
):
    path, copy = tmp_path / "store", tmp_path / "copy"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        monkeypatch.setattr(GroupOffsets, "adopt", adopt_as_0_1_0)
        fail_to_complete(monkeypatch)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged("app", 0, [], offsets={"g": {ORDERS: 7}})
        monkeypatch.undo()
        parts_of(store).files.group_offsets.commit("g", {ORDERS: 50})
        copy_store(path, copy)
    with eoslog.open(copy) as store:
        check_marked(store, 1)
        assert store.application("app").state == "complete"
        assert store.groups()["g"] == {ORDERS: OffsetAndMetadata(50)}


def test_a_job_that_an_older_index_does_not_note_is_completed(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        fail_to_complete(monkeypatch)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged("app", 0, [], offsets={"g": {ORDERS: 7}})
    monkeypatch.undo()
    entries = read_entries(path / "state")
    checksum = crc32c(json.dumps(entries, sort_keys=True, separators=(",", ":")).encode())
    document = {"version": 1, "crc32c": checksum, "topics": entries}
    (path / "state" / "topics.json").write_text(json.dumps(document))
    lmdb = LmdbEnvironment(path / "state" / "lmdb")
    lmdb.write(lambda tables: tables.clear(b"undecided"))
    lmdb.close()
    with eoslog.open(path) as store:
        assert store.application("app").state == "complete"
        assert store.groups()["g"] == {ORDERS: OffsetAndMetadata(7)}


@pytest.mark.parametrize("goes_on", [False, True])
def test_offsets_without_their_marker_are_committed_and_never_aborted(
    tmp_path, monkeypatch, goes_on
):
    path, copy = tmp_path / "store", tmp_path / "copy"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")

        def full(*_: Any) -> bool:
            raise StoreFullError("no room")

        monkeypatch.setattr(group_offsets, "commit_staged_offsets", full)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged("app", 0, [], offsets={"g": {ORDERS: 7}})
        assert store.groups()["g"] == {}
        assert not parts_of(store).files.group_offsets.is_stable("g", ORDERS)
        partition = parts_of(store).files.group_offsets.log.of_group("g").partition
        (waiting,) = partition.open_transactions()
        # No operator ends it otherwise.
        assert partition.open_transactions()[0].last_timestamp_ms < 1 << 50
        monkeypatch.setattr(clock, "now_ms", lambda: 1 << 50)
        assert store.find_hanging_transactions(topic=partition.topic) == []
        with pytest.raises(InvalidTxnStateError, match="staged job"):
            store.abort_transaction(
                topic="__consumer_offsets",
                partition=partition.partition,
                start_offset=waiting.first_offset,
            )
        monkeypatch.undo()
        if goes_on:
            parts_of(store).staged.sweep()
            check_marked(store, 1)
            assert store.groups()["g"] == {ORDERS: OffsetAndMetadata(7)}
            return
        copy_store(path, copy)
    # The recovery of the partition writes it, before the job is looked at.
    monkeypatch.setattr(GroupOffsets, "adopt", lambda *_: None)
    with eoslog.open(copy) as store:
        check_marked(store, 1)
        assert store.groups()["g"] == {ORDERS: OffsetAndMetadata(7)}
        (batch, marker) = iter_batches(
            parts_of(store).files.group_offsets.log.of_group("g").partition.read(0, 1 << 20)
        )
        assert (batch.is_transactional, marker.is_control) == (True, True)
        assert marker.producer_epoch == batch.producer_epoch + 1
