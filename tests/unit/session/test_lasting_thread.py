"""A background thread whose start was interrupted is neither waited for in vain nor there twice."""

import random
import signal
import threading

import pytest

import eoslog
from eoslog.session.lasting_thread import LastingThread

SOON_S = 10


class NeverStarted(threading.Event):
    """What a new thread says that it runs by, as an interrupt of the wait for that leaves it."""

    def set(self):
        threading.Event().wait()

    def wait(self, timeout=None):
        raise KeyboardInterrupt


class StartedLate(threading.Event):
    """The wait for the new thread is interrupted; it runs as soon as it may."""

    may_run = threading.Event()

    def set(self):
        self.may_run.wait()
        super().set()

    def wait(self, timeout=None):
        raise KeyboardInterrupt


def start_interrupted(monkeypatch, started, start):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        made = threading.Thread.__init__

        def init(thread, *arguments, **named):
            made(thread, *arguments, **named)
            thread._started = started()

        patched.setattr(threading.Thread, "__init__", init)
        start()


def test_a_thread_that_never_ran_is_not_waited_for(monkeypatch):
    ran = threading.Event()
    thread = LastingThread("test", ran.set)
    start_interrupted(monkeypatch, NeverStarted, thread.start)
    assert thread.was_started
    thread.join()
    thread.start()
    assert ran.wait(SOON_S)
    thread.join()


def test_of_two_threads_one_does_the_work(monkeypatch):
    at_work, end, count = threading.Event(), threading.Event(), []

    def work():
        count.append(1)
        at_work.set()
        end.wait()

    thread = LastingThread("test", work)
    start_interrupted(monkeypatch, StartedLate, thread.start)
    thread.start()
    assert at_work.wait(SOON_S)
    late = thread._turns[0]
    assert not late.is_running
    StartedLate.may_run.set()
    assert late.end.acquire(timeout=SOON_S)
    late.end.release()
    assert not late.is_running
    end.set()
    thread.join()
    assert count == [1]


def test_a_store_whose_background_thread_never_ran_can_be_opened_again(monkeypatch, tmp_path):
    path = tmp_path / "store"
    start_interrupted(
        monkeypatch,
        NeverStarted,
        lambda: eoslog.open(path, create=True, durability="process"),
    )
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows")
        store.producer().append("rows", partition=0, values=[b"one"])
        assert not store.verify()


class Stopped(BaseException):
    """Raised by a handler of a signal."""


def test_a_wait_that_was_interrupted_again_and_again_leaves_nothing_locked():
    """Several interrupts some microseconds apart: Python's own join leaves a lock held then."""
    left = 0

    def handle(*_):
        nonlocal left
        if left > 0:
            left -= 1
            raise Stopped

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for _ in range(300):
            end = threading.Event()
            thread = LastingThread("test", end.wait)
            thread.start()
            end.set()
            for _ in range(3):
                try:
                    try:
                        left = 3
                        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4), 1e-5)
                        thread.join()
                    finally:
                        left = 0
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Stopped:
                    continue
            waiting = threading.Thread(target=thread.join, daemon=True)
            waiting.start()
            waiting.join(SOON_S)
            assert not waiting.is_alive()
    finally:
        signal.signal(signal.SIGALRM, before)
