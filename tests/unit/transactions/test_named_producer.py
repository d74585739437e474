"""Names: positions over restarts, crashes, epochs, retention, the wrap, and lost derived files."""

import shutil
import time

import pytest
from harness.crew import run_and_kill
from stores import values_of

from eoslog import TopicPartition
from eoslog.common.sequence import SEQUENCE_MAX
from eoslog.errors import (
    InvalidProducerEpochError,
    InvalidRequestError,
    LogClosedError,
    ProducerFencedError,
    StoreFullError,
    UnknownTopicOrPartitionError,
)
from eoslog.store.retention import apply_retention
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.named_producers import Checkpoint, NamedIdentity, _counted_on
from eoslog.transactions.producer_ids import EPOCH_EXHAUSTED
from eoslog.transactions.state_key import NAMED_PRODUCER

LONG = {"linger.ms": 3_600_000}
WHERE = TopicPartition("t", 0)


@pytest.fixture
def topic(store):
    store.create_topic("t", partitions=2, config={"segment.bytes": 1024, "retention.ms": 1000})
    return store


def retain_nothing(store, where=WHERE):
    """Delete every record of a partition by its age."""
    partition = engine_of(store).partition(*where)
    config = parts_of(store).files.partitions.config_of(store.topics()[where.topic])
    later_ms = int(time.time() * 1000) + 10_000
    return apply_retention(partition, parts_of(store).files.names, config, later_ms)


def named_state(store, name):
    return NamedIdentity.of_state(name, parts_of(store).files.state_log.get(NAMED_PRODUCER, name))


def test_a_new_name_begins_at_zero_everywhere(topic):
    producer = topic.producer(name="n")
    assert producer.name == "n"
    assert [producer.next_sequence("t", number) for number in (0, 1)] == [0, 0]
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.next_sequence("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.next_sequence("u", 0)


def test_a_name_counts_on_after_a_clean_close(topic, open_store):
    with topic.producer(name="n") as producer:
        producer.append("t", 0, [b"x"] * 5)
        producer.send("t", b"y", partition=1)
    topic.close()
    store = open_store()
    producer = store.producer(name="n")
    assert [producer.next_sequence("t", number) for number in (0, 1)] == [5, 1]
    producer.append("t", 0, [b"z"] * 2)
    assert producer.next_sequence("t", 0) == 7
    assert store.partition("t", 0).log_end_offset == 7


def test_gathered_records_are_counted(topic):
    producer = topic.producer(name="n", config=LONG)
    producer.append("t", 0, [b"x"] * 5)
    producer.send("t", b"y", partition=0)
    assert producer.next_sequence("t", 0) == 6
    assert topic.partition("t", 0).log_end_offset == 5


def test_every_opening_takes_a_new_epoch_and_keeps_the_id(topic):
    producers = [topic.producer(name="n") for _ in range(4)]
    assert [producer.producer_epoch for producer in producers] == [0, 1, 2, 3]
    assert len({producer.producer_id for producer in producers}) == 1
    other = topic.producer(name="m")
    assert other.producer_id != producers[0].producer_id


def test_the_newer_one_goes_on_and_the_older_is_fenced_by_name_and_time(topic):
    older = topic.producer(name="n", config=LONG)
    older.append("t", 0, [b"1", b"2"])
    older.send("t", b"never written", partition=0)
    newer = topic.producer(name="n")
    assert newer.next_sequence("t", 0) == 2
    for call in (
        lambda: older.send("t", b"3"),
        lambda: older.append("t", 0, [b"3"]),
        older.flush,
        lambda: older.next_sequence("t", 0),
        older.close,
    ):
        with pytest.raises(ProducerFencedError, match=r"'n' was opened again.*UTC.*MainThread"):
            call()
    newer.append("t", 0, [b"3"])
    assert values_of(topic, "t") == [b"1", b"2", b"3"]


def test_closing_a_fenced_producer_without_records_is_quiet_and_leaves_the_name(topic):
    older = topic.producer(name="n")
    newer = topic.producer(name="n")
    older.close()
    newer.append("t", 0, [b"1"])
    third = topic.producer(name="n")
    with pytest.raises(ProducerFencedError):
        newer.append("t", 0, [b"2"])
    assert third.next_sequence("t", 0) == 1


def test_a_store_closes_although_a_fenced_producer_holds_records(topic, caplog):
    older = topic.producer(name="n", config=LONG)
    older.send("t", b"never written")
    topic.producer(name="n")
    topic.close()
    assert "'n' was opened again" in caplog.text
    assert (topic.path / ".kafka_cleanshutdown").exists()


def test_a_batch_of_an_older_epoch_is_refused_by_the_partition(topic):
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"1"])
    newer = topic.producer(name="n")
    newer.append("t", 0, [b"2"])
    with pytest.raises(InvalidProducerEpochError):
        engine_of(topic).partition("t", 0).append_columns(
            [b"x"], producer_id=newer.producer_id, producer_epoch=0, base_sequence=1
        )


def test_a_partition_that_saw_a_newer_epoch_fences_the_producer(topic):
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"1"])
    engine_of(topic).partition("t", 0).append_columns(
        [b"x"], producer_id=producer.producer_id, producer_epoch=9, base_sequence=0
    )
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            producer.append("t", 0, [b"2"])
    # Whoever opens the name next is above that epoch, and counts its records too.
    newer = topic.producer(name="n")
    assert newer.producer_epoch == 10
    assert newer.next_sequence("t", 0) == 2


def test_a_closed_name_can_be_opened_again(topic):
    with topic.producer(name="n") as producer:
        producer.append("t", 0, [b"x"])
    with topic.producer(name="n") as producer:
        assert producer.next_sequence("t", 0) == 1
    with pytest.raises(LogClosedError):
        producer.next_sequence("t", 0)


@pytest.mark.parametrize("wrong", ["", "x" * 481])
def test_wrong_names_are_refused(topic, wrong):
    with pytest.raises(ValueError, match="name"):
        topic.producer(name=wrong)
    with pytest.raises(TypeError):
        topic.producer(name=b"bytes")
    with pytest.raises(ValueError, match="idempotence"):
        topic.producer(name="n", config={"enable.idempotence": False})


def test_a_name_that_is_no_text_is_refused(topic):
    with pytest.raises(InvalidRequestError, match="producer name"):
        topic.producer(name="till-\ud800")


def test_long_and_foreign_names_work(topic, open_store):
    names = ["x" * 480, "número 1", "名前" * 50, "a/b\0c"]
    for name in names:
        topic.producer(name=name).append("t", 0, [b"x"])
    topic.close()
    store = open_store()
    assert [store.producer(name=name).next_sequence("t", 0) for name in names] == [1] * 4


# Crashes.


def test_a_killed_process_leaves_the_position_of_the_log(store_path, open_store):
    out = run_and_kill(
        store_path,
        "store.create_topic('t')\n"
        "p = store.producer(name='n', config={'linger.ms': 3600000})\n"
        "p.append('t', 0, [b'%d' % i for i in range(10)])\n"
        "p.send('t', b'gathered only')\n"
        "say(p.next_sequence('t', 0))",
    )
    assert out == ["11"]
    store = open_store()
    assert store.producer(name="n").next_sequence("t", 0) == 10
    assert store.partition("t", 0).log_end_offset == 10


def test_killed_again_and_again_each_input_is_written_once(store_path, open_store):
    body = (
        "if 't' not in store.topics(): store.create_topic('t')\n"
        "p = store.producer(name='n', config={'batch.size': 200})\n"
        "first = p.next_sequence('t', 0)\n"
        "for i in range(first, min(first + 70, 250)): p.send('t', b'%d' % i)\n"
    )
    for _ in range(4):
        run_and_kill(store_path, body)
    store = open_store()
    with store.producer(name="n") as producer:
        for number in range(producer.next_sequence("t", 0), 250):
            producer.send("t", b"%d" % number)
    assert values_of(store, "t") == [b"%d" % number for number in range(250)]


def test_epochs_without_a_record_count_nothing(topic, open_store):
    store = topic
    for number in range(5):
        producer = store.producer(name="n")
        if number % 2 == 0:
            producer.append("t", 0, [b"x"] * 3)
        abandon(store)
        store = open_store()
    assert store.producer(name="n").next_sequence("t", 0) == 9


def test_a_state_log_that_lost_its_tail_is_caught_up_from_the_partition(topic, monkeypatch):
    """A power cut may take the name's newest records, but leave what they allowed to be written."""
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"x"] * 3)
    kept = parts_of(topic).files.state_log.get(NAMED_PRODUCER, "n")
    for count in (2, 4):
        topic.producer(name="n").append("t", 0, [b"x"] * count)
    parts_of(topic).files.state_log.append(NAMED_PRODUCER, "n", kept)
    newer = topic.producer(name="n")
    assert newer.next_sequence("t", 0) == 9
    assert newer.producer_epoch == 3


@pytest.mark.parametrize("lost", ["lmdb", "snapshots", "both"])
@pytest.mark.parametrize("clean", [True, False])
def test_derived_files_may_be_lost(topic, open_store, store_path, lost, clean):
    with topic.producer(name="n") as producer:
        for _ in range(20):
            producer.append("t", 0, [bytes(100)] * 3)
    if clean:
        topic.close()
    else:
        abandon(topic)
    if lost != "snapshots":
        shutil.rmtree(store_path / "state" / "lmdb")
    if lost != "lmdb":
        for path in store_path.glob("*/*.snapshot"):
            path.unlink()
    assert open_store().producer(name="n").next_sequence("t", 0) == 60


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_what_a_checkpoint_counts_is_on_disk_before_it(open_store, monkeypatch, durability):
    """Else a power cut could take the records and leave the count."""
    store = open_store(durability)
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    synced = []
    original = CompactedLog.append

    def note(self, *arguments, **named):
        synced.append((partition.recovery_point, partition.log_end_offset))
        return original(self, *arguments, **named)

    producer = store.producer(name="n")
    producer.append("t", 0, [b"x"] * 3)
    monkeypatch.setattr(CompactedLog, "append", note)
    newer = store.producer(name="n")
    newer.append("t", 0, [b"x"] * 2)
    parts_of(store).files.names.live["n"].renew_checkpoints([WHERE])
    newer.append("t", 0, [b"x"])
    newer.close()
    parts_of(store).files.names.renew(WHERE)
    assert synced == [(3, 3), (5, 5), (6, 6)]


# Retention.


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("lost", [None, "lmdb", "snapshots"])
@pytest.mark.parametrize("clean", [True, False])
def test_retention_of_all_records_keeps_the_position(
    topic, open_store, store_path, live, lost, clean
):
    producer = topic.producer(name="n")
    for _ in range(20):
        producer.append("t", 0, [bytes(100)] * 3)
    if not live:
        producer.close()
    assert retain_nothing(topic) > 5
    assert topic.partition("t", 0).log_start_offset == 60
    if live:
        assert producer.next_sequence("t", 0) == 60
    if clean:
        topic.close()
    else:
        abandon(topic)
    if lost == "lmdb":
        shutil.rmtree(store_path / "state" / "lmdb")
    if lost == "snapshots":
        for path in store_path.glob("t-0/*.snapshot"):
            path.unlink()
    store = open_store()
    newer = store.producer(name="n")
    assert newer.next_sequence("t", 0) == 60
    newer.append("t", 0, [b"next"])
    assert newer.next_sequence("t", 0) == 61
    assert values_of(store, "t") == [b"next"]


def test_retention_writes_positions_down_before_it_deletes(topic, monkeypatch):
    with topic.producer(name="n") as producer:
        for _ in range(20):
            producer.append("t", 0, [bytes(100)] * 3)

    def refuse(*_arguments, **_named):
        raise StoreFullError("full")

    monkeypatch.setattr(CompactedLog, "append", refuse)
    before = engine_of(topic).partition("t", 0).segment_count
    with pytest.raises(StoreFullError):
        retain_nothing(topic)
    assert engine_of(topic).partition("t", 0).segment_count >= before
    assert topic.partition("t", 0).log_start_offset == 0
    monkeypatch.undo()
    assert retain_nothing(topic) > 0
    assert named_state(topic, "n").checkpoints[WHERE].position == 60


# Long lives.


def test_positions_are_wider_than_sequences(topic, open_store, monkeypatch):
    """A name close to the wrap: the position goes on where the sequence begins anew."""
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"x"])
    sequenced = parts_of(topic).files.names.live["n"].sequenced(WHERE)
    start = 2**31 - 3
    engine_of(topic).partition("t", 0).append_columns(
        [b"x"], producer_id=producer.producer_id, producer_epoch=1, base_sequence=0
    )
    engine_of(topic).partition("t", 0).producer_state.forget([producer.producer_id])
    sequenced.stands_at(start, sequenced.position)
    sequenced.position = start + 1
    producer.append("t", 0, [b"y"] * 10)
    assert producer.next_sequence("t", 0) == 2**31 + 8
    topic.close()
    store = open_store()
    # Renewed within 2**30 records, before the append: the difference is small.
    newer = store.producer(name="n")
    assert newer.next_sequence("t", 0) == 2**31 + 8


def test_checkpoints_are_renewed_in_time(topic, monkeypatch):
    monkeypatch.setattr("eoslog.producer.identity.RENEW_RECORDS", 10)
    producer = topic.producer(name="n")
    written = []
    for _ in range(10):
        producer.append("t", 0, [b"x"] * 4)
        written.append(named_state(topic, "n").checkpoints[WHERE].position)
    assert written == [0, 0, 0, 12, 12, 12, 24, 24, 24, 36]
    producer.close()
    assert topic.producer(name="n").next_sequence("t", 0) == 40


def test_a_renewal_that_fails_leaves_everything_as_it_was(topic, monkeypatch):
    monkeypatch.setattr("eoslog.producer.identity.RENEW_RECORDS", 4)
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"x"] * 4)

    def refuse(*_arguments, **_named):
        raise StoreFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(CompactedLog, "append", refuse)
        with pytest.raises(StoreFullError):
            producer.append("t", 0, [b"y"])
    assert producer.next_sequence("t", 0) == 4
    producer.append("t", 0, [b"y"])
    assert producer.next_sequence("t", 0) == 5
    assert topic.partition("t", 0).log_end_offset == 5


def test_a_worn_out_epoch_rotates_the_id_and_keeps_the_position(topic, open_store):
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"x"] * 3)
    old_id = producer.producer_id
    producer.close()
    state = dict(parts_of(topic).files.state_log.get(NAMED_PRODUCER, "n"))
    state["epoch"] = EPOCH_EXHAUSTED
    parts_of(topic).files.state_log.append(NAMED_PRODUCER, "n", state)
    newer = topic.producer(name="n")
    assert newer.producer_id != old_id
    assert newer.producer_epoch == 0
    assert newer.next_sequence("t", 0) == 3
    assert engine_of(topic).partition("t", 0).producer(old_id) is None
    newer.append("t", 0, [b"y"] * 2)
    topic.close()
    last = open_store().producer(name="n")
    assert last.next_sequence("t", 0) == 5
    assert (last.producer_id, last.producer_epoch) == (newer.producer_id, 1)


def test_a_deleted_topic_is_counted_from_zero_when_it_comes_again(topic, open_store):
    live, closed = topic.producer(name="live"), topic.producer(name="closed")
    live.append("t", 0, [b"x"] * 3)
    closed.append("t", 0, [b"x"] * 3)
    closed.close()
    topic.delete_topic("t")
    topic.create_topic("t")
    assert live.next_sequence("t", 0) == 0
    live.append("t", 0, [b"x"])
    assert topic.producer(name="closed").next_sequence("t", 0) == 0
    topic.close()
    store = open_store()
    assert store.producer(name="live").next_sequence("t", 0) == 1
    assert store.producer(name="closed").next_sequence("t", 0) == 0


def test_a_name_registers_a_topic_before_its_first_append(topic, monkeypatch):
    producer = topic.producer(name="n")
    seen = []
    original = CompactedLog.append

    def note(self, *arguments, **named):
        seen.append(topic.partition("t", 0).log_end_offset)
        return original(self, *arguments, **named)

    monkeypatch.setattr(CompactedLog, "append", note)
    producer.append("t", 0, [b"x"])
    producer.append("t", 1, [b"x"])
    assert seen == [0]
    assert set(named_state(topic, "n").checkpoints) == {WHERE, TopicPartition("t", 1)}


def test_names_never_expire(topic):
    producer = topic.producer(name="n")
    producer.append("t", 0, [b"x"], timestamps=[1000])
    other = topic.producer()
    other.append("t", 0, [b"x"], timestamps=[1000])
    producer.close()
    ids = {producer.producer_id, other.producer_id}
    unexpiring = parts_of(topic).checkpointer.unexpiring_producer_ids()
    assert all(one in unexpiring for one in ids)
    partition = engine_of(topic).partition("t", 0)
    assert (
        partition.producer_state.expire(
            10**15, parts_of(topic).checkpointer.unexpiring_producer_ids
        )
        == 0
    )
    del other
    assert (
        partition.producer_state.expire(
            10**15, parts_of(topic).checkpointer.unexpiring_producer_ids
        )
        == 1
    )
    assert partition.producer(producer.producer_id) is not None


def test_a_checkpoint_that_counts_records_of_a_lost_tail_counts_back():
    """Without syncs a power cut takes records that a checkpoint counts: fewer, not 2**31 more."""
    checkpoint = Checkpoint(50, 3, 29)
    assert _counted_on(checkpoint, {3: 29}) == 50
    assert _counted_on(checkpoint, {3: 35}) == 56
    assert _counted_on(checkpoint, {3: 23}) == 44
    assert _counted_on(Checkpoint(50, 3, SEQUENCE_MAX), {3: 4}) == 55
