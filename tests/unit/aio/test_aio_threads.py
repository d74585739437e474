"""The thread pool of an event loop's calls: its limits and its end."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future

import pytest
from async_stores import Gate
from harness.fork import Fork
from stores import values_of

import eoslog.aio
from eoslog import TopicPartition
from eoslog.aio.calls import Calls, make_call
from eoslog.errors import ForkedProcessError, LogClosedError, OutOfMemoryError

WAIT_S = 30


def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def fails():
    raise ValueError("no")


def test_an_error_does_not_keep_the_call():
    gc.disable()
    try:
        calls = [Future()]
        make_call(calls[0], fails)
        alone = weakref.ref(calls[0])
        calls.clear()
        assert alone() is None
    finally:
        gc.enable()


def test_a_cancelled_call_is_not_made():
    call = Future()
    assert call.cancel()
    make_call(call, lambda: pytest.fail("not to be called"))
    assert call.cancelled()


def test_begun_or_cancelled_never_both():
    """Two threads race for each of many calls."""
    made: list[int] = []
    calls = [Future() for _ in range(20_000)]
    withdrawn: list[int] = []

    def make():
        for number, call in enumerate(calls):
            make_call(call, lambda number=number: made.append(number))

    making = threading.Thread(target=make)
    making.start()
    for number in reversed(range(len(calls))):
        if calls[number].cancel():
            withdrawn.append(number)
    making.join()
    assert sorted(made + withdrawn) == list(range(len(calls)))


def test_stop_makes_the_calls_taken_before():
    pool = Calls(4)
    calls = [pool.submit(time.sleep, 0.001) for _ in range(50)]
    pool.stop()
    assert all(call.done() and not call.cancelled() for call in calls)


def test_no_call_is_begun_once_it_is_closed():
    calls = Calls(2)
    assert calls.submit(lambda: 1) is not None
    calls.stop()
    with pytest.raises(LogClosedError):
        calls.submit(lambda: 1)


def test_calls_that_nobody_has_any_more_end_their_threads():
    before = threading.active_count()
    calls = Calls(2)
    call = calls.submit(lambda: 1)
    until(lambda: call.done())
    assert threading.active_count() > before
    del calls
    gc.collect()
    until(lambda: threading.active_count() <= before)


def test_a_call_that_was_begun_ends_before_the_interpreter_does():
    code = """
import time
from eoslog.aio.calls import Calls
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
from eoslog.aio.calls import Calls
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


def test_a_call_waits_for_the_threads_there_are(monkeypatch):
    pool, go_on = Calls(2), threading.Event()
    long = pool.submit(go_on.wait, WAIT_S)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", fails_to_start)
        second = pool.submit(lambda: 2)
    go_on.set()
    assert second.result(WAIT_S) == 2
    assert long.result()
    pool.stop()


def test_without_any_thread_the_call_is_never_made(monkeypatch):
    pool, made = Calls(2), []
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", fails_to_start)
        with pytest.raises(OutOfMemoryError, match="not begun"):
            pool.submit(made.append, 1)
    assert pool.submit(lambda: 2).result(WAIT_S) == 2
    pool.stop()
    assert made == []


def fails_to_start(thread):
    raise RuntimeError("can't start new thread")


def test_closing_in_a_forked_child_does_nothing(tmp_path):
    gate = Gate(lambda _: None)

    async def use(store):
        consumer = await store.consumer()
        await consumer.assign([TopicPartition("t", 0)])
        assert await consumer.poll(timeout=0.01) == []  # It waits for the store's thread.
        producer = await store.producer()
        await producer.send_and_wait("t", b"v")
        return consumer, producer

    with eoslog.open(tmp_path / "s", create=True) as store:
        store.create_topic("t")
        loops = eoslog.aio.wrap(store)
        loop = asyncio.new_event_loop()
        consumer, producer = loop.run_until_complete(use(loops))
        under_way = loop.create_task(producer._call(gate, None))
        loop.run_until_complete(gate.until_begun())

        async def close_all():
            with pytest.raises(ForkedProcessError):
                await producer.flush()
            await producer.close()
            await consumer.close()
            await loops.close()

        child = Fork(lambda _: loop.run_until_complete(close_all()), seconds=30)
        child.end()  # First: both sides of a fork have one selector.
        gate.go_on.set()
        loop.run_until_complete(under_way)
        loop.run_until_complete(loops.close())
        loop.close()
        assert values_of(store, "t") == [b"v"]
