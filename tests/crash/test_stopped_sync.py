"""A process that has the turn to sync and does not go on: the others sync without it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.shared_log import FIELDS, SharedLog
from harness.fork import Fork

pytestmark = pytest.mark.crash

SYNC_LOCK = 192
_LIBC = ctypes.CDLL(None)


class Turn:
    """The turn to sync of a log, taken as the engine takes it."""

    def __init__(self, shared: SharedLog) -> None:
        self._file = shared.control.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 4096)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def take(self) -> None:
        assert _LIBC.pthread_mutex_lock(ctypes.c_void_p(self._address + SYNC_LOCK)) == 0
        self._set("sync_holder", os.getpid())

    def end(self) -> None:
        assert _LIBC.pthread_mutex_unlock(ctypes.c_void_p(self._address + SYNC_LOCK)) == 0
        self._set("sync_round", self.get("sync_round") + 1)

    def get(self, name: str) -> int:
        place, _ = FIELDS[name]
        return ctypes.c_uint32.from_address(self._address + place).value

    def _set(self, name: str, value: int) -> None:
        place, _ = FIELDS[name]
        ctypes.c_uint32.from_address(self._address + place).value = value


@pytest.fixture
def shared(tmp_path: Path) -> SharedLog:
    return SharedLog(tmp_path / "log")


@pytest.fixture
def holder(shared: SharedLog) -> Iterator[int]:
    """A process that has the turn until SIGUSR1 comes, and then ends it."""
    shared.open().close(clean=False)

    def hold(fork: Fork) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        turn = Turn(shared)
        turn.take()
        fork.say("holds")
        signal.sigwait([signal.SIGUSR1])
        turn.end()
        signal.sigwait([signal.SIGUSR1])

    with Fork(hold) as fork:
        fork.hear()
        yield fork.pid


def test_the_others_sync_without_a_holder_that_does_not_go_on(shared: SharedLog, holder: int):
    log, turn = shared.open(), Turn(shared)
    for number in range(3):
        end = log.append_columns([b"%d" % number], timestamp_ms=1).last_offset + 1
        if number == 1:
            log.flush()
        else:
            log.sync_up_to(end)
        assert log.recovery_point == end
        assert turn.get("sync_holder") == holder
    assert log.sync_count == 3
    # It goes on, and the turn is shared as before.
    os.kill(holder, signal.SIGUSR1)
    while turn.get("sync_holder") == holder:
        end = log.append_columns([b"more"], timestamp_ms=1).last_offset + 1
        log.sync_up_to(end)
    assert turn.get("sync_holder") == os.getpid()
    assert log.recovery_point == end
    log.close(clean=False)


def test_threads_that_sync_without_the_turn_leave_nothing_unsynced(shared: SharedLog, holder: int):
    log = shared.open()
    wrong: list[int] = []

    def write() -> None:
        for number in range(20):
            end = log.append_columns([b"%d" % number], timestamp_ms=1).last_offset + 1
            log.sync_up_to(end)
            if log.recovery_point < end:
                wrong.append(end)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert log.recovery_point == log.log_end_offset == 80
    log.close(clean=False)


def test_a_holder_that_dies_leaves_the_turn_to_the_next(shared: SharedLog, holder: int):
    log, turn = shared.open(), Turn(shared)
    os.kill(holder, signal.SIGKILL)
    os.waitid(os.P_PID, holder, os.WEXITED | os.WNOWAIT)  # It may take a while to die.
    end = log.append_columns([b"x"], timestamp_ms=1).last_offset + 1
    log.sync_up_to(end)
    assert log.recovery_point == end
    assert turn.get("sync_holder") == os.getpid()
    log.close(clean=False)
