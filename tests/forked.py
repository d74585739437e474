"""Work that may end the process is done in a child: its death is then a test's failure."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable

import pytest

SECONDS_MAX = 120


def in_a_child(work: Callable[[], object], *, seconds: int = SECONDS_MAX) -> None:
    """Do it in a fork; an exception, a signal or a hang there fails the test here."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _work_and_exit(work, write_end, seconds)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        meaning = f"it took more than {seconds} s" if name == "SIGALRM" else "the process is dead"
        pytest.fail(f"{name}: {meaning}\n{said}", pytrace=False)
    if os.waitstatus_to_exitcode(status) != 0:
        pytest.fail(said, pytrace=False)


def as_nobody() -> None:
    """Root may enter and write everything: give that up, in this child process."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def _work_and_exit(work: Callable[[], object], write_end: int, seconds: int) -> None:
    status = 1
    faulthandler.disable()
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        work()
        status = 0
    except BaseException:
        os.write(write_end, traceback.format_exc()[-20_000:].encode())
    finally:
        os._exit(status)
