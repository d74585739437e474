"""Calls that are made together: they have ended when it is over, also after an interrupt."""

import signal
import threading
import time

import pytest

from eoslog.fs.shared_syncs import run_together


def test_the_answers_are_in_the_order_of_the_calls():
    def call(number):
        time.sleep(0.01 * (3 - number % 4))
        return number

    assert run_together([lambda number=number: call(number) for number in range(40)]) == [
        *range(40)
    ]
    assert run_together([]) == []
    assert run_together([lambda: 7]) == [7]


def test_several_run_at_once_and_no_more_than_may():
    together, most, lock = threading.Barrier(3), [0, 0], threading.Lock()

    def call():
        with lock:
            most[0] += 1
            most[1] = max(most)
        together.wait(10)
        with lock:
            most[0] -= 1

    run_together([call] * 9, threads_max=3)
    assert most == [0, 3]


def test_the_first_error_is_raised_after_all_have_run():
    ran = []

    def call(number):
        ran.append(number)
        if number in (2, 5):
            raise ValueError(str(number))

    with pytest.raises(ValueError, match="2"):
        run_together([lambda number=number: call(number) for number in range(8)], threads_max=3)
    assert sorted(ran) == [*range(8)]


@pytest.mark.parametrize("threads_there_are", [0, 1, 2])
def test_fewer_threads_do_all_of_it(monkeypatch, threads_there_are):
    started = []
    start = threading.Thread.start

    def limited(thread):
        if len(started) == threads_there_are:
            raise RuntimeError("can't start new thread")
        started.append(start(thread))

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert run_together([lambda number=number: number for number in range(9)]) == [*range(9)]
    assert len(started) == threads_there_are


def test_after_an_interrupt_what_runs_has_ended_and_the_rest_never_begins():
    begun, ended, lock = [], [], threading.Lock()
    main = threading.main_thread()

    def call(number):
        assert threading.current_thread() is not main
        with lock:
            begun.append(number)
        if number == 1:
            signal.pthread_kill(main.ident, signal.SIGINT)
            time.sleep(0.1)
            signal.pthread_kill(main.ident, signal.SIGINT)
        time.sleep(0.3)
        with lock:
            ended.append(number)

    try:
        run_together([lambda number=number: call(number) for number in range(40)], threads_max=2)
    except KeyboardInterrupt:
        assert sorted(begun) == sorted(ended)
        assert len(begun) < 10
        so_far = len(begun)
        time.sleep(0.4)
        assert len(begun) == so_far
    else:
        pytest.fail("there was no interrupt")
