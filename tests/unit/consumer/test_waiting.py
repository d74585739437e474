"""Threads that wait: readers for appends, producers for their linger time."""

import signal as signal_module
import subprocess
import sys
import threading
import time

import pytest
from harness.waiting import eventually

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.shared_page import ALL_BITS, SharedPage
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.producer.linger import LingerTimer
from eoslog.session.append_signal import AppendSignal


def test_a_signal_wakes_those_who_wait_and_only_when_ready(shared):
    signal, state, woken = AppendSignal(shared), [], []

    def wait():
        woken.append(signal.wait([], lambda: len(state) == 2, 30))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(2):
        time.sleep(0.05)
        assert woken == []
        state.append(number)
        signal.wake()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 3


def test_a_wait_ends_with_its_time(shared):
    signal = AppendSignal(shared)
    assert signal.wait([], lambda: False, 0.05) is False
    assert signal.wait([], lambda: True, 0) is True


def test_an_append_between_look_and_wait_is_not_missed(shared):
    signal = AppendSignal(shared)
    ready = threading.Event()

    def is_ready():
        if not ready.is_set():
            # The append happens while the waiter looks: too late for this look.
            appender = threading.Thread(target=lambda: (ready.set(), signal.wake()))
            appender.start()
            time.sleep(0.1)
            return False
        return True

    began_s = time.monotonic()
    assert signal.wait([], is_ready, 20) is True
    assert time.monotonic() - began_s < 10


class Watched:
    """A partition of which others are woken when they want it: as the engine's publish does."""

    def __init__(self, shared):
        self._shared, self.wanted, self.count = shared, False, 0

    def want_wakeup(self):
        self.wanted = True
        return ALL_BITS

    def append(self):
        self.count += 1
        if self.wanted:
            self.wanted = False
            self._shared.wake()


@pytest.fixture
def shared(tmp_path):
    return SharedPage(str(tmp_path / "shared"), bytes(16), True)


def test_processes_are_woken_by_appends_they_want_and_by_no_others(shared):
    signal, wanted, other = AppendSignal(shared), Watched(shared), Watched(shared)
    looks = []

    def is_ready():
        looks.append(wanted.count)
        return wanted.count > 0

    thread = threading.Thread(target=signal.wait, args=([wanted], is_ready, 30))
    begun_s = time.monotonic()
    thread.start()
    eventually(lambda: looks)
    other.append()
    time.sleep(0.1)
    # By itself it looks after each second, at the end of its sleep and before the next one.
    assert len(looks) <= 1 + 2 * (time.monotonic() - begun_s), "an append there wakes nobody"
    wanted.append()
    thread.join(30)
    assert looks[-1] == 1
    assert not other.wanted


def test_another_process_wakes_whoever_sleeps(shared, tmp_path):
    signal, begun_s = AppendSignal(shared), time.monotonic()
    code = (
        "import sys, time\nfrom eoslog.bindings.shared_page import SharedPage\n"
        "page = SharedPage(sys.argv[1], bytes(16), False)\n"
        "page.raise_counter(31)\npage.wake()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "shared")])
    assert signal.wait([], lambda: shared.counter(31) == 1, 30) is True
    assert time.monotonic() - begun_s < 25
    assert child.wait() == 0


def test_a_shared_wait_ends_with_its_time_and_with_a_wake(shared):
    signal, looks = AppendSignal(shared), []
    assert signal.wait([], lambda: False, 0.05) is False
    assert signal.wait([], lambda: True, 0) is True
    # A change between the look and the sleep is not missed.
    took_s = []
    for _ in range(3):
        looks.clear()
        begun_s = time.monotonic()
        assert signal.wait([], lambda: looks or looks.append(signal.wake()), 20)
        took_s.append(time.monotonic() - begun_s)
    assert min(took_s) < 0.9


def test_a_partition_that_is_closed_ends_the_wait(shared):
    class Closed:
        def want_wakeup(self):
            raise LogClosedError("closed")

    with pytest.raises(LogClosedError):
        AppendSignal(shared).wait([Closed()], lambda: False, 10)


@pytest.mark.parametrize("wait", ["consumer.poll(timeout=60)", "[r for r in consumer]"])
def test_an_interrupt_ends_a_wait(tmp_path, wait):
    code = (
        "import sys, eoslog\n"
        "store = eoslog.open(sys.argv[1], create=True, durability='process')\n"
        "store.create_topic('t')\n"
        "consumer = store.consumer()\n"
        "consumer.assign([eoslog.TopicPartition('t', 0)])\n"
        f"try:\n    print('waits', flush=True)\n    {wait}\n"
        "except KeyboardInterrupt:\n"
        "    with store.producer() as producer:\n        producer.send('t', b'v')\n"
        "    print(len(consumer.poll(timeout=60)), flush=True)\n"
        "    store.close()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "waits\n"
    time.sleep(0.2)
    child.send_signal(signal_module.SIGINT)
    # Long before the time of the wait is over.
    assert child.communicate(timeout=40)[0] == "1\n"
    assert child.returncode == 0


class Lingerer:
    def __init__(self, *agains):
        self.agains, self.calls_s = list(agains), []

    def __call__(self):
        self.calls_s.append(time.monotonic())
        return self.agains.pop(0) if self.agains else None


@pytest.fixture
def timer():
    made = LingerTimer()
    yield made
    made.stop()


def test_a_producer_is_called_once_when_its_time_has_come(timer):
    producer, began_s = Lingerer(), time.monotonic()
    with timer.lock:  # The first time cannot come before the second is asked for.
        timer.add(producer, 0.1)
        timer.add(producer, 0.0)
    eventually(lambda: producer.calls_s)
    assert producer.calls_s[0] - began_s >= 0.1
    time.sleep(0.15)
    assert len(producer.calls_s) == 1


def test_the_first_to_be_due_is_called_first(timer):
    late, early = Lingerer(), Lingerer()
    timer.add(late, 3600)
    timer.add(early, 0.05)
    eventually(lambda: early.calls_s)
    assert late.calls_s == []


def test_who_says_again_is_called_again(timer):
    producer = Lingerer(0.01, 0.01)
    timer.add(producer, 0)
    eventually(lambda: len(producer.calls_s) == 3)


def test_who_was_removed_or_waits_at_a_stop_is_not_called(timer):
    removed, other, stopped = Lingerer(), Lingerer(), Lingerer()
    with timer.lock:  # Its time does not come in between.
        timer.add(removed, 0.05)
        timer.remove(removed)
    timer.add(other, 0.1)
    eventually(lambda: other.calls_s)
    timer.add(stopped, 3600)
    timer.stop()
    timer.add(stopped, 0)
    time.sleep(0.1)
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
