"""A handler of a signal whose wait for another thread could have no end: it is told so, and did
nothing. Whoever else waits, waits as long as it takes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from unit_stores import values_of

import eoslog
from eoslog import TopicPartition
from eoslog.bindings import handler_wait
from eoslog.bindings.entry_lock import AllKeysHeld
from eoslog.bindings.shared_page import SharedPage
from eoslog.storage.partition import Partition
from eoslog.transactions.state_key import state_key
from eoslog.transactions.state_log import NAMED_PRODUCER

LONG = {"linger.ms": 60_000}
TOLD = "from a handler of a signal"


class Use:
    """A store with what a handler uses, and the thread's own producer."""

    def __init__(self, store: eoslog.Store) -> None:
        self.store = store
        store.create_topic("t", partitions=2)
        self.own = store.producer()
        self.own.append("t", 0, [b"first"])
        self.plain = store.producer(config=LONG)
        self.named = store.producer(name="n")
        self.named.append("t", 1, [b"named"])
        self.transactional = store.producer(transactional_id="tx")
        self.transactional.init_transactions()
        self.transactional.begin_transaction()
        self.transactional.append("t", 1, [b"in a transaction"])

    @property
    def page(self) -> SharedPage:
        shared: SharedPage = self.store._files.session.shared
        return shared

    # What another thread holds, and what a handler calls that waits for it.

    def exclusive(self) -> AbstractContextManager[object]:
        return self.plain.exclusive

    def send(self) -> object:
        return self.plain.send("t", b"sent", partition=1)

    def name(self) -> AbstractContextManager[object]:
        return self.page.held(SharedPage.lock_of(state_key(NAMED_PRODUCER, "n")))

    def append_named(self) -> object:
        return self.named.append("t", 1, [b"named more"])

    def open_named(self) -> object:
        return self.store.producer(name="n")

    def entry(self) -> AbstractContextManager[object]:
        return self.transactional._known_entry().lock

    def append_in_transaction(self) -> object:
        return self.transactional.append("t", 1, [b"more in a transaction"])

    def all_keys(self) -> AbstractContextManager[object]:
        return AllKeysHeld(self.page)

    def snapshot(self) -> object:
        return self.store.snapshot(["t"])

    def opening(self) -> AbstractContextManager[object]:
        return self.store._partitions._lock

    def open_partition(self) -> object:
        return self.store._partitions._open(self.store._topic("t"), TopicPartition("t", 1))


CASES = [
    ("exclusive", "send"),
    ("name", "append_named"),
    ("name", "open_named"),
    ("entry", "append_in_transaction"),
    ("entry", "snapshot"),
    ("all_keys", "snapshot"),
    ("opening", "open_partition"),
]


@pytest.fixture
def use(store) -> Use:
    return Use(store)


@contextmanager
def held_by_another(
    made: Callable[[], AbstractContextManager[object]],
) -> Iterator[threading.Event]:
    """Another thread holds it from the block's beginning until the event is set."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with made():
            held.set()
            assert over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield over
    finally:
        over.set()
        thread.join()


@contextmanager
def handled_within_an_append(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]
) -> Iterator[list[str]]:
    """The next append has a handler of a signal come in its middle; what its call was told."""
    told: list[str] = []
    append_columns = Partition.append_columns

    def handle(*_: object) -> None:
        try:
            call()
            told.append("done")
        except RuntimeError as error:
            told.append(str(error))

    def append(partition: Partition, *arguments: object, **named: object) -> object:
        monkeypatch.setattr(Partition, "append_columns", append_columns)
        signal.raise_signal(signal.SIGUSR1)
        return append_columns(partition, *arguments, **named)

    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(Partition, "append_columns", append)
    try:
        yield told
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("lock", "call"), CASES)
def test_a_handler_within_a_call_does_not_wait_for_ever(use, monkeypatch, lock, call):
    """The other thread may be waiting for the call into which the handler came."""
    monkeypatch.setattr(handler_wait, "HANDLER_WAIT_S", 0.3)
    with (
        held_by_another(getattr(use, lock)) as over,
        handled_within_an_append(monkeypatch, getattr(use, call)) as told,
    ):
        use.own.append("t", 0, [b"second"], keys=[b"k"])
        assert len(told) == 1
        assert TOLD in told[0]
        assert not over.is_set()
    assert values_of(use.store, "t") == [b"first", b"second"]
    getattr(use, call)()
    use.transactional.commit_transaction()


def test_a_handler_within_a_call_waits_for_what_takes_not_long(use, monkeypatch):
    monkeypatch.setattr(handler_wait, "monotonic", lambda: 1e12)  # Long after one that gave up.
    with (
        held_by_another(use.exclusive) as over,
        handled_within_an_append(monkeypatch, use.send) as told,
    ):
        threading.Timer(0.2, over.set).start()
        use.own.append("t", 0, [b"second"], keys=[b"k"])
    assert told == ["done"]


def test_of_many_signals_the_first_alone_is_waited_with(use, monkeypatch):
    """Else the call that holds all up would go on by one step for each wait."""
    monkeypatch.setattr(handler_wait, "HANDLER_WAIT_S", 1000.0)
    monkeypatch.setattr(handler_wait, "monotonic", lambda: 0.0)
    handler_wait.gave_up()
    with (
        held_by_another(use.exclusive),
        handled_within_an_append(monkeypatch, use.send) as told,
    ):
        use.own.append("t", 0, [b"second"], keys=[b"k"])
    assert TOLD in told[0]


@pytest.mark.parametrize(("lock", "call"), CASES)
def test_a_handler_between_calls_waits_as_long_as_it_takes(use, monkeypatch, lock, call):
    monkeypatch.setattr(handler_wait, "HANDLER_WAIT_S", 0.0)
    done = []
    before = signal.signal(signal.SIGUSR1, lambda *_: done.append(getattr(use, call)()))
    try:
        with held_by_another(getattr(use, lock)) as over:
            threading.Timer(0.3, over.set).start()
            signal.raise_signal(signal.SIGUSR1)
            assert over.is_set()
            assert len(done) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
