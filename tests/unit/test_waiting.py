"""Threads that wait: readers for appends, producers for their linger time."""

import threading
import time

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.append_signal import AppendSignal
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.linger import LingerTimer


def test_a_signal_wakes_those_who_wait_and_only_when_ready():
    signal, state, woken = AppendSignal(), [], []

    def wait():
        woken.append(signal.wait(lambda: len(state) == 2, 30))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2):
        time.sleep(0.05)
        assert woken == []
        state.append(number)
        signal.appended()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 3


def test_a_wait_ends_with_its_time():
    signal = AppendSignal()
    assert signal.wait(lambda: False, 0.05) is False
    assert signal.wait(lambda: True, 0) is True


def test_an_append_between_look_and_wait_is_not_missed():
    signal = AppendSignal()
    ready = threading.Event()

    def is_ready():
        if not ready.is_set():
            # The append happens while the waiter looks: too late for this look.
            appender = threading.Thread(target=lambda: (ready.set(), signal.appended()))
            appender.start()
            time.sleep(0.1)
            return False
        return True

    began_s = time.monotonic()
    assert signal.wait(is_ready, 20) is True
    assert time.monotonic() - began_s < 10


class Lingerer:
    def __init__(self, *agains):
        self.agains, self.calls_s = list(agains), []

    def append_lingering(self):
        self.calls_s.append(time.monotonic())
        return self.agains.pop(0) if self.agains else None


@pytest.fixture
def timer():
    made = LingerTimer()
    yield made
    made.stop()


def eventually(condition):
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_producer_is_called_once_when_its_time_has_come(timer):
    producer, began_s = Lingerer(), time.monotonic()
    timer.add(producer, 0.1)
    timer.add(producer, 0.0)
    eventually(lambda: producer.calls_s)
    assert producer.calls_s[0] - began_s >= 0.1
    time.sleep(0.15)
    assert len(producer.calls_s) == 1


def test_the_first_to_be_due_is_called_first(timer):
    late, early = Lingerer(), Lingerer()
    timer.add(late, 0.3)
    timer.add(early, 0.05)
    eventually(lambda: early.calls_s and late.calls_s)
    assert early.calls_s[0] < late.calls_s[0]


def test_who_says_again_is_called_again(timer):
    producer = Lingerer(0.01, 0.01)
    timer.add(producer, 0)
    eventually(lambda: len(producer.calls_s) == 3)


def test_who_was_removed_or_waits_at_a_stop_is_not_called(timer):
    removed, stopped = Lingerer(), Lingerer()
    timer.add(removed, 0.1)
    timer.add(stopped, 0.1)
    timer.remove(removed)
    timer.stop()
    timer.add(stopped, 0)
    time.sleep(0.2)
    assert removed.calls_s == stopped.calls_s == []


def test_a_waiting_reader_is_told_that_its_topic_is_deleted(tmp_path):
    with eoslog.open(tmp_path / "deleted", create=True, durability="process") as store:
        store.create_topic("gone")
        consumer = store.consumer()
        consumer.assign([TopicPartition("gone", 0)])
        timer = threading.Timer(0.2, store.delete_topic, args=("gone",))
        timer.start()
        begin_s = time.monotonic()
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.poll(timeout=60)
        assert time.monotonic() - begin_s < 30
        timer.join()
