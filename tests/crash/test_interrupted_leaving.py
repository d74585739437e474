"""An interrupt (Ctrl-C) of a consumer that leaves its group, and of the call after it: once that
has returned there is no member, also if something still refers to it, and the consumer goes on.
"""

from __future__ import annotations

import random

import pytest
from crash.interrupted_steps import Steps
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.errors import IllegalStateError
from eoslog.groups.membership import GroupMembership

pytestmark = [
    pytest.mark.crash,
    # An interrupt may come into a finalizer, which the interpreter goes on without.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = {TopicPartition("rows", 0), TopicPartition("rows", 1)}


@pytest.fixture
def store(tmp_path, monkeypatch):
    # What leaves is the call, not the collector.
    monkeypatch.delattr(GroupMembership, "__del__")
    with eoslog.open(tmp_path / "s", create=True, durability="process", config=QUIET) as opened:
        opened.create_topic("rows", partitions=2)
        yield opened


def member_of(store, number):
    consumer = store.consumer(group=f"g{number}")
    consumer.subscribe(["rows"])
    consumer.poll(timeout=0)
    assert set(consumer.assignment()) == PARTITIONS
    return consumer


def members(store, number):
    return store.describe_group(f"g{number}").members


@pytest.mark.parametrize("call", ["unsubscribe", "close"])
def test_who_has_left_is_no_member(store, call):
    steps, step = Steps(), 0
    chance = random.Random(7)
    is_over = False
    while not is_over:
        step += 1
        consumer = member_of(store, step)
        was_cut = steps.interrupt(step, getattr(consumer, call))
        is_over, last = not was_cut, [steps.last]
        while was_cut:
            # Every second time the next call is interrupted as well.
            second = chance.randint(1, step + 5) if chance.random() < 0.5 else 1 << 60
            was_cut = steps.interrupt(second, getattr(consumer, call))
            last.append(steps.last)
        assert not members(store, step), last
        if call == "unsubscribe":
            consumer.subscribe(["rows"])
            for _ in range(3):
                consumer.poll(timeout=0)
            assert set(consumer.assignment()) == PARTITIONS, last
            assert len(members(store, step)) == 1
            consumer.close()
    assert step > 30


@pytest.mark.parametrize("then", ["subscribe", "assign"])
def test_what_comes_after_an_interrupted_leaving(store, then):
    steps, step = Steps(), 0
    was_cut = True
    while was_cut:
        step += 1
        consumer = member_of(store, step)
        was_cut = steps.interrupt(step, consumer.unsubscribe)
        if then == "subscribe":
            consumer.subscribe(["rows"])
            for _ in range(3):
                consumer.poll(timeout=0)
            assert set(consumer.assignment()) == PARTITIONS, steps.last
            assert len(members(store, step)) == 1, steps.last
        else:
            try:
                consumer.assign(PARTITIONS)
            except IllegalStateError:
                assert members(store, step), steps.last  # It had not begun to leave.
            else:
                assert not members(store, step), steps.last
        consumer.close()
        assert not members(store, step), steps.last
    assert step > 30
