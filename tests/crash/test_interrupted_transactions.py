"""An interrupt (Ctrl-C) at any line of a transactional producer's calls: what is called after it
ends the transaction whole, and the producer goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pytest
from crash.interrupted_lines import interrupted_at
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.errors import IllegalStateError, LogClosedError
from eoslog.producer.transactional_producer import TransactionalProducer

pytestmark = pytest.mark.crash

GROUP, INPUT = "g", TopicPartition("in", 0)
FILES = (
    "/eoslog/producer/producer.py",
    "/eoslog/producer/transactional_producer.py",
    "/eoslog/producer/transaction_manager.py",
    "/eoslog/producer/transaction_states.py",
)


def is_of_the_producer(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


def append(producer: TransactionalProducer, number: int) -> None:
    producer.append("out", 0, [b"%d" % number])


def send(producer: TransactionalProducer, number: int) -> None:
    producer.send("out", b"%d" % number, partition=0)
    producer.flush()


def send_offsets(producer: TransactionalProducer, number: int) -> None:
    producer.send_offsets_to_transaction({INPUT: number}, GROUP)


def commit(producer: TransactionalProducer) -> None:
    producer.commit_transaction()


def abort(producer: TransactionalProducer) -> None:
    producer.abort_transaction()


def prepare(producer: TransactionalProducer) -> None:
    try:
        prepared = producer.prepare_transaction()
    except IllegalStateError as error:
        assert "nothing to prepare" in str(error)
        producer.commit_transaction()
    else:
        assert producer.complete_transaction(prepared)


class Outcome:
    """What a reader of what is committed sees."""

    def __init__(self, store: eoslog.Store) -> None:
        self.store = store

    def values(self) -> list[int]:
        with self.store.consumer() as consumer:
            consumer.assign([TopicPartition("out", 0)])
            return [int(record.value) for record in consumer.poll(max_records=100_000, timeout=0)]

    def offset(self) -> int:
        found = self.store.groups().get(GROUP, {})
        return found[INPUT].offset if INPUT in found else 0


def of_each_line(
    producer: TransactionalProducer, call: Callable[[], object], then: Callable[[str], None]
) -> None:
    """Interrupt the call at each of its lines, each time anew; what then is done each time."""
    line = 0
    while True:
        line += 1
        producer.begin_transaction()
        with (
            suppress(KeyboardInterrupt),
            interrupted_at(line, is_of_the_producer) as seen,
        ):
            call()
        then(seen[-1] if seen else "")
        if len(seen) < line:
            return
        assert line < 1000


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process", config=QUIET) as opened:
        opened.create_topic("out")
        opened.create_topic("in")
        yield opened


@pytest.fixture(params=["first of all", "later"])
def producer(store, request):
    with store.producer(transactional_id="tx") as made:
        made.init_transactions()
        if request.param == "later":
            with made.transaction():
                append(made, 0)
                send_offsets(made, 1)
        yield made


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("end", [commit, abort, prepare])
@pytest.mark.parametrize("write", [append, send, send_offsets])
@pytest.mark.parametrize("before", [None, append])
def test_an_interrupt_of_what_is_written(store, producer, before, write, end):
    outcome = Outcome(store)
    number, seen_before = 0, outcome.values()

    def interrupted() -> None:
        nonlocal number
        number += 10
        if before is not None:
            before(producer, number)
        write(producer, number + 1)

    def then(line: str) -> None:
        nonlocal seen_before
        end(producer)
        values = outcome.values()
        new = values[len(seen_before) :]
        assert values[: len(seen_before)] == seen_before, line
        allowed: list[list[int]] = [[], [number], [number + 1], [number, number + 1]]
        assert new in (allowed if end is not abort else [[]]), line
        assert outcome.offset() in (0, 1) if end is abort else outcome.offset() <= number + 1
        with producer.transaction():
            append(producer, number + 2)
        assert outcome.values() == [*values, number + 2], line
        seen_before = outcome.values()

    of_each_line(producer, interrupted, then)
    assert number >= 50
    if end is not abort:
        assert outcome.offset() in (0, 1, number + 1)


@pytest.mark.parametrize("again", [commit, abort])
@pytest.mark.parametrize("end", [commit, abort])
@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_of_an_end(store, producer, written, end, again):
    """The same call may be made again; the other one may say that it is too late."""
    outcome = Outcome(store)
    number, ending, seen_before = 0, False, outcome.values()

    def interrupted() -> None:
        nonlocal number, ending
        number += 10
        ending = False
        if written:
            append(producer, number)
            producer.send("out", b"%d" % (number + 1), partition=0)
        ending = True
        end(producer)

    def then(line: str) -> None:
        nonlocal seen_before
        try:
            again(producer)
        except IllegalStateError as error:
            refused = str(error)
            if "call it again" in refused:
                end(producer)
            else:
                assert "no transaction is open" in refused, line
        new = outcome.values()[len(seen_before) :]
        both = [number, number + 1] if written else []
        if ending and end is again:
            assert new == (both if end is commit else []), line
        elif ending or end is again is abort:
            assert new in ([], both), line
        else:
            assert new in ([], [number], both), line
        with producer.transaction():
            append(producer, number + 2)
        assert outcome.values() == [*seen_before, *new, number + 2], line
        seen_before = outcome.values()

    of_each_line(producer, interrupted, then)
    # A commit of nothing is all C.
    assert number >= (50 if written or end is abort else 10)


@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_of_a_close(store, written):
    """A second close ends what the first left: nothing holds back the readers."""
    outcome = Outcome(store)
    line = 0
    while True:
        line += 1
        producer = store.producer(transactional_id="tx")
        producer.init_transactions()
        producer.begin_transaction()
        if written:
            append(producer, line)
        with (
            suppress(KeyboardInterrupt),
            interrupted_at(line, is_of_the_producer) as seen,
        ):
            producer.close()
        producer.close()
        (found,) = store.transactions()
        assert found.transaction_state in ("Empty", "CompleteAbort"), seen[-1]
        with pytest.raises(LogClosedError):
            append(producer, 0)
        assert outcome.values() == []
        if len(seen) < line:
            break
    assert line > 15
