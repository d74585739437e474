"""A lock for all threads of all processes of a store."""

from __future__ import annotations

import os
import threading

import pytest

from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.store_wide_lock import StoreWideLock
from eoslog.errors import StoreInUseError

INDEX = 3


@pytest.fixture
def page(tmp_path) -> SharedPage:
    return SharedPage(str(tmp_path / "shared"), bytes(range(16)), True)


@pytest.fixture
def held(page):
    """Another thread has it by another object, as another process would."""
    has_it, over = threading.Event(), threading.Event()

    def hold() -> None:
        with page.held(INDEX):
            has_it.set()
            assert over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_it.wait(60)
    yield over
    over.set()
    thread.join()


def test_who_waited_for_too_long_is_told_for_how_long_and_by_whom(page, held):
    lock = StoreWideLock(page, INDEX, 0.05)
    told = rf"process {os.getpid()} has held lock {INDEX} of .*shared for longer than 0.05 s"
    with pytest.raises(StoreInUseError, match=told):
        lock.acquire()
    assert not lock.acquire(False)
    held.set()


def test_it_is_had_once_the_other_gives_it_back(page, held):
    lock = StoreWideLock(page, INDEX, 60)
    threading.Timer(0.1, held.set).start()
    with lock:
        assert lock.acquire(False)  # A thread may take it more than once.
        lock.release()
        assert not lock.holder_died
    assert lock.acquire(False)
    lock.release()
