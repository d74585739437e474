"""What version 0.1.0 left in the log of groups is brought into the form that Kafka loads, once."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from staged_jobs import STAGED_PRODUCER_ID_MIN, quick_directory

import eoslog
from eoslog import OffsetAndMetadata, TopicPartition
from eoslog.bindings.record_batch import iter_batches
from eoslog.common import clock
from eoslog.errors import InvalidTxnStateError, StagedJobIncompleteError, StoreFullError
from eoslog.groups import group_offsets, offsets_upgrade
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

# Three lives of a store. Each one commits a version of the staged jobs `bulk` and `nightly` with
# offsets, one transaction with an offset, and one offset by hand; between the second and the third
# a group with staged offsets is deleted. The last one leaves a prepared transaction with an offset.
OF_0_1_0 = Path(__file__).parents[2] / "format" / "golden" / "store_0_1_0.tar.gz"
ORDERS = TopicPartition("orders", 0)
VERSIONS = TopicPartition("eoslog-version", 0)
STAGED_BATCHES = 3 * 3  # Of `bulk` for two groups, of `nightly` for one; each in its own partition.


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


@pytest.mark.parametrize("lost", ["lmdb", "upgraded", "*"])
def test_an_upgraded_store_that_lost_its_state_gets_no_second_marker(path, lost):
    with eoslog.open(path) as store:
        written = batches(store)
    for one in (path / "state").glob(lost):
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    with eoslog.open(path) as store:
        check_upgraded(store)
        assert batches(store) == written


def test_a_partition_that_0_1_0_made_later_is_upgraded_too(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        store.commit_staged("app", 0, [], offsets={"one": {ORDERS: 7}})
    with eoslog.open(path) as store:
        monkeypatch.setattr(GroupOffsets, "adopt", adopt_as_0_1_0)
        store.commit_staged("app", 1, [], offsets={"another": {ORDERS: 8}})
        monkeypatch.undo()
    with eoslog.open(path) as store:
        check_marked(store, 2)
        assert store.groups()["another"] == {ORDERS: OffsetAndMetadata(8)}


@pytest.mark.parametrize("content", [b"", b"not numbers \xff", b"-1 99999"])
def test_a_file_that_says_nothing_keeps_nothing_from_being_upgraded(path, content):
    (path / "state" / "upgraded").write_bytes(content)
    with eoslog.open(path) as store:
        check_upgraded(store)


@pytest.mark.parametrize("killed_at", [0, 1, STAGED_BATCHES - 1])
def test_an_upgrade_that_is_cut_short_is_finished_by_the_next_opening(path, monkeypatch, killed_at):
    commit = offsets_upgrade.commit_staged_offsets
    markers = 0

    def full(*arguments: Any) -> bool:
        nonlocal markers
        if markers == killed_at:
            raise StoreFullError("no room")
        markers += 1
        return commit(*arguments)

    monkeypatch.setattr(offsets_upgrade, "commit_staged_offsets", full)
    with eoslog.open(path) as store:
        assert store.groups()["staged-group"] == {ORDERS: OffsetAndMetadata(4)}
        copy = path.with_name("killed")
        shutil.copytree(path, copy)
    monkeypatch.undo()
    for one in (path, copy):
        with eoslog.open(one) as store:
            check_upgraded(store)


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
        shutil.copytree(path, copy)
    with eoslog.open(copy) as store:
        check_marked(store, 1)
        assert store.application("app").state == "complete"
        assert store.groups()["g"] == {ORDERS: OffsetAndMetadata(50)}


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
        shutil.copytree(path, copy)
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
