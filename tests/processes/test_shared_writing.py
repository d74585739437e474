"""Several processes write to one store: each one's records are there once, in its own order."""

from __future__ import annotations

import concurrent.futures
import functools
import time

import pytest
from harness.crew import Crew, MemberError
from processes import store_calls
from processes.lanes import TOPIC, Lanes, make_store, records_of, write_lane
from reference_model import batch_codec

import eoslog

BATCH_RECORDS = 3
NOW_MS = time.time_ns() // 1_000_000  # Older producers and segments would expire.


def check_all(path, crew):
    """Everybody has left: what they said is in the log, which was closed cleanly."""
    known = Lanes()
    for member in crew.members:
        known.take(member.all_said)
    assert (path / ".kafka_cleanshutdown").exists()
    with eoslog.open(path) as store:
        assert store.metrics()["cut_bytes"] == 0
        found = records_of(store)
        known.check(found)
        assert store.verify() == []
    return known, found


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("partitions", [1, 4])
def test_four_writers(tmp_path, named, partitions):
    path = tmp_path / "store"
    make_store(path, partitions)
    with Crew(path) as crew:
        members = [crew.join("writer") for _ in range(4)]
        for number, member in enumerate(members):
            member.begin(
                write_lane, f"lane-{number}", number % partitions, named=named, seconds=0.5
            )
        counts = [member.answer() for member in members]
        assert min(counts) > 0
        crew.all_leave()
        known, found = check_all(path, crew)
    if partitions == 1:
        # No offset was given to two of them, and none left out.
        assert list(found[0]) == list(range(sum(counts)))
    assert [known.by_name[f"lane-{number}"].acknowledged for number in range(4)] == counts


def write_in_threads(hand, name, seconds):
    """Threads of one process, each a lane of its own."""
    work = functools.partial(write_lane, hand, seconds=seconds)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        named = pool.submit(work, f"{name}-named", 0, named=True)
        others = [pool.submit(work, f"{name}-{number}", number % 2) for number in range(2)]
        return [one.result() for one in (named, *others)]


def test_threads_of_several_processes(tmp_path):
    path = tmp_path / "store"
    make_store(path, 2)
    with Crew(path) as crew:
        members = [crew.join("writer") for _ in range(3)]
        for number, member in enumerate(members):
            member.begin(write_in_threads, f"lane-{number}", 1.0)
        assert min(count for member in members for count in member.answer()) > 0
        crew.all_leave()
        check_all(path, crew)


@pytest.mark.parametrize("durability", ["commit", "always"])
def test_writers_who_wait_for_the_disk(tmp_path, durability):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path, durability=durability) as crew:
        members = [crew.join("writer") for _ in range(3)]
        for number, member in enumerate(members):
            member.begin(write_lane, f"lane-{number}", 0, named=number == 0, seconds=0.4)
        assert min(member.answer() for member in members) > 0
        crew.all_leave()
        check_all(path, crew)


def test_writers_take_turns_and_each_sees_what_the_other_wrote(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 14)
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        expected = []
        for turn in range(150):
            writer, reader = (ann, bob) if turn % 2 else (bob, ann)
            name = "ann" if writer is ann else "bob"
            values = [f"{turn}-{index}" + "x" * 150 for index in range(1 + turn % 3)]
            first, last = writer.call(store_calls.append, TOPIC, values, name=name)
            assert (first, last) == (len(expected), len(expected) + len(values) - 1)
            expected += values
            ends = reader.call(store_calls.offsets_of, TOPIC)
            assert ends["log_end_offset"] == ends["last_stable_offset"] == len(expected)
        assert ann.call(store_calls.values_of, TOPIC) == expected
        assert bob.call(store_calls.values_of, TOPIC) == expected
        crew.all_leave()
    with eoslog.open(path) as store:
        assert [one.decode() for one in records_of(store)[0].values()] == expected
        assert store.verify() == []


def test_a_name_goes_from_one_process_to_another(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        ann.call(store_calls.append, TOPIC, ["0", "1", "2"], name="load")
        assert bob.call(store_calls.next_sequence, TOPIC, name="load") == 3
        with pytest.raises(MemberError, match="ProducerFencedError"):
            ann.call(store_calls.append, TOPIC, ["never"], name="load")
        bob.call(store_calls.append, TOPIC, ["3"], name="load")
        carl = crew.join("carl")
        assert carl.call(store_calls.next_sequence, TOPIC, name="load") == 4
        carl.call(store_calls.append, TOPIC, ["4"], name="load")
        with pytest.raises(MemberError, match="ProducerFencedError"):
            bob.call(store_calls.append, TOPIC, ["never"], name="load")
        assert ann.call(store_calls.values_of, TOPIC) == ["0", "1", "2", "3", "4"]
        crew.all_leave()


def test_names_taken_from_each_other_again_and_again(tmp_path):
    """Three processes want one name; each writes until it is fenced. Nothing is twice."""
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        members = [crew.join("writer") for _ in range(3)]
        for member in members:
            member.begin(wrestle_for_a_name, "load", 2.0)
        fenced = [member.answer() for member in members]
        assert sum(fenced) > 0
        crew.all_leave()
        said = sorted(one for member in members for one in member.all_said)
    with eoslog.open(path) as store:
        values = [int(one) for one in records_of(store)[0].values()]
        assert values == list(range(len(values)))
        acknowledged = {one.rest[0] for one in said if one.word == "ack"}
        attempted = {one.rest[0] for one in said if one.word == "try"}
        assert acknowledged <= set(values) <= attempted


def wrestle_for_a_name(hand, name, seconds):
    fenced = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        producer = hand.store.producer(name=name)
        try:
            position = producer.next_sequence(TOPIC, 0)
            for number in range(position, position + 20):
                hand.say("try", number)
                producer.append(TOPIC, partition=0, values=[b"%d" % number])
                hand.say("ack", number)
        except eoslog.errors.ProducerFencedError:
            fenced += 1
    return fenced


def batch_of(sequence, producer_id=4711, epoch=0):
    records = [b"%d" % (sequence + index) for index in range(BATCH_RECORDS)]
    return batch_codec.simple_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=NOW_MS,
    ).hex()


def test_a_batch_that_another_process_wrote_is_a_duplicate(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        for number in range(8):
            sequence = number * BATCH_RECORDS
            writer, other = (ann, bob) if number % 2 else (bob, ann)
            first = writer.call(store_calls.append_batch, TOPIC, batch_of(sequence))
            assert first == [sequence, False]
            # The whole window of five, whoever wrote it.
            for earlier in range(max(0, number - 4), number + 1):
                again = other.call(
                    store_calls.append_batch, TOPIC, batch_of(earlier * BATCH_RECORDS)
                )
                assert again == [earlier * BATCH_RECORDS, True]
        with pytest.raises(MemberError, match="OutOfOrderSequenceError"):
            ann.call(store_calls.append_batch, TOPIC, batch_of(1000))
        bob.call(store_calls.append_batch, TOPIC, batch_of(0, epoch=1))
        with pytest.raises(MemberError, match="InvalidProducerEpochError"):
            ann.call(store_calls.append_batch, TOPIC, batch_of(8 * BATCH_RECORDS))
        crew.all_leave()


def test_a_producer_that_both_evicted_is_found_by_both(tmp_path):
    """Few producers fit in memory: the others come from LMDB, whoever wrote them there."""
    path = tmp_path / "store"
    make_store(path, 1)
    config = {"eoslog.producers.cached.max": 20, "eoslog.checkpoint.interval.ms": 30}
    with Crew(path, config=config) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        for sequence in (0, BATCH_RECORDS, 2 * BATCH_RECORDS):
            for member, ids in ((ann, range(100, 250)), (bob, range(200, 350))):
                for producer_id in ids:
                    _, duplicate = member.call(
                        store_calls.append_batch, TOPIC, batch_of(sequence, producer_id)
                    )
                    was_there = member is bob and producer_id < 250
                    assert duplicate is was_there, (sequence, producer_id)
        crew.all_leave()
    with eoslog.open(path) as store:
        assert len(records_of(store)[0]) == 250 * 3 * BATCH_RECORDS
        assert store.verify() == []
