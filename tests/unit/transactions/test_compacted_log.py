"""The internal log: its keys, its index in LMDB, and what it does without one."""

import shutil

import pytest

from eoslog import TopicPartition
from eoslog.errors import CorruptRecordError, StoreVersionError
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.store.store import abandon, parts_of
from eoslog.transactions.compacted_log import _record_of_index
from eoslog.transactions.compacted_partition import StateRecord
from eoslog.transactions.state_key import (
    NAMED_PRODUCER,
    PRODUCER_ID_BLOCK,
    state_key,
    state_partition_of,
    transaction_key,
)

MADE_UP = 1999  # A type of ours that no part of the store reads.


@pytest.mark.parametrize(
    ("name", "partition"),
    # Java's String.hashCode, without its sign, over 50.
    [("", 0), ("a", 97 % 50), ("ab", (97 * 31 + 98) % 50), ("polygenelubricants", 0)],
)
def test_a_names_partition_is_kafkas(name, partition):
    assert state_partition_of(name) == partition


def test_keys_are_a_type_and_a_name():
    assert state_key(1001, "né") == b"\x03\xe9n\xc3\xa9"
    with pytest.raises(ValueError, match="481 bytes"):
        state_key(1001, "x" * 481)


def test_the_newest_record_of_a_key_holds(store):
    log = parts_of(store).files.state_log
    assert log.get(MADE_UP, "a") is None
    log.append(MADE_UP, "a", {"n": 1})
    log.append(MADE_UP, "b", {"n": 2})
    log.append(NAMED_PRODUCER, "a", {"n": 3})
    log.append(MADE_UP, "a", {"n": 4})
    assert log.get(MADE_UP, "a")["n"] == 4
    assert log.get(NAMED_PRODUCER, "a")["n"] == 3
    assert log.names(MADE_UP) == ["a", "b"]


@pytest.mark.parametrize("persisted", [True, False])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [None, "lmdb", "mark"])
def test_states_survive_whatever_is_lost_beside_the_log(
    open_store, store_path, persisted, clean, lost
):
    store = open_store()
    for number in range(30):
        parts_of(store).files.state_log.append(MADE_UP, f"app-{number % 10}", {"n": number})
        if persisted and number == 20:
            parts_of(store).files.state_log.persist()
    store.close() if clean else abandon(store)
    if lost == "lmdb":
        shutil.rmtree(store_path / "state" / "lmdb")
    if lost == "mark" and clean:
        (store_path / ".kafka_cleanshutdown").write_text("{}")
    log = parts_of(open_store()).files.state_log
    assert [log.get(MADE_UP, f"app-{number}")["n"] for number in range(10)] == list(range(20, 30))
    assert len(log.names(MADE_UP)) == 10


def test_an_index_that_knows_more_than_the_log_is_not_believed(open_store, store_path):
    """A power cut took an unsynced record that LMDB had seen."""
    store = open_store()
    parts_of(store).files.state_log.append(MADE_UP, "a", {"n": 1})
    where = TopicPartition("__transaction_state", state_partition_of("a"))
    size_bytes = parts_of(store).files.partitions.state_partition(where.partition).size_bytes
    parts_of(store).files.state_log.append(MADE_UP, "a", {"n": 2})
    parts_of(store).files.state_log.persist()
    abandon(store)
    path = store_path / str(where) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:size_bytes])
    assert parts_of(open_store()).files.state_log.get(MADE_UP, "a")["n"] == 1


def test_a_record_that_was_read_is_not_written_over_a_newer_one_of_this_process(store, monkeypatch):
    """The id's owner was followed, and replaced, while the index was written.

    The newest record is told once; whoever opens the store next, and trusts the index, would give
    an epoch out twice without it.
    """
    log = parts_of(store).files.state_log
    number, key = state_partition_of("x"), transaction_key("x")
    entries, index = parts_of(store).files.transactions.entries, parts_of(store).files.state_index
    told = entries.changed

    def take_over() -> None:
        store.producer(transactional_id="x").init_transactions()

    def changed():
        monkeypatch.undo()
        take_over()
        entry = entries.find("x")
        # As it is known where another process has written it.
        log.moved("x", StateRecord(entry.value(), entry.record_offset))
        take_over()
        return told()

    take_over()
    monkeypatch.setattr(entries, "changed", changed)
    newest = []
    for _ in range(3):
        log.persist()
        newest.append(_record_of_index(key, index.read_state(key)).offset)
        assert log.transaction("x").offset == newest[-1]
    assert newest == [entries.find("x").record_offset] * 3
    assert index.read_applied(number) == newest[-1] + 1


def test_lmdb_lost_while_open_is_read_again_from_the_log(store):
    log = parts_of(store).files.state_log
    log.append(MADE_UP, "a", {"n": 1})
    log.persist()
    parts_of(store).files.lmdb.begin_anew()
    assert log.get(MADE_UP, "a")["n"] == 1
    assert log.names(MADE_UP) == ["a"]
    log.persist()
    assert parts_of(store).files.state_index.read_state(state_key(MADE_UP, "a"))


@pytest.mark.parametrize("says_so", [True, False])
def test_keys_are_all_listed_where_lmdb_is_lost_between_two_looks(store, monkeypatch, says_so):
    """What is compacted is listed so: an id that is left out would go with its segment."""
    monkeypatch.setattr("eoslog.transactions.compacted_log._KEYS_PER_LOOK", 4)
    log, index = parts_of(store).files.state_log, parts_of(store).files.state_index
    names = [f"{number:03}" for number in range(10)]
    for name in names:
        log.append(MADE_UP, name, {})
        store.producer(transactional_id=name).init_transactions()
    log.persist()
    states_after = index.states_after

    def lost(prefix, key, count):
        if key != prefix:
            monkeypatch.setattr(index, "states_after", states_after)
            index.environment.begin_anew()
            if says_so:
                raise StateStoreDamagedError("it is begun anew")
        return states_after(prefix, key, count)

    monkeypatch.setattr(index, "states_after", lost)
    assert [name for name, _ in log.transactions()] == names
    log.persist()
    monkeypatch.setattr(index, "states_after", lost)
    assert log.names(MADE_UP) == names


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"no json", CorruptRecordError),
        (b"{}", CorruptRecordError),
        (b'{"version":2}', StoreVersionError),
    ],
)
def test_records_that_this_version_cannot_read(open_store, value, error):
    store = open_store()
    partition = parts_of(store).files.partitions.state_partition(3)
    partition.append_columns([value], [state_key(MADE_UP, "x")])
    abandon(store)
    with pytest.raises(error):
        open_store()


def test_records_of_kafkas_own_are_passed_over(open_store):
    store = open_store()
    partition = parts_of(store).files.partitions.state_partition(3)
    partition.append_columns([b"\0\1", None, b"x"], [b"\0\0name", b"\0\0name", None])
    parts_of(store).files.state_log.append(MADE_UP, "a", {"n": 1})
    abandon(store)
    store = open_store()
    assert parts_of(store).files.state_log.get(MADE_UP, "a")["n"] == 1


def test_producer_ids_come_in_blocks_that_are_durable_first(store):
    first = parts_of(store).files.producer_ids.take()
    block = parts_of(store).files.state_log.get(PRODUCER_ID_BLOCK, "")
    assert block["next_producer_id"] == first + 1000
    assert [parts_of(store).files.producer_ids.take() for _ in range(1000)] == list(
        range(first + 1, first + 1001)
    )
    assert (
        parts_of(store).files.state_log.get(PRODUCER_ID_BLOCK, "")["next_producer_id"]
        == first + 2000
    )
    assert parts_of(store).files.partitions.state_partition(0).recovery_point == 2


def test_states_of_the_index_come_back_until_they_are_cleared(store):
    index = parts_of(store).files.state_index
    index.write_states([(b"\x03\xe8a", b"1"), (b"\x03\xe9b", b"2")], [(7, 30)])
    index.write_states([(b"\x03\xe8a", b"3")], [(7, 40), (8, 1)])
    assert index.read_state(b"\x03\xe8a") == b"3"
    assert index.read_state(b"\x03\xe8x") is None
    assert index.states_after(b"\x03\xe8", b"\x03\xe8", 9) == [(b"\x03\xe8a", b"3")]
    assert [index.read_applied(number) for number in (7, 8, 9)] == [40, 1, None]
    index.clear()
    assert index.states_after(b"", b"", 9) == []
    assert index.read_applied(7) is None
