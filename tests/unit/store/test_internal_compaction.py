"""Compaction of the internal topics: what holds stays, in this life of the store and the next."""

import shutil
import time

import pytest
from store_copies import copy_store

import eoslog
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.groups import log as group_log
from eoslog.storage import log_opener, topic_registry
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.internal_compaction import InternalCompaction
from eoslog.store.store import abandon, parts_of
from eoslog.transactions import compacted_log, state_index
from eoslog.transactions.state_key import state_partition_of

SEGMENT_BYTES = 16_384


@pytest.fixture
def small_segments(monkeypatch):
    config = {"segment.bytes": SEGMENT_BYTES, "max.message.bytes": SEGMENT_BYTES}
    monkeypatch.setattr(topic_registry, "INTERNAL_TOPIC_CONFIG", config)


@pytest.fixture
def store(tmp_path, small_segments):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as opened:
        opened.create_topic("t", partitions=2)
        parts_of(
            opened
        ).checkpointer.stop()  # It would compact by itself, and change what is copied.
        yield opened


def producer(store, transactional_id):
    made = store.producer(transactional_id=transactional_id)
    made.init_transactions()
    return made


def commit_some(made, count=200):
    for _ in range(count):
        with made.transaction():
            made.send("t", value=b"v", partition=0)


def state_partition(store, name):
    return parts_of(store).files.partitions.state_partition(state_partition_of(name))


def compact(store, partition, safe=None):
    def safe_offset(number):
        return partition.log_end_offset if safe is None else safe

    return parts_of(store).files.state_log.compact(partition, safe_offset)


def same_partition_ids(name, count):
    """Ids whose records are in the same partition as those of a name."""
    wanted = state_partition_of(name)
    found = []
    number = 0
    while len(found) < count:
        if state_partition_of(f"id-{number}") == wanted:
            found.append(f"id-{number}")
        number += 1
    return found


def test_an_unfilled_partition_is_left_alone(store):
    made = producer(store, "one")
    commit_some(made, 2)
    assert compact(store, state_partition(store, "one")) == 0


def test_sealed_segments_go_and_the_newest_record_of_each_id_stays(store, tmp_path):
    idle = same_partition_ids("busy", 3)
    for name in idle:
        producer(store, name).close()
    store.producer(name=idle[0]).close()
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert partition.segment_count > 3
    before = {one.transactional_id: one for one in store.transactions()}
    assert compact(store, partition) >= 3
    assert partition.segment_count == 1
    assert partition.log_start_offset > 0
    assert {one.transactional_id: one for one in store.transactions()} == before
    commit_some(busy, 3)
    # As it is, and with the index lost: everything comes from what the log still has.
    for number, lost in enumerate((False, True)):
        copy = tmp_path / f"copy-{number}"
        copy_store(store.path, copy)
        if lost:
            shutil.rmtree(copy / "state" / "lmdb")
        with eoslog.open(copy, durability="process") as opened:
            again = {one.transactional_id: one for one in opened.transactions()}
            assert again.keys() == before.keys()
            for name in idle:
                assert again[name].producer_id == before[name].producer_id
            assert opened.producer(name=idle[0]).producer_epoch == 1
            after = producer(opened, "busy")
            # This store syncs nothing, so after an unclean stop the id gets a new producer id.
            assert after.producer_id > busy.producer_id
            assert after.producer_epoch == 0


def test_a_second_compaction_copies_only_what_was_sealed_since(store):
    names = same_partition_ids("busy", 20)
    for name in names:
        producer(store, name).close()
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert compact(store, partition) > 0
    assert compact(store, partition) == 0
    end = partition.log_end_offset
    assert compact(store, partition) == 0
    assert partition.log_end_offset == end


def test_an_open_transactions_record_keeps_its_segment(store):
    (held_id,) = same_partition_ids("busy", 1)
    held = producer(store, held_id)
    held.begin_transaction()
    held.append("t", partition=1, values=[b"held"])
    described = store.describe_transaction(held_id)
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert compact(store, partition) == 0
    assert store.describe_transaction(held_id).topic_partitions == described.topic_partitions
    held.commit_transaction()
    assert compact(store, partition) > 0


def test_a_decision_whose_markers_may_be_lost_keeps_its_segment(store):
    busy = producer(store, "busy")
    commit_some(busy)
    partition = state_partition(store, "busy")
    assert compact(store, partition, safe=0) == 0
    assert partition.log_start_offset == 0
    assert compact(store, partition) > 0


def test_the_topic_is_internal(store):
    producer(store, "one")
    assert TRANSACTION_STATE_TOPIC not in store.topics()


# The offsets of groups.


def commit_offsets(store, group, count):
    consumer = store.consumer(group=group)
    where = eoslog.TopicPartition("t", 0)
    for number in range(count):
        consumer.commit({where: number})


def offsets_partition(store, group):
    return parts_of(store).files.partitions.offsets_partition(
        parts_of(store).files.group_offsets.log.partition_of(group)
    )


def test_offsets_of_groups_are_compacted_and_stay(store, tmp_path):
    where = eoslog.TopicPartition("t", 0)
    store.consumer(group="busy").commit({eoslog.TopicPartition("t", 1): 7})
    commit_offsets(store, "busy", 400)
    partition = offsets_partition(store, "busy")
    assert partition.segment_count > 2
    assert parts_of(store).files.compact(partition) > 1
    assert partition.segment_count == 1
    before = store.groups()
    assert before["busy"][where].offset == 399
    assert before["busy"][eoslog.TopicPartition("t", 1)].offset == 7
    for number, lost in enumerate((False, True)):
        copy = tmp_path / f"copy-{number}"
        copy_store(store.path, copy)
        if lost:
            shutil.rmtree(copy / "state" / "lmdb")
        with eoslog.open(copy, durability="process") as opened:
            assert opened.groups() == before


@pytest.mark.parametrize("decide", ["commit_transaction", "abort_transaction"])
def test_offsets_stay_as_they_are_while_a_transaction_is_open(store, tmp_path, decide):
    """The one that it is to replace is not copied: the copy would count as written later."""
    pending, idle = (eoslog.TopicPartition("t", number) for number in range(2))
    store.consumer(group="busy").commit({idle: 7})
    commit_offsets(store, "busy", 400)
    made = producer(store, "one")
    made.begin_transaction()
    made.send_offsets_to_transaction({pending: 1000}, "busy")
    made.flush()
    partition = offsets_partition(store, "busy")
    assert parts_of(store).files.compact(partition) > 0
    for number in range(400):
        store.consumer(group="busy").commit({idle: number})
    end = partition.log_end_offset
    assert parts_of(store).files.compact(partition) == 0
    assert partition.log_end_offset == end  # Nothing is copied that no segment goes for.
    assert store.groups()["busy"][pending].offset == 399
    getattr(made, decide)()
    wanted = {pending: 1000 if decide == "commit_transaction" else 399, idle: 399}
    assert parts_of(store).files.compact(partition) > 0
    for lost in (False, True):
        copy = tmp_path / f"copy-{lost}"
        copy_store(store.path, copy)
        if lost:
            shutil.rmtree(copy / "state" / "lmdb")
        with eoslog.open(copy, durability="process") as opened:
            assert {where: one.offset for where, one in opened.groups()["busy"].items()} == wanted


def test_transactions_that_are_always_open_do_not_keep_offsets_of_groups(store):
    """Each has its offset pending at any look, and they overlap."""
    made = [producer(store, f"id-{number}") for number in range(2)]
    partition = offsets_partition(store, "busy")
    sizes = []
    for number in range(1200):
        one = made[number % 2]
        if number > 1:
            one.commit_transaction()
        one.begin_transaction()
        where = eoslog.TopicPartition("t", number % 2)
        one.send_offsets_to_transaction({where: number}, "busy")
        one.flush()
        if number % 100 == 99:
            parts_of(store).files.compact(partition)
            sizes.append(partition.size_bytes)
    assert max(sizes) < 3 * SEGMENT_BYTES
    for one in made:
        one.commit_transaction()
    assert {one.offset for one in store.groups()["busy"].values()} == {1198, 1199}


def test_a_full_segment_is_compacted_in_the_background(tmp_path, small_segments):
    config = {"eoslog.checkpoint.interval.ms": 50}
    with eoslog.open(tmp_path / "s", create=True, durability="process", config=config) as opened:
        opened.create_topic("t")
        commit_some(producer(opened, "busy"), 400)
        partition = state_partition(opened, "busy")
        deadline_s = time.monotonic() + 30
        while partition.log_start_offset == 0 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert partition.log_start_offset > 0
        assert opened.metrics()["checkpointer"]["errors"] == []


def state_bytes(path):
    return sum(one.stat().st_size for one in path.glob("__transaction_state-*/*"))


def rolls_at(monkeypatch, roll_bytes):
    monkeypatch.setattr(log_opener, "_INTERNAL_ROLL_BYTES", roll_bytes)


def test_segments_of_internal_topics_are_small_and_a_large_record_has_its_own(tmp_path):
    with eoslog.open(tmp_path / "s", create=True, durability="process") as store:
        parts_of(store).checkpointer.stop()  # It would compact by itself.
        log = parts_of(store).files.state_log
        for number in range(8):
            log.append(1009, "name", {"text": "x" * 300_000, "n": number})
        log.append(1009, "name", {"text": "x" * 5_000_000, "n": 8})
        log.append(1009, "name", {"text": "x", "n": 9})
        sizes = [size for _, size in state_partition(store, "name").segment_sizes()]
        assert [size <= 1 << 20 for size in sizes] == [True, True, True, False, True]
        assert state_partition(store, "name").segment_count == 5
        assert compact(store, state_partition(store, "name")) == 4
        assert log.get(1009, "name")["n"] == 9


@pytest.mark.parametrize("count", [2_000, 8_000])
def test_the_size_does_not_depend_on_the_number_of_transactions(tmp_path, monkeypatch, count):
    rolls_at(monkeypatch, SEGMENT_BYTES)
    config = {"eoslog.checkpoint.interval.ms": 50}
    path = tmp_path / "s"
    names = same_partition_ids("busy", 4)
    with eoslog.open(path, create=True, durability="process", config=config) as store:
        store.create_topic("t")
        made = [producer(store, name) for name in names]
        for number in range(count):
            with made[number % len(made)].transaction():
                made[number % len(made)].send("t", value=b"v")
    assert state_bytes(path) < 5 * SEGMENT_BYTES
    with eoslog.open(path, durability="process") as store:
        assert {one.transactional_id for one in store.transactions()} == set(names)


def test_processes_that_are_too_short_lived_for_the_thread_compact_when_they_close(
    tmp_path, monkeypatch
):
    rolls_at(monkeypatch, SEGMENT_BYTES)
    path = tmp_path / "s"
    for _ in range(10):
        with eoslog.open(path, create=True, durability="process") as store:
            store.create_topic("t", exist_ok=True)
            commit_some(producer(store, "busy"), 100)
            commit_offsets(store, "busy", 150)
    assert state_bytes(path) < 5 * SEGMENT_BYTES
    offsets = sum(one.stat().st_size for one in path.glob("__consumer_offsets-*/*"))
    assert offsets < 4 * SEGMENT_BYTES


def test_a_store_with_large_segments_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "s"
    rolls_at(monkeypatch, 1 << 30)
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=2)
        idle = same_partition_ids("busy", 3)
        for name in idle:
            producer(store, name).close()
        commit_some(producer(store, "busy"), 300)
        assert state_partition(store, "busy").segment_count == 1
        before = {one.transactional_id for one in store.transactions()}
    large = state_bytes(path)
    rolls_at(monkeypatch, SEGMENT_BYTES)
    with eoslog.open(path, durability="process") as store:
        commit_some(producer(store, "busy"), 3)
    assert state_bytes(path) < large // 4
    with eoslog.open(path, durability="process") as store:
        assert {one.transactional_id for one in store.transactions()} == before


def test_what_holds_is_copied_no_more_often_than_as_much_was_written(store, monkeypatch):
    """A partition with much that holds is due again once it is twice as large."""
    monkeypatch.setattr(state_index, "LIVE_STEP_BYTES", 1)
    log = parts_of(store).files.state_log
    names = same_partition_ids("busy", 200)
    for name in names:
        log.append(1009, name, {"text": "x" * 300})
    partition = state_partition(store, "busy")
    compaction = InternalCompaction(parts_of(store).files)
    compaction.look(partition)
    assert compaction.has_due()
    assert compaction.run() > 2
    live_bytes = partition.size_bytes
    compaction.look(partition)
    assert not compaction.has_due()
    written = 0
    while not compaction.has_due():
        log.append(1009, names[written % 5], {"text": "x" * 300})
        written += 1
        compaction.look(partition)
    assert partition.size_bytes > 1.7 * live_bytes
    assert compaction.run() > 0
    assert partition.size_bytes < live_bytes + 3 * SEGMENT_BYTES
    assert log.names(1009) == sorted(names)


def test_many_keys_are_found_in_the_segments_themselves(store, monkeypatch):
    monkeypatch.setattr(compacted_log, "_RECORDS_PER_KEY", 1 << 40)
    names = same_partition_ids("busy", 20)
    for name in names:
        producer(store, name).close()
    log = parts_of(store).files.state_log
    for name in names:
        log.append(1009, name, {"name": name})
    commit_some(producer(store, "busy"))
    before = {one.transactional_id: one for one in store.transactions()}
    assert compact(store, state_partition(store, "busy")) > 0
    assert {one.transactional_id: one for one in store.transactions()} == before
    assert log.names(1009) == sorted(names)
    assert all(log.get(1009, name)["name"] == name for name in names)


class Died(BaseException):
    """The process died here."""


STEPS = [
    (compacted_log.CompactedLog, "plan_compaction"),
    (compacted_log.CompactedLog, "write_forward"),
    (group_log.GroupLog, "write_forward"),
    (OffsetCheckpoints, "raise_starts"),
    (UnifiedLog, "delete_segments"),
]


@pytest.mark.parametrize("owner, step", STEPS, ids=[f"{one.__name__}.{two}" for one, two in STEPS])
def test_after_a_death_in_the_middle_all_that_holds_is_there(
    tmp_path, store, monkeypatch, owner, step
):
    idle = same_partition_ids("busy", 3)
    for name in idle:
        producer(store, name).close()
    busy = producer(store, "busy")
    commit_some(busy)
    commit_offsets(store, "idle", 1)
    commit_offsets(store, "busy", 400)
    before = {one.transactional_id: one.transaction_state for one in store.transactions()}
    offsets = store.groups()
    partitions = [state_partition(store, "busy"), offsets_partition(store, "busy")]
    assert all(one.segment_count > 2 for one in partitions)
    whole = getattr(owner, step)

    def dies(*arguments):
        whole(*arguments)
        raise Died

    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(owner, step, dies)
        parts_of(store).files.compact(*partitions)
    abandon(store)
    for lost in (False, True):
        copy = tmp_path / f"copy-{lost}"
        copy_store(store.path, copy)
        if lost:
            shutil.rmtree(copy / "state" / "lmdb")
        with eoslog.open(copy, durability="process") as opened:
            after = {one.transactional_id: one.transaction_state for one in opened.transactions()}
            assert after == before
            assert opened.groups() == offsets
            commit_some(producer(opened, "busy"), 3)
            parts_of(opened).files.compact(
                state_partition(opened, "busy"), offsets_partition(opened, "busy")
            )
            assert {one.transactional_id for one in opened.transactions()} == before.keys()
            assert opened.groups() == offsets
            assert opened.verify() == []
