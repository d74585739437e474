"""A background thread: started once, waited for again after Ctrl-C."""

import signal
import threading

import pytest

import eoslog
from eoslog.session.background_thread import BackgroundThread

SOON_S = 10


class NeverStarted(threading.Event):
    """The event of a new thread, as Ctrl-C leaves it before the thread begins."""

    def set(self):
        threading.Event().wait()

    def wait(self, timeout=None):
        raise KeyboardInterrupt


def start_interrupted(monkeypatch, start):
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        made = threading.Thread.__init__

        def init(thread, *arguments, **named):
            made(thread, *arguments, **named)
            thread._started = NeverStarted()
            thread._bootstrap = lambda: None

        patched.setattr(threading.Thread, "__init__", init)
        start()


def test_it_is_started_once():
    end, count = threading.Event(), []

    def work():
        count.append(1)
        end.wait()

    thread = BackgroundThread("test", work)
    for _ in range(3):
        thread.start()
    end.set()
    thread.join()
    thread.start()
    assert count == [1]


def test_it_does_not_wait_for_itself():
    ran = threading.Event()

    def work():
        thread.join()
        ran.set()

    thread = BackgroundThread("test", work)
    thread.start()
    assert ran.wait(SOON_S)


def test_a_join_after_an_interrupted_one_waits_for_the_end():
    end = threading.Event()
    ended = []

    def work():
        end.wait()
        ended.append(1)

    thread = BackgroundThread("test", work)
    thread.start()
    for _ in range(3):
        timer = threading.Timer(
            0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
        )
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            thread.join()
        timer.join()
    threading.Timer(0.05, end.set).start()
    thread.join()
    assert ended == [1]


def test_a_thread_that_never_ran_is_not_waited_for(monkeypatch):
    thread = BackgroundThread("test", threading.Event().set)
    start_interrupted(monkeypatch, thread.start)
    thread.join()


def test_a_store_whose_background_thread_never_ran_can_be_opened_again(monkeypatch, tmp_path):
    path = tmp_path / "store"
    start_interrupted(monkeypatch, lambda: eoslog.open(path, create=True, durability="process"))
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows")
        store.producer().append("rows", partition=0, values=[b"one"])
        assert not store.verify()
