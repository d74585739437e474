"""Signals at each place of a poll where Python looks for one: two that raise, one soon after the
other, and one whose handler polls and commits itself. No record is passed over, or given twice.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator

import pytest
from crash.interrupted_steps import Steps, at_signals
from crash.rows_topic import WHERE, opened_with_rows

import eoslog

pytestmark = [
    pytest.mark.crash,
    # An interrupt may come into a finalizer, which the interpreter goes on without.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNT = 200
APART_MAX = 12
POLLS: dict[str, Callable[[eoslog.Consumer], list[int]]] = {
    "records": lambda consumer: [one.offset for one in consumer.poll(timeout=0, max_records=2)],
    "columns": lambda consumer: consumer.poll_arrow(timeout=0, max_bytes=1)["offset"].to_pylist(),
    "iteration": lambda consumer: [record.offset for record in itertools.islice(consumer, 1)],
}


class Stopped(BaseException):
    """What a handler raises."""


@pytest.fixture(params=[True, False], ids=["subscribed", "assigned"])
def consumer(request: pytest.FixtureRequest, tmp_path) -> Iterator[eoslog.Consumer]:
    with opened_with_rows(tmp_path / "store") as store:
        producer = store.producer()
        for number in range(COUNT):
            producer.append("rows", 0, [b"%d" % number])
        with store.consumer(group="g", config={"max.poll.records": 3}) as made:
            if request.param:
                made.subscribe(["rows"])
                made.poll()
            else:
                made.assign([WHERE])
            yield made


@pytest.mark.parametrize("how", POLLS)
@pytest.mark.parametrize("apart", [1, 2, 3, 5, 8, 12])
def test_two_that_raise(consumer, how, apart):
    first, second = Steps(), Steps()
    raised = 0

    def raise_twice() -> None:
        nonlocal raised
        raised += 1
        if raised == 1:
            second.arm(apart)
        raise Stopped

    for step in first.each():
        consumer.seek(WHERE, 0)
        given, raised = [], 0
        try:
            with at_signals(raise_twice), first.armed(step):
                given += POLLS[how](consumer)
        except Stopped:
            pass
        finally:
            sys.settrace(None)
        where = f"{first.last}, {second.last}"
        given += POLLS["records"](consumer)
        assert given == list(range(len(given))) != [], where
        consumer.commit()
        assert consumer.committed(WHERE) == len(given), where
        assert step < 1000
    assert first.count > 10


@pytest.mark.parametrize("how", POLLS)
@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_handler_that_polls_and_commits(consumer, how, raises):
    steps = Steps()
    within: list[int] = []
    refused = came = 0

    def poll_and_commit() -> None:
        nonlocal came, refused
        came += 1
        try:
            within.extend(POLLS["records"](consumer))
        except RuntimeError as error:
            assert "same thread" in str(error)
            refused += 1
        try:
            consumer.commit()
        except RuntimeError as error:
            assert "same thread" in str(error)
        if raises:
            raise Stopped

    for step in steps.each():
        consumer.seek(WHERE, 0)
        consumer.commit()
        within.clear()
        given: list[int] = []
        try:
            with at_signals(poll_and_commit), steps.armed(step):
                given += POLLS[how](consumer)
        except Stopped:
            pass
        # A handler that was given something came before the poll read, or behind it.
        assert not within or not given or within[-1] < given[0] or how == "iteration", steps.last
        committed = consumer.committed(WHERE)
        assert committed is not None
        assert set(range(committed)) <= {*within, *given}, steps.last
        both = sorted(within + given)
        both += POLLS["records"](consumer)
        assert both == list(range(len(both))), steps.last
        assert step < 1000
    assert came > 10
    assert refused > 3
