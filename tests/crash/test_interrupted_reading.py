"""An interrupt (Ctrl-C) at any line of a reader: no record is passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from crash.interrupted_lines import interrupted_at, is_of_a_block

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.crash

RECORDS = 12
# Python looks for signals at calls and jumps: between a return and the assignment there is none.
INTERRUPTED = {
    "__iter__",
    "_fetched",
    "_fetched_batch",
    "_in_turn",
    "_polled",
    "_polled_arrow",
    "_polled_to_iterate",
    "_given",
    "_records_of",
    "_to_the_back",
    "columns",
    "_records",
    "record_batch",
    "record_iterator",
    "records",
    "take_back",
}
FILES = (
    "/eoslog/columns/arrow.py",
    "/eoslog/consumer/consumer.py",
    "/eoslog/consumer/fetcher.py",
    "/eoslog/consumer/record_iterator.py",
)


def is_of_a_reader(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES) and frame.f_code.co_name in INTERRUPTED


def is_passed_over(source: str) -> bool:
    """Python handles no signal between the assignment of the position and the yield."""
    return source == "yield record" or is_of_a_block(source)


def by_iteration(consumer: Any) -> Iterator[tuple[int, int]]:
    for record in consumer:
        yield record.partition, record.offset


def by_poll(consumer: Any) -> Iterator[tuple[int, int]]:
    while True:
        for record in consumer.poll(0, 4):
            yield record.partition, record.offset


def by_arrow(consumer: Any) -> Iterator[tuple[int, int]]:
    while True:
        read = consumer.poll_arrow(0, 200)
        for row in read.select(["partition", "offset"]).to_pylist():
            yield row["partition"], row["offset"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("rows", partitions=2)
        for number in range(RECORDS):
            store.producer().append("rows", number % 2, [b"%d" % number])
        yield store


@pytest.mark.parametrize("read", [by_iteration, by_poll, by_arrow])
def test_at_every_line(store: eoslog.Store, read: Callable[[Any], Iterator[Any]]) -> None:
    wanted = {(number % 2, number // 2) for number in range(RECORDS)}
    line, lines = 0, 1
    while line < lines:
        line += 1
        consumer = store.consumer()
        consumer.assign([TopicPartition("rows", number) for number in (0, 1)])
        got: list[tuple[int, int]] = []
        with interrupted_at(line, is_of_a_reader, is_passed_over) as seen:
            try:
                for place in read(consumer):
                    got.append(place)
                    if len(got) == RECORDS:
                        break
            except KeyboardInterrupt:
                pass
        lines = max(lines, len(seen) + 1)
        while len(got) < RECORDS:
            found = consumer.poll(0)
            assert found, f"at {seen[-1]}: {sorted(wanted - set(got))} were passed over"
            got += [(record.partition, record.offset) for record in found]
        assert sorted(got) == sorted(wanted), seen[-1]
        consumer.close()
    assert line > 20
