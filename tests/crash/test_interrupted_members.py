"""An interrupt (Ctrl-C) at any line of a group member's polls, where partitions come and go: no
partition is read by two members, each is read by one, and each record is committed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

import pytest
from crash.interrupted_lines import interrupted_at
from short_form import short_form
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.consumer.consumer import Consumer
from eoslog.errors import CommitFailedError
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

PARTITIONS, RECORDS = 4, 4
FILES = (
    "/eoslog/groups/membership.py",
    "/eoslog/consumer/subscription.py",
    "/eoslog/consumer/positions.py",
    "/eoslog/consumer/consumer.py",
    "/eoslog/consumer/fetcher.py",
)


def is_of_a_member(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


class Group:
    """Two members that copy a topic, each in transactions of its own; one is interrupted."""

    def __init__(self, store: eoslog.Store, number: int) -> None:
        self.store = store
        self.name = f"g{number}"
        self.topic, self.output = f"in{number}", f"out{number}"
        store.create_topic(self.topic, partitions=PARTITIONS)
        store.create_topic(self.output)
        self.producers = [
            store.producer(transactional_id=f"{self.name}-{one}") for one in ("first", "second")
        ]
        for producer in self.producers:
            producer.init_transactions()
        self.first, self.second = self.consumer(), self.consumer()
        self.told: list[str] = []
        self.first.subscribe(
            [self.topic],
            on_assigned=lambda _, given: self.told.extend(f"+{one.partition}" for one in given),
            on_revoked=lambda _, given: self.told.extend(f"-{one.partition}" for one in given),
        )

    def consumer(self) -> Consumer:
        return self.store.consumer(group=self.name)

    def write(self, round_number: int) -> None:
        producer = self.store.producer()
        for partition in range(PARTITIONS):
            values = [b"%d:%d:%d" % (round_number, partition, one) for one in range(RECORDS)]
            producer.append(self.topic, partition, values)

    def copy(self, consumer: Consumer, number: int) -> int:
        """One step of the member's loop; how many records it copied."""
        records = consumer.poll(timeout=0)
        if not records:
            return 0
        producer = self.producers[number]
        ends = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in records}
        try:
            with producer.transaction():
                producer.append(self.output, 0, [one.value for one in records])
                producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        except CommitFailedError:
            consumer.seek_to_committed()
        return len(records)

    def settle(self) -> None:
        """Both go on until nothing is left to be read."""
        for _ in range(4):
            while self.copy(self.first, 0) + self.copy(self.second, 1):
                pass

    def check(self, rounds: int, line: str) -> None:
        first, second = self.first.assignment(), self.second.assignment()
        assert not set(first) & set(second), line
        assert len(first) + len(second) == PARTITIONS, line
        described = self.store.describe_group(self.name)
        assert sum(len(one.partitions) for one in described.members) == PARTITIONS, line
        with self.store.consumer() as reader:
            reader.assign([TopicPartition(self.output, 0)])
            counts = Counter(one.value for one in reader.poll(timeout=0, max_records=10_000))
        assert len(counts) == rounds * PARTITIONS * RECORDS, line
        assert set(counts.values()) == {1}, line

    def close(self) -> None:
        for one in (self.first, self.second, *self.producers):
            one.close()


def another_joins(group: Group) -> Callable[[], None]:
    group.copy(group.first, 0)
    group.second.subscribe([group.topic])
    group.copy(group.second, 1)
    return lambda: drain(group.first)


def it_was_taken_out(group: Group) -> Callable[[], None]:
    group.copy(group.first, 0)
    group.second.subscribe([group.topic])
    parts_of(group.store).files.group_members.leave(
        group.name, group.first.group_metadata().member_id
    )
    group.copy(group.second, 1)
    return lambda: drain(group.first)


def it_joins(group: Group) -> Callable[[], None]:
    group.second.subscribe([group.topic])
    group.copy(group.second, 1)
    return lambda: drain(group.first)


def another_leaves(group: Group) -> Callable[[], None]:
    group.second.subscribe([group.topic])
    for _ in range(4):
        group.first.poll(timeout=0, max_records=1)
        group.second.poll(timeout=0, max_records=1)
    group.first.seek_to_committed()
    group.second.unsubscribe()
    group.second.subscribe([group.topic])
    return lambda: drain(group.first)


def it_leaves(group: Group) -> Callable[[], None]:
    another_joins(group)()
    return group.first.unsubscribe


def it_is_closed(group: Group) -> Callable[[], None]:
    another_joins(group)()
    return group.first.close


def drain(consumer: Consumer) -> None:
    """Polls of the interrupted member; what they hand out is read anew."""
    for _ in range(3):
        consumer.poll(timeout=0)


@pytest.fixture
def store(tmp_path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True, durability="process", config=QUIET) as opened:
        yield opened


# The short form's step has no factor in common with the turns of a loop over the partitions.
@pytest.mark.every_nth(3)
@pytest.mark.parametrize("step", short_form([11, 1], 11))
@pytest.mark.parametrize(
    "change",
    [another_joins, it_was_taken_out, it_joins, another_leaves, it_leaves, it_is_closed],
)
def test_an_interrupt_at_each_line_of_a_change(store, change, step):
    line, number = 1, 0
    while True:
        number += 1
        group = Group(store, number)
        group.write(0)
        call = change(group)
        group.write(1)
        with suppress(KeyboardInterrupt), interrupted_at(line, is_of_a_member) as seen:
            call()
        # What the interrupted polls handed out was not processed.
        if change is it_is_closed:
            closed = group.first
            closed.close()
            group.first = group.consumer()
        else:
            group.first.seek_to_committed()
        if not group.first.subscription():
            group.first.subscribe([group.topic])
        group.settle()
        group.write(2)
        group.settle()
        group.check(3, seen[-1])
        group.close()
        for topic in (group.topic, group.output):
            store.delete_topic(topic)
        if len(seen) < line:
            break
        line += step
    assert line > 40
