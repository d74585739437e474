"""Processes die at any instant of an append or a commit, and others go on where they were.

A tight loop spends most of its time within the engine: so a kill at a random instant often leaves a
lock held, a batch half written, or a transaction half decided.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import time

import pytest
from harness.crew import QUIET, Crew, MemberError
from harness.waiting import eventually
from processes import store_calls
from processes.lanes import TOPIC, Lanes, make_store, records_of, value_of, write_lane
from short_form import short_form

import eoslog

KILLS = int(os.environ.get("EOSLOG_TAKEOVERS", "12"))
# The slowest answer that a writer may get while others are killed beside it: who waited for the
# lock of one that is dead would wait for 30 s. What a takeover costs is for benches to say.
LONGEST_S = 20.0


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("count", ["small", "large"])
def test_writers_killed_in_a_tight_loop(tmp_path, count):
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 18)
    noise = random.Random(count)
    known = Lanes()
    work = write_lane if count == "small" else write_large
    with Crew(path) as crew:
        survivor = crew.join("survivor")
        survivor.begin(write_lane, "survivor", 0, named=True)
        survivor.hear("ack")
        for number in range(KILLS):
            victim = crew.join("victim")
            victim.begin(work, f"victim-{number}", 0)
            victim.hear("ack")
            time.sleep(noise.random() * 0.02)
            victim.kill()
            known.take(victim.all_said)
            crew.forget_the_dead()
        survivor.hear_anew("ack")
        survivor.kill()
        known.take(survivor.all_said)
        acks = known.by_name["survivor"].acks
        longest_ns = max(after - before for before, after in itertools.pairwise(acks))
        assert longest_ns < LONGEST_S * 1e9
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []


def write_large(hand, lane, partition):
    """Large batches: most kills fall into the copying of one."""
    with hand.store.producer() as producer:
        position = 0
        while True:
            values = [value_of(lane, position + index) for index in range(200)]
            hand.say("try", lane, position, 200)
            result = producer.append(TOPIC, partition=partition, values=values)
            hand.say("ack", lane, position, 200, result.base_offset)
            position += 200


def test_all_writers_of_a_partition_killed_but_a_reader(tmp_path):
    """The reader writes next: it finds and repairs what the dead left."""
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 17)
    noise = random.Random(7)
    known = Lanes()
    with Crew(path) as crew:
        reader = crew.join("reader")
        for number in range(KILLS):
            writers = [crew.join("writer") for _ in range(2)]
            for index, member in enumerate(writers):
                member.begin(write_lane, f"lane-{number}-{index}", 0)
            for member in writers:
                member.hear("ack")
            time.sleep(noise.random() * 0.02)
            for member in writers:
                member.signal(signal.SIGKILL)
            for member in writers:
                member.kill()
                known.take(member.all_said)
            if number % 2:
                reader.begin(write_lane, f"reader-{number}", 0, seconds=0.005)
                reader.answer()
            else:
                reader.listen()
                seen = len(reader.call(store_calls.values_of, TOPIC))
                assert seen >= sum(lane.acknowledged for lane in known.by_name.values())
            crew.forget_the_dead()
            known.take(reader.all_said)
            reader.all_said.clear()
        crew.all_leave()
    with eoslog.open(path) as store:
        known.check(records_of(store))
        assert store.verify() == []


def commit_forever(hand, transactional_id, partitions):
    """Transactions over all partitions, one after the other."""
    with hand.store.producer(transactional_id=transactional_id) as producer:
        producer.init_transactions()
        number = 0
        while True:
            producer.begin_transaction()
            hand.say("try", number)
            for partition in range(partitions):
                for index in range(number % 3 + 1):
                    value = f"{transactional_id}:{number}:{index}".encode()
                    producer.send(TOPIC, value=value, partition=partition)
            producer.commit_transaction()
            hand.say("ack", number)
            number += 1


@pytest.mark.parametrize("durability", short_form(["process", "commit"], "commit"))
def test_a_dead_producers_transaction_is_ended_by_the_living(tmp_path, durability):
    """Decided ones are completed, undecided ones aborted, without anybody who asks for it."""
    path = tmp_path / "store"
    make_store(path, 2)
    noise = random.Random(11)
    tried, acknowledged = {}, {}
    with Crew(path, durability=durability) as crew:
        reader = crew.join("reader")
        for number in range(KILLS):
            name = f"victim-{number}"
            victim = crew.join("victim")
            victim.begin(commit_forever, name, 2)
            victim.hear("ack")
            time.sleep(noise.random() * 0.03)
            victim.kill()
            died_s = time.monotonic()
            tried[name] = sum(one.word == "try" for one in victim.all_said)
            acknowledged[name] = sum(one.word == "ack" for one in victim.all_said)
            while any(is_undecided(reader, partition) for partition in range(2)):
                assert time.monotonic() - died_s < 60, f"{name} holds back readers"
                time.sleep(0.01)
            crew.forget_the_dead()
        crew.all_leave()
    with eoslog.open(path, durability=durability) as store:
        found = records_of(store)
        assert store.verify() == []
    for name in tried:
        rows = [
            [
                one.decode()
                for one in found[partition].values()
                if one.startswith(f"{name}:".encode())
            ]
            for partition in range(2)
        ]
        assert rows[0] == rows[1], f"{name}: a transaction is in one partition only"
        done = 1 + max((int(one.split(":")[1]) for one in rows[0]), default=-1)
        assert acknowledged[name] <= done <= tried[name]
        assert rows[0] == [
            f"{name}:{number}:{index}" for number in range(done) for index in range(number % 3 + 1)
        ]


def is_undecided(member, partition):
    ends = member.call(store_calls.offsets_of, TOPIC, partition)
    return ends["last_stable_offset"] < ends["log_end_offset"]


def test_a_timeout_is_seen_to_by_readers(tmp_path):
    """The producer's process does not run; only one that never wrote is there."""
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        writer = crew.join("writer", config=QUIET)
        writer.call(store_calls.stop_background)
        writer.call(store_calls.init, "t", transaction_timeout_ms=400)
        writer.call(store_calls.begin, "t")
        writer.call(store_calls.send, "t", TOPIC, {"0": ["never"]})
        # Nobody else is there yet who could find that it took too long until here.
        assert is_undecided(writer, 0)
        writer.signal(signal.SIGSTOP)
        reader = crew.join("reader")
        eventually(lambda: not is_undecided(reader, 0), "the transaction has no end")
        assert reader.call(store_calls.values_of, TOPIC) == []
        writer.signal(signal.SIGCONT)
        with pytest.raises(MemberError, match=r"ProducerFencedError|InvalidProducerEpochError"):
            writer.call(store_calls.commit, "t")
        crew.all_leave()


def test_a_prepared_transaction_outlives_its_process(tmp_path):
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        writer.call(store_calls.init, "t")
        writer.call(store_calls.begin, "t")
        writer.call(store_calls.send, "t", TOPIC, {"0": ["a"], "1": ["b"]})
        token = writer.call(store_calls.prepare, "t")
        writer.kill()
        time.sleep(1.5)  # Longer than the living take to look after the dead.
        assert is_undecided(reader, 0)
        reader.call(commit_prepared, "t", token)
        assert reader.call(store_calls.values_of, TOPIC) == ["a"]
        assert reader.call(store_calls.values_of, TOPIC, 1) == ["b"]
        crew.all_leave()


def commit_prepared(hand, transactional_id, token):
    prepared = eoslog.PreparedTransaction.parse(transactional_id, token)
    hand.store.commit_prepared([prepared])


@pytest.mark.soak
def test_who_waits_for_a_stopped_process_is_told_its_name(tmp_path):
    """A holder of the lock does not run: others read on, and a writer gives up after a while."""
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 20)
    noise = random.Random(17)
    with Crew(path, config=QUIET) as crew:
        victim, other = crew.join("victim"), crew.join("other")
        victim.call(store_calls.stop_background)
        victim.begin(write_large, "victim", 0)
        for _ in range(300):
            time.sleep(noise.random() * 0.02)
            victim.signal(signal.SIGSTOP)
            time.sleep(0.01)
            try:
                other.call(store_calls.append, TOPIC, ["x"])
            except MemberError as error:
                assert re.search(f"StoreInUseError.*{victim.pid}", str(error))
            else:
                victim.signal(signal.SIGCONT)
                continue
            assert other.call(store_calls.offsets_of, TOPIC)["log_end_offset"] > 0
            victim.signal(signal.SIGCONT)
            assert other.call(store_calls.append, TOPIC, ["x"])
            break
        else:
            pytest.fail("it was never stopped where it holds the lock")
        victim.kill()
        crew.all_leave()
