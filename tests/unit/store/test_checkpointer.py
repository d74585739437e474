"""The background thread: what it persists, prepares, deletes and expires; how it meets errors."""

import time

import pytest
from background_work import do_background_work
from harness.waiting import eventually
from stores import values_of

from eoslog import TopicPartition
from eoslog.common import clock
from eoslog.errors import StoreFullError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, RECOVERY_POINT, read_checkpoint
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.producer_rows import ProducerRows
from eoslog.store.store import abandon, engine_of, parts_of

T0 = TopicPartition("t", 0)


def counts(store):
    return store.metrics()["checkpointer"]


def test_rows_are_persisted_by_age(open_store):
    store = open_store(eoslog__checkpoint__interval__ms=20)
    store.create_topic("t")
    store.producer().append("t", 0, [b"x"] * 3)
    eventually(lambda: engine_of(store).partition("t", 0).producer_state.persisted_offset == 3)
    assert store.metrics()["producer_rows"] == 1
    store.producer().append("t", 0, [b"x"])
    eventually(lambda: engine_of(store).partition("t", 0).producer_state.persisted_offset == 4)
    abandon(store)
    store = open_store()
    assert engine_of(store).partition("t", 0).producer_state.restored_from == "rows"


def test_rows_are_persisted_by_bytes(open_store):
    store = open_store(eoslog__checkpoint__bytes=10_000)
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"small"])
    # A look is due each second; the first one finds too little.
    time.sleep(1.5)
    assert engine_of(store).partition("t", 0).producer_state.persisted_offset == -1
    producer.append("t", 0, [bytes(1000)] * 20)
    eventually(lambda: engine_of(store).partition("t", 0).producer_state.persisted_offset == 21)


def test_a_roll_persists_rows_syncs_and_prepares_a_spare(open_store, store_path):
    store = open_store("commit", eoslog__spare__segments=1)
    store.create_topic("t", config={"segment.bytes": 4096})
    producer = store.producer()
    producer.append("t", 0, [b"x"])
    # It has begun to watch the partition, and looked at it once.
    eventually(lambda: counts(store)["rounds"] >= 2)
    assert counts(store)["spare_files_prepared"] == 0
    # One roll: of two it might see the first alone.
    for _ in range(3):
        producer.append("t", 0, [bytes(1500)])
    partition = engine_of(store).partition("t", 0)
    eventually(lambda: partition.recovery_point == 4)
    eventually(lambda: partition.producer_state.persisted_offset == 4)
    assert counts(store)["spare_files_prepared"] == 1
    assert [path.suffix for path in (store_path / "state" / "spare" / "t-0").iterdir()] == [
        ".spare"
    ]


def test_a_roll_before_the_first_look_is_synced_too(open_store):
    store = open_store("commit", eoslog__spare__segments=0)
    store.create_topic("t", config={"segment.bytes": 4096})
    partition = engine_of(store).partition("t", 0)
    for rolls in (1, 2):
        for _ in range(3):
            store.producer().append("t", 0, [bytes(1500)])
        assert partition.segment_count > rolls
        eventually(lambda: partition.recovery_point >= partition.active_base_offset)
        eventually(lambda: partition.producer_state.persisted_offset == partition.log_end_offset)


def test_recovery_points_are_written_by_time(open_store, store_path):
    store = open_store(log__flush__offset__checkpoint__interval__ms=20)
    store.create_topic("t")
    store.create_topic("u")
    store.producer().append("t", 0, [b"x"] * 3)
    eventually(lambda: counts(store)["checkpoints_written"])
    eventually(lambda: read_checkpoint(store_path / RECOVERY_POINT).get(T0) == 3)
    assert TopicPartition("u", 0) not in read_checkpoint(store_path / RECOVERY_POINT)


def test_partitions_that_are_not_open_keep_their_checkpoints(open_store, store_path):
    store = open_store()
    for name in ("t", "u"):
        store.create_topic(name)
        store.producer().append(name, 0, [b"x"] * 3)
    store.close()
    store = open_store()
    store.producer().append("u", 0, [b"x"])
    store.close()
    assert read_checkpoint(store_path / RECOVERY_POINT)[T0] == 3
    assert read_checkpoint(store_path / RECOVERY_POINT)[TopicPartition("u", 0)] == 4


def test_it_sleeps_while_nothing_is_appended(open_store):
    store = open_store(eoslog__checkpoint__interval__ms=10)
    store.create_topic("t")
    store.producer().append("t", 0, [b"x"])
    eventually(lambda: engine_of(store).partition("t", 0).producer_state.persisted_offset == 1)

    def stands_still():
        before = counts(store)["rounds"]
        time.sleep(0.5)
        return counts(store)["rounds"] == before

    # A round that was due because of the append may still come.
    eventually(stands_still)


def test_an_error_is_shown_and_tried_again(open_store, monkeypatch, caplog):
    store = open_store(eoslog__checkpoint__interval__ms=10)
    store.create_topic("t")

    def refuse(*_arguments, **_more):
        raise StoreFullError("no room for rows")

    with monkeypatch.context() as patch:
        patch.setattr(ProducerRows, "write_rows", refuse)
        store.producer().append("t", 0, [b"x"])
        eventually(lambda: counts(store)["error_count"] >= 2)
    assert counts(store)["errors"] == ["t-0: StoreFullError: no room for rows"]
    assert caplog.text.count("no room for rows") == 1
    eventually(lambda: engine_of(store).partition("t", 0).producer_state.persisted_offset == 1)


def test_checkpoints_that_could_not_be_written_are_written_later(open_store, monkeypatch):
    """Without another append."""
    store = open_store(log__flush__offset__checkpoint__interval__ms=10)
    store.create_topic("t")

    def refuse(*_arguments, **_more):
        raise StoreFullError("no room for checkpoints")

    with monkeypatch.context() as patch:
        patch.setattr(parts_of(store).files.checkpoints, "renew", refuse)
        store.producer().append("t", 0, [b"x"])
        eventually(lambda: counts(store)["error_count"])
    eventually(lambda: counts(store)["checkpoints_written"])


def test_an_unexpected_error_does_not_end_the_thread(open_store, monkeypatch):
    store = open_store(eoslog__checkpoint__interval__ms=10)
    store.create_topic("t")

    def break_down(*_arguments, **_more):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(PartitionProducers, "persist", break_down)
        store.producer().append("t", 0, [b"x"])
        eventually(lambda: counts(store)["error_count"])
    store.producer().append("t", 0, [b"x"])
    eventually(lambda: engine_of(store).partition("t", 0).producer_state.persisted_offset == 2)


# Retention.


def filled(open_store, config, **settings):
    store = open_store(
        log__initial__task__delay__ms=0, log__retention__check__interval__ms=20, **settings
    )
    store.create_topic("t", config={"segment.bytes": 1024, **config})
    return store


def test_old_segments_go_by_size(open_store, store_path):
    store = filled(open_store, {"retention.bytes": 3000})
    for number in range(20):
        store.producer().append("t", 0, [b"%0400d" % number])
    partition = store.partition("t", 0)
    eventually(lambda: partition.size_bytes < 3000 + 1024)
    assert partition.size_bytes >= 3000
    assert partition.log_end_offset == 20
    assert [int(value) for value in values_of(store, "t")] == list(
        range(partition.log_start_offset, 20)
    )
    eventually(
        lambda: read_checkpoint(store_path / LOG_START_OFFSET).get(T0) == partition.log_start_offset
    )


def test_old_segments_go_by_age_the_active_one_too(open_store):
    store = filled(open_store, {"retention.ms": 1_800_000})  # Their files are younger.
    producer = store.producer()
    now_ms = int(time.time() * 1000)
    for _ in range(10):
        producer.append("t", 0, [bytes(400)], timestamps=[now_ms - 3_600_000])
    partition = store.partition("t", 0)
    eventually(lambda: partition.log_start_offset == 10)
    producer.append("t", 0, [b"young"], timestamps=[now_ms + 3_600_000])
    time.sleep(0.2)
    assert values_of(store, "t") == [b"young"]


@pytest.mark.parametrize("config", [{}, {"retention.ms": -1, "retention.bytes": -1}])
def test_without_limits_nothing_goes(open_store, config):
    store = filled(open_store, config)
    for _ in range(10):
        store.producer().append("t", 0, [bytes(400)], timestamps=[1])
    do_background_work(store)
    assert store.partition("t", 0).log_start_offset == 0


def test_a_partition_that_nobody_opens_is_retained_too(open_store, store_path):
    store = open_store()
    store.create_topic("t", config={"segment.bytes": 1024, "retention.bytes": 2000})
    store.create_topic("u")
    for _ in range(10):
        store.producer().append("t", 0, [bytes(400)])
    store.close()
    store = open_store(log__initial__task__delay__ms=0, log__retention__check__interval__ms=20)
    store.partition("u", 0)
    eventually(lambda: counts(store)["segments_deleted"] > 0)
    assert store.partition("t", 0).log_start_offset > 0


def test_retention_keeps_the_producers_of_deleted_batches(open_store):
    store = filled(open_store, {"retention.ms": 1000})
    producer = store.producer()
    producer.append("t", 0, [bytes(900)], timestamps=[1])
    arguments = {
        "producer_id": producer.producer_id,
        "producer_epoch": 0,
        "base_sequence": 0,
        "timestamp_ms": 1,
    }
    partition = engine_of(store).partition("t", 0)
    eventually(lambda: partition.log_start_offset == 1)
    for reopen in (False, True):
        if reopen:
            abandon(store)
            store = open_store(producer__id__expiration__ms=2**60)  # Its timestamps are old.
            partition = engine_of(store).partition("t", 0)
        again = partition.append_columns([bytes(900)], **arguments)
        assert (again.duplicate, again.base_offset) == (True, 0)


def test_what_a_job_under_way_has_written_is_not_deleted(open_store):
    store = filled(open_store, {"retention.ms": 1000})
    producer = store.producer()
    producer.append("t", 0, [bytes(900)], timestamps=[1])
    partition = engine_of(store).partition("t", 0)
    eventually(lambda: partition.log_start_offset == 1)
    partition.hold_readers()
    for _ in range(5):
        producer.append("t", 0, [bytes(900)], timestamps=[1])
    time.sleep(0.3)
    assert partition.log_start_offset == 1
    partition.release_readers()
    eventually(lambda: partition.log_start_offset == 6)


# Producers.


def test_idle_producers_expire(open_store):
    store = open_store(
        log__initial__task__delay__ms=0,
        producer__id__expiration__ms=100,
        producer__id__expiration__check__interval__ms=20,
    )
    store.create_topic("t")
    gone, name, live = store.producer(), store.producer(name="n"), store.producer()
    for producer in (gone, name, live):
        producer.append("t", 0, [b"x"])
    ids = [producer.producer_id for producer in (gone, name, live)]
    gone.close()
    name.close()
    del gone, producer
    partition = engine_of(store).partition("t", 0)
    eventually(lambda: partition.producer(ids[0]) is None)
    assert partition.producer(ids[1]) is not None
    assert partition.producer(ids[2]) is not None
    # They are counted when they are gone.
    eventually(lambda: counts(store)["producers_expired"])
    assert counts(store)["producers_expired"] == 1


def test_more_producers_than_fit_in_memory_are_found_again(open_store):
    store = open_store(eoslog__checkpoint__interval__ms=20, eoslog__producers__cached__max=10)
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    for producer_id in range(500, 600):
        partition.append_columns([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
    eventually(lambda: partition.log.evicted_producer_count == 90)
    assert partition.log.producer_count == 10
    for producer_id in range(500, 600):
        again = partition.append_columns(
            [b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        assert (again.duplicate, again.base_offset) == (True, producer_id - 500)
    assert len(partition.producers()) == 100
    abandon(store)
    partition = engine_of(open_store(eoslog__producers__cached__max=10)).partition("t", 0)
    assert [state.producer_id for state in partition.producers()] == list(range(500, 600))


@pytest.mark.parametrize("evicted_first", [False, True])
def test_retention_writes_evicted_producers_down_too(open_store, store_path, evicted_first):
    store = open_store(eoslog__checkpoint__interval__ms=20, eoslog__producers__cached__max=5)
    store.create_topic("t", config={"segment.bytes": 1024})
    partition = engine_of(store).partition("t", 0)
    for producer_id in range(20):
        partition.append_columns(
            [bytes(300)], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
    if evicted_first:
        eventually(lambda: partition.log.evicted_producer_count)
    partition.producer_state.save_copies()
    assert partition.delete_segments(partition.log_end_offset) > 0
    abandon(store)
    (store_path / "state" / "lmdb" / "data.mdb").unlink()
    partition = engine_of(open_store()).partition("t", 0)
    assert partition.producer_state.restored_from == "snapshot"
    assert len(partition.producers()) == 20


@pytest.mark.parametrize("cached_max", [5, 1000])
def test_opening_makes_up_for_a_lost_snapshot(open_store, store_path, cached_max):
    """Producers whose batches were deleted have two copies again before one more is lost."""
    store = open_store(eoslog__producers__cached__max=cached_max)
    store.create_topic("t", config={"segment.bytes": 1024})
    partition = engine_of(store).partition("t", 0)
    for producer_id in range(20):
        partition.append_columns(
            [bytes(300)], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
    partition.producer_state.save_copies()
    partition.delete_segments(partition.log_end_offset)
    abandon(store)
    for path in store_path.glob("t-0/*.snapshot"):
        path.unlink()
    store = open_store(eoslog__producers__cached__max=cached_max)
    assert engine_of(store).partition("t", 0).producer_state.restored_from == "rows"
    abandon(store)
    (store_path / "state" / "lmdb" / "data.mdb").unlink()
    partition = engine_of(open_store()).partition("t", 0)
    assert partition.producer_state.restored_from == "snapshot"
    assert len(partition.producers()) == 20


def test_commits_do_not_move_the_recovery_point_that_is_written_down(open_store):
    """They do not sync index files, and a recovery begins behind them."""
    store = open_store("commit", eoslog__checkpoint__interval__ms=3_600_000)
    store.create_topic("t")
    producer = store.producer()
    checkpointer, checkpoints = parts_of(store).checkpointer, parts_of(store).files.checkpoints

    def append() -> int:
        producer.append("t", 0, [b"x"])
        producer.flush()
        checkpointer.write_offsets()
        return checkpoints.recovery_point(T0)

    assert append() == 0
    assert engine_of(store).partition("t", 0).recovery_point == 1
    assert append() == 0
    checkpointer.write_checkpoints()
    assert checkpoints.recovery_point(T0) == 2
    assert append() == 2
    store.close()
    store = open_store("commit")
    assert parts_of(store).files.checkpoints.recovery_point(T0) == 3


# When the clock is set.


def test_a_clock_that_is_set_by_years_deletes_nothing_before_the_next_opening(
    open_store, monkeypatch, caplog
):
    """Transactions time out all the same."""
    store = open_store(offsets__retention__minutes=10_080)
    store.create_topic("t", config={"segment.bytes": 1024, "retention.ms": 604_800_000})
    producer = store.producer()
    for _ in range(6):
        producer.append("t", 0, [bytes(400)])
    producer.close()
    store.producer(transactional_id="idle").init_transactions()
    with store.consumer(group="g") as consumer:
        consumer.assign([T0])
        consumer.commit({T0: 1})
    run = store.path / "staging" / "app" / "run"
    run.mkdir(parents=True)
    late = store.producer(transactional_id="late", transaction_timeout_ms=60_000)
    late.init_transactions()
    late.begin_transaction()
    late.append("t", 0, [b"never"])

    ten_years_later(monkeypatch)
    expire_all(store)
    assert counts(store)["transactions_timed_out"] == 1
    assert store.describe_transaction("late").transaction_state == "CompleteAbort"
    assert store.partition("t", 0).log_start_offset == 0
    assert engine_of(store).partition("t", 0).producer(producer.producer_id) is not None
    assert store.describe_transaction("idle").transaction_state == "Empty"
    assert store.groups()["g"][T0].offset == 1
    assert run.exists()
    expire_all(store)
    assert [one.levelname for one in caplog.records if "clock" in one.getMessage()] == ["WARNING"]
    store.close()

    store = open_store(offsets__retention__minutes=10_080)
    expire_all(store)
    assert store.partition("t", 0).log_start_offset == store.partition("t", 0).log_end_offset
    assert engine_of(store).partition("t", 0).producer(producer.producer_id) is None
    assert store.transactions() == []
    assert "g" not in store.groups()
    assert not run.exists()


def ten_years_later(monkeypatch):
    now_ms = clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + 10 * 365 * 86_400_000)


def expire_all(store):
    do_background_work(store)
    assert counts(store)["error_count"] == 0, counts(store)["errors"]
