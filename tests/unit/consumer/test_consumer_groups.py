"""A consumer with a group: where it starts, what it commits, what it waits for."""

import pickle
import threading
import time

import pytest
from harness.crew import run_and_kill
from stores import values_of

from eoslog import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from eoslog.consumer.fetcher import Fetcher
from eoslog.errors import (
    GroupIdNotFoundError,
    IllegalStateError,
    InvalidConfigError,
    InvalidRequestError,
    LogClosedError,
    NoOffsetForPartitionError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.store.store import abandon, engine_of, parts_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def fill(store):
    store.create_topic("t", partitions=2)
    producer = store.producer()
    for number in range(2):
        producer.append("t", number, [b"%d:%d" % (number, offset) for offset in range(10)])
    return store


@pytest.fixture
def topic(store):
    """Two partitions with 10 records each; the values say where they are."""
    return fill(store)


def reader(store, group="g", partitions=(T0,), **arguments):
    consumer = store.consumer(group=group, **arguments)
    consumer.assign(partitions)
    return consumer


class Transaction:
    """An open transaction that commits offsets, as its coordinator writes it."""

    def __init__(self, store, offsets, group="g", producer_id=7):
        number, keys, values, _ = parts_of(store).files.group_offsets.prepare_commit(group, offsets)
        self.log = parts_of(store).files.partitions.offsets_partition(number)
        self.producer_id = producer_id
        self.log.append_columns(
            values,
            keys,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=-1,
            transactional=True,
        )

    def end(self, commit=True):
        self.log.append_marker(self.producer_id, 1, 1, commit)


# Where it starts.


def test_it_goes_on_where_the_group_was_committed(topic):
    first = reader(topic, partitions=[T0, T1])
    assert len(first.poll(timeout=0, max_records=7)) == 7
    first.commit()
    position = first.position(T0), first.position(T1)
    second = reader(topic, partitions=[T0, T1])
    assert (second.position(T0), second.position(T1)) == position
    assert len(second.poll(timeout=0)) == 13


@pytest.mark.parametrize("clean", [True, False])
def test_the_group_survives_reopening(open_store, clean):
    store = fill(open_store())
    first = reader(store)
    first.poll(timeout=0, max_records=4)
    first.commit()
    store.close() if clean else abandon(store)
    assert [record.offset for record in reader(open_store()).poll(timeout=0)] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(("reset", "position"), [("earliest", 0), ("latest", 10)])
def test_without_an_offset_the_reset_says_where(topic, reset, position):
    consumer = reader(topic, auto_offset_reset=reset)
    assert consumer.position(T0) == position
    with pytest.raises(NoOffsetForPartitionError):
        reader(topic, auto_offset_reset="none").poll(timeout=0)


def test_groups_do_not_share_offsets(topic):
    reader(topic, "a").commit({T0: 5})
    assert reader(topic, "a").position(T0) == 5
    assert reader(topic, "b").position(T0) == 0
    assert reader(topic, None).position(T0) == 0


def test_an_offset_that_the_log_does_not_hold_is_reset(topic):
    reader(topic).commit({T0: 1000})
    assert [record.offset for record in reader(topic).poll(timeout=0, max_records=2)] == [0, 1]
    assert reader(topic, auto_offset_reset="latest").poll(timeout=0) == []


def test_seek_overrides_the_group(topic):
    reader(topic).commit({T0: 5})
    consumer = reader(topic)
    consumer.seek(T0, 8)
    assert consumer.poll(timeout=0)[0].offset == 8
    consumer.seek_to_committed()
    assert consumer.poll(timeout=0)[0].offset == 5
    consumer.seek_to_committed(T0)
    assert consumer.position(T0) == 5


def test_a_column_poll_starts_at_the_group_too(topic):
    reader(topic).commit({T0: 6})
    batch = reader(topic).poll_arrow(timeout=0)
    assert batch.column("offset").to_pylist() == [6, 7, 8, 9]


# Committing.


def test_commit_covers_what_was_handed_out_and_no_more(topic):
    consumer = reader(topic, partitions=[T0, T1])
    assert consumer.committed(T0) is None
    count = 0
    for record in consumer:
        count += 1
        if record.partition == 0 and record.offset == 3:
            consumer.commit()
            break
    assert consumer.committed(T0) == 4
    assert (consumer.committed(T1) or 0) == max(0, count - 4)
    rest = consumer.poll(timeout=0)
    assert len(rest) == 20 - count


def test_a_loop_that_is_left_and_entered_again_loses_nothing(topic):
    consumer = reader(topic, partitions=[T0, T1])
    seen = []
    while len(seen) < 20:
        for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) % 3 == 0 or len(seen) == 20:
                break
    assert sorted(seen) == [(number, offset) for number in range(2) for offset in range(10)]


def test_a_seek_within_a_loop_is_followed(topic):
    consumer = reader(topic, partitions=[T0])
    seen = []
    for record in consumer:
        seen.append(record.offset)
        if seen == [0, 1, 2]:
            consumer.seek(T0, 8)
        if record.offset == 9:
            break
    assert seen == [0, 1, 2, 8, 9]


@pytest.mark.parametrize("poll", ["poll", "poll_arrow"])
def test_what_an_interrupt_kept_from_the_caller_is_not_committed(topic, monkeypatch, poll):
    consumer = reader(topic, partitions=[T0, T1])
    fetch = "records" if poll == "poll" else "columns"
    whole = getattr(Fetcher, fetch)

    def interrupted(*arguments):
        whole(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Fetcher, fetch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(consumer, poll)(timeout=0)
    consumer.commit()
    assert consumer.committed([T0, T1]) == {T0: 0, T1: 0}
    monkeypatch.undo()
    assert len(consumer.poll(timeout=0)) == 20


def test_commit_of_given_offsets(topic):
    consumer = reader(topic)
    consumer.commit({T0: 3, T1: OffsetAndMetadata(4, "by hand")})
    assert consumer.committed([T0, T1]) == {T0: 3, T1: 4}
    assert consumer.committed_metadata(T1) == OffsetAndMetadata(4, "by hand")
    assert consumer.committed_metadata(T0) == OffsetAndMetadata(3, "", -1)
    assert topic.groups() == {
        "g": {T0: OffsetAndMetadata(3), T1: OffsetAndMetadata(4, "by hand")},
    }


def test_partitions_that_were_not_started_are_not_committed(topic):
    reader(topic).commit({T0: 3})
    consumer = reader(topic, partitions=[T0, T1])
    consumer.commit()
    assert topic.groups() == {"g": {T0: OffsetAndMetadata(3)}}
    consumer.poll(timeout=0, max_records=1)
    consumer.commit()
    assert topic.groups()["g"].keys() == {T0, T1}


def test_wrong_commits_change_nothing(topic):
    consumer = reader(topic)
    consumer.commit({T0: 3})
    for offsets, error in [
        ({T0: -1}, ValueError),
        ({T0: None}, TypeError),
        ({"t": 1}, TypeError),
        ({TopicPartition("t", 2): 1}, UnknownTopicOrPartitionError),
        ({T0: OffsetAndMetadata(1, "x" * 5000)}, OffsetMetadataTooLargeError),
    ]:
        with pytest.raises(error):
            consumer.commit(offsets)
    assert consumer.committed(T0) == 3


def test_without_a_group_nothing_is_committed(topic):
    consumer = reader(topic, None)
    for call in (
        consumer.commit,
        consumer.group_metadata,
        consumer.seek_to_committed,
        lambda: consumer.committed(T0),
        lambda: consumer.committed([T0]),
        lambda: consumer.committed_metadata(T0),
    ):
        with pytest.raises(IllegalStateError, match="no group"):
            call()
    assert topic.groups() == {}


def test_wrong_groups_are_refused(topic):
    with pytest.raises(InvalidRequestError):
        topic.consumer(group="")
    with pytest.raises(TypeError):
        topic.consumer(group=3)
    with pytest.raises(TypeError):
        reader(topic).committed("t-0")
    with pytest.raises(UnknownTopicOrPartitionError):
        reader(topic).committed(TopicPartition("none", 0))


def test_the_group_may_be_named_as_kafka_does(topic):
    consumer = topic.consumer(config={"group.id": "g", "enable.auto.commit": False})
    assert consumer.group_metadata().group_id == "g"
    with pytest.raises(InvalidRequestError):
        topic.consumer(config={"group.id": ""})
    with pytest.raises(InvalidConfigError):
        topic.consumer("g", config={"enable.auto.commit": True})


def test_group_metadata_of_partitions_assigned_by_hand(topic):
    metadata = reader(topic).group_metadata()
    assert metadata == ConsumerGroupMetadata("g", -1, "", None)
    assert pickle.loads(pickle.dumps(metadata)) == metadata
    offset = OffsetAndMetadata(3, "x", 1)
    assert pickle.loads(pickle.dumps(offset)) == offset


def test_a_closed_consumer_or_store_commits_nothing(open_store):
    store = fill(open_store())
    consumer = reader(store)
    consumer.close()
    with pytest.raises(LogClosedError):
        consumer.commit({T0: 1})
    consumer = reader(store)
    store.close()
    for call in (consumer.commit, store.groups, lambda: store.delete_group("g")):
        with pytest.raises(LogClosedError):
            call()


def test_a_deleted_group_starts_anew(topic):
    reader(topic).commit({T0: 5})
    topic.delete_group("g")
    assert topic.groups() == {}
    assert reader(topic).position(T0) == 0
    with pytest.raises(GroupIdNotFoundError):
        topic.delete_group("g")
    with pytest.raises(InvalidRequestError):
        topic.delete_group("")


# Offsets that a transaction commits.


def test_a_start_that_is_not_decided_is_waited_for(topic):
    reader(topic).commit({T0: 2})
    transaction = Transaction(topic, {T0: 5})
    consumer = reader(topic, partitions=[T0, T1])
    # The other partition is read meanwhile.
    assert {record.partition for record in consumer.poll(timeout=0)} == {1}
    assert consumer.poll(timeout=0.05) == []
    for call in (
        lambda: consumer.position(T0),
        lambda: consumer.lag(T0),
        lambda: consumer.committed(T0),
    ):
        with pytest.raises(UnstableOffsetCommitError, match="'g'"):
            call()
    transaction.end()
    assert consumer.poll(timeout=0)[0].offset == 5
    assert consumer.committed(T0) == 5


@pytest.mark.parametrize(("commit", "first"), [(True, 5), (False, 2)])
def test_a_waiting_poll_goes_on_with_the_decision(topic, commit, first):
    reader(topic).commit({T0: 2})
    transaction = Transaction(topic, {T0: 5})
    consumer = reader(topic)
    threading.Timer(0.1, transaction.end, [commit]).start()
    began_s = time.monotonic()
    assert consumer.poll(timeout=30)[0].offset == first
    assert time.monotonic() - began_s < 15


def test_a_waiting_poll_does_not_spin(topic):
    Transaction(topic, {T0: 5})
    consumer = reader(topic)
    began_s = time.thread_time()
    assert consumer.poll(timeout=0.5) == []
    assert time.thread_time() - began_s < 0.25


def test_read_uncommitted_does_not_wait(topic):
    reader(topic).commit({T0: 2})
    Transaction(topic, {T0: 5})
    consumer = reader(topic, isolation_level="read_uncommitted")
    assert consumer.committed(T0) == 2
    assert consumer.poll(timeout=0)[0].offset == 2


def test_groups_of_undecided_transactions_are_listed_without_their_offsets(topic):
    transaction = Transaction(topic, {T0: 5})
    assert topic.groups() == {"g": {}}
    transaction.end()
    assert topic.groups() == {"g": {T0: OffsetAndMetadata(5)}}


# What an isolation level sees.


def test_ends_and_lag_stop_at_the_last_stable_offset(topic):
    log = engine_of(topic).partition("t", 0)
    log.append_columns(
        [b"open"],
        timestamp_ms=5_000_000_000_000,
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    log.append_columns([b"behind"], timestamp_ms=6_000_000_000_000)
    committed = reader(topic)
    uncommitted = reader(topic, isolation_level="read_uncommitted")
    assert (committed.end_offsets([T0])[T0], uncommitted.end_offsets([T0])[T0]) == (10, 12)
    assert (committed.lag(T0), uncommitted.lag(T0)) == (10, 12)
    committed.seek_to_end()
    uncommitted.seek_to_end()
    assert (committed.position(T0), uncommitted.position(T0)) == (10, 12)
    times = {T0: 5_500_000_000_000}
    assert committed.offsets_for_times(times) == {T0: None}
    assert uncommitted.offsets_for_times(times)[T0].offset == 11
    log.append_marker(9, 1, 1, False)
    # Of what lies before it the aborted record and the marker are not to be seen.
    assert (committed.end_offsets([T0])[T0], committed.lag(T0)) == (13, 1)
    assert uncommitted.lag(T0) == 0
    assert committed.offsets_for_times(times)[T0].offset == 11
    assert [record.value for record in committed.poll(timeout=0)] == [b"behind"]
    assert committed.position(T0) == 13


def test_a_search_by_time_finds_records_and_no_markers(store):
    """Kafka answers with the marker's offset (rule R4)."""
    store.create_topic("t")
    producer = store.producer(transactional_id="t")
    producer.init_transactions()
    for commits in (True, False):
        producer.begin_transaction()
        producer.append("t", 0, [b"old"], timestamps=[1])
        producer.commit_transaction() if commits else producer.abort_transaction()
    # Offsets 0 and 2 are records, 1 and 3 are markers, which have the time of their writing.
    later = {T0: 1_600_000_000_000}
    for level in ("read_committed", "read_uncommitted"):
        consumer = reader(store, isolation_level=level)
        assert consumer.end_offsets([T0]) == {T0: 4}
        assert consumer.offsets_for_times({T0: 1}) == {T0: (0, 1)}
        assert consumer.offsets_for_times(later) == {T0: None}
    far_ms = 6_000_000_000_000
    store.producer().append("t", 0, [b"late"], timestamps=[far_ms])
    for level in ("read_committed", "read_uncommitted"):
        consumer = reader(store, isolation_level=level)
        assert consumer.offsets_for_times(later) == {T0: (4, far_ms)}
        consumer.seek(T0, 1)  # Where Kafka's answer is.
        assert consumer.poll(timeout=0)[-1].offset == 4


def test_lag_counts_the_records_that_are_to_come(topic, monkeypatch):
    producer = topic.producer(transactional_id="t")
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        producer.append("t", 0, [b"x"] * 5)
        producer.abort_transaction() if number % 2 else producer.commit_transaction()
    committed = reader(topic)
    uncommitted = reader(topic, isolation_level="read_uncommitted")
    assert (committed.lag(T0), uncommitted.lag(T0)) == (20, 30)
    # In the middle of a batch; and handed out in the same numbers.
    for consumer, count in ((committed, 14), (uncommitted, 24)):
        consumer.seek(T0, 6)
        assert consumer.lag(T0) == count
        assert len(consumer.poll(timeout=0, max_records=3)) == 3
        assert consumer.lag(T0) == count - 3
        assert len(consumer.poll(timeout=0)) == count - 3
        assert consumer.lag(T0) == 0
    # All is read, but the last marker was not passed yet.
    committed.seek(T0, topic.partition("t", 0).log_end_offset - 1)
    assert committed.lag(T0) == 0
    monkeypatch.setattr("eoslog.consumer.positions.COUNTED_OFFSETS_MAX", 10)
    committed.seek(T0, 0)
    assert committed.lag(T0) == topic.partition("t", 0).log_end_offset


def test_positions_pass_over_aborted_data_and_markers(topic):
    log = engine_of(topic).partition("t", 0)
    log.append_columns(
        [b"x"] * 3, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append_marker(9, 1, 1, False)
    consumer = reader(topic)
    consumer.seek(T0, 10)
    assert consumer.poll(timeout=0) == []
    assert consumer.position(T0) == 14
    consumer.commit()
    assert consumer.committed(T0) == 14
    columns = reader(topic)
    assert columns.position(T0) == 14
    columns.seek(T0, 10)
    assert columns.poll_arrow(timeout=0).num_rows == 0
    assert columns.position(T0) == 14


# Reading, writing and the position as one.


def copy(store, aborts=0, max_records=7):
    """Copy what the group has not read from t to copy; every `aborts`-th transaction is aborted."""
    consumer = reader(store, partitions=[T0, T1])
    producer = store.producer(transactional_id="copy")
    producer.init_transactions()
    count = 0
    while records := consumer.poll(timeout=0, max_records=max_records):
        count += 1
        producer.begin_transaction()
        for record in records:
            producer.send("copy", value=record.value, partition=record.partition)
        positions = {where: consumer.position(where) for where in (T0, T1)}
        producer.send_offsets_to_transaction(positions, consumer.group_metadata())
        if aborts and count % aborts == 0:
            producer.abort_transaction()
            consumer.seek_to_committed()
        else:
            producer.commit_transaction()


@pytest.mark.parametrize("aborts", [0, 2, 3])
def test_t06_copy_offsets_every_third_aborted(open_store, aborts):
    store = fill(open_store())
    store.create_topic("copy", partitions=2)
    copy(store, aborts)
    for number in range(2):
        assert values_of(store, "copy", number) == values_of(store, "t", number)
    assert {where: one.offset for where, one in store.groups()["g"].items()} == {T0: 10, T1: 10}


@pytest.mark.crash
@pytest.mark.parametrize("flushed", [True, False])
def test_a_copier_that_is_killed_goes_on_where_it_was(open_store, store_path, flushed):
    store = fill(open_store())
    store.create_topic("copy", partitions=2)
    store.close()
    run_and_kill(
        store_path,
        "consumer = store.consumer(group='g')\n"
        "consumer.assign([TopicPartition('t', 0)])\n"
        "producer = store.producer(transactional_id='copy')\n"
        "producer.init_transactions()\n"
        "for n in range(3):\n"
        "    records = consumer.poll(timeout=0, max_records=2)\n"
        "    producer.begin_transaction()\n"
        "    for record in records:\n"
        "        producer.send('copy', value=record.value, partition=0)\n"
        "    at = {TopicPartition('t', 0): consumer.position(TopicPartition('t', 0))}\n"
        "    producer.send_offsets_to_transaction(at, 'g')\n"
        f"    if n == 2 and {flushed}: producer.flush()\n"
        "    if n < 2: producer.commit_transaction()\n",
    )
    store = open_store()
    assert store.groups() == {"g": {T0: OffsetAndMetadata(4)}}
    copy(store)
    for number in range(2):
        assert values_of(store, "copy", number) == values_of(store, "t", number)


def test_many_threads_commit_wait_and_expire_at_once(topic):
    """Nobody waits for anybody for ever, and each group ends where its last commit was."""
    rounds = 60
    errors = []

    def guarded(work):
        def run():
            try:
                work()
            except Exception as error:
                errors.append(error)

        return threading.Thread(target=run)

    def committer(number):
        consumer = reader(topic, f"group-{number}")
        for offset in range(rounds):
            consumer.commit({T0: offset, T1: offset})
            assert consumer.committed(T0) == offset

    def transactions():
        producer = topic.producer(transactional_id="x")
        producer.init_transactions()
        for offset in range(rounds):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({T0: offset % 10}, "group-t")
            producer.commit_transaction()

    def starter():
        for _ in range(rounds):
            assert reader(topic, "group-t").poll(timeout=30)

    def keeper():
        for _ in range(rounds):
            parts_of(topic).files.group_offsets.expire(0)
            parts_of(topic).files.group_offsets.log.persist_all()
            topic.groups()

    threads = [guarded(lambda number=number: committer(number)) for number in range(3)]
    threads += [guarded(transactions), guarded(starter), guarded(keeper)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    found = topic.groups()
    for number in range(3):
        assert found[f"group-{number}"][T1].offset == rounds - 1
    assert found["group-t"] == {T0: OffsetAndMetadata((rounds - 1) % 10)}
