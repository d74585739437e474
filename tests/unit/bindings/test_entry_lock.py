"""The lock of a transactional id: of one process, and of all that share a page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from harness.fork import Fork
from harness.system_abilities import needs_robust_mutexes
from partition_files import CONFIG, PARTITION, TOPIC, PartitionFiles

from eoslog.bindings import shared_page
from eoslog.bindings.entry_lock import UNKNOWN_OFFSET, AllKeysHeld, EntryLock
from eoslog.bindings.lock_block import IfFree
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.shared_page import LOCKS_OF_KEYS, SharedPage
from eoslog.errors import CorruptRecordError, StoreInUseError

ID = "my-txn"


@pytest.fixture
def page(tmp_path) -> SharedPage:
    return SharedPage(str(tmp_path / "shared"), bytes(range(16)), True)


def opened(files: PartitionFiles, page: SharedPage) -> PartitionLog:
    log = PartitionLog(
        str(files.directory),
        topic=TOPIC,
        partition=PARTITION,
        control_path=str(files.control),
        spare_path=str(files.spare),
        cut_path=str(files.cut),
        config=CONFIG,
        clean=True,
        session=page.session,
        shared=page,
    )
    log.restore_producers(None, 0)
    return log


@pytest.fixture
def files(tmp_path, page) -> Iterator[PartitionFiles]:
    files = PartitionFiles(tmp_path / "state")
    files.log = opened(files, page)
    yield files
    files.log.close(False)


@pytest.fixture
def other_log(files, page) -> Iterator[PartitionLog]:
    """The same log, as another process has it."""
    log = opened(files, page)
    assert log.attached
    yield log
    log.detach()


class Keeper:
    """Remembers what it was asked for, and does what it is told."""

    def __init__(self, log=None):
        self.log = log
        self.asked = []
        self.error = None

    def catch_up_for(self, transactional_id):
        self.asked.append(("catch up", transactional_id))
        if self.error is not None:
            raise self.error
        self.log.own_end = self.log.log_end_offset

    def refresh(self, transactional_id, offset):
        self.asked.append((transactional_id, offset))
        if self.error is not None:
            raise self.error


class Elsewhere:
    """Another thread that holds a lock until the block's end."""

    def __init__(self, lock):
        self.lock = lock
        self.has_it, self.end = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._hold)

    def _hold(self):
        with self.lock:
            self.has_it.set()
            self.end.wait(60)

    def __enter__(self):
        self.thread.start()
        self.has_it.wait(60)
        return self

    def __exit__(self, *error):
        self.end.set()
        self.thread.join(60)


@pytest.fixture(params=["private", "shared"])
def lock(request, page) -> EntryLock:
    return EntryLock() if request.param == "private" else EntryLock(page, ID)


def test_a_thread_takes_it_more_than_once(lock):
    with lock, lock:
        assert lock.acquire()
        assert lock.acquire(blocking=False)
        lock.release()
        lock.release()
    with Elsewhere(lock):
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)
    lock.release()


def test_who_does_not_hold_it_cannot_give_it_back(lock):
    with pytest.raises(RuntimeError, match="is not held by this thread"):
        lock.release()
    with Elsewhere(lock), pytest.raises(RuntimeError):
        lock.release()
    with lock:
        pass


def test_threads_of_one_process_wait_as_long_as_it_takes(lock, monkeypatch):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.05)
    with Elsewhere(lock) as elsewhere:
        begun_s = time.monotonic()
        threading.Timer(0.5, elsewhere.end.set).start()
        with lock:
            assert time.monotonic() - begun_s > 0.3


def test_an_interrupt_ends_the_waiting(lock):
    with Elsewhere(lock):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            lock.acquire()
        timer.join()
    with lock:
        pass


def test_work_is_done_if_it_is_free(lock):
    done = []
    with IfFree(lock) as held:
        assert held
        done.append(1)
    with pytest.raises(ZeroDivisionError), IfFree(lock):
        done.append(1 // 0)
    with Elsewhere(lock), IfFree(lock) as held:
        assert not held
    assert done == [1]
    with lock:
        pass


@needs_robust_mutexes
def test_another_process_that_hangs_is_named(page, monkeypatch):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.2)
    lock = EntryLock(page, ID)

    def hang(fork):
        kept = SharedPage(page.path, page.session, False)
        kept.lock(lock.index)
        fork.say("holds")
        fork.wait()

    with Fork(hang) as child:
        child.hear()
        with pytest.raises(StoreInUseError, match=f"{ID!r}: process {child.pid} is at work on it"):
            lock.acquire()
        assert not lock.acquire(blocking=False)
    with lock:  # Its holder died.
        pass


def test_ids_of_one_hash_share_a_lock(page):
    first = EntryLock(page, ID)
    twin = next(
        f"id-{number}"
        for number in range(100_000)
        if SharedPage.lock_of(f"id-{number}".encode()) == first.index
    )
    second = EntryLock(page, twin)
    with first, second:  # One thread may have both.
        pass
    with Elsewhere(first):
        assert not second.acquire(blocking=False)


def test_who_takes_it_first_looks_at_the_newest_record(page, files):
    keeper = Keeper(files.log)
    lock = EntryLock(page, ID, files.log, keeper)
    assert lock.newer_offset == UNKNOWN_OFFSET
    with lock:
        assert keeper.asked == [(ID, UNKNOWN_OFFSET)]
        with lock:
            pass
    with lock:
        pass
    assert len(keeper.asked) == 1


def test_what_others_appended_is_taken_in(page, files, other_log):
    keeper = Keeper(files.log)
    lock = EntryLock(page, ID, files.log, keeper)
    with lock:
        keeper.asked.clear()
        files.log.append_columns([b"own"], timestamp_ms=1)  # Known to whoever appended it.
    with lock:
        assert keeper.asked == []
    other_log.append_columns([b"another's"], timestamp_ms=1)
    with lock:
        assert keeper.asked == [("catch up", ID)]
        with lock:
            pass
    lock.note_newer(7)
    lock.note_newer(5)
    with lock:
        assert keeper.asked == [("catch up", ID), (ID, 7)]
    assert lock.newer_offset == -1


def test_what_cannot_be_read_leaves_it_free_and_is_asked_again(page, files, other_log):
    keeper = Keeper(files.log)
    lock = EntryLock(page, ID, files.log, keeper)
    keeper.error = CorruptRecordError("path", 3, "broken")
    for take in (lock.acquire, lambda: lock.acquire(blocking=False), lock.__enter__):
        with pytest.raises(CorruptRecordError):
            take()
        assert lock.newer_offset == UNKNOWN_OFFSET
    with pytest.raises(CorruptRecordError), IfFree(lock):
        pass
    keeper.error = None
    with Elsewhere(lock):
        pass
    keeper.error = KeyboardInterrupt()
    other_log.append_columns([b"another's"], timestamp_ms=1)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    keeper.error = None
    with Elsewhere(lock):
        pass


def test_a_closed_log_is_not_followed(page, files, other_log):
    keeper = Keeper(files.log)
    lock = EntryLock(page, ID, files.log, keeper)
    other_log.append_columns([b"another's"], timestamp_ms=1)
    files.log.close(False)
    with lock:
        assert keeper.asked == [(ID, UNKNOWN_OFFSET)]


def test_a_log_is_needed_to_follow_it(page):
    with pytest.raises(ValueError, match="needs the log"):
        EntryLock(page, ID, None, Keeper())


def test_all_keys_at_once_or_not_at_all(page):
    lock = EntryLock(page, ID)
    with AllKeysHeld(page, if_free=True) as has_them:
        assert has_them
        taken = []
        thread = threading.Thread(
            target=lambda: taken.append([page.try_lock(one) for one in range(LOCKS_OF_KEYS)])
        )
        thread.start()
        thread.join()
        assert taken == [[False] * LOCKS_OF_KEYS]
        with lock:  # This thread may.
            pass
    with Elsewhere(lock), AllKeysHeld(page, if_free=True) as has_them:
        assert not has_them
    with AllKeysHeld(page, if_free=True) as has_them:
        assert has_them


def test_all_keys_are_waited_for(page, monkeypatch):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.05)
    lock = EntryLock(page, ID)
    with Elsewhere(lock) as elsewhere:
        threading.Timer(0.3, elsewhere.end.set).start()
        with AllKeysHeld(page) as has_them:
            assert has_them
    held = AllKeysHeld(page)
    with held, pytest.raises(RuntimeError, match="a block of its own"):
        held.__enter__()
    with Elsewhere(lock):
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            with AllKeysHeld(page):
                pass
        timer.join()
    with Elsewhere(EntryLock(page, "another")), Elsewhere(lock):
        pass  # None was left held.


CLOSED_UNDER_A_WAITER = """
import sys, threading, time
from eoslog.bindings.shared_page import SharedPage

sys.setswitchinterval(1.0)
pages = []

def made(name):
    return SharedPage(f"{sys.argv[1]}-{name}", bytes(16), True)

def take_and_go_on(ready):
    page, other = pages[0], made("other")
    ready.set()
    page.lock(7)
    page.unlock(7)
    del page
    while pages:
        time.sleep(0.001)
    # Robust mutexes are in a list of the thread's, which goes through those that it holds.
    for index in range(3):
        other.lock(index), other.lock(index + 1), other.unlock(index + 1), other.unlock(index)

for number in range(60):
    pages.append(made("page"))
    pages[0].lock(7)
    ready = threading.Event()
    waiting = threading.Thread(target=take_and_go_on, args=(ready,))
    waiting.start()
    ready.wait()
    time.sleep(0.002)
    pages[0].unlock(7)
    for _ in range(number * 500):
        pass
    pages[0].close()  # The other one has the lock by now, and waits for the interpreter.
    pages.clear()
    waiting.join()
print("done")
"""


def test_a_page_that_is_let_go_of_while_a_thread_waits_for_a_lock(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_UNDER_A_WAITER, str(tmp_path / "shared")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
