"""Logs with transactions of versions 0 and 1, many of which share a producer id and epoch.

Eoslog writes version 2; a broker has written these.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from cli_calls import DONE, call

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.transaction_record import encode_transaction_value
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.state_key import state_partition_of, transaction_key

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID = "broker"
PRODUCER_ID, EPOCH = 5, 3
COMMIT, ABORT = "Commit", "Abort"


class BrokerLog:
    """The logs of a store, as a broker writes them."""

    def __init__(self, store: eoslog.Store, version: int) -> None:
        self.store = store
        self.version = version  # Of the records: 1 since transaction version 1.
        self.sequences = {T0: 0, T1: 0}
        self.now_ms = 1_700_000_000_000

    def record(
        self, state: str, partitions: Iterable[TopicPartition] = (), epoch: int = EPOCH
    ) -> None:
        self.now_ms += 10
        value = encode_transaction_value(
            version=self.version,
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            timeout_ms=60_000,
            state=state,
            partitions=None if state == "Empty" else list(partitions),
            last_update_ms=self.now_ms,
            start_ms=-1 if state == "Empty" else self.now_ms,
        )
        number = state_partition_of(ID)
        parts_of(self.store).files.partitions.state_partition(number).append_columns(
            [value], [transaction_key(ID)]
        )

    def write(self, value: bytes, where: TopicPartition, epoch: int = EPOCH) -> None:
        engine_of(self.store).partition(*where).append_columns(
            [value],
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            base_sequence=self.sequences[where],
            transactional=True,
        )
        self.sequences[where] += 1

    def mark(self, end: str, where: TopicPartition, epoch: int = EPOCH) -> None:
        self.now_ms += 1
        engine_of(self.store).partition(*where).append_marker(
            PRODUCER_ID, epoch, 0, end == COMMIT, timestamp_ms=self.now_ms, newer_epoch=False
        )

    def transaction(
        self,
        end: str,
        value: bytes,
        partitions: Iterable[TopicPartition] = (T0, T1),
        marked: Iterable[TopicPartition] = (T0, T1),
    ) -> None:
        """All of it; its markers only in some partitions."""
        partitions = tuple(partitions)
        self.record("Ongoing", partitions)
        for where in partitions:
            self.write(value, where)
        self.record(f"Prepare{end}", partitions)
        for where in marked:
            self.mark(end, where)
        self.record(f"Complete{end}")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "store"


@pytest.fixture(params=[0, 1])
def log(path, request):
    store = eoslog.open(path, create=True)
    store.create_topic("t", partitions=2)
    made = BrokerLog(store, request.param)
    made.record("Empty")
    yield made
    if not store.closed:
        store.close()


def stop(log: BrokerLog, *, clean: bool = False) -> None:
    """As an adopted broker's logs are: nothing but they tells of what is in them."""
    if clean:
        log.store.close()
    else:
        abandon(log.store)
    shutil.rmtree(log.store.path / "state" / "lmdb")


def committed(store: eoslog.Store) -> list[list[bytes]]:
    with store.consumer(isolation_level="read_committed") as consumer:
        found = []
        for where in (T0, T1):
            consumer.assign([where])
            found.append([one.value for one in consumer.poll(timeout=0)])
        return found


def commit(store: eoslog.Store, value: bytes) -> None:
    with store.producer(transactional_id=ID) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", value, partition=0)
            producer.send("t", value, partition=1)


def assert_sound(path: Path) -> None:
    """Nothing is wrong, and a repair changes nothing."""
    with eoslog.open(path) as store:
        assert store.verify() == []
        before = committed(store)
    answer = call("verify", "--store", path, "--repair", "--json")
    assert answer.status == DONE
    assert (answer.json["changes"], answer.json["problems"]) == ([], [])
    with eoslog.open(path) as store:
        assert committed(store) == before


@pytest.mark.parametrize("clean", [True, False])
def test_transactions_with_one_epoch_are_decided_each_in_its_way(log, path, clean):
    for end, value in ((COMMIT, b"1"), (ABORT, b"2"), (COMMIT, b"3"), (ABORT, b"4")):
        log.transaction(end, value)
    for where in (T0, T1):
        partition = log.store.partition(*where)
        assert [one.first_offset for one in partition.aborted_transactions(0, 99)] == [2, 6]
        assert partition.last_stable_offset == partition.log_end_offset == 8
    stop(log, clean=clean)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1", b"3"]] * 2
    assert_sound(path)
    with eoslog.open(path) as store:
        commit(store, b"5")
        assert committed(store) == [[b"1", b"3", b"5"]] * 2
        assert store.describe_transaction(ID).producer_epoch == EPOCH + 2
    assert_sound(path)


@pytest.mark.parametrize("clean", [True, False])
def test_a_transaction_that_is_open_is_aborted(log, path, clean):
    log.transaction(COMMIT, b"1")
    log.record("Ongoing", [T0, T1])
    log.write(b"open", T0)
    log.write(b"open", T1)
    stop(log, clean=clean)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1"]] * 2
        assert not store.partition(*T0).open_transactions()
        commit(store, b"2")
        assert committed(store) == [[b"1", b"2"]] * 2
    assert_sound(path)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("end", [COMMIT, ABORT])
def test_what_was_decided_is_completed(log, path, end, clean):
    log.transaction(ABORT if end == COMMIT else COMMIT, b"1")
    log.record("Ongoing", [T0, T1])
    log.write(b"2", T0)
    log.write(b"2", T1)
    log.record(f"Prepare{end}", [T0, T1])
    log.mark(end, T1)
    stop(log, clean=clean)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"2" if end == COMMIT else b"1"]] * 2
        assert [one.transaction_state for one in store.transactions()] == [f"Complete{end}"]
        commit(store, b"3")
    assert_sound(path)


def test_an_abort_of_a_fenced_producer_has_the_epoch_above(log, path):
    log.transaction(COMMIT, b"1")
    log.record("Ongoing", [T0, T1])
    log.write(b"open", T0)
    log.write(b"open", T1)
    log.record("PrepareAbort", [T0, T1], EPOCH + 1)
    log.mark(ABORT, T0, EPOCH + 1)
    stop(log)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1"]] * 2
        commit(store, b"2")
        assert committed(store) == [[b"1", b"2"]] * 2
    assert_sound(path)


@pytest.mark.parametrize("end", [COMMIT, ABORT])
def test_a_marker_that_a_power_cut_took_is_written_again(log, path, end):
    log.transaction(end, b"1")
    log.transaction(end, b"2", marked=[T0])
    stop(log)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1", b"2"] if end == COMMIT else []] * 2
    assert_sound(path)


def test_what_may_have_been_decided_either_way_stays_open(log, path):
    log.transaction(COMMIT, b"1")
    log.transaction(ABORT, b"2", marked=[T0])
    stop(log)
    for _ in range(2):
        with eoslog.open(path) as store:
            assert committed(store) == [[b"1"]] * 2
            (still,) = store.partition(*T1).open_transactions()
            assert still.first_offset == 2
            assert len(store.verify()) == 1
            abandon(store)
    with eoslog.open(path) as store:
        store.abort_transaction(topic="t", partition=1, start_offset=2)
        assert store.verify() == []


def test_an_open_transaction_is_not_taken_for_one_before_it(log, path):
    log.transaction(COMMIT, b"1")
    log.record("Ongoing", [T0])
    log.write(b"open", T0)
    stop(log)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1"]] * 2
    assert_sound(path)


def test_one_that_the_newest_transaction_does_not_have_is_taken_for_the_one_before(log, path):
    log.transaction(COMMIT, b"1", marked=[T0])
    log.record("Ongoing", [T0])
    log.write(b"open", T0)
    stop(log)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1"]] * 2
    assert_sound(path)


@pytest.mark.parametrize("clean", [True, False])
def test_what_came_after_the_marker_of_a_commit_is_not_committed_by_it(log, path, clean):
    """As a request that was late leaves it, or a power cut that took the newest records of ids."""
    log.transaction(COMMIT, b"1")
    log.transaction(COMMIT, b"2")
    log.write(b"late", T0)
    stop(log, clean=clean)
    with eoslog.open(path) as store:
        assert committed(store) == [[b"1", b"2"]] * 2
        (still,) = store.partition(*T0).open_transactions()
        assert still.first_offset == 4
        store.abort_transaction(topic="t", partition=0, start_offset=still.first_offset)
        commit(store, b"3")
        assert committed(store) == [[b"1", b"2", b"3"]] * 2
    assert_sound(path)


def test_an_id_goes_from_the_older_version_to_the_newer_one(log, path):
    log.transaction(COMMIT, b"1")
    log.transaction(ABORT, b"2")
    stop(log, clean=True)
    with eoslog.open(path) as store:
        for number in range(3, 6):
            commit(store, b"%d" % number)
        assert committed(store) == [[b"1", b"3", b"4", b"5"]] * 2
    assert_sound(path)
