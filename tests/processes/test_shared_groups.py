"""Members of one group in several processes: each partition has one of them, whoever dies."""

from __future__ import annotations

import random
import signal
import time

import pytest
from harness.crew import QUIET, Crew, Member, MemberError
from processes import store_calls
from processes.lanes import TOPIC, make_store

from eoslog import TopicPartition

PARTITIONS = 4
GROUP = "g"
# Members look for the dead twice a second; and the machine may be busy.
SETTLED_WITHIN_S = 60.0
REFUSED = r"UnknownMemberIdError|IllegalGenerationError|CommitFailedError"


def subscribe(hand, **config):
    consumer = hand.store.consumer(GROUP, config={"max.poll.records": 5} | config)
    consumer.subscribe([TOPIC])
    hand.kept["consumer"] = consumer


def poll_and_tell(hand, timeout=0.0):
    """Values read by a poll, and the partitions that it left the member with."""
    records = hand.kept["consumer"].poll(timeout=timeout)
    partitions = sorted(where.partition for where in hand.kept["consumer"].assignment())
    return [[store_calls.text(record.value) for record in records], partitions]


def close_consumer(hand):
    hand.kept.pop("consumer").close()


def lag(hand):
    consumer = hand.kept["consumer"]
    return sum(consumer.lag(where) for where in consumer.assignment())


def settle(members: list[Member]) -> list[list[int]]:
    """Poll until all partitions are shared out; what each member has."""
    deadline_s = time.monotonic() + SETTLED_WITHIN_S
    while True:
        held = [member.call(poll_and_tell)[1] for member in members]
        everything = sorted(number for one in held for number in one)
        assert len(set(everything)) == len(everything), f"a partition has two members: {held}"
        if everything == list(range(PARTITIONS)) and all(held):
            return held
        assert time.monotonic() < deadline_s, f"not shared out: {held}"
        time.sleep(0.02)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_join_leave_and_die(tmp_path, strategy):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    config = {"partition.assignment.strategy": strategy}
    with Crew(path) as crew:
        ann = crew.join("ann")
        ann.call(subscribe, **config)
        assert settle([ann]) == [[0, 1, 2, 3]]
        bob = crew.join("bob")
        bob.call(subscribe, **config)
        assert [len(one) for one in settle([ann, bob])] == [2, 2]
        carl = crew.join("carl")
        carl.call(subscribe, **config)
        assert sorted(len(one) for one in settle([ann, bob, carl])) == [1, 1, 2]
        bob.kill()
        assert [len(one) for one in settle([ann, carl])] == [2, 2]
        ann.call(close_consumer)
        assert settle([carl]) == [[0, 1, 2, 3]]
        carl.kill()
        late = crew.join("late")
        late.call(subscribe, **config)
        assert settle([late]) == [[0, 1, 2, 3]]
        crew.all_leave()


def test_a_waiting_member_is_given_what_a_dead_one_had(tmp_path):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path) as crew:
        ann, bob, writer = crew.join("ann"), crew.join("bob"), crew.join("writer")
        for member in (ann, bob):
            member.call(subscribe)
        held = settle([ann, bob])
        ann.begin(poll_and_tell, 100.0)
        time.sleep(0.1)
        bob.kill()
        # For a partition that was the dead one's.
        writer.call(store_calls.append, TOPIC, ["x"], partition=held[1][0])
        values, _ = ann.answer()
        assert values == ["x"]
        crew.all_leave()


def test_each_record_goes_to_one_member(tmp_path):
    """Members come, leave and are killed; who commits what it read has the only copy of it."""
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    noise = random.Random(8)
    with Crew(path) as crew:
        writer = crew.join("writer")
        for partition in range(PARTITIONS):
            values = [f"{partition}:{number}" for number in range(200)]
            writer.call(store_calls.append, TOPIC, values, partition=partition)
        members: list[Member] = []
        committed: list[str] = []
        doubtful: set[str] = set()  # Read by a member that was killed before it could commit.
        deadline_s = time.monotonic() + 120
        while sum(writer.call(store_calls.group_offsets, GROUP).values()) < 200 * PARTITIONS:
            assert time.monotonic() < deadline_s, "the group does not get on"
            if len(members) < 3:
                members.append(crew.join())
                members[-1].call(subscribe)
            member = noise.choice(members)
            values, _ = member.call(poll_and_tell)
            if noise.random() < 0.03:
                member.kill()
                members.remove(member)
                doubtful.update(values)
                continue
            if noise.random() < 0.02:
                member.call(close_consumer)
                members.remove(member)
                member.leave()
                doubtful.update(values)
                continue
            member.call(store_calls.commit_positions)
            committed += values
        assert len(committed) == len(set(committed)), "two members committed the same record"
        assert set(committed) == {
            f"{partition}:{number}" for partition in range(PARTITIONS) for number in range(200)
        }
        crew.all_leave()


@pytest.mark.parametrize("how", ["commit", "transaction"])
def test_a_member_that_does_not_run_is_fenced(tmp_path, how):
    """It is stopped for longer than max.poll.interval.ms, and wants to commit afterwards."""
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    # It is not to be stopped while its background thread holds LMDB's lock for writing.
    with Crew(path, config=QUIET) as crew:
        ann, bob = crew.join("ann"), crew.join("bob")
        for partition in range(PARTITIONS):
            ann.call(store_calls.append, TOPIC, ["a", "b"], partition=partition)
        ann.call(subscribe, **{"max.poll.interval.ms": 500})
        settle_slow = ann.call(poll_and_tell)
        if how == "transaction":
            ann.call(store_calls.init, "t")
            ann.call(store_calls.begin, "t")
            ann.call(store_calls.send, "t", TOPIC, {"0": ["never"]})
        ann.call(store_calls.stop_background)
        ann.signal(signal.SIGSTOP)
        bob.call(subscribe)
        assert settle([bob]) == [[0, 1, 2, 3]]
        ann.signal(signal.SIGCONT)
        assert settle_slow[1] == [0, 1, 2, 3]
        with pytest.raises(MemberError, match=REFUSED):
            if how == "commit":
                ann.call(store_calls.commit_positions)
            else:
                ann.call(send_positions, "t")
        if how == "transaction":
            ann.call(store_calls.abort, "t")
        assert bob.call(store_calls.group_offsets, GROUP) == {}
        crew.all_leave()


def send_positions(hand, transactional_id):
    consumer = hand.kept["consumer"]
    offsets = {where: consumer.position(where) for where in consumer.assignment()}
    producer = hand.kept[transactional_id]
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())


def test_lag_reaches_zero_behind_markers_and_aborted_records(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        writer, reader = crew.join("writer"), crew.join("reader")
        reader.call(subscribe)
        reader.call(poll_and_tell)
        writer.call(store_calls.init, "t")
        for number in range(3):
            writer.call(store_calls.commit_once, "t", TOPIC, {"0": [f"{number}"]})
            writer.call(store_calls.begin, "t")
            writer.call(store_calls.send, "t", TOPIC, {"0": ["never"]})
            writer.call(store_calls.abort, "t")
        assert reader.call(lag) == 3
        assert reader.call(poll_and_tell)[0] == ["0", "1", "2"]
        assert reader.call(lag) == 0
        reader.call(store_calls.commit_positions)
        where = str(TopicPartition(TOPIC, 0))
        assert writer.call(store_calls.group_offsets, GROUP)[where] > 3
        crew.all_leave()
