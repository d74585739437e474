"""Calls that an event loop has made by other threads: which threads, how many, and their end."""

import _thread
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from functools import partial

import pytest

from eoslog.aio.aio_call import Call
from eoslog.aio.aio_calls import Calls
from eoslog.aio.aio_threads import CallingThreads
from eoslog.errors import LogClosedError, OutOfMemoryError

WAIT_S = 30


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def threads():
    made = CallingThreads(4)
    yield made
    made.stop()


def fails():
    raise ValueError("no")


def test_a_call_says_how_it_ended():
    good, bad = Call(lambda: 7), Call(fails)
    heard = []
    good.when_over(lambda: heard.append("good"))
    assert not good.is_over
    good.run()
    assert good.is_over
    assert (good.result, good.error, good.is_cancelled) == (7, None, False)
    assert not good.cancel()
    good.when_over(lambda: heard.append("late"))
    assert heard == ["good", "late"]
    bad.run()
    assert isinstance(bad.error, ValueError)


def test_an_error_does_not_keep_the_call():
    """Nor what it was called with: who waits for memory to come back waits for no collector."""
    gc.disable()
    try:
        calls = [Call(fails)]
        calls[0].run()
        alone = weakref.ref(calls[0])
        calls.clear()
        assert alone() is None
    finally:
        gc.enable()


def test_a_cancelled_call_is_not_made():
    call = Call(lambda: pytest.fail("not to be called"))
    assert call.cancel()
    assert call.cancel(), "asked again it says the same"
    call.run()
    assert call.is_over
    assert call.is_cancelled


def test_a_refused_call_tells_why():
    call = Call(lambda: pytest.fail("not to be called"))
    heard = []
    call.when_over(lambda: heard.append(str(call.error)))
    assert call.refuse(LogClosedError("the store is closed"))
    call.run()
    assert heard == ["the store is closed"]
    assert not call.is_cancelled


def test_begun_or_cancelled_never_both():
    """Two threads race for each of many calls."""
    made: list[int] = []
    calls = [Call(lambda number=number: made.append(number)) for number in range(20_000)]
    withdrawn: list[int] = []

    def make():
        for call in calls:
            call.run()

    making = threading.Thread(target=make)
    making.start()
    for number in reversed(range(len(calls))):
        if calls[number].cancel():
            withdrawn.append(number)
    making.join()
    assert sorted(made + withdrawn) == list(range(len(calls)))


def test_each_call_has_a_thread_up_to_the_limit(threads):
    go_on = threading.Event()
    began = []
    calls = [Call(lambda: (began.append(1), go_on.wait(WAIT_S))) for _ in range(6)]
    for call in calls:
        threads.put(call)
    until(lambda: len(began) == 4)
    time.sleep(0.02)
    assert len(began) == 4
    go_on.set()
    until(lambda: all(call.is_over for call in calls))
    assert len(began) == 6


def test_a_call_finds_a_thread_while_another_one_has_just_begun(threads):
    """A thread that took a call may still count as idle: it looks again."""
    for _ in range(300):
        go_on = threading.Event()
        long, short = Call(partial(go_on.wait, WAIT_S)), Call(lambda: None)
        threads.put(long)
        threads.put(short)
        until(lambda call=short: call.is_over)
        go_on.set()
        until(lambda call=long: call.is_over)


def test_one_thread_suffices_for_one_call_after_the_other(threads):
    for _ in range(200):
        call = Call(lambda: None)
        threads.put(call)
        until(lambda call=call: call.is_over)
        until(lambda: len(threads._idle) == len(threads._threads))
    assert len(threads._threads) == 1


def test_stop_makes_what_was_put_before(threads):
    calls = [Call(lambda: time.sleep(0.001)) for _ in range(50)]
    for call in calls:
        threads.put(call)
    threads.stop()
    assert all(call.is_over for call in calls)
    late = Call(lambda: None)
    with pytest.raises(IndexError):
        threads._stopper.pop()
    threads._calls.put(late)
    assert threads.drain() == [late]


def test_no_call_is_begun_once_it_is_closed():
    calls = Calls(2)
    assert calls.submit(lambda: 1) is not None
    calls.stop()
    with pytest.raises(LogClosedError):
        calls.submit(lambda: 1)


def test_calls_that_nobody_has_any_more_end_their_threads():
    before = _thread._count()
    calls = Calls(2)
    call = calls.submit(lambda: 1)
    until(lambda: call.is_over)
    assert _thread._count() > before
    del calls
    gc.collect()
    until(lambda: _thread._count() <= before)


def test_a_call_that_was_begun_ends_before_the_interpreter_does():
    code = """
import time
from eoslog.aio.aio_calls import Calls
calls = Calls()
calls.submit(lambda: (time.sleep(0.3), print("made", flush=True)))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert (found.stdout, found.stderr) == ("made\n", "")


def test_a_child_ends_without_the_threads_of_its_parent():
    code = """
import os, sys
from eoslog.aio.aio_calls import Calls
calls = Calls()
calls.submit(print, "parent", flush=True)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert found.stdout.startswith("parent")


def test_where_there_may_be_no_more_threads_calls_wait_for_those_there_are(threads, monkeypatch):
    first = Call(os.getpid)
    threads.put(first)
    until(lambda: first.is_over and threads.has_any)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    go_on = threading.Event()
    long, second = Call(lambda: go_on.wait(WAIT_S)), Call(os.getpid)
    threads.put(long)
    until(lambda: not threads._calls.qsize() and not threads._idle)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OutOfMemoryError):
            threads.put(second)
    go_on.set()
    until(lambda: second.is_over)
    assert second.result == os.getpid()
