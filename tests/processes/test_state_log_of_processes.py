"""The internal log when several processes write it: what each knows of the others' records, the
index that they share, producer ids, names, and compaction.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.crew import QUIET, Crew, Member
from harness.fork import Fork, Kill, dies_in_child
from harness.member_main import Hand

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ProducerFencedError, TransactionalIdNotFoundError
from eoslog.storage import topic_registry
from eoslog.storage.producer_id_range import FIRST_PRODUCER_ID as FIRST
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.compacted_partition import CompactedPartition
from eoslog.transactions.named_producers import NamedProducers
from eoslog.transactions.producer_ids import BLOCK_IDS, STAGED_PRODUCER_ID_MIN
from eoslog.transactions.state_key import (
    NAMED_PRODUCER,
    PRODUCER_ID_BLOCK,
    is_transaction_key,
    state_key,
    state_partition_of,
    transaction_key,
)

MADE_UP = 1999  # A type of ours that no part of the store reads.
TOPIC = "t"
SMALL = {"segment.bytes": 1 << 14, "max.message.bytes": 1 << 14}
_OFFSET_BYTES = 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic(TOPIC, partitions=2, config={"segment.bytes": 1 << 14})
    return path


@pytest.fixture
def crew(path: Path) -> Iterator[Crew]:
    with Crew(path, config=QUIET) as crew:
        yield crew


@pytest.fixture
def store(path: Path) -> Iterator[eoslog.Store]:
    with opened(path) as store:
        yield store


def opened(path: Path, durability: str = "process") -> eoslog.Store:
    store = eoslog.open(path, durability=durability, config=QUIET)
    parts_of(store).checkpointer.stop()  # What it does is done by the test.
    return store


# What a member does.


def put(hand: Hand, name: str, number: int) -> None:
    parts_of(hand.store).files.state_log.append(MADE_UP, name, {"n": number})


def get(hand: Hand, name: str) -> int | None:
    state = parts_of(hand.store).files.state_log.get(MADE_UP, name)
    return None if state is None else int(state["n"])


def names(hand: Hand) -> list[str]:
    return parts_of(hand.store).files.state_log.names(MADE_UP)


def persist(hand: Hand) -> None:
    parts_of(hand.store).files.state_log.persist()


def count_up(hand: Hand, names: list[str], times: int) -> None:
    """Each key is read, and written one higher, under its lock."""
    log = parts_of(hand.store).files.state_log
    for number in range(times):
        name = names[number % len(names)]
        with log.held(MADE_UP, name):
            state = log.get(MADE_UP, name)
            log.append(MADE_UP, name, {"n": 1 if state is None else state["n"] + 1})


def take_ids(hand: Hand, count: int) -> list[int]:
    return [parts_of(hand.store).files.producer_ids.take() for _ in range(count)]


def commit_some(hand: Hand, ids: list[str], count: int) -> None:
    producers = [hand.store.producer(transactional_id=one) for one in ids]
    for producer in producers:
        producer.init_transactions()
    for number in range(count):
        with producers[number % len(ids)].transaction():
            producers[number % len(ids)].append(TOPIC, 0, [b"x"])


def compact_again_and_again(hand: Hand, numbers: list[int], seconds: float) -> int:
    end_s = time.monotonic() + seconds
    deleted = 0
    while not deleted or time.monotonic() < end_s:
        for number in numbers:
            partition = parts_of(hand.store).files.partitions.state_partition(number)
            deleted += parts_of(hand.store).files.compact(partition)
    return deleted


def small_segments(hand: Hand | None) -> None:
    topic_registry.INTERNAL_TOPIC_CONFIG.update(SMALL)


def append_named(hand: Hand, name: str, count: int) -> int:
    producer = hand.kept.get(name)
    if producer is None:
        producer = hand.kept[name] = hand.store.producer(name=name)
    for _ in range(count):
        producer.append(TOPIC, 0, [b"%d" % producer.next_sequence(TOPIC, 0)])
    return int(producer.next_sequence(TOPIC, 0))


# What others wrote.


def test_a_record_is_known_to_all_at_once(crew):
    ann, bob = crew.join("ann"), crew.join("bob")
    for number in range(60):
        writer, reader = (ann, bob) if number % 3 else (bob, ann)
        writer.call(put, f"key-{number % 7}", number)
        assert reader.call(get, f"key-{number % 7}") == number
        assert writer.call(get, f"key-{number % 7}") == number
        if number % 5 == 0:
            writer.call(persist)
        if number % 11 == 0:
            reader.call(persist)
    assert bob.call(names) == ann.call(names) == sorted(f"key-{number}" for number in range(7))
    late = crew.join("late")
    assert [late.call(get, f"key-{number}") for number in range(7)] == [
        max(one for one in range(60) if one % 7 == number) for number in range(7)
    ]
    crew.all_leave()


@pytest.mark.parametrize("killed", [False, True])
def test_changes_that_follow_from_the_older_value_are_never_lost(path, crew, killed):
    keys = [f"key-{number}" for number in range(5)]
    members = [crew.join("writer") for _ in range(3)]
    for member in members:
        member.begin(count_up, keys, 500)
    if killed:
        time.sleep(0.1)
        members[0].kill()
        members = members[1:]
    for member in members:
        member.answer()
    total = sum(members[0].call(get, key) for key in keys)
    # The killed one may have been through.
    assert total == 1500 if not killed else 1000 <= total <= 1500
    crew.all_leave()
    with opened(path) as store:
        assert sum(get_here(store, key) for key in keys) == total


def get_here(store: eoslog.Store, key: str) -> int:
    state = parts_of(store).files.state_log.get(MADE_UP, key)
    assert state is not None
    return int(state["n"])


def test_own_records_are_never_read_again(store, monkeypatch):
    """In one process, and in one of several while the others are silent, it costs what it did."""
    read = []
    apply = CompactedPartition._apply
    monkeypatch.setattr(
        CompactedPartition, "_apply", lambda self, *rest: read.append(rest) or apply(self, *rest)
    )
    log = parts_of(store).files.state_log
    for number in range(30):
        log.append(MADE_UP, f"key-{number % 3}", {"n": number})
        assert get_here(store, f"key-{number % 3}") == number
        if number == 15:
            log.persist()
    producer = store.producer(name="n")
    producer.append(TOPIC, 0, [b"x"])
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    for _ in range(10):
        with producer.transaction():
            producer.append(TOPIC, 0, [b"x"])
    log.names(MADE_UP), list(log.transactions()), log.undecided_transactions()
    log.persist()
    assert read == []


# The index.


def check_index(store: eoslog.Store) -> None:
    """It is true up to where it says, and tells of nothing that is not in the log."""
    index = parts_of(store).files.state_index
    for number in parts_of(store).files.partitions.existing_state_partitions():
        partition = parts_of(store).files.partitions.state_partition(number)
        true_at, reached = index.read_applied(number) or 0, index.read_reached(number) or 0
        assert true_at <= reached <= partition.log_end_offset
        found: dict[bytes, list[tuple[int, bytes | None]]] = {}
        offset = partition.log_start_offset
        while offset < partition.log_end_offset:
            records, offset = partition.fetch_records(offset, 1000, 1 << 20)
            for record in records:
                found.setdefault(record.key, []).append((record.offset, record.value))
        for key, history in found.items():
            newest = max((at for at, _ in history if at < true_at), default=-1)
            allowed = [value for at, value in history if newest <= at < reached]
            value = index.read_state(key)
            if value is not None and is_transaction_key(key):
                value = value[_OFFSET_BYTES:]
            assert value in allowed or (newest < 0 and value is None), (key, true_at, history)


def write_and_persist(hand: Hand, seed: int, times: int) -> None:
    noise = random.Random(seed)
    log = parts_of(hand.store).files.state_log
    producers = {}
    for number in range(times):
        name = f"key-{noise.randrange(8)}"
        what = noise.random()
        if what < 0.5:
            with log.held(MADE_UP, name):
                log.append(MADE_UP, name, {"n": number, "by": seed})
        elif what < 0.8:
            producer = producers.get(name)
            try:
                if producer is None:
                    producer = producers[name] = hand.store.producer(transactional_id=name)
                    producer.init_transactions()
                with producer.transaction():
                    producer.append(TOPIC, 0, [b"x"])
            except ProducerFencedError:
                producers.pop(name, None)
        elif what < 0.95:
            log.persist()
        else:
            log.look_after()


@pytest.mark.parametrize("seed", range(3))
def test_the_index_never_goes_back(path, crew, seed):
    members = [crew.join("writer") for _ in range(2)]
    with opened(path) as store:
        for turn in range(3):
            for number, member in enumerate(members):
                member.begin(write_and_persist, seed * 100 + turn * 10 + number, 60)
            busy = set(members)
            while busy:
                busy -= {one for one in busy if has_done(one)}
                before = applied(store)
                parts_of(store).files.state_log.persist()
                assert all(applied(store)[one] >= at for one, at in before.items())
            for member in members:
                member.answer()
            check_index(store)
        for member in members:
            member.leave()
        parts_of(store).files.state_log.persist()
        check_index(store)
        found = {
            one: parts_of(store).files.state_log.get(MADE_UP, f"key-{one}") for one in range(8)
        }
        ids = dict(parts_of(store).files.state_log.transactions())
    with opened(path) as store:
        assert found == {
            one: parts_of(store).files.state_log.get(MADE_UP, f"key-{one}") for one in range(8)
        }
        assert ids == dict(parts_of(store).files.state_log.transactions())


def has_done(member: Member) -> bool:
    return any(said.word in ("did", "failed") for said in member.listen())


def applied(store: eoslog.Store) -> dict[int, int]:
    index = parts_of(store).files.state_index
    return {number: index.read_applied(number) or 0 for number in range(50)}


@pytest.mark.parametrize(
    "kill", [Kill(UnifiedLog, "make_durable", 1), Kill(CompactedLog, "persist", 1)]
)
def test_who_dies_while_it_persists_harms_nobody(path, kill):
    with opened(path, "commit") as store:
        parts_of(store).files.state_log.append(MADE_UP, "a", {"n": 1})

        def other() -> None:
            joined = opened(path, "commit")
            parts_of(joined).files.state_log.append(MADE_UP, "a", {"n": 2}, sync=False)
            kill.arm()
            parts_of(joined).files.state_log.persist()

        assert dies_in_child(other)
        assert get_here(store, "a") == 2
        parts_of(store).files.state_log.append(MADE_UP, "a", {"n": 3})
        parts_of(store).files.state_log.persist()
        check_index(store)
    with opened(path, "commit") as store:
        assert get_here(store, "a") == 3


def test_what_others_wrote_does_not_fill_the_memory(path, crew, store, monkeypatch):
    monkeypatch.setattr("eoslog.transactions.compacted_log.UNPERSISTED_MAX", 50)
    other = crew.join()
    for turn in range(4):
        for number in range(60):
            other.call(put, f"key-{turn}-{number}", number)
        if turn == 1:
            other.call(persist)
        parts_of(store).files.state_log.look_after()
        assert parts_of(store).files.state_log._unpersisted <= 60
    assert len(parts_of(store).files.state_log.names(MADE_UP)) == 240
    check_index(store)
    crew.all_leave()


# Producer ids.


def test_an_id_is_given_out_once_by_all_processes(crew):
    members = [crew.join() for _ in range(3)]
    for member in members:
        member.begin(take_ids, 3 * BLOCK_IDS + 7)
    taken = [one for member in members for one in member.answer()]
    assert len(set(taken)) == len(taken) == 3 * (3 * BLOCK_IDS + 7)
    assert min(taken) == FIRST
    assert max(taken) < FIRST + 12 * BLOCK_IDS + 1
    crew.all_leave()


def test_what_one_process_finds_in_a_log_ends_the_blocks_of_the_others(crew):
    first, second = crew.join(), crew.join()
    [before] = first.call(take_ids, 1)
    second.call(find_id, before + 500)
    assert first.call(take_ids, 1) == [before + BLOCK_IDS]
    second.call(find_id, before + 50 * BLOCK_IDS)
    taken = first.call(take_ids, 1) + second.call(take_ids, 1)
    assert len(set(taken)) == 2
    assert min(taken) == before + 50 * BLOCK_IDS + 1
    third = crew.join()
    assert third.call(take_ids, 1)[0] > max(taken)
    crew.all_leave()


def find_id(hand: Hand, producer_id: int) -> None:
    parts_of(hand.store).files.partitions.found_ids.note(producer_id)


ID_KILLS = [
    Kill(CompactedLog, "append", 1, "before"),
    Kill(CompactedLog, "append", 1, "after"),
    Kill(UnifiedLog, "append_columns", 1, "after"),
    Kill(UnifiedLog, "make_durable", 1, "after"),
]


@pytest.mark.parametrize("kill", ID_KILLS, ids=str)
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_no_id_twice_though_a_process_dies_taking_a_block(path, durability, kill):
    with opened(path, durability) as store:
        taken = [parts_of(store).files.producer_ids.take() for _ in range(BLOCK_IDS)]

        def other() -> None:
            joined = opened(path, durability)
            parts_of(joined).files.producer_ids.take()
            for _ in range(BLOCK_IDS - 1):
                parts_of(joined).files.producer_ids.take()
            kill.arm()
            parts_of(joined).files.producer_ids.take()

        assert dies_in_child(other)
        taken += [parts_of(store).files.producer_ids.take() for _ in range(BLOCK_IDS)]
    assert len(set(taken)) == len(taken)
    assert not set(taken) & set(range(FIRST + BLOCK_IDS, FIRST + 2 * BLOCK_IDS))
    assert max(taken) < STAGED_PRODUCER_ID_MIN


# Compaction.


def test_compaction_writes_no_older_record_over_a_newer_one(path, crew, monkeypatch):
    """Two processes write the same keys and ids while a third compacts their partitions."""
    monkeypatch.setitem(topic_registry.INTERNAL_TOPIC_CONFIG, "segment.bytes", 1 << 14)
    monkeypatch.setitem(topic_registry.INTERNAL_TOPIC_CONFIG, "max.message.bytes", 1 << 14)
    keys = ["key-0", "key-1", "key-2"]
    members = []
    for _ in range(3):
        members.append(crew.hire())
        members[-1].call(small_segments)
        members[-1].call(open_member, str(path))
    numbers = sorted({state_partition_of(key) for key in [*keys, "id-0", "id-1", "id-2", "id-3"]})
    members[2].begin(compact_again_and_again, numbers, 4.0)
    members[0].begin(count_and_commit, keys, ["id-0", "id-1"], 4.0)
    members[1].begin(count_and_commit, keys, ["id-2", "id-3"], 4.0)
    counted = members[0].answer() + members[1].answer()
    assert members[2].answer() > 0
    assert sum(members[2].call(get, key) for key in keys) == counted
    crew.all_leave()
    with opened(path) as store:
        assert sum(get_here(store, key) for key in keys) == counted
        ids = [one.transactional_id for one in store.transactions()]
        states = {one: store.describe_transaction(one).transaction_state for one in ids}
        assert states == {f"id-{number}": "CompleteCommit" for number in range(4)}
        parts_of(store).files.state_log.persist()
        check_index(store)
        assert store.verify() == []
        blocks = parts_of(store).files.state_log.get(PRODUCER_ID_BLOCK, "")
        assert blocks is not None
        assert parts_of(store).files.producer_ids.take() >= blocks["next_producer_id"]


def test_an_id_that_expired_in_segments_that_were_not_read_is_gone(path, crew, monkeypatch):
    """Its tombstone went with them; the process had its record in memory."""
    monkeypatch.setitem(topic_registry.INTERNAL_TOPIC_CONFIG, "segment.bytes", 1 << 14)
    busy = next(
        name
        for name in (f"busy-{number}" for number in range(1000))
        if state_partition_of(name) == state_partition_of("gone")
    )
    bob = crew.hire()
    bob.call(small_segments)
    bob.call(open_member, str(path))
    with opened(path) as store:
        bob.call(commit_and_look_no_more, ["gone", busy])
        entries = parts_of(store).files.transactions.entries
        with entries.locked("gone") as entry:
            entry.expire()
            entries.buried(entry)
        hand = store.producer(transactional_id=busy)
        hand.init_transactions()
        for _ in range(100):
            with hand.transaction():
                hand.append(TOPIC, 0, [b"x"])
        partition = parts_of(store).files.partitions.state_partition(state_partition_of(busy))
        assert parts_of(store).files.compact(partition) > 0
        assert bob.call(ids_known) == [busy]
        assert bob.call(is_unknown_to_entries, "gone")
        bob.call(commit_some, ["gone"], 1)
        assert store.describe_transaction("gone").producer_epoch == 1


def commit_and_look_no_more(hand: Hand, ids: list[str]) -> None:
    parts_of(hand.store).checkpointer.stop()
    commit_some(hand, ids, len(ids))


def ids_known(hand: Hand) -> list[str]:
    return [one.transactional_id for one in hand.store.transactions()]


def is_unknown_to_entries(hand: Hand, transactional_id: str) -> bool:
    try:
        with parts_of(hand.store).files.transactions.entries.locked(transactional_id):
            return False
    except TransactionalIdNotFoundError:
        return True


def open_member(hand: Hand, path: str) -> None:
    hand.open(path, durability="process", config=QUIET)


def count_and_commit(hand: Hand, keys: list[str], ids: list[str], seconds: float) -> int:
    """How many times a key was counted up."""
    end_s = time.monotonic() + seconds
    counted = 0
    while not counted or time.monotonic() < end_s:
        count_up(hand, keys, 30)
        counted += 30
        commit_some(hand, ids, 10)
    return counted


# Names.


def named(store: eoslog.Store, name: str) -> dict[str, Any]:
    state = parts_of(store).files.state_log.get(NAMED_PRODUCER, name)
    assert state is not None
    return json.loads(json.dumps(dict(state)))


def test_the_fenced_producer_says_which_process_has_its_name(store, crew):
    producer = store.producer(name="n")
    producer.append(TOPIC, 0, [b"1"])
    other = crew.join()
    assert other.call(append_named, "n", 2) == 3
    for _ in range(2):
        with pytest.raises(ProducerFencedError, match=rf"by process {other.pid} on "):
            producer.append(TOPIC, 0, [b"2"])
    with pytest.raises(ProducerFencedError):
        producer.next_sequence(TOPIC, 0)
    assert store.producer(name="n").next_sequence(TOPIC, 0) == 3
    crew.all_leave()


NAME_KILLS = [
    Kill(NamedProducers, "succeed", 1, "before"),
    Kill(CompactedLog, "append", 1, "before"),
    Kill(CompactedLog, "append", 1, "after"),
    Kill(NamedProducers, "adopt", 1, "after"),
    *[
        Kill(UnifiedLog, "append_columns", nth, when)
        for nth in (1, 2, 3)
        for when in ("before", "after")
    ],
]


@pytest.mark.parametrize("kill", NAME_KILLS, ids=str)
def test_the_position_is_that_of_the_log_wherever_a_process_dies_with_the_name(path, kill):
    with opened(path) as store:
        producer = store.producer(name="n")
        producer.append(TOPIC, 0, [b"0", b"1"])

        def other() -> None:
            joined = opened(path)
            kill.arm()
            taken = joined.producer(name="n")
            for position in range(2, 20):
                assert taken.next_sequence(TOPIC, 0) == position
                taken.append(TOPIC, 0, [b"%d" % position])

        assert dies_in_child(other)
        partition = engine_of(store).partition(TOPIC, 0)
        newer = store.producer(name="n")
        assert newer.next_sequence(TOPIC, 0) == partition.log_end_offset
        newer.append(TOPIC, 0, [b"%d" % partition.log_end_offset])
        with pytest.raises(ProducerFencedError):
            producer.append(TOPIC, 0, [b"never"])
        records, _ = partition.fetch_records(0, 100, 1 << 20)
        assert [int(one.value) for one in records] == list(range(len(records)))


def test_a_name_held_by_a_living_process_is_renewed_by_another_ones_retention(store, crew):
    other = crew.join()
    assert other.call(append_named, "n", 5) == 5
    where = TopicPartition(TOPIC, 0)
    parts_of(store).files.names.renew(where)
    assert named(store, "n")["positions"]["t-0"] == [5, 0, 4]
    # The holder goes on, learns of it, and does not write the older one back.
    assert other.call(append_named, "n", 2) == 7
    store.create_topic("u", partitions=1)
    other.call(append_elsewhere, "n", "u")
    assert named(store, "n")["positions"]["t-0"] == [5, 0, 4]
    assert named(store, "n")["positions"]["u-0"] == [0, 0, -1]
    assert other.call(append_named, "n", 1) == 8
    assert store.producer(name="n").next_sequence(TOPIC, 0) == 8
    crew.all_leave()


def append_elsewhere(hand: Hand, name: str, topic: str) -> None:
    hand.kept[name].append(topic, 0, [b"x"])


def test_a_topic_that_another_process_deletes_is_counted_anew(store, crew):
    other = crew.join()
    store.create_topic("u", partitions=1)
    other.call(append_named, "n", 3)
    for _ in range(2):
        other.call(append_elsewhere, "n", "u")
    assert other.call(position_at, "n", "u") == 2
    store.delete_topic("u")
    store.create_topic("u", partitions=1)
    other.call(append_elsewhere, "n", "u")
    assert other.call(position_at, "n", "u") == 1
    assert store.producer(name="n").next_sequence("u", 0) == 1
    assert store.producer(name="n").next_sequence(TOPIC, 0) == 3
    crew.all_leave()


def position_at(hand: Hand, name: str, topic: str) -> int:
    return int(hand.kept[name].next_sequence(topic, 0))


def test_threads_and_processes_take_names_from_each_other(path, store):
    """No deadlock between the locks of one process and those of all."""

    def wrestle(opened_store: eoslog.Store) -> None:
        end_s = time.monotonic() + 0.7
        while time.monotonic() < end_s:
            for name in ("a", "b"):
                try:
                    producer = opened_store.producer(name=name)
                    for _ in range(5):
                        producer.append(TOPIC, 0, [b"%s" % name.encode()])
                except ProducerFencedError:
                    continue

    def other() -> str:
        with opened(path) as joined:
            run_in_threads(lambda: wrestle(joined), 2)
        return "done"

    with Fork(lambda _: other()) as child:
        run_in_threads(lambda: wrestle(store), 2)
        assert child.end() == "done"
    found = values_of(store)
    for name in ("a", "b"):
        assert store.producer(name=name).next_sequence(TOPIC, 0) == found.count(name.encode())
    assert store.verify() == []


def values_of(store: eoslog.Store) -> list[bytes]:
    partition, offset = engine_of(store).partition(TOPIC, 0), 0
    found = []
    while offset < partition.log_end_offset:
        records, offset = partition.fetch_records(offset, 1000, 1 << 20)
        found += [record.value for record in records]
    return found


def run_in_threads(work: Any, count: int) -> None:
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_the_keys_of_this_page_are_where_they_are_looked_for():
    assert state_key(MADE_UP, "a")[:2] == MADE_UP.to_bytes(2, "big")
    assert is_transaction_key(transaction_key("id"))
