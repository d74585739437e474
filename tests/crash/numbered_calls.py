"""A process that dies before the n-th call that changes a file, for every n.

The calls are counted by a library that has to be preloaded: `run` starts an interpreter with it. In
there `die_before` forks a child for each number, so that a death costs no start of an interpreter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from c_library import built_library

SOURCE = Path(__file__).with_name("numbered_calls.c")
TESTS = Path(__file__).parents[1]


def run(module: str, folder: Path, *arguments: str) -> str:
    """Run a module of the tests with the library preloaded; what it printed. Skips without cc."""
    library = built_library(SOURCE, folder)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"LD_PRELOAD": str(library), "PYTHONHASHSEED": "0"},
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def arm(folder: Path, number: int) -> None:
    """Count from here on in this process, and die before the call of that number; 0: never."""
    calls = ctypes.CDLL(None)
    calls.numbered_arm.argtypes = [ctypes.c_char_p, ctypes.c_long]
    calls.numbered_arm(os.fsencode(folder), number)


def count() -> int:
    calls = ctypes.CDLL(None)
    calls.numbered_count.restype = ctypes.c_long
    return int(calls.numbered_count())


def dies_before(number: int, folder: Path, work: Callable[[], None]) -> bool:
    """Do the work in a forked child; whether it died before the call of that number."""
    child = os.fork()
    if child == 0:
        try:
            arm(folder, number)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"call {number}: signal {status}"
        return True
    assert os.WEXITSTATUS(status) == 0, f"call {number}: the child failed; see its traceback"
    return False
