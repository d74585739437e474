"""What a handler of a signal, or a column's own method, does with a producer that the same thread
is just appending with: it is done, or refused by a RuntimeError; nothing is lost or doubled,
nothing hangs, and the producer goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from crash.interrupted_lines import called_at
from crash.rows_topic import is_of_the_package, opened_with_rows, values

import eoslog
from eoslog.errors import EoslogError, IllegalStateError, LogClosedError, ProducerFencedError

pytestmark = pytest.mark.crash

HEADERS = [[("name", b"one")]]


@pytest.fixture
def rows_store(tmp_path: Path) -> Iterator[eoslog.Store]:
    with opened_with_rows(tmp_path / "store") as opened:
        yield opened


class Numbers:
    """What was written, in the order in which the calls returned; what a refused one may have."""

    def __init__(self, store: eoslog.Store, producer: eoslog.Producer) -> None:
        self.store, self.producer = store, producer
        self.count = 0
        self.written: list[bytes] = []
        self.refused = 0

    def next(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def append(self, producer: eoslog.Producer | None = None) -> None:
        value = self.next()
        (producer or self.producer).append("rows", 0, [value], headers=HEADERS)
        self.written.append(value)

    def append_short(self) -> None:
        value = self.next()
        self.producer.append("rows", 0, [value])
        self.written.append(value)

    def send(self) -> None:
        value = self.next()
        self.producer.send("rows", value, partition=0)
        self.written.append(value)
        self.producer.flush()

    def check(self, where: str) -> None:
        found = values(self.store)
        assert sorted(found) == sorted(self.written), where


@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("outer", ["append", "append_short", "send"])
@pytest.mark.parametrize("inner", ["append", "append_short", "send", "of another producer"])
def test_a_handler_at_each_line_of_an_append(rows_store, name, outer, inner):
    producer, other = rows_store.producer(name=name), rows_store.producer()
    numbers = Numbers(rows_store, producer)
    numbers.append()
    numbers.append(other)

    def handle(_: str) -> None:
        # The handler sees to its own errors: what was refused was not done.
        try:
            if inner == "of another producer":
                numbers.append(other)
            else:
                getattr(numbers, inner)()
        except RuntimeError as error:
            assert "this call did nothing" in str(error)
            numbers.refused += 1

    line = 0
    while True:
        line += 1
        with called_at(line, is_of_the_package, handle) as seen:
            getattr(numbers, outer)()
        producer.flush()
        numbers.check(seen[-1] if seen else "")
        if len(seen) < line:
            break
        assert line < 1000
    assert numbers.refused == 0 or inner != "of another producer"
    if outer == inner == "append":
        assert numbers.refused > 5


@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("outer", ["append", "append_short", "send", "next_sequence"])
def test_a_handler_that_goes_on_by_the_number_at_each_line(rows_store, name, outer):
    """A number that it is told is the number of what it appends next; else it is refused. Neither
    call's records are counted twice, or not at all.
    """
    producer = rows_store.producer(name=name)
    numbers = Numbers(rows_store, producer)
    numbers.append()
    told: list[int] = []
    refused = 0

    def handle(_: str) -> None:
        nonlocal refused
        try:
            number = producer.next_sequence("rows", 0)
        except RuntimeError as error:
            assert "same thread" in str(error)
            refused += 1
            return
        numbers.written.append(b"told %d" % number)
        try:
            producer.append("rows", 0, [numbers.written[-1]])
        except RuntimeError as error:
            assert "same thread" in str(error)
            numbers.written.pop()
        else:
            told.append(number)

    for line in itertools.count(1):
        producer.send("rows", numbers.next(), partition=0)
        numbers.written.append(b"%d" % numbers.count)
        with called_at(line, is_of_the_package, handle) as seen:
            if outer == "next_sequence":
                producer.next_sequence("rows", 0)
            else:
                getattr(numbers, outer)()
        producer.flush()
        numbers.check(seen[-1] if seen else "")
        assert producer.next_sequence("rows", 0) == len(numbers.written), seen[-1:]
        if len(seen) < line:
            break
        assert line < 1000
    found = values(rows_store)
    assert told
    for number in told:
        assert found[number] == b"told %d" % number
    assert refused > 0 or outer == "append_short"
    if name is not None:
        assert rows_store.producer(name=name).next_sequence("rows", 0) == len(found)


@pytest.mark.parametrize("name", [None, "named"])
@pytest.mark.parametrize("outer", ["append", "flush"])
@pytest.mark.parametrize("inner", ["append", "flush", "close"])
def test_a_handler_at_each_line_of_a_first_append(rows_store, name, outer, inner):
    """Neither call knows of the other's entry of the partition; a refused close closes nothing."""
    written: list[bytes] = []
    refused = 0
    for line in itertools.count(1):
        producer = rows_store.producer(name=name and f"{name} {line}", config={"linger.ms": 60_000})
        told: list[str] = []

        def append(value: bytes, producer=producer) -> None:
            with suppress(LogClosedError):  # The handler was there first.
                producer.append("rows", 0, [value])
                written.append(value)

        def handle(_: str, producer=producer, told=told, append=append, line=line) -> None:
            try:
                if inner == "append":
                    append(b"%d inner" % line)
                else:
                    getattr(producer, inner)()
                told.append("done")
            except RuntimeError as error:
                assert "same thread" in str(error)
                told.append("refused")

        if outer == "flush":
            for number in range(3):
                producer.send("rows", b"%d sent %d" % (line, number), partition=0)
                written.append(b"%d sent %d" % (line, number))
        with called_at(line, is_of_the_package, handle) as seen:
            if outer == "flush":
                with suppress(LogClosedError):
                    producer.flush()
            else:
                append(b"%d outer" % line)
        refused += told == ["refused"]
        if inner != "close" or told != ["done"]:
            assert producer.append("rows", 0, [b"%d after" % line]).record_count == 1, seen[-1]
            written.append(b"%d after" % line)
        producer.close()
        if len(seen) < line:
            break
        assert line < 1000
    assert refused > 3 or (outer == "append" and inner != "append")
    assert sorted(values(rows_store)) == sorted(written)


def test_a_handler_that_flushes_at_each_line_of_a_flush(tmp_path):
    """Both sync what was appended, whichever of them notes it."""
    with opened_with_rows(tmp_path / "store", durability="commit") as store:
        producer = store.producer()
        done = 0

        def handle(_: str) -> None:
            nonlocal done
            with suppress(RuntimeError):
                producer.flush()
                done += 1

        for line in itertools.count(1):
            producer.append("rows", 0, [b"%d" % line])
            with called_at(line, is_of_the_package, handle) as seen:
                producer.flush()
            assert producer._unsynced == {}, seen[-1]
            if len(seen) < line:
                break
            assert line < 300
        assert done > 10


@pytest.mark.parametrize("outer", ["open", "append", "append headers", "flush", "close"])
def test_a_handler_that_opens_the_name_at_each_line(rows_store, outer):
    """Two producers of the name never have one epoch, and the newer one counts all that is in."""
    written: list[bytes] = []
    refused = opened = 0
    for line in itertools.count(1):
        older = rows_store.producer(name="x", config={"linger.ms": 60_000})
        found: list[eoslog.Producer | None] = []

        def append(producer: eoslog.Producer, value: bytes, **columns: object) -> None:
            with suppress(ProducerFencedError):
                producer.append("rows", 0, [value], **columns)
                written.append(value)

        def handle(_: str, found=found) -> None:
            try:
                found.append(rows_store.producer(name="x"))
            except RuntimeError as error:
                assert "same thread" in str(error)
                found.append(None)

        if outer == "flush":
            older.send("rows", b"%d sent" % line, partition=0)
        newer = older
        with called_at(line, is_of_the_package, handle) as seen, suppress(ProducerFencedError):
            if outer == "open":
                newer = rows_store.producer(name="x")
            elif outer.startswith("append"):
                columns = {"headers": HEADERS} if outer.endswith("headers") else {}
                append(older, b"%d outer" % line, **columns)
            elif outer == "flush":
                older.flush()
                written.append(b"%d sent" % line)
            else:
                older.close()
        producers = [older, newer, *filter(None, found)]
        epochs = {one.producer_epoch for one in producers}
        assert len(epochs) == len(set(map(id, producers))), seen[-1]
        newest = max(producers, key=lambda one: one.producer_epoch)
        for one in producers:
            if one is not newest:
                with pytest.raises((ProducerFencedError, LogClosedError)):
                    one.append("rows", 0, [b"of an older one"])
        assert rows_store.producer(name="x").next_sequence("rows", 0) == len(written), seen[-1]
        refused += found == [None]
        opened += None not in found and bool(found)
        if len(seen) < line:
            break
        assert line < 2000
    assert refused > 3 or outer == "close"
    assert opened > 0
    assert sorted(values(rows_store)) == sorted(written)


class Columns(list):
    """A column that calls somebody while it is read."""

    def __init__(self, content: list[object], call: Callable[[], None]) -> None:
        super().__init__(content)
        self.call = call

    def __iter__(self):
        self.call()
        return super().__iter__()


@pytest.mark.parametrize("kind", ["plain", "named", "transactional", "staged"])
def test_a_column_that_appends_while_it_is_read(rows_store, kind):
    if kind in ("transactional", "staged"):
        producer = rows_store.producer(transactional_id="tx", staged=kind == "staged")
        producer.init_transactions()
        producer.begin_transaction()
    else:
        producer = rows_store.producer(name="n" if kind == "named" else None)
    called: list[int] = []

    def call() -> None:
        called.append(1)
        producer.append("rows", 0, [b"inner"])

    producer.append("rows", 0, [b"first"])
    headers = Columns(list(HEADERS), call)
    with pytest.raises(RuntimeError, match="this call did nothing"):
        producer.append("rows", 0, [b"outer"], headers=headers)
    assert called
    producer.append("rows", 0, [b"last"])
    if kind in ("transactional", "staged"):
        producer.commit_transaction()
    assert values(rows_store) == [b"first", b"last"]


class Measured(list):
    """A column that calls somebody when it is first asked for its length."""

    def __init__(self, content: list[bytes], call: Callable[[], object]) -> None:
        super().__init__(content)
        self.call: Callable[[], object] | None = call

    def __len__(self) -> int:
        call, self.call = self.call, None
        if call is not None:
            call()
        return super().__len__()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("ending", ["abort_transaction", "commit_transaction"])
def test_an_append_whose_transaction_is_ended_in_its_middle_is_in_no_other(
    rows_store, staged, warm, ending
):
    producer = rows_store.producer(transactional_id="tx", staged=staged)
    producer.init_transactions()
    if warm:
        with producer.transaction():
            producer.append("rows", 0, [b"warm"])
    producer.begin_transaction()
    producer.append("rows", 0, [b"before"])
    column = Measured([b"outer"], getattr(producer, ending))
    ended = False
    try:
        producer.append("rows", 0, column)
    except IllegalStateError:
        ended = True
    except RuntimeError as error:
        assert "this call did nothing" in str(error)
    if not ended:
        producer.abort_transaction()
    with producer.transaction():
        producer.append("rows", 0, [b"next"])
    expected = [b"warm"] * warm + [b"before"] * (ended and ending == "commit_transaction")
    assert values(rows_store) == [*expected, b"next"]


@pytest.mark.parametrize("inner", ["append", "send", "commit", "abort", "begin", "close"])
def test_a_handler_at_each_line_of_a_transaction(rows_store, inner):
    """What is committed is whole: all that was told to be in it, and nothing else."""
    expected: list[bytes] = []
    count = 0
    refused = 0

    def value() -> bytes:
        nonlocal count
        count += 1
        return b"%d" % count

    line = 0
    while True:
        line += 1
        producer = rows_store.producer(transactional_id="tx")
        producer.init_transactions()
        open_now: list[bytes] = []

        def write(producer: eoslog.TransactionalProducer, sent: list[bytes]) -> None:
            one = value()
            producer.append("rows", 0, [one], headers=HEADERS)
            sent.append(one)

        def handle(_: str, producer=producer, sent=open_now, write=write) -> None:
            nonlocal refused
            try:
                if inner == "append":
                    write(producer, sent)
                elif inner == "send":
                    one = value()
                    producer.send("rows", one, partition=0)
                    sent.append(one)
                    producer.flush()
                elif inner == "commit":
                    producer.commit_transaction()
                    expected.extend(sent)
                    sent.clear()
                elif inner == "abort":
                    producer.abort_transaction()
                    sent.clear()
                elif inner == "begin":
                    producer.begin_transaction()
                else:
                    producer.close()
            except IllegalStateError:
                pass
            except RuntimeError as error:
                assert "this call did nothing" in str(error)
                refused += 1

        with called_at(line, is_of_the_package, handle) as seen, suppress(EoslogError):
            producer.begin_transaction()
            write(producer, open_now)
            write(producer, open_now)
            producer.commit_transaction()
            expected.extend(open_now)
            open_now.clear()
        producer.close()
        found = values(rows_store)
        assert set(expected) <= set(found), seen[-1]
        # What the handler ended in the middle may have had a record whose append had not returned.
        assert len(found) == len(set(found)) <= len(expected) + 1, seen[-1]
        expected[:] = found
        if len(seen) < line:
            break
        assert line < 1000
    assert line > 20
    assert refused > 0 or inner == "begin"
