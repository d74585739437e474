"""Groups' offsets: Kafka's scenarios for groups without members, and what is kept of them.

Each check is made three times: of the state as it grew, of one that is replayed from the log alone,
and of one that goes on from what LMDB has.
"""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
from background_work import do_background_work
from store_copies import copy_store

import eoslog
from eoslog import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.errors import (
    CorruptRecordError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.groups import log as group_log
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.groups.offsets_state import GroupOffsetsState, RowKey, WrittenOffset
from eoslog.groups.records import (
    OffsetKey,
    OffsetValue,
    decode_members_key,
    decode_offset_key,
    encode_offset_key,
)
from eoslog.groups.records import encode_offset_value as encoded
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.store.store import abandon, engine_of, parts_of

FOO_0, FOO_1, BAR_0 = TopicPartition("foo", 0), TopicPartition("foo", 1), TopicPartition("bar", 0)
DAY_MS = 86_400_000


class World:
    """A store; transactions are written to the groups' log as their coordinator would do it."""

    def __init__(self, store, tmp_path):
        self.store = store
        self.tmp_path = tmp_path
        self.offsets: GroupOffsets = parts_of(store).files.group_offsets
        self.epochs: dict[int, int] = {}
        self.fresh_count = 0

    def log(self, group="g"):
        return parts_of(self.store).files.partitions.offsets_partition(
            self.offsets.log.partition_of(group)
        )

    def commit(self, offsets, group="g"):
        self.offsets.commit(group, offsets)

    def pending(self, producer_id, offsets, group="g"):
        number, keys, values, _ = self.offsets.prepare_commit(group, offsets)
        assert self.log(group).partition == number
        with self.offsets.writing(number):
            self.log(group).append_columns(
                values,
                keys,
                producer_id=producer_id,
                producer_epoch=self.epochs.setdefault(producer_id, 0),
                base_sequence=-1,
                transactional=True,
            )

    def end(self, producer_id, commit, group="g"):
        self.epochs[producer_id] += 1
        self.log(group).append_marker(producer_id, self.epochs[producer_id], 1, commit)

    def views(self) -> Iterator[GroupOffsets]:
        """The state as it grew, replayed from the log, and taken up from LMDB."""
        yield self.offsets
        self.fresh_count += 1
        other = LmdbEnvironment(self.tmp_path / f"state-{self.fresh_count}")
        files = parts_of(self.store).files
        yield GroupOffsets(
            files.partitions, GroupOffsetsIndex(other), files.config, False, files.session.shared
        )
        other.close()
        self.offsets.log.persist_all()
        yield GroupOffsets(
            files.partitions,
            GroupOffsetsIndex(files.lmdb),
            files.config,
            False,
            files.session.shared,
        )

    def expect(self, where, offset, *, stable=True, group="g"):
        for view in self.views():
            found = view.fetch(group, where)
            assert (None if found is None else found.offset) == offset
            assert view.is_stable(group, where) is stable
            if stable:
                assert view.fetch(group, where, require_stable=True) == found
            else:
                with pytest.raises(UnstableOffsetCommitError, match="undecided"):
                    view.fetch(group, where, require_stable=True)

    def tombstones(self, group="g"):
        """The keys of tombstones: of offsets, and of a group as its name."""
        keys = [one.key for one in self.records(group) if one.value is None]
        return [decode_offset_key(key) or decode_members_key(key) for key in keys]

    def records(self, group="g"):
        data = self.log(group).read(0, 1 << 20)
        return [
            record
            for header in iter_batches(data)
            if not header.is_control
            for record in decode_records(
                data[header.position_bytes : header.position_bytes + header.batch_bytes]
            )
        ]


@pytest.fixture
def world(open_store, tmp_path):
    store = open_store(offsets__retention__minutes=7 * 24 * 60)
    store.create_topic("foo", partitions=2)
    store.create_topic("bar")
    return World(store, tmp_path)


# Kafka's scenarios.


def test_g01_commit_visible(world):
    world.pending(5, {FOO_0: 100})
    world.expect(FOO_0, None, stable=False)
    world.end(5, commit=True)
    world.expect(FOO_0, 100)


def test_g01_commit_visible_in_place_of_an_older_one(world):
    world.commit({FOO_0: 50})
    world.pending(5, {FOO_0: 100})
    world.expect(FOO_0, 50, stable=False)
    world.end(5, commit=True)
    world.expect(FOO_0, 100)


def test_g02_abort_gone(world):
    world.commit({FOO_0: 50})
    world.pending(5, {FOO_0: 100, FOO_1: 7})
    world.end(5, commit=False)
    world.expect(FOO_0, 50)
    world.expect(FOO_1, None)


def test_g03_require_stable(world):
    world.commit({FOO_0: 50, FOO_1: 3})
    world.pending(5, {FOO_0: 100})
    world.expect(FOO_0, 50, stable=False)
    world.expect(FOO_1, 3)


@pytest.mark.parametrize("order", [(5, 6), (6, 5)])
def test_g05_two_pids_the_later_written_wins(world, order):
    world.pending(5, {FOO_0: 100})
    world.pending(6, {FOO_0: 200})
    world.end(order[0], commit=True)
    world.expect(FOO_0, {5: 100, 6: 200}[order[0]], stable=False)
    world.end(order[1], commit=True)
    world.expect(FOO_0, 200)


def test_g06_newest_record_wins(world):
    world.pending(5, {FOO_0: 100})
    world.commit({FOO_0: 101})
    world.expect(FOO_0, 101, stable=False)
    world.end(5, commit=True)
    world.expect(FOO_0, 101)


def test_g06_newest_record_wins_the_other_way_round(world):
    world.commit({FOO_0: 101})
    world.pending(5, {FOO_0: 100})
    world.end(5, commit=True)
    world.expect(FOO_0, 100)


def test_g08_tombstone_pending(world):
    world.commit({FOO_0: 1})
    world.pending(10, {FOO_0: 100, FOO_1: 100})
    keys = [encode_offset_key("g", FOO_0), encode_offset_key("g", FOO_1)]
    world.log().append_columns([None, None], keys)
    world.expect(FOO_0, None)
    world.expect(FOO_1, None)
    world.end(10, commit=True)
    world.expect(FOO_0, None)
    world.expect(FOO_1, None)


def test_g08_what_is_committed_after_the_tombstone_stays(world):
    world.pending(10, {FOO_0: 100})
    world.log().append_columns([None], [encode_offset_key("g", FOO_0)])
    world.pending(10, {FOO_0: 110})
    world.end(10, commit=True)
    world.expect(FOO_0, 110)


def test_g09_overwrite_in_txn(world):
    world.pending(5, {FOO_0: 100})
    world.pending(5, {FOO_0: 120})
    world.end(5, commit=True)
    world.expect(FOO_0, 120)


def test_g10_expiry_keeps_pending(world):
    world.commit({FOO_0: 1, FOO_1: 2})
    world.pending(5, {FOO_0: 100})
    later_ms = world.records()[0].timestamp_ms + 8 * DAY_MS
    assert world.offsets.expire(later_ms) == 1
    world.expect(FOO_0, 1, stable=False)
    world.expect(FOO_1, None)
    assert world.tombstones() == [OffsetKey("g", FOO_1)]
    world.end(5, commit=False)
    assert world.offsets.expire(later_ms) == 1
    world.expect(FOO_0, None)
    assert world.offsets.all() == {}


def test_g12_delete_group(world):
    world.commit({FOO_0: 1})
    world.pending(5, {FOO_0: 100, FOO_1: 100})
    world.offsets.delete("g")
    assert world.tombstones() == [OffsetKey("g", FOO_0), OffsetKey("g", FOO_1), "g"]
    world.end(5, commit=True)
    for where in (FOO_0, FOO_1):
        world.expect(where, None)
    with pytest.raises(GroupIdNotFoundError, match="'g'"):
        world.offsets.delete("g")


def test_offsets_of_partitions_are_deleted_undecided_ones_too(world):
    world.commit({FOO_0: 1, FOO_1: 2, BAR_0: 3})
    world.pending(5, {FOO_0: 100, BAR_0: 100})
    world.offsets.delete_offsets("g", [FOO_0, ("foo", 1)])
    assert world.tombstones() == [OffsetKey("g", FOO_0), OffsetKey("g", FOO_1)]
    world.end(5, commit=True)
    world.expect(FOO_0, None)
    world.expect(FOO_1, None)
    world.expect(BAR_0, 100)
    # What the group does not have is left out; with its last offset the group goes.
    world.offsets.delete_offsets("g", [FOO_0])
    world.offsets.delete_offsets("g", [FOO_0, BAR_0])
    assert world.tombstones()[2:] == [OffsetKey("g", BAR_0), "g"]
    assert world.offsets.all() == {}


def test_offsets_of_an_unknown_group_or_partition_are_not_deleted(world):
    world.commit({FOO_0: 1})
    with pytest.raises(GroupIdNotFoundError, match="no group 'other'"):
        world.offsets.delete_offsets("other", [FOO_0])
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition none-0"):
        world.offsets.delete_offsets("g", [FOO_0, TopicPartition("none", 0)])
    with pytest.raises(InvalidRequestError):
        world.offsets.delete_offsets("", [FOO_0])
    with pytest.raises(TypeError, match="expected a TopicPartition, got 'foo'"):
        world.offsets.delete_offsets("g", FOO_0)
    world.expect(FOO_0, 1)
    assert world.tombstones() == []


def test_g15_member_of_a_group_that_has_none(world):
    world.commit({FOO_0: 1})
    member = ConsumerGroupMetadata("g", 3, "member-1")
    with pytest.raises(UnknownMemberIdError, match="member-1"):
        world.offsets.commit(member, {FOO_0: 2})
    with pytest.raises(UnknownMemberIdError):
        world.offsets.prepare_commit(member, {FOO_0: 2})
    world.expect(FOO_0, 1)


def test_g18_unknown_group(world):
    with pytest.raises(IllegalGenerationError, match="generation 5"):
        world.offsets.commit(ConsumerGroupMetadata("g", 5), {FOO_0: 1})
    with pytest.raises(IllegalGenerationError):
        world.offsets.prepare_commit(ConsumerGroupMetadata("g", 5), {FOO_0: 1})
    assert world.offsets.all() == {}
    world.offsets.commit(ConsumerGroupMetadata("g", -1, "whoever"), {FOO_0: 1})
    world.expect(FOO_0, 1)


def test_g21_metadata_size(world):
    world.commit({FOO_0: OffsetAndMetadata(1, "x" * 4096)})
    for offsets in ({FOO_1: OffsetAndMetadata(2, "x" * 4097)}, {BAR_0: 3, FOO_1: (3, "x")}):
        with pytest.raises((OffsetMetadataTooLargeError, TypeError)):
            world.commit(offsets)
    with pytest.raises(OffsetMetadataTooLargeError, match="4097"):
        world.offsets.prepare_commit("g", {FOO_1: OffsetAndMetadata(2, "x" * 4097)})
    # Java counts its own characters: this one is two.
    with pytest.raises(OffsetMetadataTooLargeError, match="4098"):
        world.commit({FOO_1: OffsetAndMetadata(2, "\N{GRINNING FACE}" * 2049)})
    world.expect(FOO_0, 1)
    world.expect(FOO_1, None)
    world.expect(BAR_0, None)


def test_t07_offset_metadata(world):
    world.pending(5, {FOO_0: OffsetAndMetadata(4, "some metadata", 2)})
    world.end(5, commit=True)
    for view in world.views():
        assert view.fetch("g", FOO_0) == OffsetAndMetadata(4, "some metadata", 2)


# Who asks for what.


def test_groups_are_told_apart(world):
    world.commit({FOO_0: 1}, group="a")
    world.commit({FOO_0: 2, BAR_0: 3}, group="b")
    world.pending(5, {FOO_0: 4}, group="c")
    for view in world.views():
        assert view.all() == {
            "a": {FOO_0: OffsetAndMetadata(1)},
            "b": {BAR_0: OffsetAndMetadata(3), FOO_0: OffsetAndMetadata(2)},
            "c": {},
        }
        assert view.fetch("unknown", FOO_0) is None
        assert view.fetch("a", BAR_0) is None


def test_groups_of_one_partition_are_told_apart(world):
    groups = [name for name in map(str, range(2000)) if world.offsets.log.partition_of(name) == 7][
        :5
    ]
    for number, group in enumerate(groups):
        world.pending(number, {FOO_0: number}, group=group)
        world.commit({FOO_1: number}, group=group)
    for number, group in enumerate(groups):
        world.end(number, commit=number % 2 == 0, group=group)
    for number, group in enumerate(groups):
        world.expect(FOO_0, number if number % 2 == 0 else None, group=group)
        world.expect(FOO_1, number, group=group)


def test_a_group_has_kafkas_partition(world):
    assert world.offsets.log.partition_of("my-group") == 12
    world.commit({FOO_0: 1}, group="my-group")
    assert (world.store.path / "__consumer_offsets-12").is_dir()
    assert parts_of(world.store).files.partitions.existing_offsets_partitions() == [12]


def test_asking_makes_no_files(world):
    assert world.offsets.fetch("g", FOO_0) is None
    assert world.offsets.is_stable("g", FOO_0)
    assert world.offsets.all() == {}
    with pytest.raises(GroupIdNotFoundError):
        world.offsets.delete("g")
    assert world.offsets.expire(10**15) == 0
    assert parts_of(world.store).files.partitions.existing_offsets_partitions() == []


def test_what_is_refused_writes_nothing(world):
    world.commit({FOO_0: 1})
    for group, offsets, error in [
        ("", {FOO_0: 2}, InvalidRequestError),
        ("\ud800", {FOO_0: 2}, InvalidRequestError),
        ("x" * 32_768, {FOO_0: 2}, InvalidRequestError),
        (7, {FOO_0: 2}, TypeError),
        ("g", [FOO_0], TypeError),
        ("g", {"foo": 2}, TypeError),
        ("g", {FOO_0: "2"}, TypeError),
        ("g", {FOO_0: True}, TypeError),
        ("g", {FOO_0: OffsetAndMetadata(2, None)}, TypeError),
        ("g", {FOO_0: -1}, ValueError),
        ("g", {FOO_0: 2**63}, ValueError),
        ("g", {FOO_0: OffsetAndMetadata(2, "", -2)}, ValueError),
        ("g", {FOO_0: OffsetAndMetadata(2, "\ud800")}, ValueError),
        ("g", {FOO_0: 2, TopicPartition("foo", 2): 2}, UnknownTopicOrPartitionError),
        ("g", {TopicPartition("none", 0): 2}, UnknownTopicOrPartitionError),
        ("g", {TopicPartition("__consumer_offsets", 0): 2}, UnknownTopicOrPartitionError),
    ]:
        for call in (world.offsets.commit, world.offsets.prepare_commit):
            with pytest.raises(error):
                call(group, offsets)
    assert len(world.records()) == 1
    assert world.offsets.all() == {"g": {FOO_0: OffsetAndMetadata(1)}}


def test_a_long_name_of_a_group(world):
    name = "é" * 16_000
    world.pending(5, {FOO_0: 1}, group=name)
    world.expect(FOO_0, None, stable=False, group=name)
    world.end(5, commit=True, group=name)
    world.expect(FOO_0, 1, group=name)


def test_no_offsets_write_nothing(world):
    world.commit({})
    assert world.offsets.prepare_commit("g", {})[1:3] == ([], [])
    assert world.records() == []


def test_internal_topics_are_not_handed_to_users(world):
    world.commit({FOO_0: 1})
    where = world.log().topic_partition
    assert parts_of(world.store).files.partitions.find(where) is None
    with pytest.raises(UnknownTopicOrPartitionError):
        world.store.partition(*where)
    assert "__consumer_offsets" not in world.store.topics()
    assert world.store.verify() == []


# Expiry.


def test_offsets_expire_after_their_retention(open_store, tmp_path):
    world = World(open_store(offsets__retention__minutes=2), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.commit({FOO_0: 1})
    committed_ms = world.records()[0].timestamp_ms
    assert world.offsets.expire(committed_ms + 119_000) == 0
    assert world.offsets.expire(committed_ms + 121_000) == 1
    world.expect(FOO_0, None)


def test_offsets_do_not_expire_by_default(open_store, tmp_path):
    world = World(open_store(), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.commit({FOO_0: 1})
    value = encoded(OffsetValue(5, commit_timestamp_ms=10**12, expire_timestamp_ms=2 * 10**12))
    world.log().append_columns([value], [encode_offset_key("g", FOO_1)])
    assert world.offsets.expire(world.records()[0].timestamp_ms + 10_000 * DAY_MS) == 1
    world.expect(FOO_0, 1)
    world.expect(FOO_1, None)


def test_an_expiry_of_its_own_comes_first(world):
    value = encoded(OffsetValue(5, commit_timestamp_ms=10**12, expire_timestamp_ms=2 * 10**12))
    world.log().append_columns([value], [encode_offset_key("g", FOO_0)])
    assert world.offsets.expire(2 * 10**12 - 1) == 0
    world.expect(FOO_0, 5)
    assert world.offsets.expire(2 * 10**12) == 1
    world.expect(FOO_0, None)


def test_nothing_expires_while_a_transaction_appends(world):
    """A tombstone behind the transaction's record would take its offset away."""
    world.commit({FOO_0: 1})
    later_ms = world.records()[0].timestamp_ms + 8 * DAY_MS
    number, keys, values, _ = world.offsets.prepare_commit("g", {FOO_0: 100})
    log = parts_of(world.store).files.partitions.offsets_partition(number)
    expired = []
    expiry = threading.Thread(target=lambda: expired.append(world.offsets.expire(later_ms)))
    with world.offsets.writing(number):
        expiry.start()
        expiry.join(0.1)
        assert expiry.is_alive()
        log.append_columns(
            values, keys, producer_id=5, producer_epoch=0, base_sequence=-1, transactional=True
        )
    expiry.join(30)
    assert expired == [0]
    log.append_marker(5, 1, 1, True)
    world.expect(FOO_0, 100)
    assert world.offsets.expire(later_ms + 8 * DAY_MS) == 1


def test_an_expiry_under_way_is_over_before_a_transaction_appends(world, monkeypatch):
    world.commit({FOO_0: 1})
    later_ms = world.records()[0].timestamp_ms + 8 * DAY_MS
    log = world.log()
    whole = log.append_columns
    writer = threading.Thread(target=lambda: world.pending(5, {FOO_0: 100}))

    def append_columns(*arguments, **options):
        if arguments[0] == [None, None]:  # The offset, and the group.
            writer.start()
            writer.join(0.1)
            assert writer.is_alive()
        return whole(*arguments, **options)

    monkeypatch.setattr(log, "append_columns", append_columns)
    assert world.offsets.expire(later_ms) == 1
    writer.join(30)
    world.end(5, commit=True)
    world.expect(FOO_0, 100)


def test_the_background_thread_expires(open_store, tmp_path):
    store = open_store(offsets__retention__minutes=7 * 24 * 60)
    world = World(store, tmp_path)
    store.create_topic("foo", partitions=2)
    value = encoded(OffsetValue(5, commit_timestamp_ms=1_000))
    world.log().append_columns([value], [encode_offset_key("g", FOO_0)])
    world.expect(FOO_0, 5)
    parts_of(store).checkpointer.stop()  # Its thread could come first.
    do_background_work(store)
    assert store.metrics()["checkpointer"]["group_offsets_expired"] == 1
    world.expect(FOO_0, None)


# Topics that go.


def test_a_deleted_topic_takes_its_offsets_along(open_store, tmp_path):
    world = World(open_store(), tmp_path)
    for name in ("foo", "bar"):
        world.store.create_topic(name, partitions=2)
    world.commit({FOO_0: 1, BAR_0: 2})
    world.commit({FOO_0: 3}, group="h")
    world.pending(5, {FOO_1: 4})
    world.store.delete_topic("foo")
    world.store.create_topic("foo", partitions=2)
    world.end(5, commit=True)
    world.expect(FOO_0, None)
    world.expect(FOO_1, None)
    world.expect(BAR_0, 2)
    for view in world.views():
        assert view.all() == {"g": {BAR_0: OffsetAndMetadata(2)}}


def test_no_offset_gets_into_a_topic_that_was_made_since_it_was_checked(world, monkeypatch):
    def make_again():
        world.store.delete_topic("foo")
        world.store.create_topic("foo", partitions=2)

    number, _, _, topic_ids = world.offsets.prepare_commit("g", {FOO_0: 1})
    make_again()
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted since"):
        world.offsets.check_prepared(number, "g", topic_ids)
    checked = world.offsets._check_may_commit

    def made_again_after(*args, **kwargs):
        checked(*args, **kwargs)
        make_again()

    monkeypatch.setattr(world.offsets, "_check_may_commit", made_again_after)
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted since"):
        world.offsets.commit("g", {FOO_0: 1})
    monkeypatch.undo()
    world.expect(FOO_0, None)


def test_topic_ids_of_a_member_are_a_mapping(world):
    with pytest.raises(TypeError, match="topic_ids"):
        world.commit({FOO_0: 1}, group=ConsumerGroupMetadata("g", topic_ids=5))
    world.commit({FOO_0: 1}, group=ConsumerGroupMetadata("g", topic_ids={"bar": "another"}))
    world.expect(FOO_0, 1)


# What is kept, and what it costs.


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("persisted", [True, False])
def test_offsets_survive_reopening(open_store, tmp_path, clean, persisted):
    world = World(open_store(), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.commit({FOO_0: 1})
    if persisted:
        world.offsets.log.persist_all()
    world.pending(5, {FOO_0: 2, FOO_1: 3})
    world.end(5, commit=True)
    world.commit({FOO_0: 4}, group="h")
    world.store.close() if clean else abandon(world.store)
    world = World(open_store(), tmp_path)
    world.expect(FOO_0, 2)
    world.expect(FOO_1, 3)
    world.expect(FOO_0, 4, group="h")


def test_opening_reads_only_what_lmdb_does_not_have(open_store, tmp_path, monkeypatch):
    world = World(open_store(), tmp_path)
    world.store.create_topic("foo", partitions=2)
    for offset in range(300):
        world.commit({FOO_0: offset})
    world.store.close()
    world = World(open_store(), tmp_path)
    replayed = []
    whole = group_log.iter_unreplaced_batches

    def noted(data):
        found = list(whole(data))
        replayed.extend(found)
        return found

    monkeypatch.setattr(group_log, "iter_unreplaced_batches", noted)
    assert world.offsets.fetch("g", FOO_0).offset == 299
    # What this process writes it need not read.
    world.commit({FOO_0: 300})
    assert world.offsets.fetch("g", FOO_0).offset == 300
    assert replayed == []
    world.log().append_columns([encoded(OffsetValue(301))], [encode_offset_key("g", FOO_0)])
    assert world.offsets.fetch("g", FOO_0).offset == 301
    assert len(replayed) == 1


def test_pending_offsets_are_kept_too(world):
    world.pending(5, {FOO_0: 1})
    world.offsets.log.persist_all()
    kept = GroupOffsetsIndex(parts_of(world.store).files.lmdb).read(world.log().partition)
    assert [row.producer_id for row, _ in kept.rows] == [5]
    world.end(5, commit=True)
    world.offsets.fetch("g", FOO_0)
    world.offsets.log.persist_all()
    kept = GroupOffsetsIndex(parts_of(world.store).files.lmdb).read(world.log().partition)
    assert [(row.producer_id, one.value.offset) for row, one in kept.rows] == [(-1, 1)]


def test_rows_that_know_more_than_the_log_are_dropped(open_store, store_path, tmp_path):
    """A power cut took unsynced commits that LMDB had seen; others come in their place."""
    world = World(open_store(), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.commit({FOO_0: 1})
    log = world.log()
    size_bytes, name = log.size_bytes, str(log.topic_partition)
    world.commit({FOO_0: 2, FOO_1: 2})
    world.offsets.log.persist_all()
    abandon(world.store)
    path = store_path / name / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:size_bytes])
    world = World(open_store(), tmp_path)
    # Before anybody asks for an offset the log is as long as it was.
    key = encode_offset_key("other", FOO_0)
    world.log().append_columns([encoded(OffsetValue(7))] * 2, [key, key])
    world.expect(FOO_0, 1)
    world.expect(FOO_1, None)


def test_lmdb_lost_while_open_is_written_whole_again(world):
    world.commit({FOO_0: 1, FOO_1: 2})
    world.offsets.log.persist_all()
    parts_of(world.store).files.lmdb.begin_anew()
    world.commit({FOO_0: 3})
    world.expect(FOO_0, 3)
    world.expect(FOO_1, 2)


def test_lmdb_lost_within_a_write_keeps_the_changes(world, monkeypatch):
    world.commit({FOO_0: 1, FOO_1: 2})
    world.offsets.log.persist_all()
    world.commit({FOO_0: 3})
    world.offsets.fetch("g", FOO_0)
    index = world.offsets.log.index
    whole = index.write

    def write(*arguments):
        parts_of(world.store).files.lmdb.begin_anew()
        monkeypatch.setattr(index, "write", whole)
        whole(*arguments)

    monkeypatch.setattr(index, "write", write)
    with pytest.raises(StateStoreDamagedError):
        world.offsets.log.persist_all()
    world.expect(FOO_0, 3)
    world.expect(FOO_1, 2)


def ending_at(log_end_offset, partition, topic=CONSUMER_OFFSETS_TOPIC):
    return SimpleNamespace(topic=topic, partition=partition, log_end_offset=log_end_offset)


def test_forgetting_rows_leaves_other_partitions(tmp_path):
    store = LmdbEnvironment(tmp_path)
    index = GroupOffsetsIndex(store)
    rows = [
        (RowKey(producer_id, OffsetKey("g", where)), WrittenOffset(OffsetValue(9), 4))
        for producer_id in (-1, 0, 2**62)
        for where in (FOO_0, FOO_1)
    ]
    for number in (0, 1, 2):
        index.write(number, 10, rows, 0, since=None)
    index.delete(1)
    index.delete(1)
    index.delete_untrue(ending_at(9, 2))
    assert index.read(1) is None
    assert index.read(2) is None
    assert sorted(index.read(0).rows) == sorted(rows)
    index.delete_untrue(ending_at(10, 0))
    index.delete_untrue(ending_at(9, 0, "t"))
    assert index.read(0).offset == 10
    store.close()


def test_rows_of_several_processes_only_go_forward(tmp_path):
    store = LmdbEnvironment(tmp_path)
    index = GroupOffsetsIndex(store)

    def row(offset):
        return (RowKey(-1, OffsetKey("g", FOO_0)), WrittenOffset(OffsetValue(offset), offset))

    assert index.write(0, 10, [row(9)], 0, since=None)
    assert index.write(0, 20, [row(19)], 0, since=10)
    # Another process, which has seen less: what it knows is among what there is.
    assert index.write(0, 15, [row(14)], 0, since=10)
    assert index.write(0, 12, [row(11)], 0, since=None)
    assert index.read(0) == (20, [row(19)])
    assert index.write(0, 30, [row(29)], 0, since=15)
    assert index.read(0) == (30, [row(29)])
    # A third one found the rows damaged: whoever knows only changes has to write all.
    index.delete(0)
    assert not index.write(0, 40, [], 0, since=30)
    assert index.read(0) is None
    assert index.write(0, 40, [row(29)], 0, since=None)
    store.close()


def test_rows_lost_in_another_process_are_written_whole_again(world):
    world.commit({FOO_0: 1, FOO_1: 2})
    world.offsets.log.persist_all()
    number = world.offsets.log.partition_of("g")
    world.offsets.log.index.delete(number)
    world.commit({FOO_0: 3})
    world.offsets.log.persist_all()
    world.expect(FOO_0, 3)
    world.expect(FOO_1, 2)


def test_records_of_members_and_newer_groups_are_passed_over(world):
    keys = [b"\0\2\0\1g", b"\0\3whatever", None]
    world.log().append_columns([b"x", b"y", b"z"], keys)
    world.commit({FOO_0: 1})
    world.expect(FOO_0, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\1\0\5g", b"x"), (encode_offset_key("g", FOO_0), b"\0\7"), (b"\1", None)],
)
def test_damaged_records_are_named(open_store, tmp_path, key, value):
    world = World(open_store(), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.log().append_columns([value], [key])
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="offset 0 is not of a group") as caught:
            world.offsets.fetch("g", FOO_0)
        assert caught.value.path.endswith(str(world.log().topic_partition))


@pytest.mark.parametrize("error", [KeyboardInterrupt, CorruptRecordError])
@pytest.mark.parametrize("persists", [True, False])
@pytest.mark.parametrize("batches", range(6))
def test_a_replay_that_was_cut_short_goes_on(world, monkeypatch, error, persists, batches):
    """The pending offset of an open transaction comes after a marker of the same producer."""
    world.pending(5, {FOO_0: 1})
    world.expect(FOO_0, None, stable=False)
    world.end(5, commit=True)
    world.pending(5, {FOO_1: 2})
    world.end(5, commit=True)
    world.pending(5, {FOO_1: 3})
    world.end(5, commit=True)
    world.pending(5, {FOO_0: 4, FOO_1: 4})
    world.log().append_columns([encoded(OffsetValue(1))], [encode_offset_key("g", BAR_0)])
    replay, replayed = GroupOffsetsState.replay, []

    def cut_short(state, header, records):
        if len(replayed) == batches:
            raise error("foo", 0, "bar") if error is CorruptRecordError else error
        replay(state, header, records)
        replayed.append(header)

    with monkeypatch.context() as patch, suppress(error):
        patch.setattr(GroupOffsetsState, "replay", cut_short)
        world.offsets.fetch("g", FOO_0)
    with monkeypatch.context() as patch, suppress(error):
        patch.setattr(GroupOffsetsState, "replay", cut_short)
        if persists:
            world.offsets.log.persist_all()
    world.expect(FOO_0, 1, stable=False)
    world.expect(FOO_1, 3, stable=False)
    world.end(5, commit=False)
    world.expect(FOO_0, 1)
    world.expect(FOO_1, 3)


def test_commits_are_synced_with_what_they_say_was_read(open_store, tmp_path):
    world = World(open_store("commit"), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.store.producer().append("foo", 0, [b"x"] * 10)
    source = engine_of(world.store).partition("foo", 0)
    assert source.recovery_point == 0
    world.commit({FOO_0: 4})
    assert source.recovery_point >= 4
    assert world.log().recovery_point == world.log().log_end_offset == 1
    world.store.producer().append("foo", 0, [b"x"] * 10)
    world.offsets.prepare_commit("g", {FOO_0: 1000})
    assert source.recovery_point == 20


@pytest.mark.parametrize("lmdb", ["kept", "lost"])
def test_the_log_without_its_old_segments_tells_the_same(open_store, store_path, tmp_path, lmdb):
    world = World(open_store(), tmp_path)
    world.store.create_topic("foo", partitions=2)
    world.commit({FOO_0: 1, FOO_1: 2})
    world.offsets.log.persist_all()
    world.pending(5, {FOO_0: 3})
    world.log().roll()
    compact = parts_of(world.store).files.compact
    assert compact(world.log()) == 0, "a transaction is open"
    world.end(5, commit=True)
    world.log().roll()
    assert compact(world.log()) == 2
    assert world.log().log_start_offset > 2
    world.expect(FOO_0, 3)
    world.expect(FOO_1, 2)
    abandon(world.store)
    if lmdb == "lost":
        shutil.rmtree(store_path / "state" / "lmdb")
    world = World(open_store(), tmp_path / "again")
    world.expect(FOO_0, 3)
    world.expect(FOO_1, 2)


def test_rows_that_are_older_than_the_log_are_dropped(world):
    """What was replayed stood before records that nobody had asked for, and that are gone."""
    world.commit({FOO_0: 1, FOO_1: 2})
    world.offsets.log.persist_all()
    files = parts_of(world.store).files
    late = GroupOffsets(
        files.partitions, GroupOffsetsIndex(files.lmdb), files.config, False, files.session.shared
    )
    assert late.fetch("g", FOO_1) == OffsetAndMetadata(2)
    keys = [encode_offset_key("g", where) for where in (FOO_0, FOO_1)]
    world.log().append_columns([None, None], keys)
    world.commit({FOO_0: 3})
    world.log().roll()
    assert files.compact(world.log()) == 1
    assert late.fetch("g", FOO_0) == OffsetAndMetadata(3)
    assert late.fetch("g", FOO_1) is None
    late.log.persist_all()
    world.expect(FOO_0, 3)
    world.expect(FOO_1, None)


def test_a_commit_that_could_not_be_appended_keeps_no_group_from_expiring(tmp_path):
    config = {"offsets.retention.minutes": 1}
    with eoslog.open(tmp_path / "s", create=True, durability="process", config=config) as store:
        store.create_topic("t")
        where = TopicPartition("t", 0)
        store.consumer(group="g").commit({where: 1})
        first = store.producer(transactional_id="x")
        first.init_transactions()
        first.begin_transaction()
        store.producer(transactional_id="x").init_transactions()
        with pytest.raises(eoslog.errors.ProducerFencedError):
            first.send_offsets_to_transaction({where: 2}, "g")
        assert (
            parts_of(store).files.group_offsets.expire(time.time_ns() // 1_000_000 + 120_000) == 1
        )
        assert store.groups() == {}


# Sequences.


@pytest.mark.parametrize("cut_short", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_each_batch_of_a_transactions_offsets_begins_with_sequence_0(tmp_path, cut_short, prepared):
    """As Kafka's group coordinator writes them; they are no duplicates of one another."""
    path = tmp_path / "s"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("foo", partitions=2)
        for offset in (1, 2):
            producer = store.producer(transactional_id="x")
            producer.init_transactions()
            producer.begin_transaction()
            for step in (10, 20):
                offsets = {FOO_0: offset + step, FOO_1: offset + step}
                producer.send_offsets_to_transaction(offsets, "g")
            if prepared:
                store.commit_prepared([producer.prepare_transaction()])
            else:
                producer.commit_transaction()
        copy = tmp_path / "copy"
        copy_store(path, copy)
    with eoslog.open(copy if cut_short else path) as store:
        assert store.groups()["g"] == {
            FOO_0: OffsetAndMetadata(22),
            FOO_1: OffsetAndMetadata(22),
        }
        partition = parts_of(store).files.group_offsets.log.of_group("g").partition
        sequences = [
            (one.base_sequence, one.record_count)
            for one in iter_batches(partition.read(0, 1 << 20))
            if not one.is_control
        ]
        assert sequences == [(0, 2)] * 4
        assert partition.verify() == []
        assert store.verify() == []


def test_offsets_of_0_1_0_have_no_sequences_and_others_may_follow(tmp_path):
    with eoslog.open(tmp_path / "s", create=True, durability="process") as store:
        store.create_topic("foo", partitions=2)
        world = World(store, tmp_path)
        world.pending(5, {FOO_0: 1})
        _, keys, values, _ = world.offsets.prepare_commit("g", {FOO_1: 2})
        world.log().append_columns(
            values, keys, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
        )
        world.pending(5, {FOO_0: 3})
        world.end(5, commit=True)
        world.expect(FOO_0, 3)
        world.expect(FOO_1, 2)
        assert world.log().verify() == []
