"""Offsets of groups that a staged job commits, and the version of an application as an offset."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    leave_undone,
    no_room,
    stage_job,
    staged_files,
    visible_numbers,
)
from store_copies import copy_store

import eoslog
from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    IllegalGenerationError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    StagedCommitError,
    StagedJobIncompleteError,
    StoreFullError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.groups.metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import decode_members_key
from eoslog.staging import job as staged_job
from eoslog.staging.adoption import HeldPartitions
from eoslog.staging.application import ApplicationRecord
from eoslog.staging.message import STAGED_PRODUCER_ID_MIN
from eoslog.staging.on_demand import VERSION_PARTITION
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

JOB = range(200)
SOURCE = TopicPartition("source", 0)
OTHER_SOURCE = TopicPartition("source", 1)


@pytest.fixture
def store(store: Any) -> Any:
    store.create_topic("source", partitions=2)
    return store


def offsets_of(store: Any, group: str) -> dict[TopicPartition, int]:
    return {where: one.offset for where, one in store.groups().get(group, {}).items()}


def abandoned_copy(store: Any) -> Path:
    """What a killed process would have left at this moment."""
    copy = Path(store.path).with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    copy_store(store.path, copy, symlinks=True)
    return copy


def batches_of_groups(store: Any, group: str) -> list[int]:
    """The producer id of each record in the group's partition of the groups' log."""
    number = parts_of(store).files.group_offsets.log.partition_of(group)
    partition = parts_of(store).files.partitions.offsets_partition(number)
    data = partition.read(0, 1 << 20) if partition.log_end_offset else b""
    return [one.producer_id for one in iter_batches(data)]


def keys_of_groups(store: Any, group: str) -> list[bytes]:
    """The keys of the records in the group's partition of the groups' log, without markers."""
    number = parts_of(store).files.group_offsets.log.partition_of(group)
    data = memoryview(parts_of(store).files.partitions.offsets_partition(number).read(0, 1 << 20))
    return [
        record.key
        for one in iter_batches(data)
        for record in decode_records(
            data[one.position_bytes : one.position_bytes + one.batch_bytes], "", number
        )
        if not one.is_control
    ]


def test_offsets_are_committed_with_the_data(store):
    messages = stage_job(store.path, "run-a", JOB)
    offsets = {
        "readers": {SOURCE: 7, OTHER_SOURCE: OffsetAndMetadata(9, "note", 3)},
        ConsumerGroupMetadata("others"): {SOURCE: 1},
    }
    assert store.commit_staged(APP, 4, messages, offsets=offsets).records == len(JOB)
    assert visible_numbers(store) == expected_numbers(JOB)
    groups = store.groups()
    assert groups["readers"] == {
        SOURCE: OffsetAndMetadata(7),
        OTHER_SOURCE: OffsetAndMetadata(9, "note", 3),
    }
    assert groups["others"] == {SOURCE: OffsetAndMetadata(1)}
    assert groups[APP] == {VERSION_PARTITION: OffsetAndMetadata(4)}
    assert staged_files(store.path) == []


def test_a_job_of_offsets_alone_is_decided_too(store):
    for version, run_id in enumerate((None, "run-a", None)):
        result = store.commit_staged(
            APP, version, [], run_id, offsets={"readers": {SOURCE: version}}
        )
        assert (result.committed, result.records, result.offsets) == (True, 0, {})
        assert offsets_of(store, "readers") == {SOURCE: version}
        assert store.application(APP).state == "complete"
    assert staged_files(store.path) == []


def test_a_version_that_is_in_commits_no_offsets(store):
    store.commit_staged(APP, 3, [], offsets={"readers": {SOURCE: 30}})
    for version in (3, 2):
        replay = store.commit_staged(APP, version, [], offsets={"readers": {SOURCE: 1}})
        assert not replay.committed
    assert offsets_of(store, "readers") == {SOURCE: 30}
    assert offsets_of(store, APP) == {VERSION_PARTITION: 3}


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({"readers": {TopicPartition("source", 2): 1}}, UnknownTopicOrPartitionError),
        ({"readers": {TopicPartition("nowhere", 0): 1}}, UnknownTopicOrPartitionError),
        ({"readers": {VERSION_PARTITION: 1}}, UnknownTopicOrPartitionError),
        ({"readers": {SOURCE: OffsetAndMetadata(1, "m" * 4097)}}, OffsetMetadataTooLargeError),
        ({"readers": {SOURCE: -1}}, ValueError),
        ({"readers": {SOURCE: "1"}}, TypeError),
        ({"readers": [SOURCE]}, TypeError),
        ({"": {SOURCE: 1}}, InvalidRequestError),
        ({3: {SOURCE: 1}}, TypeError),
        ([("readers", {SOURCE: 1})], TypeError),
        ({ConsumerGroupMetadata("unknown", 2): {SOURCE: 1}}, IllegalGenerationError),
        ({ConsumerGroupMetadata("known", 2): {SOURCE: 1}}, UnknownMemberIdError),
        # One that is right does not save one that is wrong.
        (
            {"readers": {SOURCE: 1}, "other": {TopicPartition("x", 0): 1}},
            UnknownTopicOrPartitionError,
        ),
    ],
)
def test_wrong_offsets_are_refused_before_the_decision(store, offsets, error):
    parts_of(store).files.group_offsets.commit("known", {SOURCE: 5})
    messages = stage_job(store.path, "run-a", JOB)
    with pytest.raises(error):
        store.commit_staged(APP, 0, messages, offsets=offsets)
    assert store.application(APP) is None
    assert offsets_of(store, "readers") == {}
    assert visible_numbers(store) == expected_numbers()
    assert store.commit_staged(APP, 0, messages).committed


def test_more_offsets_than_a_job_takes_are_refused(store, monkeypatch):
    monkeypatch.setattr(staged_job, "OFFSETS_BYTES_MAX", 50)
    with pytest.raises(StagedCommitError, match="at most 50"):
        store.commit_staged(APP, 0, [], offsets={"readers": {SOURCE: 1, OTHER_SOURCE: 2}})
    assert store.application(APP) is None


def test_offsets_are_seen_no_sooner_than_the_decision_and_no_later_than_the_data(
    store, monkeypatch
):
    seen: list[tuple[str, bool, bool]] = []

    def note(when: str) -> None:
        seen.append(
            (when, bool(offsets_of(store, "readers")), visible_numbers(store) != expected_numbers())
        )

    append, adopt, release = CompactedLog.append, UnifiedLog.adopt, HeldPartitions.release

    def noting_append(log: CompactedLog, record_type: int, *rest: Any, **options: Any) -> None:
        note("before a record")
        append(log, record_type, *rest, **options)
        note("after a record")

    def noting_adopt(partition: UnifiedLog, *arguments: Any) -> Any:
        note("before a file")
        return adopt(partition, *arguments)

    def noting_release(held: Any) -> None:
        note("before readers are let in")
        release(held)
        note("readers are in")

    monkeypatch.setattr(CompactedLog, "append", noting_append)
    monkeypatch.setattr(UnifiedLog, "adopt", noting_adopt)
    monkeypatch.setattr(HeldPartitions, "release", noting_release)
    messages = stage_job(store.path, "run-a", JOB, tasks=1)
    store.commit_staged(APP, 0, messages, offsets={"readers": {SOURCE: 7}})
    monkeypatch.undo()
    files = [("before a file", False, False)] * len(messages[0].files)
    assert seen == [
        ("before a record", False, False),
        ("after a record", False, False),
        *files,
        ("before readers are let in", True, False),
        ("readers are in", True, True),
        ("before a record", True, True),
        ("after a record", True, True),
    ]


def test_a_job_that_cannot_be_completed_holds_its_offsets_back_and_nobody_elses(store, monkeypatch):
    monkeypatch.setattr(UnifiedLog, "adopt", no_room)
    messages = stage_job(store.path, "run-a", JOB)
    with pytest.raises(StagedJobIncompleteError):
        store.commit_staged(APP, 0, messages, offsets={"readers": {SOURCE: 7}})
    assert offsets_of(store, "readers") == {}
    # A group in the same partition of the groups' log, and the group itself, go on.
    parts_of(store).files.group_offsets.commit("readers", {OTHER_SOURCE: 2})
    assert offsets_of(store, "readers") == {OTHER_SOURCE: 2}
    copy = abandoned_copy(store)
    monkeypatch.undo()
    with eoslog.open(copy) as opened:
        assert offsets_of(opened, "readers") == {SOURCE: 7, OTHER_SOURCE: 2}
        assert offsets_of(opened, APP) == {VERSION_PARTITION: 0}
        assert visible_numbers(opened) == expected_numbers(JOB)
    parts_of(store).staged.sweep()
    assert offsets_of(store, "readers") == {SOURCE: 7, OTHER_SOURCE: 2}


@pytest.mark.parametrize("reopened", [False, True])
def test_an_offset_of_a_job_under_way_is_not_stable(store, monkeypatch, reopened):
    """Whoever started at the one before it would process once more what the job has."""

    parts_of(store).files.group_offsets.commit("readers", {SOURCE: 3, OTHER_SOURCE: 4})
    monkeypatch.setattr(UnifiedLog, "adopt", no_room)
    messages = stage_job(store.path, "run-a", JOB)
    with pytest.raises(StagedJobIncompleteError):
        store.commit_staged(APP, 0, messages, offsets={"readers": {SOURCE: 7}})
    opened = eoslog.open(abandoned_copy(store)) if reopened else store
    groups = parts_of(opened).files.group_offsets
    assert (groups.is_stable("readers", SOURCE), groups.is_stable("readers", OTHER_SOURCE)) == (
        False,
        True,
    )
    with opened.consumer(group="readers") as consumer:
        consumer.assign([SOURCE])
        with pytest.raises(UnstableOffsetCommitError, match="staged job"):
            consumer.position(SOURCE)
        assert groups.fetch("readers", OTHER_SOURCE, require_stable=True).offset == 4
        assert groups.fetch("others", SOURCE, require_stable=True) is None
        monkeypatch.undo()
        parts_of(opened).staged.sweep()
        assert groups.is_stable("readers", SOURCE)
        assert consumer.committed(SOURCE) == 7
    if reopened:
        opened.close()


def test_a_decision_that_failed_leaves_the_offsets_stable(store, monkeypatch):
    def full(*_: Any, **__: Any) -> Any:
        raise StoreFullError("no room")

    append = CompactedLog.append
    for error in (full, KeyboardInterrupt):

        def fail(*arguments: Any, failing: Any = error, **options: Any) -> None:
            if failing is KeyboardInterrupt:
                append(*arguments, **options)
                raise KeyboardInterrupt
            failing()

        monkeypatch.setattr(CompactedLog, "append", fail)
        with pytest.raises((StoreFullError, KeyboardInterrupt)):
            store.commit_staged(APP, 0, [], "run-a", offsets={"readers": {SOURCE: 7}})
        monkeypatch.undo()
        parts_of(store).staged.sweep()
        assert parts_of(store).files.group_offsets.is_stable("readers", SOURCE)
        assert (
            parts_of(store).files.group_offsets.fetch("readers", SOURCE, require_stable=True)
            is None
        )
    assert store.commit_staged(APP, 0, [], "run-a", offsets={"readers": {SOURCE: 7}}).committed
    assert offsets_of(store, "readers") == {SOURCE: 7}


def test_an_adoption_that_is_repeated_overwrites_no_newer_offset(store, monkeypatch):
    """The job's offsets are in; its complete record is not, and the group goes on meanwhile."""
    append = CompactedLog.append
    records = 0

    def fail_to_complete(log: CompactedLog, record_type: int, *rest: Any, **options: Any) -> None:
        nonlocal records
        records += record_type == APPLICATION
        if records > 1:
            raise StoreFullError("no room")
        append(log, record_type, *rest, **options)

    monkeypatch.setattr(CompactedLog, "append", fail_to_complete)
    messages = stage_job(store.path, "run-a", JOB)
    with pytest.raises(StagedJobIncompleteError):
        store.commit_staged(APP, 0, messages, offsets={"readers": {SOURCE: 7}})
    monkeypatch.undo()
    parts_of(store).files.group_offsets.commit("readers", {SOURCE: 50})
    copy = abandoned_copy(store)
    for path in (copy, None):
        if path is None:
            parts_of(store).staged.sweep()
            assert offsets_of(store, "readers") == {SOURCE: 50}
            assert store.application(APP).state == "complete"
            break
        with eoslog.open(path) as opened:
            assert opened.application(APP).state == "complete"
            assert offsets_of(opened, "readers") == {SOURCE: 50}
            staged = [one for one in batches_of_groups(opened, "readers") if one >= 0]
            assert len(staged) == 2, "one batch and its marker"


def test_the_producer_ids_of_offsets_are_forgotten(store):
    store.commit_staged(APP, 0, [], offsets={"readers": {SOURCE: 7}})
    number = parts_of(store).files.group_offsets.log.partition_of("readers")
    partition = parts_of(store).files.partitions.offsets_partition(number)
    staged = {one for one in batches_of_groups(store, "readers") if one >= STAGED_PRODUCER_ID_MIN}
    assert len(staged) == 1
    parts_of(store).staged.clear_leftovers()
    assert partition.producers() == []


def test_offsets_of_a_topic_that_was_deleted_meanwhile_are_left_out(store, monkeypatch):
    store.create_topic("passing")
    gone = TopicPartition("passing", 0)

    leave_undone(
        store, GroupOffsets, "adopt", offsets={"readers": {SOURCE: 7, gone: 8}, "g": {gone: 1}}
    )
    store.delete_topic("passing")
    store.create_topic("passing")
    parts_of(store).staged.sweep()
    assert offsets_of(store, "readers") == {SOURCE: 7}
    assert offsets_of(store, "g") == {}
    assert store.application(APP).state == "complete"


def test_offsets_are_left_out_whose_topic_goes_right_before_they_are_written(store, monkeypatch):
    store.create_topic("passing")
    gone = TopicPartition("passing", 0)
    adopt = GroupOffsets.adopt

    def made_again(self: GroupOffsets, *said: Any) -> None:
        if store.topics()["passing"].topic_id == topic_id:
            store.delete_topic("passing")
            store.create_topic("passing")
        adopt(self, *said)

    topic_id = store.topics()["passing"].topic_id
    monkeypatch.setattr(GroupOffsets, "adopt", made_again)
    store.commit_staged(APP, 0, [], offsets={"readers": {SOURCE: 7, gone: 8}})
    assert offsets_of(store, "readers") == {SOURCE: 7}


@pytest.mark.parametrize("inline", [True, False])
def test_a_decided_job_of_offsets_is_found_by_the_next_opening(store, monkeypatch, inline):
    if not inline:
        monkeypatch.setattr(staged_job, "INLINE_MANIFEST_BYTES_MAX", 10)

    leave_undone(
        store, GroupOffsets, "adopt", offsets={"readers": {SOURCE: OffsetAndMetadata(7, "ä")}}
    )
    with eoslog.open(abandoned_copy(store)) as opened:
        assert opened.groups()["readers"] == {SOURCE: OffsetAndMetadata(7, "ä")}
        assert opened.application(APP).state == "complete"
        assert staged_files(opened.path) == []


@pytest.mark.parametrize("durability", ["commit", "always", "process"])
def test_offsets_are_synced_before_the_job_is_complete(tmp_path, monkeypatch, durability):
    """A complete job is never adopted again: what it appended must not be lost any more."""
    events: list[str] = []
    make_durable, append = UnifiedLog.make_durable, CompactedLog.append

    def noting_sync(partition: UnifiedLog, offset: int) -> None:
        make_durable(partition, offset)
        if partition.topic == "__consumer_offsets":
            events.append("synced" if partition.recovery_point >= offset else "not synced")

    def noting_append(
        log: CompactedLog, record_type: int, name: str, state: Any, **rest: Any
    ) -> None:
        events.append(state["state"])
        append(log, record_type, name, state, **rest)

    with eoslog.open(tmp_path / "store", create=True, durability=durability) as opened:
        opened.create_topic(TOPIC, partitions=PARTITIONS)
        opened.create_topic("source")
        messages = stage_job(opened.path, "run", JOB)
        monkeypatch.setattr(UnifiedLog, "make_durable", noting_sync)
        monkeypatch.setattr(CompactedLog, "append", noting_append)
        opened.commit_staged(APP, 0, messages, offsets={"readers": {SOURCE: 7}})
        monkeypatch.undo()
        between = events[events.index("prepared") + 1 : events.index("complete")]
        assert bool(between) == (durability != "process")
        assert set(between) <= {"synced"}


def test_the_records_that_offsets_say_were_read_are_synced_first(store, monkeypatch):
    source = engine_of(store).partition(*SOURCE)
    source.append_columns([b"read"] * 5)
    assert source.recovery_point == 0
    monkeypatch.setattr(type(parts_of(store).staged), "_decide", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.commit_staged(APP, 0, [], offsets={"readers": {SOURCE: 5}})
    assert source.recovery_point == 5


# The version as an offset.


def test_every_version_is_an_offset_of_the_applications_group(store):
    for version in (0, 1, 5):
        run_id = f"run-{version}"
        messages = stage_job(store.path, run_id, JOB) if version == 1 else []
        store.commit_staged(APP, version, messages, run_id)
        assert offsets_of(store, APP) == {VERSION_PARTITION: version}


def test_a_job_without_records_and_offsets_syncs_one_record(store, monkeypatch):
    store.commit_staged(APP, 0, [])
    synced: list[TopicPartition] = []
    make_durable = UnifiedLog.make_durable

    def noting(partition: UnifiedLog, offset: int) -> None:
        synced.append(partition.topic_partition)
        make_durable(partition, offset)

    monkeypatch.setattr(UnifiedLog, "make_durable", noting)
    store.commit_staged(APP, 1, [])
    assert [where.topic for where in synced] == ["__transaction_state"]
    assert not (store.path / "staging" / APP).exists()


def test_the_version_is_in_no_log_of_groups(store):
    for version in (0, 1, 5):
        store.commit_staged(APP, version, [])
    keys = keys_of_groups(store, APP)
    assert [decode_members_key(key) for key in keys] == [APP]
    assert store.describe_group(APP).state == "Empty"


def test_a_group_that_a_crash_took_is_there_again(store, monkeypatch):
    monkeypatch.setattr(GroupOffsets, "ensure_group", lambda *_: None)
    store.commit_staged(APP, 1, [])
    store.commit_staged("with files", 3, stage_job(store.path, "r", JOB, app_id="with files"))
    monkeypatch.undo()
    assert offsets_of(store, APP) == {}
    with eoslog.open(abandoned_copy(store)) as opened:
        assert offsets_of(opened, APP) == {VERSION_PARTITION: 1}
        assert offsets_of(opened, "with files") == {VERSION_PARTITION: 3}
        assert len(batches_of_groups(opened, APP)) == 1


def test_a_group_with_members_shows_the_version_too(store):
    with store.consumer(group=APP) as consumer:
        consumer.subscribe(["source"])
        consumer.poll(timeout=0)
        store.commit_staged(APP, 3, [])
        assert offsets_of(store, APP) == {VERSION_PARTITION: 3}
        assert len(store.describe_group(APP).members) == 1


def test_a_group_that_was_deleted_comes_back_with_the_next_version(store):
    store.commit_staged(APP, 0, [])
    store.delete_group(APP)
    assert APP not in store.groups()
    store.commit_staged(APP, 1, [])
    assert offsets_of(store, APP) == {VERSION_PARTITION: 1}


def test_a_decision_that_is_taken_back_is_not_shown(store, monkeypatch):
    store.commit_staged(APP, 0, [])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    messages = stage_job(store.path, "run-a", JOB)
    write = ApplicationRecord.write
    monkeypatch.setattr(
        ApplicationRecord, "write", lambda *rest, **sync: (write(*rest, **sync), interrupted())
    )
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 1, messages)
    monkeypatch.undo()
    assert offsets_of(store, APP) == {VERSION_PARTITION: 0}
    assert store.application(APP).version == 0


def test_a_full_disk_keeps_no_version_from_being_decided(store, monkeypatch):
    monkeypatch.setattr(GroupOffsets, "ensure_group", no_room)
    assert store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB)).committed
    monkeypatch.undo()
    assert store.application(APP).state == "complete"
    assert offsets_of(store, APP) == {}
    store.commit_staged(APP, 1, [])
    assert offsets_of(store, APP) == {VERSION_PARTITION: 1}


def test_the_group_of_an_application_does_not_expire(tmp_path):
    config = {"offsets.retention.minutes": 1}
    with eoslog.open(tmp_path / "store", create=True, config=config) as store:
        store.create_topic("source", partitions=2)
        parts_of(store).files.group_offsets.ensure_group("other")
        store.commit_staged(APP, 0, [], offsets={"readers": {SOURCE: 7}})
        assert parts_of(store).files.group_offsets.expire(now_ms=1 << 50) == 1
        assert store.groups() == {APP: {VERSION_PARTITION: OffsetAndMetadata(0)}}


@pytest.mark.parametrize("app_id", ["x" * 40_000, "\udc80 no text"])
def test_an_application_with_a_name_that_no_group_has_commits_all_the_same(store, app_id):
    assert store.commit_staged(app_id, 0, []).committed
    assert store.application(app_id).version == 0
    assert store.groups() == {}


def test_a_store_written_before_there_was_progress_opens(store, monkeypatch):
    monkeypatch.setattr(GroupOffsets, "ensure_group", lambda *_: None)
    store.commit_staged(APP, 0, stage_job(store.path, "run-a", JOB))
    monkeypatch.undo()
    store.close()
    with eoslog.open(store.path) as opened:
        assert opened.groups() == {}
        assert opened.application(APP).version == 0
        opened.commit_staged(APP, 1, [])
        assert offsets_of(opened, APP) == {VERSION_PARTITION: 1}


def test_no_topic_takes_the_name_of_the_versions(store):
    with pytest.raises(InvalidTopicError, match="eoslog-version"):
        store.create_topic(VERSION_PARTITION.topic)


def test_the_command_shows_how_far_an_application_is(store):
    store.commit_staged(APP, 6, [], offsets={APP: {SOURCE: 0}})
    store.close()
    path = str(store.path)
    shown = call("groups", "describe", APP, "--store", path, "--json")
    rows = {row["topic"]: row for row in shown.json}
    assert rows["eoslog-version"]["current_offset"] == 6
    assert rows["eoslog-version"]["log_end_offset"] is None
    assert rows["eoslog-version"]["lag"] is None
    assert rows["source"]["lag"] == 0
    table = call("groups", "describe", APP, "--store", path).stdout
    (line,) = [line for line in table.splitlines() if "eoslog-version" in line]
    assert line.split()[:6] == [APP, "eoslog-version", "0", "6", "-", "-"]
    options = ("--all-topics", "--to-earliest", "--json", "--store", path)
    reset = call("groups", "reset-offsets", APP, *options)
    assert [row["topic"] for row in reset.json["offsets"]] == ["source"]


def test_errors_of_offsets_are_errors_of_the_store(store):
    """Whatever is refused says that nothing was written."""
    with pytest.raises(EoslogError) as caught:
        store.commit_staged(APP, 0, [], offsets={"readers": {TopicPartition("no", 0): 1}})
    assert caught.value.outcome == "not_appended"
