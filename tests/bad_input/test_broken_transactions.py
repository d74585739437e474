"""Files of transactions are cut, flipped, replaced or gone: nothing aborted is read for that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bad_input.test_broken_files import LOG_WAYS, WAYS, break_file, chosen
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError

pytestmark = pytest.mark.forked

TOPIC = "payments"
PARTITIONS = 2
GROUP = "readers"
WRITER, KEEPER = "writer", "keeper"
TRANSACTIONS = 24
CONFIG = {"segment.bytes": 1500, "index.interval.bytes": 200}
STORE_CONFIG = {"eoslog.spare.segments": 0}

# What can be deleted or broken without any loss: all of it comes back from the logs.
REBUILT = {
    "abort index": f"{TOPIC}-*/*.txnindex",
    "snapshot": f"{TOPIC}-*/*.snapshot",
    "index": f"{TOPIC}-*/*.index",
    "lmdb data": "state/lmdb/data.mdb",
    "control page": "state/control/*",
    "recovery point": "recovery-point-offset-checkpoint",
    "coordinator's index": "__transaction_state-*/*.index",
    "coordinator's snapshot": "__transaction_state-*/*.snapshot",
    "offsets' index": "__consumer_offsets-*/*.index",
    "offsets' snapshot": "__consumer_offsets-*/*.snapshot",
}


def values_of(number: int) -> list[bytes]:
    return [b"%d of transaction %d" % (index, number) for index in range(3)]


def is_committed(number: int) -> bool:
    return number % 3 != 1


def expected_values() -> list[bytes]:
    return [
        value
        for number in range(TRANSACTIONS)
        if is_committed(number)
        for value in values_of(number)
    ]


LAST_COMMITTED = max(number for number in range(TRANSACTIONS) if is_committed(number))


def make_store(path: Path) -> None:
    """Committed and aborted transactions over both partitions, each with an offset of a group."""
    with eoslog.open(path, create=True, config=STORE_CONFIG) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config=CONFIG)
        producer = store.producer(transactional_id=WRITER)
        producer.init_transactions()
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            write(producer, number)
            if is_committed(number):
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def write(producer: eoslog.Producer, number: int) -> None:
    for partition in range(PARTITIONS):
        producer.append(TOPIC, partition=partition, values=values_of(number))
    producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): number}, GROUP)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Copies of one store: closed cleanly, and as a kill leaves it, with a transaction open."""
    root = tmp_path_factory.mktemp("stores")
    make_store(root / "clean")
    copy_store(root / "clean", root / "live")
    with eoslog.open(root / "live", config=STORE_CONFIG) as store:
        producer = store.producer(transactional_id=WRITER)
        producer.init_transactions()
        producer.begin_transaction()
        write(producer, TRANSACTIONS)
        copy_store(root / "live", root / "unclean")
    shutil.rmtree(root / "live")
    return root


@pytest.fixture
def store_path(template, tmp_path):
    def copied(state: str) -> Path:
        return copy_store(template / state, tmp_path / "store")

    return copied


def committed_values(store: eoslog.Store, partition: int) -> list[bytes]:
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(TOPIC, partition)])
        found = []
        while records := consumer.poll(timeout=0):
            found += [record.value for record in records]
        return found


def check_whole(store: eoslog.Store, more: int = 0) -> None:
    """All that was committed is read, nothing else, and nothing holds back what comes."""
    later = [value for number in range(more) for value in values_of(1000 + number)]
    for number in range(PARTITIONS):
        assert committed_values(store, number) == expected_values() + later
        partition = store.partition(TOPIC, number)
        assert partition.open_transactions() == []
        assert partition.last_stable_offset == partition.log_end_offset
    with store.consumer(group=GROUP) as consumer:
        expected = 1000 + more - 1 if more else LAST_COMMITTED
        assert consumer.committed(TopicPartition(TOPIC, 0)) == expected


def go_on(store: eoslog.Store) -> None:
    """The same id writes one more transaction."""
    producer = store.producer(transactional_id=WRITER)
    producer.init_transactions()
    with producer.transaction():
        write(producer, 1000)


@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_an_unbroken_store(store_path, state):
    path = store_path(state)
    with eoslog.open(path) as store:
        check_whole(store)
        aborted = store.partition(TOPIC, 0).aborted_transactions(0, 2**62)
        assert len(aborted) == TRANSACTIONS // 3 + (state == "unclean")
        go_on(store)
    with eoslog.open(path) as store:
        check_whole(store, more=1)
        assert store.verify() == []


STATES_AND_WAYS = [("clean", how) for how in WAYS] + [("unclean", how) for how in ("half", "noise")]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize(("state", "how"), STATES_AND_WAYS)
@pytest.mark.parametrize("kind", REBUILT)
def test_what_the_logs_can_give_back_is_not_missed(store_path, kind, how, state):
    path = store_path(state)
    if state == "unclean" and not list(path.glob(REBUILT[kind])):
        pytest.skip("written by a clean close alone")
    for file in chosen(path, REBUILT[kind]):
        break_file(file, how)
    with eoslog.open(path) as store:
        check_whole(store)
        go_on(store)
    with eoslog.open(path) as store:
        check_whole(store, more=1)


@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_everything_but_the_logs_is_gone(store_path, state):
    path = store_path(state)
    for pattern in REBUILT.values():
        for file in path.glob(pattern):
            file.unlink()
    with eoslog.open(path) as store:
        check_whole(store)
        go_on(store)
        check_whole(store, more=1)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("state", ["clean", "unclean"])
@pytest.mark.parametrize("how", LOG_WAYS)
@pytest.mark.parametrize("lmdb", ["with its index", "without"])
def test_a_broken_log_of_the_coordinator(store_path, how, state, lmdb):
    """Named; or what was decided before stays so, and nothing undecided is read."""
    path = store_path(state)
    for file in chosen(path, "__transaction_state-*/*.log"):
        break_file(file, how)
    if lmdb == "without":
        shutil.rmtree(path / "state" / "lmdb")
    try:
        store = eoslog.open(path)
    except EoslogError as error:
        assert "__transaction_state" in str(error) or error.__cause__ is not None
        return
    with store:
        for number in range(PARTITIONS):
            assert committed_values(store, number) == expected_values()


@pytest.mark.parametrize("state", ["clean", "unclean"])
@pytest.mark.parametrize("how", LOG_WAYS)
def test_a_broken_log_of_the_offsets(store_path, how, state):
    """Named; or an offset that was committed once, never that of an aborted transaction."""
    path = store_path(state)
    for file in chosen(path, "__consumer_offsets-*/*.log"):
        break_file(file, how)
    with eoslog.open(path) as store:
        for number in range(PARTITIONS):
            assert committed_values(store, number) == expected_values()
        try:
            with store.consumer(group=GROUP) as consumer:
                found = consumer.committed(TopicPartition(TOPIC, 0))
        except EoslogError as error:
            assert "__consumer_offsets" in str(error) or error.__cause__ is not None
            return
        assert found is None or is_committed(found)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("state", ["clean", "unclean"])
@pytest.mark.parametrize("how", LOG_WAYS)
@pytest.mark.parametrize("which", [0, -1])
def test_a_broken_log_of_the_topic(store_path, which, how, state):
    """Of the broken partition only committed records, in order; the other one is whole."""
    path = store_path(state)
    break_file(chosen(path, f"{TOPIC}-0/*.log")[which], how)
    with eoslog.open(path) as store:
        assert committed_values(store, 1) == expected_values()
        try:
            found = committed_values(store, 0)
        except EoslogError as error:
            assert f"{TOPIC}-0" in str(error)
            return
        expected = expected_values()
        positions = [expected.index(value) for value in found]
        assert positions == sorted(set(positions))
