"""A handler of a signal that sends, and asks for its number, at each place of a producer's calls
where Python looks for a signal: what its `send` returned for is in the log once the call has
returned, or after the next flush.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crash.interrupted_steps import Steps, at_signals
from crash.rows_topic import opened_with_rows, values

import eoslog
from eoslog.errors import LogClosedError

pytestmark = pytest.mark.crash


@pytest.fixture
def store(tmp_path) -> Iterator[eoslog.Store]:
    with opened_with_rows(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("call", ["close", "flush", "append"])
def test_a_handler_that_sends(store, name, call):
    steps, sent, refused = Steps(), [], 0
    producer: eoslog.Producer

    def send() -> None:
        nonlocal refused
        value = b"%d by the handler" % step
        try:
            producer.send("rows", value, partition=0)
        except (LogClosedError, RuntimeError):
            refused += 1
        else:
            sent.append(value)

    for step in steps.each():
        producer = store.producer(name=name, config={"linger.ms": 3_600_000})
        producer.send("rows", b"%d" % step, partition=0)
        sent.append(b"%d" % step)
        arguments = ("rows", 0, [b"%d appended" % step]) if call == "append" else ()
        with at_signals(send), steps.armed(step):
            getattr(producer, call)(*arguments)
        if call == "append":
            sent.append(b"%d appended" % step)
        if call != "close":
            producer.close()
        assert sorted(values(store)) == sorted(sent), steps.last
        assert step < 1000
    assert len(sent) > steps.count * (1 if call == "close" else 1.2)
    assert (refused > 0) is (call == "close")


@pytest.mark.parametrize("call", ["flush", "append", "next_sequence"])
def test_a_handler_that_asks_for_the_number(store, call):
    """It is that of the record that is sent next, or not told."""
    steps, refused = Steps(), 0
    producer = store.producer(name="named", config={"linger.ms": 3_600_000})
    told: dict[bytes, int] = {}

    def ask() -> None:
        nonlocal refused
        value = b"%d by the handler" % step
        try:
            number = producer.next_sequence("rows", 0)
            producer.send("rows", value, partition=0)
        except RuntimeError:
            refused += 1
        else:
            told[value] = number

    count = 0
    for step in steps.each():
        producer.send("rows", b"%d" % step, partition=0)
        arguments = {"append": ("rows", 0, [b"appended"]), "next_sequence": ("rows", 0)}
        with at_signals(ask), steps.armed(step):
            getattr(producer, call)(*arguments.get(call, ()))
        count += 2 if call == "append" else 1
        producer.flush()
        assert producer.next_sequence("rows", 0) == count + len(told), steps.last
        assert step < 1000
    found = values(store)
    assert len(found) == count + len(told)
    assert told
    for value, number in told.items():
        assert found[number] == value
    assert refused > 0
