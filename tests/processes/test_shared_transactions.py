"""Transactional ids in several processes: one owner at a time, and any process does the work."""

from __future__ import annotations

import random
import time

import pytest
from harness.crew import Crew, MemberError
from processes import store_calls
from processes.lanes import TOPIC, make_store, records_of
from short_form import short_form
from staged_jobs import load

import eoslog
from eoslog.errors import (
    ConcurrentTransactionsError,
    EoslogError,
    InvalidProducerEpochError,
    ProducerFencedError,
)

# What whoever lost its transactional id may be told; which of them is a matter of moments.
FENCED = (ProducerFencedError, InvalidProducerEpochError)


@pytest.mark.parametrize("when", ["idle", "begun", "sent", "prepared"])
def test_who_takes_an_id_fences_the_other_process(tmp_path, when):
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        first = ann.call(store_calls.init, "t")
        ann.call(store_calls.commit_once, "t", TOPIC, {"0": ["a"], "1": ["a"]})
        if when != "idle":
            ann.call(store_calls.begin, "t")
        if when in ("sent", "prepared"):
            ann.call(store_calls.send, "t", TOPIC, {"0": ["never"]})
        if when == "prepared":
            ann.call(store_calls.prepare, "t")
        second = bob.call(store_calls.init, "t")
        assert second[0] == first[0]
        assert second[1] > first[1]
        with pytest.raises(MemberError, match="ProducerFencedError") as raised:
            if when == "idle":
                ann.call(store_calls.begin, "t")
            if when in ("idle", "begun"):
                ann.call(store_calls.send, "t", TOPIC, {"0": ["never"]})
            else:
                ann.call(store_calls.commit, "t")
        assert str(bob.pid) in str(raised.value), "it does not say by whom"
        bob.call(store_calls.commit_once, "t", TOPIC, {"0": ["b"]})
        for member in (ann, bob):
            assert member.call(store_calls.values_of, TOPIC) == ["a", "b"]
        crew.all_leave()


def test_an_operators_abort_from_another_process(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(store_calls.init, "t")
        ann.call(store_calls.begin, "t")
        ann.call(store_calls.send, "t", TOPIC, {"0": ["never"]})
        assert bob.call(store_calls.transactions) == {"t": "Ongoing"}
        bob.call(store_calls.abort_of, "t")
        assert ann.call(store_calls.transactions) == {"t": "Empty"}
        with pytest.raises(MemberError, match="ProducerFencedError"):
            ann.call(store_calls.commit, "t")
        assert ann.call(store_calls.values_of, TOPIC) == []
        crew.all_leave()


def wrestle(hand, transactional_id, lane, seconds, seed):
    """Take one id from the others, and write until it is taken; say what was committed."""
    noise = random.Random(seed)
    end_s, fenced, number = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end_s:
        producer = hand.store.producer(transactional_id=transactional_id)
        try:
            producer.init_transactions()
            for _ in range(noise.randrange(20)):
                producer.begin_transaction()
                hand.say("try", lane, number)
                for partition in range(2):
                    value = f"{lane}:{number}".encode()
                    producer.send(TOPIC, value=value, partition=partition)
                if noise.random() < 0.2:
                    producer.abort_transaction()
                    hand.say("aborted", lane, number)
                else:
                    producer.commit_transaction()
                    hand.say("ack", lane, number)
                number += 1
        except FENCED:
            fenced += 1
            number += 1
        except ConcurrentTransactionsError:
            pass
        finally:
            try:
                producer.close()
            except EoslogError as error:
                assert isinstance(error, FENCED), error
    return fenced


def check_wrestled(found, said):
    """Both partitions have the same transactions, in the same order: all acknowledged ones."""
    rows = [[one.decode() for one in values.values()] for _, values in sorted(found.items())]
    assert rows[0] == rows[1], "a transaction is in one partition only, or in another order"
    assert len(set(rows[0])) == len(rows[0]), "a transaction is there twice"
    names = {
        word: {f"{one.rest[0]}:{one.rest[1]}" for one in said if one.word == word}
        for word in ("try", "ack", "aborted")
    }
    assert names["ack"] <= set(rows[0]) <= names["try"]
    assert not names["aborted"] & set(rows[0])


@pytest.mark.parametrize("killed", short_form([False, True], True))
def test_one_id_in_three_processes(tmp_path, killed):
    path = tmp_path / "store"
    make_store(path, 2)
    said = []
    noise = random.Random(5)
    with Crew(path) as crew:
        members = [crew.join() for _ in range(3)]
        for number, member in enumerate(members):
            member.begin(wrestle, "t", f"lane-{number}", 1.5, number)
        if killed:
            for number in range(3, 15):
                time.sleep(noise.random() * 0.2)
                victim = members.pop(0)
                victim.kill()
                said += victim.all_said
                members.append(crew.join())
                members[-1].begin(wrestle, "t", f"lane-{number}", 0.7, number)
        fenced = sum(member.answer() for member in members)
        assert fenced > 0
        crew.all_leave()
        said += [one for member in members for one in member.all_said]
    with eoslog.open(path) as store:
        check_wrestled(records_of(store), said)
        assert store.verify() == []


def test_ids_of_one_state_partition_in_many_processes(tmp_path):
    """The four ids have one hash: their records stand in one partition of the state log."""
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        members = [crew.join() for _ in range(4)]
        for number, member in enumerate(members):
            member.begin(
                wrestle, ("AaAa", "BBBB", "AaBB", "BBAa")[number], f"lane-{number}", 0.7, number
            )
        for member in members:
            member.answer()
        crew.all_leave()
        said = [one for member in members for one in member.all_said]
    with eoslog.open(path) as store:
        found = records_of(store)
        assert store.verify() == []
    for partition in (0, 1):
        there = {one.decode() for one in found[partition].values()}
        assert {f"{one.rest[0]}:{one.rest[1]}" for one in said if one.word == "ack"} <= there


def bulk_load(hand, app_id, count, partitions=2, record_count=50):
    """Staged jobs of one application, each over all partitions."""
    for number in range(count):
        values = [f"{app_id}:{number}:{index}".encode() for index in range(record_count)]
        hand.say("try", number)
        load(hand.store, app_id, {(TOPIC, partition): values for partition in range(partitions)})
        hand.say("ack", number)
    return count


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("killed", [False, True])
def test_staged_jobs_beside_other_writers(tmp_path, killed):
    path = tmp_path / "store"
    make_store(path, 2, segment_bytes=1 << 15)
    noise = random.Random(9)
    acknowledged, tried = {}, {}
    with Crew(path) as crew:
        other = crew.join("other")
        other.begin(wrestle, "other", "other", 60.0, 1)
        for number in range(8):
            name = f"load-{number}"
            loader = crew.join("loader")
            loader.begin(bulk_load, name, 5 if not killed else 10_000)
            if killed:
                loader.hear("try")
                time.sleep(noise.random() * 0.05)
                loader.kill()
            else:
                loader.answer()
                loader.leave()
            acknowledged[name] = sum(one.word == "ack" for one in loader.all_said)
            tried[name] = sum(one.word == "try" for one in loader.all_said)
            crew.forget_the_dead()
        other.kill()
        late = crew.join("late")
        late.leave()
    with eoslog.open(path) as store:
        found = records_of(store)
        assert store.verify() == []
    for name in tried:
        rows = [
            [
                one.decode()
                for one in found[partition].values()
                if one.startswith(f"{name}:".encode())
            ]
            for partition in (0, 1)
        ]
        assert rows[0] == rows[1]
        assert len(rows[0]) % 50 == 0
        done = len(rows[0]) // 50
        assert acknowledged[name] <= done <= tried[name]
        assert rows[0] == [
            f"{name}:{number}:{index}" for number in range(done) for index in range(50)
        ]


def snapshot_counts(hand):
    """How many records of each staged job lie below a snapshot, for each partition."""
    found: dict[str, list[int]] = {}
    with hand.store.consumer() as consumer:
        for where, upper_bound in sorted(hand.store.snapshot([TOPIC]).items()):
            consumer.assign([where])
            while records := consumer.poll(timeout=0, max_records=10_000):
                for record in records:
                    if record.offset < upper_bound:
                        name = (record.value or b"").decode().rsplit(":", 1)[0]
                        found.setdefault(name, [0] * 8)[where.partition] += 1
    return found


def test_a_snapshot_cuts_no_staged_job_of_a_dead_process(tmp_path):
    """Killed within a commit: whoever looks next sees the decided job whole, or not."""
    path = tmp_path / "store"
    make_store(path, 8, segment_bytes=1 << 15)
    noise = random.Random(13)
    with Crew(path) as crew:
        reader = crew.join("reader")
        for number in range(20):
            loader = crew.join("loader")
            loader.begin(bulk_load, f"load-{number}", 10_000, 8, 2)
            loader.hear("ack")
            time.sleep(noise.random() * 0.03)
            loader.kill()
            found = reader.call(snapshot_counts)
            cut = {name: counts for name, counts in found.items() if counts != [2] * 8}
            assert not cut
            crew.forget_the_dead()
        crew.all_leave()


def test_a_snapshot_cuts_no_staged_job_behind_an_open_transaction(tmp_path):
    """An open transaction holds back one partition of a staged job that is committed."""
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        ann, bob, carl = crew.join("ann"), crew.join("bob"), crew.join("carl")
        ann.call(store_calls.init, "t")
        ann.call(store_calls.begin, "t")
        ann.call(store_calls.send, "t", TOPIC, {"0": ["open"]})
        bob.call(bulk_load, "load", 1, 2, 2)
        found = carl.call(snapshot_counts)
        crew.all_leave()
    assert found in ({}, {"load:0": [2, 2, *[0] * 6]})
