"""An interrupt (Ctrl-C) at any step of a reader: the next read goes on after what it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash.interrupted_steps import Steps, at_signals
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.consumer.consumer import ConsumerInternals
from eoslog.consumer.fetcher import Fetcher

pytestmark = [
    pytest.mark.crash,
    # An interrupt may come into a finalizer, which the interpreter goes on without.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RECORDS = 12
Place = tuple[int, int]


def by_iteration(consumer: Any) -> Iterator[Place]:
    for record in consumer:
        yield record.partition, record.offset


def by_poll(consumer: Any) -> Iterator[Place]:
    while True:
        for record in consumer.poll(0, 4):
            yield record.partition, record.offset


def by_arrow(consumer: Any) -> Iterator[Place]:
    while True:
        read = consumer.poll_arrow(0, 200)
        for row in read.select(["partition", "offset"]).to_pylist():
            yield row["partition"], row["offset"]


def by_waiting(consumer: Any) -> Iterator[Place]:
    """As if the records came while a poll waits."""
    consumer.position(TopicPartition("rows", 0))
    while True:
        for record in consumer.poll(60, 4):
            yield record.partition, record.offset


@pytest.fixture
def store(tmp_path: Path) -> Iterator[eoslog.Store]:
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("rows", partitions=2)
        for number in range(RECORDS):
            store.producer().append("rows", number % 2, [b"%d" % number])
        yield store


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("read", "partitions"), [(by_iteration, 2), (by_poll, 2), (by_arrow, 2), (by_waiting, 1)]
)
def test_at_every_step(
    store: eoslog.Store, read: Callable[[Any], Iterator[Place]], partitions: int
) -> None:
    steps, interrupts = Steps(), 0
    assigned = [TopicPartition("rows", number) for number in range(partitions)]
    record_count = RECORDS * partitions // 2
    with at_signals(interrupt):
        for step in steps.each():
            consumer = store.consumer(group=f"g{step}")
            consumer.assign(assigned)
            got: list[Place] = []

            def read_all(consumer: Any = consumer, got: list[Place] = got) -> None:
                for place in read(consumer):
                    got.append(place)
                    if len(got) == record_count:
                        return

            positions = ConsumerInternals(consumer).positions
            with pytest.MonkeyPatch.context() as patched:
                if read is by_waiting:
                    patched.setattr(Fetcher, "records", lambda *_: ([], positions.current))  # noqa: B023
                steps.interrupt(step, read_all)
            interrupts += len(got) < record_count
            ends = [len([place for place in got if place[0] == one.partition]) for one in assigned]
            assert [consumer.position(one) for one in assigned] == ends, steps.last
            consumer.commit()
            assert list(consumer.committed(assigned).values()) == ends, steps.last
            while len(got) < record_count:
                got += [(record.partition, record.offset) for record in consumer.poll(0)]
            assert sorted(got) == [
                (number, offset) for number in range(partitions) for offset in range(RECORDS // 2)
            ], steps.last
            consumer.close()
    assert interrupts > 20
