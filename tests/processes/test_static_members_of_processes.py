"""Static members in several processes: a place is kept for the next one, wherever one is killed."""

from __future__ import annotations

import random
import signal
import time

import pytest
from harness.crew import Crew, MemberError
from harness.fork import Kill, dies_in_child
from processes import store_calls
from processes.lanes import TOPIC, make_store
from processes.test_shared_groups import (
    GROUP,
    PARTITIONS,
    close_consumer,
    poll_and_tell,
    settle,
    subscribe,
)

import eoslog
from eoslog.groups.coordinator import GroupCoordinator, MemberHeartbeats
from eoslog.groups.log import GroupLog
from eoslog.groups.membership import GroupMembership


def one(name: str) -> dict[str, object]:
    return {"group.instance.id": name}


def generation(hand):
    return hand.store.describe_group(GROUP).generation


def commit(hand):
    hand.kept["consumer"].commit()


@pytest.mark.parametrize("ends", ["kill", "close", "leave"])
def test_a_process_that_comes_back_finds_its_place(tmp_path, ends):
    make_store(tmp_path / "store", PARTITIONS)
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join(), crew.join()
        ann.call(subscribe, **one("ann"))
        bob.call(subscribe, **one("bob"))
        held = settle([ann, bob])
        before = bob.call(generation)
        for _ in range(3):
            if ends == "kill":
                ann.kill()
            else:
                if ends == "close":
                    ann.call(close_consumer)
                ann.leave()
            time.sleep(1.2)  # Members look for the dead twice a second, the background thread too.
            assert bob.call(poll_and_tell)[1] == held[1]
            ann = crew.join()
            ann.call(subscribe, **one("ann"))
            assert settle([ann, bob]) == held
        assert bob.call(generation) == before
        crew.all_leave()


def test_a_process_that_does_not_come_back_in_time_loses_its_place(tmp_path):
    make_store(tmp_path / "store", PARTITIONS)
    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join(), crew.join()
        ann.call(subscribe, **one("ann"), **{"session.timeout.ms": 2_000})
        bob.call(subscribe)
        settle([ann, bob])
        ann.kill()
        began_s = time.monotonic()
        assert settle([bob]) == [[0, 1, 2, 3]]
        assert time.monotonic() - began_s > 1
        crew.all_leave()


def test_a_stopped_process_is_fenced_when_it_goes_on(tmp_path):
    make_store(tmp_path / "store", PARTITIONS)
    with Crew(tmp_path / "store") as crew:
        ann, twin = crew.join(), crew.join()
        ann.call(subscribe, **one("ann"))
        settle([ann])
        ann.call(store_calls.stop_background)
        ann.signal(signal.SIGSTOP)
        twin.call(subscribe, **one("ann"))
        assert settle([twin]) == [[0, 1, 2, 3]]
        ann.signal(signal.SIGCONT)
        for call in (commit, poll_and_tell, poll_and_tell):
            with pytest.raises(MemberError, match="FencedInstanceIdError"):
                ann.call(call)
        twin.call(commit)
        crew.all_leave()


STEPS = [
    Kill(owner, name, nth, when)
    for owner, name, calls in (
        (MemberHeartbeats, "begin", (1,)),
        (MemberHeartbeats, "end", (1,)),
        (MemberHeartbeats, "beat", (1,)),
        (GroupLog, "append", (1, 2)),  # The place is taken; then offsets are committed.
        (GroupMembership, "_take", (1,)),
        (GroupCoordinator, "go_away", (1,)),
        (GroupCoordinator, "close", (1,)),
    )
    for nth in calls
    for when in ("before", "after")
]


@pytest.mark.parametrize("kill", STEPS, ids=str)
def test_a_successor_that_is_killed_at_any_step_has_a_successor(tmp_path, kill):
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    with Crew(path) as crew:
        ann, bob = crew.join(), crew.join()
        ann.call(subscribe, **one("ann"))
        bob.call(subscribe, **one("bob"))
        held = settle([ann, bob])
        before = bob.call(generation)
        ann.kill()

        def take_over() -> None:
            kill.arm()
            with eoslog.open(path, durability="process") as store:
                consumer = store.consumer(GROUP, config=one("ann"))
                consumer.subscribe([TOPIC])
                consumer.poll(timeout=0)
                time.sleep(0.6)  # The next poll is a heartbeat of its own.
                consumer.poll(timeout=0)
                consumer.commit()
                consumer.close()

        assert dies_in_child(take_over)
        assert bob.call(poll_and_tell)[1] == held[1]
        last = crew.join()
        last.call(subscribe, **one("ann"))
        assert settle([last, bob]) == held
        last.call(commit)
        assert bob.call(generation) == before
        crew.all_leave()


def test_each_record_is_committed_once_by_members_that_come_back(tmp_path):
    """Two places, whose members are killed and replaced, also while they live."""
    path = tmp_path / "store"
    make_store(path, PARTITIONS)
    noise = random.Random(11)
    with Crew(path) as crew:
        writer = crew.join("writer")
        for partition in range(PARTITIONS):
            values = [f"{partition}:{number}" for number in range(100)]
            writer.call(store_calls.append, TOPIC, values, partition=partition)
        members = {}
        committed: list[str] = []
        deadline_s = time.monotonic() + 120
        while sum(writer.call(store_calls.group_offsets, GROUP).values()) < 100 * PARTITIONS:
            assert time.monotonic() < deadline_s, "the group does not get on"
            name = noise.choice(["ann", "bob"])
            if name not in members:
                members[name] = crew.join()
                members[name].call(subscribe, **one(name))
            values, _ = members[name].call(poll_and_tell)
            if noise.random() < 0.1:
                members.pop(name).kill()
                continue
            if noise.random() < 0.1:
                twin = crew.join()
                twin.call(subscribe, **one(name))
                twin.call(poll_and_tell)  # From here on it has the place.
                with pytest.raises(MemberError, match="FencedInstanceIdError"):
                    members[name].call(store_calls.commit_positions)
                members.pop(name).kill()
                twin.kill()
                continue
            members[name].call(store_calls.commit_positions)
            committed += values
        assert len(committed) == len(set(committed)) == 100 * PARTITIONS
        crew.all_leave()
