"""What LMDB holds, with several processes that write it: it grows, and dead readers do no harm."""

from __future__ import annotations

import random
import time

import pytest
from harness.crew import Crew
from harness.waiting import eventually
from processes import store_calls
from processes.lanes import TOPIC, make_store, records_of
from reference_model import batch_codec

import eoslog
from eoslog import TopicPartition

MAP_BYTES = 16 << 20  # LMDB's map is so large at first.


def append_as_many(hand, partition, first_id, count, sequence):
    """One batch of each of many producers: each becomes a row in LMDB."""
    log = hand.store.partition(TOPIC, partition)
    now_ms = time.time_ns() // 1_000_000
    for producer_id in range(first_id, first_id + count):
        batch = batch_codec.simple_batch(
            [b"%d" % producer_id],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            timestamp_ms=now_ms,
        )
        assert not log.append_batch(batch).duplicate
    return log.log_end_offset


def map_bytes(path):
    return (path / "state" / "lmdb" / "data.mdb").stat().st_size


def test_the_map_grows_under_all_processes(tmp_path):
    """Each process fills it in turn: the others meet a map that somebody else made larger."""
    path = tmp_path / "store"
    make_store(path, 2, segment_bytes=1 << 22)
    config = {"eoslog.checkpoint.interval.ms": 50, "eoslog.producers.cached.max": 500}
    with Crew(path, config=config) as crew:
        members = [crew.join() for _ in range(2)]
        rounds = 0
        while map_bytes(path) <= MAP_BYTES:
            assert rounds < 20, "the map does not grow"
            for number, member in enumerate(members):
                member.begin(append_as_many, number, 10_000 * rounds, 5_000, 0)
            for member in members:
                member.answer(120)
            rounds += 1
            time.sleep(0.2)
        # All of them are known to everybody, those evicted too.
        for number, member in enumerate(reversed(members)):
            member.begin(append_as_many, number, 0, 1_000, 1)
        for member in members:
            assert member.answer(120) == 5_000 * rounds + 1_000
        crew.all_leave()
    with eoslog.open(path) as store:
        assert store.verify() == []


def commit_offsets(hand, prefix, count, rounds):
    for number in range(rounds):
        for group in range(count):
            with hand.store.consumer(f"{prefix}-{group}") as consumer:
                consumer.commit({TopicPartition(TOPIC, 0): number})


def test_groups_of_many_processes(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        members = [crew.join() for _ in range(3)]
        members[0].call(store_calls.append, TOPIC, [str(number) for number in range(20)])
        for number, member in enumerate(members):
            member.begin(commit_offsets, f"group-{number % 2}", 15, 10)
        for member in members:
            member.answer()
        for member in members:
            for number in (0, 1):
                for group in range(15):
                    found = member.call(store_calls.group_offsets, f"group-{number}-{group}")
                    assert found == {str(TopicPartition(TOPIC, 0)): 9}
        crew.all_leave()


def churn_rows(hand, partition, first_id):
    """Producers come and are evicted, rows are written and read, for ever."""
    log = hand.store.partition(TOPIC, partition)
    noise = random.Random(first_id)
    sequences: dict[int, int] = {}
    while True:
        producer_id = first_id + noise.randrange(300)
        sequence = sequences.get(producer_id, 0)
        batch = batch_codec.simple_batch(
            [b"%d:%d" % (producer_id, sequence)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        hand.say("try", producer_id, sequence)
        log.append_batch(batch)
        hand.say("ack", producer_id, sequence)
        sequences[producer_id] = sequence + 1


@pytest.mark.long
def test_killed_in_the_midst_of_lmdb(tmp_path):
    """Dead readers and writers of LMDB keep nobody from reading, writing or growing it."""
    path = tmp_path / "store"
    make_store(path, 2, segment_bytes=1 << 17)
    noise = random.Random(2)
    config = {"eoslog.checkpoint.interval.ms": 5, "eoslog.producers.cached.max": 30}
    tried: dict[int, int] = {}
    acknowledged: dict[int, int] = {}
    with Crew(path, config=config) as crew:
        survivor = crew.join("survivor")
        survivor.begin(churn_rows, 0, 0)
        survivor.hear("ack")
        for number in range(20):
            victims = [crew.join("victim") for _ in range(2)]
            for index, member in enumerate(victims):
                member.begin(churn_rows, index, 1000 * (2 * number + index + 1))
            for member in victims:
                member.hear("ack")
            time.sleep(noise.random() * 0.1)
            survivor.listen()
            before = len(survivor.all_said)
            for member in victims:
                member.kill()
            take(victims, tried, acknowledged)
            crew.forget_the_dead()
            eventually(
                lambda heard=before: survivor.listen() or len(survivor.all_said) > heard,
                "the survivor hangs",
            )
        survivor.kill()
        take([survivor], tried, acknowledged)
    with eoslog.open(path) as store:
        found = records_of(store)
        assert store.verify() == []
    sequences: dict[int, list[int]] = {}
    for values in found.values():
        for value in values.values():
            producer_id, sequence = map(int, value.split(b":"))
            sequences.setdefault(producer_id, []).append(sequence)
    for producer_id, there in sequences.items():
        assert there == list(range(len(there)))
        assert acknowledged.get(producer_id, -1) < len(there) <= tried[producer_id] + 1
    assert acknowledged.keys() <= sequences.keys()


def take(members, tried, acknowledged):
    for member in members:
        for said in member.all_said:
            if said.word in ("try", "ack"):
                producer_id, sequence = said.rest
                (tried if said.word == "try" else acknowledged)[producer_id] = sequence
