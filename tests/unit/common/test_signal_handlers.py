"""What a handler of a signal is known by, and a store that one closes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

import eoslog
from eoslog.common.signal_handlers import is_within_a_call
from eoslog.errors import LogClosedError


@contextmanager
def handled_by(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Handler:
    """One that is an object, or a method of one."""

    def __init__(self) -> None:
        self.answers: list[bool] = []

    def __call__(self, *_: object) -> None:
        self.answers.append(is_within_a_call())

    def method(self, *_: object) -> None:
        self.answers.append(is_within_a_call())


@pytest.mark.parametrize(
    "made",
    [
        lambda one: one,
        lambda one: one.method,
        lambda one: partial(one.method, "more"),
        lambda one: partial(partial(one)),
        lambda one: lambda *_: one.method(),
    ],
)
def test_every_kind_of_handler_is_known(open_store, made):
    store = open_store()
    one = Handler()
    with handled_by(made(one)):
        signal.raise_signal(signal.SIGUSR1)
        store.verify(lambda *_: signal.raise_signal(signal.SIGUSR1))
        store.create_topic("t")
        store.verify(lambda *_: signal.raise_signal(signal.SIGUSR1))
    assert not is_within_a_call()
    assert one.answers[0] is False
    assert one.answers[1:]
    assert all(one.answers[1:])


def test_no_handler_no_matter_who_calls(open_store):
    store = open_store()
    store.create_topic("t")
    answers: list[bool] = []
    store.verify(lambda *_: answers.append(is_within_a_call()))
    thread = threading.Thread(target=lambda: answers.append(is_within_a_call()))
    thread.start()
    thread.join()
    assert answers
    assert not any(answers)


def test_a_store_that_is_closed_while_a_partition_is_opened(open_store, store_path, monkeypatch):
    """The background thread waits for the call, and the close for the background thread."""
    store = open_store()
    store.create_topic("t")
    store.create_topic("other")
    store.producer().append("other", 0, [b"0"])
    closings: list[float] = []

    def close(*_: object) -> None:
        began_s = time.monotonic()
        store.close()
        store.close()
        closings.append(time.monotonic() - began_s)

    def raised(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr("eoslog.storage.opened_partitions.check_identity", raised)
    with handled_by(close):
        try:
            store.producer().append("t", 0, [b"1"])
            acknowledged = 1
        except LogClosedError:
            acknowledged = 0
    monkeypatch.undo()
    assert len(closings) == 1
    assert closings[0] < 30
    store.close()
    with pytest.raises(LogClosedError):
        store.topics()
    with eoslog.open(store_path) as opened:
        assert opened.partition("t", 0).log_end_offset == acknowledged
        assert opened.verify() == []


def test_a_process_that_is_told_to_end_ends_with_a_closed_store(store_path):
    """The common handler: close, then exit."""
    program = f"""
        import os, signal, sys, threading, eoslog
        store = eoslog.open({str(store_path)!r}, create=True, durability="process")
        store.create_topic("t")
        producer = store.producer()
        def end(*_):
            store.close()
            sys.exit(7)
        signal.signal(signal.SIGTERM, end)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        print("ready", flush=True)
        while True:
            producer.append("t", 0, [b"x"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""
    with eoslog.open(store_path) as opened:
        assert not opened._files.was_stopped_uncleanly
        assert opened.partition("t", 0).log_end_offset > 0


def test_a_handler_makes_and_deletes_topics_between_calls_alone(open_store):
    """Whoever deletes one waits for the producers, and one may be the handler's own thread's."""
    store = open_store()
    store.create_topic("t")
    refused: list[RuntimeError] = []

    def change(*_: object) -> None:
        for call in (lambda: store.create_topic("new"), lambda: store.delete_topic("t")):
            try:
                call()
            except RuntimeError as error:
                refused.append(error)

    with handled_by(change):
        store.verify(lambda *_: signal.raise_signal(signal.SIGUSR1))
        assert len(refused) >= 2
        assert all("handler of a signal" in str(error) for error in refused)
        assert sorted(store.topics()) == ["t"]
        refused.clear()
        signal.raise_signal(signal.SIGUSR1)
    assert refused == []
    assert sorted(store.topics()) == ["new"]
