"""A handler of a signal that uses the consumer that its thread is just reading with: each record is
handed out once, and nothing is committed that nobody was given, also where the handler raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash.interrupted_lines import called_at, is_of_a_block
from crash.rows_topic import WHERE, is_of_the_package, opened_with_rows

import eoslog
from eoslog.errors import IllegalStateError

pytestmark = pytest.mark.crash

COUNT = 3000
POLLS: dict[str, Callable[[eoslog.Consumer], list[int]]] = {
    "records": lambda consumer: [one.offset for one in consumer.poll(timeout=0, max_records=5)],
    "awaited": lambda consumer: [one.offset for one in consumer.poll(timeout=0.001)],
    "columns": lambda consumer: consumer.poll_arrow(timeout=0, max_bytes=1)["offset"].to_pylist(),
    "iteration": lambda consumer: [record.offset for record in itertools.islice(consumer, 1)],
}
MOVES: dict[str, Callable[[eoslog.Consumer], object]] = {
    "seek": lambda consumer: consumer.seek(WHERE, 0),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "seek_to_committed": lambda consumer: consumer.seek_to_committed(),
    "position": lambda consumer: consumer.position(WHERE),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "assign": lambda consumer: consumer.assign([]),
}


def is_without_signals(source: str) -> bool:
    """Between a record and its being yielded Python looks for none."""
    return is_of_a_block(source) or source == "yield record"


class Stopped(BaseException):
    """What a handler raises."""


class Read:
    """A group's reader of a topic of `COUNT` records, and what it was given of them."""

    def __init__(self, path: Path, *, subscribed: bool) -> None:
        self.given: list[int] = []
        self.subscribed = subscribed
        self._store = opened_with_rows(path)

    def __enter__(self) -> Read:
        self.store = self._store.__enter__()
        self.begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self.consumer.close()
        self._store.__exit__(*error)

    def begin(self) -> None:
        """Read from where the group stands."""
        self.consumer = self.store.consumer(group="g", config={"max.poll.records": 5})
        if self.subscribed:
            self.consumer.subscribe(["rows"])
        else:
            self.consumer.assign([WHERE])

    def take(self, how: str) -> None:
        self.given.extend(POLLS[how](self.consumer))

    def check_committed(self, where: str) -> None:
        committed = self.consumer.committed(WHERE) or 0
        assert set(range(committed)) <= set(self.given), where


@pytest.fixture(params=[True, False], ids=["subscribed", "assigned"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Read]:
    with Read(tmp_path / "store", subscribed=request.param) as made:
        producer = made.store.producer()
        for number in range(COUNT):
            producer.append("rows", 0, [b"%d" % number])
        made.take("records")
        yield made


@pytest.mark.parametrize("outer", POLLS)
@pytest.mark.parametrize("inner", ["records", "columns"])
def test_a_handler_that_polls(read, outer, inner):
    refused = 0

    def handle(_: str) -> None:
        nonlocal refused
        try:
            read.take(inner)
        except RuntimeError as error:
            assert "same thread" in str(error)
            refused += 1

    for line in itertools.count(1):
        with called_at(line, is_of_the_package, handle, is_without_signals) as seen:
            read.take(outer)
        assert len(read.given) == len(set(read.given)), seen[-1]
        assert set(read.given) == set(range(max(read.given) + 1)), seen[-1]
        if len(seen) < line:
            break
        assert line < 300
    assert 0 < refused < line


@pytest.mark.parametrize("outer", POLLS)
def test_a_handler_that_commits(read, outer):
    """It commits what was handed out, in the middle of a poll too."""
    refused = 0

    def handle(_: str) -> None:
        nonlocal refused
        try:
            read.consumer.commit()
        except RuntimeError as error:
            assert "same thread" in str(error)
            refused += 1

    for line in itertools.count(1):
        with called_at(line, is_of_the_package, handle, is_without_signals) as seen:
            before = max(read.given) + 1
            read.take(outer)
            if len(seen) >= line and refused == 0:
                assert read.consumer.committed(WHERE) == before, seen[-1]
        read.check_committed(seen[-1])
        if len(seen) < line:
            break
        assert line < 300
    # A subscribed one is refused in the middle of what its poll does with the group.
    assert refused == 0 or read.subscribed
    assert refused < line / 2


@pytest.mark.parametrize("outer", POLLS)
def test_a_handler_that_commits_and_raises(read, outer):
    """As that of a SIGTERM: whoever goes on for the group is given all that nobody had."""

    def handle(_: str) -> None:
        try:
            read.consumer.commit()
        except RuntimeError:
            pass
        else:
            raise Stopped

    for line in itertools.count(1):
        with called_at(line, is_of_the_package, handle, is_without_signals) as seen:
            try:
                read.take(outer)
            except Stopped:
                read.check_committed(seen[-1])
                read.consumer.close()
                read.begin()
                before = max(read.given)
                read.take("records")
                assert read.given[-5:] == list(range(before + 1, before + 6)), seen[-1]
        assert read.given == list(range(len(read.given))), seen[-1]
        if len(seen) < line:
            break
        assert line < 300


@pytest.mark.parametrize("move", MOVES)
def test_a_handler_that_moves_a_position(read, move):
    """It is refused, or moves the position as if it had come before the poll or behind it."""
    if move == ("assign" if read.subscribed else "unsubscribe"):
        pytest.skip("another kind of consumer has it")
    refused = 0

    def handle(_: str) -> None:
        nonlocal refused
        try:
            MOVES[move](read.consumer)
        except RuntimeError as error:
            assert "same thread" in str(error)
            refused += 1

    def take() -> None:
        try:
            read.take("records")
        except IllegalStateError:  # The handler took all partitions away.
            assert move in ("assign", "unsubscribe")

    for line in itertools.count(1):
        read.consumer.close()
        read.given.clear()
        read.begin()
        read.take("records")
        was_refused = refused
        with called_at(line, is_of_the_package, handle, is_without_signals) as seen:
            take()
        if refused > was_refused:
            assert read.given == list(range(10)), seen[-1]
        else:
            take()
            assert read.given[10:] in ([], [0, 1, 2, 3, 4], list(range(10, 15))) or (
                read.given[5:] in ([], list(range(10)))
            ), seen[-1]
        if len(seen) < line:
            break
        assert line < 300
    assert 0 < refused < line
