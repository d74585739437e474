"""A process that dies before the n-th call that changes a file, for every n.

The calls are counted by a library that has to be preloaded: `run` starts an interpreter with it. In
there `die_before` forks a child for each number, so that a death costs no start of an interpreter.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from c_library import built_library
from harness.fork import dies_in_child

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

    def armed() -> None:
        arm(folder, number)
        work()

    return dies_in_child(armed)
