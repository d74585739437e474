"""Producers that had expired when their partition is opened: forgotten then, as in Kafka."""

import time

import pytest
from harness.crew import Member

from eoslog.errors import OutOfOrderSequenceError, StoreFullError
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN
from eoslog.store.checkpointer import Checkpointer
from eoslog.store.store import abandon, engine_of

OLD_MS = 1_000_000
IDLE, YOUNG, OPEN = 7, 8, 9


def append(partition, producer_id, sequence, *, timestamp_ms=OLD_MS, epoch=0, transactional=False):
    return partition.append_columns(
        [b"x"],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def fill(store):
    """Three producers: one long idle, one not, one with an open transaction."""
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    append(partition, IDLE, 0)
    append(partition, YOUNG, 0, timestamp_ms=time.time_ns() // 1_000_000)
    append(partition, OPEN, 0, transactional=True)
    return partition


def known(partition):
    return [state.producer_id for state in partition.producers()]


@pytest.mark.parametrize("cached_max", [1, 2, 100])
@pytest.mark.parametrize("came_from", ["rows", "snapshot"])
def test_any_sequence_is_accepted_of_an_expired_producer(
    open_store, store_path, came_from, cached_max
):
    store = open_store()
    fill(store)
    store.close()
    if came_from == "snapshot":
        (store_path / "state" / "lmdb" / "data.mdb").unlink()
    partition = engine_of(open_store(eoslog__producers__cached__max=cached_max)).partition("t", 0)
    assert partition.producer_state.restored_from == came_from
    assert partition.producer(IDLE) is None
    assert known(partition) == [YOUNG, OPEN]
    now_ms = time.time_ns() // 1_000_000
    assert append(partition, IDLE, 70, timestamp_ms=now_ms).base_offset == 3
    for producer_id in (YOUNG, OPEN):
        with pytest.raises(OutOfOrderSequenceError):
            append(partition, producer_id, 70, transactional=producer_id == OPEN)
    with pytest.raises(OutOfOrderSequenceError):
        append(partition, IDLE, 72)
    assert known(partition) == [IDLE, YOUNG, OPEN]
    assert partition.verify() == []


def test_they_stay_forgotten(open_store):
    store = open_store()
    fill(store)
    store.close()
    for _ in range(2):
        store = open_store()
        assert known(engine_of(store).partition("t", 0)) == [YOUNG, OPEN]
        rows = engine_of(store).partition("t", 0).producer_state.rows.rows_after(0, 10)
        assert [producer_id for producer_id, _ in rows] == [YOUNG, OPEN]
        store.close()


def test_an_older_epoch_is_accepted_too(open_store):
    store = open_store()
    store.create_topic("t")
    append(engine_of(store).partition("t", 0), IDLE, 0, epoch=5)
    store.close()
    assert append(engine_of(open_store()).partition("t", 0), IDLE, 3, epoch=2).base_offset == 1


def test_who_wrote_what_was_replayed_stays_until_the_regular_look(open_store):
    """Its batches may be of the moment before the crash, whatever their timestamps say."""
    store = open_store()
    partition = fill(store)
    partition.producer_state.persist()
    append(partition, IDLE, 1)
    append(partition, 10, 0)
    append(partition, 11, 0)
    abandon(store)
    store = open_store()
    partition = engine_of(store).partition("t", 0)
    assert known(partition) == [IDLE, YOUNG, OPEN, 10, 11]
    assert append(partition, IDLE, 1).duplicate
    oldest_ms = time.time_ns() // 1_000_000 - 86_400_000
    assert partition.producer_state.expire(oldest_ms, frozenset) == 3
    assert known(partition) == [YOUNG, OPEN]


def test_the_setting_says_how_long(open_store):
    store = open_store()
    fill(store)
    store.close()
    partition = engine_of(open_store(producer__id__expiration__ms=2**60)).partition("t", 0)
    assert known(partition) == [IDLE, YOUNG, OPEN]


def test_a_name_keeps_its_place(open_store):
    store = open_store()
    store.create_topic("t")
    with store.producer(name="n") as producer:
        producer.append("t", 0, [b"x"] * 3, timestamps=[OLD_MS] * 3)
    store.close()
    for count in (3, 4):
        store = open_store()
        store.partition("t", 0)
        with store.producer(name="n") as producer:
            assert producer.next_sequence("t", 0) == count
            producer.append("t", 0, [b"x"], timestamps=[OLD_MS])
        store.close()


def test_a_name_whose_row_is_in_lmdb_alone_keeps_its_place(open_store):
    store = open_store()
    store.create_topic("t")
    for name in ("m", "n"):
        with store.producer(name=name) as producer:
            producer.append("t", 0, [b"x"] * 3, timestamps=[OLD_MS] * 3)
    store.close()
    store = open_store(eoslog__producers__cached__max=1)
    assert len(store.partition("t", 0).producers()) == 2
    for name in ("m", "n"):
        assert store.producer(name=name).next_sequence("t", 0) == 3


def test_ids_of_staged_jobs_stay(open_store):
    """Else a job that was decided could be adopted twice."""
    store = open_store()
    store.create_topic("t")
    append(engine_of(store).partition("t", 0), STAGED_PRODUCER_ID_MIN + 5, 0)
    store.close()
    assert known(engine_of(open_store()).partition("t", 0)) == [STAGED_PRODUCER_ID_MIN + 5]


def test_a_transactional_id_goes_on(open_store):
    store = open_store()
    store.create_topic("t")
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"one", timestamp_ms=OLD_MS)
    store.close()
    store = open_store(producer__id__expiration__ms=1)
    time.sleep(0.01)
    assert known(engine_of(store).partition("t", 0)) == []
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"two")
    assert store.verify() == []


def test_those_who_follow_see_the_same(open_store, store_path):
    store = open_store("commit")
    fill(store)
    store.close()
    store = open_store("commit")
    with Member() as other:
        partition = engine_of(store).partition("t", 0)
        other.run("partition = eoslog.open(path).partition('t', 0)", path=str(store_path))
        ids = "[one.producer_id for one in partition.producers()]"
        assert other.value(ids) == known(partition) == [YOUNG, OPEN]
        append(partition, IDLE, 70)
        assert other.value(ids) == known(partition) == [IDLE, YOUNG, OPEN]


def test_what_cannot_be_written_down_keeps_no_partition_closed(open_store, monkeypatch, caplog):
    store = open_store()
    fill(store)
    store.close()

    def refuse(*_):
        raise StoreFullError("no room")

    monkeypatch.setattr(PartitionProducers, "forget", refuse)
    assert known(engine_of(open_store()).partition("t", 0)) == [IDLE, YOUNG, OPEN]
    assert "t-0: expired producers are kept: no room" in caplog.text


def test_nothing_is_written_where_nobody_had_expired(open_store, monkeypatch):
    store = open_store()
    store.create_topic("t")
    with store.producer() as producer:
        producer.append("t", 0, [b"x"])
    store.close()
    monkeypatch.setattr(Checkpointer, "unexpiring_producer_ids", lambda _: pytest.fail("asked"))
    open_store().partition("t", 0)
