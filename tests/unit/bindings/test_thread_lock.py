"""The lock between threads: it refuses the thread that holds it."""

from __future__ import annotations

import threading

import pytest

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.errors import ConcurrentAccessError


def in_a_thread(call):
    """What a call raises in another thread."""
    raised = []

    def work():
        try:
            call()
        except ConcurrentAccessError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return raised


def test_it_refuses_the_thread_that_holds_it():
    lock = ThreadLock()
    with lock:
        with pytest.raises(ConcurrentAccessError, match="same thread"), lock:
            raise AssertionError("not reached")
        with pytest.raises(ConcurrentAccessError, match="same thread"):
            lock.check()
        assert lock.locked()
    assert not lock.locked()
    with lock:
        pass


def test_a_second_thread_waits():
    lock, order = ThreadLock(), []

    def work():
        with lock:
            order.append("second")

    thread = threading.Thread(target=work)
    with lock:
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_second_thread_is_refused_without_waiting():
    lock = ThreadLock(waits=False)
    with lock:
        assert in_a_thread(lock.__enter__)
        assert in_a_thread(lock.check)
        assert lock.locked()
    assert not in_a_thread(lambda: lock.__enter__() or lock.__exit__())


@pytest.mark.parametrize("held", [True, False])
def test_the_lock_is_released_for_a_function_which_cannot_take_it(held):
    lock = ThreadLock(waits=False)

    def call(answer):
        lock.check()
        assert lock.in_use()
        with pytest.raises(ConcurrentAccessError, match="called from a function"), lock:
            raise AssertionError("not reached")
        return answer

    def fails():
        raise KeyboardInterrupt

    if held:
        with lock:
            assert lock.call_released(call, 7) == 7
            assert lock.locked()
            with pytest.raises(KeyboardInterrupt):
                lock.call_released(fails)
            assert lock.locked()
    else:
        assert lock.call_released(call, 7) == 7
    assert not lock.in_use()
    with lock:
        assert lock.in_use()
