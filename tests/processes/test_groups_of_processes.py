"""A group's work shared by loops in several processes that are killed: everything is done once.

Besides: what one process sees and does of a group whose members live in others.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from harness.crew import TIMEOUT_S, Crew, Member, MemberError
from harness.member_main import Hand

import eoslog
from eoslog import TopicPartition

SOURCE, SINK, GROUP = "in", "out", "g"
PARTITIONS = 4
# New ones before each kill: so that there is always something left to do.
RECORDS = 600


def fill(hand: Hand, begin: int) -> None:
    """Committed and aborted records, so that offsets are no counts."""
    with hand.store.producer(transactional_id="filler") as filler:
        filler.init_transactions()
        for first in range(begin, begin + RECORDS, 50):
            filler.begin_transaction()
            for number in range(first, first + 50):
                filler.send(SOURCE, value=b"%d" % number, partition=number % PARTITIONS)
            if first % 200 == 150:
                filler.abort_transaction()
                continue
            filler.commit_transaction()


def work(hand: Hand, seed: int, *, until_caught_up: bool = False) -> int:
    """Copy as a member of the group; for ever, unless it is to end when all is done."""
    noise = random.Random(seed)

    def copy(producer: eoslog.Producer, records: list[eoslog.Record]) -> None:
        for record in records:
            producer.send(SINK, value=record.value, partition=record.partition)
        if noise.random() < 0.2:
            producer.flush()
        hand.say("copied", len(records))
        time.sleep(noise.random() * 0.002)

    return eoslog.read_process_write(
        hand.store,
        copy,
        topics=[SOURCE],
        group=GROUP,
        share=True,
        max_records=noise.choice((1, 5, 20)),
        poll_timeout_s=0.3,
        until_caught_up=until_caught_up,
    )


def share_two_topics(hand: Hand) -> int:
    hand.say("shares")
    return eoslog.read_process_write(
        hand.store,
        lambda producer, records: None,
        topics=["t1", "other"],
        group=GROUP,
        share=True,
        poll_timeout_s=300.0,
    )


def subscribe(hand: Hand, topics: list[str], **config: int) -> None:
    consumer = hand.kept["consumer"] = hand.store.consumer(GROUP, config=config)
    told = hand.kept["told"] = []
    consumer.subscribe(
        topics,
        on_assigned=lambda _, partitions: told.append(["assigned", len(partitions)]),
        on_revoked=lambda _, partitions: told.append(["revoked", len(partitions)]),
        on_lost=lambda _, partitions: told.append(["lost", len(partitions)]),
    )


def poll(hand: Hand, timeout: float = 0.0) -> list[str]:
    hand.kept["consumer"].poll(timeout=timeout)
    return sorted(map(str, hand.kept["consumer"].assignment()))


def told(hand: Hand) -> list[list[object]]:
    return hand.kept["told"]


def commit(hand: Hand, offset: int) -> None:
    consumer = hand.kept["consumer"]
    consumer.commit(dict.fromkeys(consumer.assignment(), offset))


def describe(hand: Hand) -> list[object]:
    found = hand.store.describe_group(GROUP)
    members = [[one.client_id, one.process, len(one.partitions)] for one in found.members]
    return [found.state, members]


def make_topic(hand: Hand, name: str) -> None:
    hand.store.create_topic(name)


def delete_topic(hand: Hand, name: str) -> None:
    hand.store.delete_topic(name)


def delete_group(hand: Hand) -> None:
    hand.store.delete_group(GROUP)


def values_of(store: eoslog.Store, topic: str, partition: int) -> list[bytes]:
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[bytes] = []
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [record.value or b"" for record in records]
        return found


def check(path: Path) -> None:
    """The sink has of each partition what the source has, in order, once each."""
    with eoslog.open(path) as store:
        for number in range(PARTITIONS):
            source, sink = values_of(store, SOURCE, number), values_of(store, SINK, number)
            twice = [value for value, count in Counter(sink).items() if count > 1]
            assert not twice, f"partition {number}: {len(twice)} records are there more than once"
            assert sink == source, f"partition {number}"
        assert store.describe_group(GROUP).members == ()
        assert store.verify() == []


def someone_at_work(members: list[Member]) -> Member:
    """A member that copied something just now."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        for member in members:
            if any(said.word == "copied" for said in member.listen()):
                return member
        time.sleep(0.001)
    raise AssertionError(f"nobody copies what is there: {[one.tail() for one in members]}")


def kill_loop(path: Path, kills: int, seed: int) -> None:
    """Keep three loops at work, and kill one of them again and again."""
    noise = random.Random(seed)
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic(SOURCE, partitions=PARTITIONS)
        store.create_topic(SINK, partitions=PARTITIONS)
    with Crew(path) as crew:
        filler = crew.join("filler")
        members: list[Member] = []
        for number in range(kills):
            while len(members) < 3:
                members.append(crew.join())
                members[-1].begin(work, seed * 1000 + number)
            for member in members:
                member.listen()
            filler.begin(fill, number * RECORDS)
            at_work = someone_at_work(members)
            time.sleep(noise.random() * noise.choice((0, 0.005, 0.05)))
            # Often the one that is in the middle of something.
            victim = at_work if noise.random() < 0.7 else noise.choice(members)
            members.remove(victim)
            victim.kill()
            filler.answer()
        for member in members:
            member.kill()
        last = [crew.join(), crew.join()]
        for number, member in enumerate(last):
            member.begin(work, number, until_caught_up=True)
        for member in last:
            member.answer()
        # What the other had when the first one found nothing left.
        crew.join().call(work, 0, until_caught_up=True)
        for member in crew.living():
            member.leave()
    check(path)


@pytest.mark.every_nth(2)
@pytest.mark.crash
@pytest.mark.parametrize("seed", [1, 2])
def test_loops_that_share_a_topic_are_killed_and_do_everything_once(tmp_path, seed):
    kill_loop(tmp_path / "store", 6, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 30))
def test_loops_that_share_a_topic_are_killed_many_times(tmp_path, seed):
    kill_loop(tmp_path / "store", 25, seed)


@pytest.fixture
def crew(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t1", partitions=2)
        store.create_topic("other")
    with Crew(path) as found:
        yield found


def test_an_operator_in_another_process_sees_the_members(crew):
    ann, operator = crew.join("ann"), crew.join("operator")
    with pytest.raises(MemberError, match="no group"):
        operator.call(describe)
    ann.call(subscribe, ["t1"])
    ann.call(poll)
    state, ((client_id, process, partitions),) = operator.call(describe)
    assert (state, client_id, partitions) == ("Stable", "eoslog", 2)
    assert f"process {ann.pid} " in process
    with pytest.raises(MemberError, match="NonEmptyGroupError"):
        operator.call(delete_group)
    ann.kill()
    assert operator.call(describe) == ["Empty", []]
    operator.call(delete_group)
    with pytest.raises(MemberError, match="GroupIdNotFoundError"):
        operator.call(describe)
    operator.leave()


def test_a_topic_that_another_process_makes_is_found(crew):
    ann, bob = crew.join("ann"), crew.join("bob")
    ann.call(subscribe, ["^t"])
    assert ann.call(poll) == ["t1-0", "t1-1"]
    bob.call(make_topic, "t2")
    assert ann.call(poll) == ["t1-0", "t1-1", "t2-0"]
    ann.begin(poll, 20.0)
    time.sleep(0.1)
    bob.call(make_topic, "t3")
    # Its poll waits on for records, and has the topic by the next one at the latest.
    bob.call(subscribe, ["^t"])
    bob.call(poll)
    bob.kill()
    ann.kill()


def test_a_topic_that_another_process_deletes_ends_a_loop_that_shares_it(crew):
    ann, bob = crew.join("ann"), crew.join("bob")
    ann.begin(share_two_topics)
    ann.hear("shares")
    time.sleep(1.0)  # It waits by now.
    bob.call(delete_topic, "t1")
    with pytest.raises(MemberError, match="UnknownTopicOrPartitionError"):
        ann.answer(10.0)
    ann.leave()
    bob.leave()


def test_partitions_are_handed_over_and_both_are_told(crew):
    ann, bob = crew.join("ann"), crew.join("bob")
    ann.call(subscribe, ["t1"])
    assert ann.call(poll) == ["t1-0", "t1-1"]
    bob.call(subscribe, ["t1"])
    assert bob.call(poll) == []
    ann.call(commit, 1)
    assert len(ann.call(poll)) == len(bob.call(poll)) == 1
    assert ann.call(told) == [["assigned", 2], ["revoked", 1]]
    assert bob.call(told) == [["assigned", 0], ["assigned", 1]]
    ann.leave()  # The store is closed with the consumer open: it leaves at once.
    assert bob.call(poll) == ["t1-0", "t1-1"]
    bob.leave()


def test_many_join_and_leave_at_once(crew):
    members = [crew.join() for _ in range(5)]
    for member in members:
        member.call(subscribe, ["t1", "other"])
    deadline_s = time.monotonic() + TIMEOUT_S
    everything: list[str] = []
    while everything != ["other-0", "t1-0", "t1-1"]:
        assert time.monotonic() < deadline_s, f"not shared out: {everything}"
        for member in members:
            member.begin(poll, 0.05)
        everything = sorted(where for member in members for where in member.answer())
    for member in members[1:]:
        member.begin_to_leave()
    for member in members[1:]:
        assert member.has_ended(TIMEOUT_S)
    assert members[0].call(poll) == ["other-0", "t1-0", "t1-1"]
    members[0].leave()
