"""Calls to the operating system that fail when they are told to; see `failing_calls.c`."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from c_library import built_library

SOURCE = Path(__file__).with_name("failing_calls.c")
KINDS = (
    *("none", "open", "map", "truncate", "reserve", "write", "sync", "rename", "link", "unlink"),
    *("make_folder", "memory", "change", "begin", "queue", "every"),
)

MANNERS = ("once", "again", "overlap")


def build_library(folder: Path) -> Path:
    """Compile the library that has to be preloaded."""
    return built_library(SOURCE, folder)


def begin() -> None:
    """Count calls from 0 on, in this process and those that it forks."""
    ctypes.CDLL(None).failing_begin()


def join(folder: Path, kind: str, number: int, error: int, manner: str, file: str = "") -> None:
    """Take part in the count that `begin` began. The call of this number fails in its manner, from
    1; `file` is a pattern of the shell for paths below the folder.
    """
    calls = ctypes.CDLL(None)
    calls.failing_arm.argtypes = [
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int)
    ]
    calls.failing_arm(
        *(os.fsencode(folder), os.fsencode(file), KINDS.index(kind), number, error),
        MANNERS.index(manner),
    )


def arm(folder: Path, kind: str, number: int, error: int, *, again: bool) -> None:
    """Let the call of this number fail, from 1, and with `again` all of its kind that follow."""
    begin()
    join(folder, kind, number, error, "again" if again else "once")


def counted(kind: str) -> int:
    """How many calls of a kind there were while "every" was armed."""
    calls = ctypes.CDLL(None)
    calls.failing_counted.restype = ctypes.c_long
    return int(calls.failing_counted(KINDS.index(kind)))


def hits() -> int:
    """How many calls have failed so far."""
    return _count("failing_hits")


def overlapped() -> int:
    """How many calls of this thread hung until another one had failed."""
    return _count("failing_overlapped")


def _count(name: str) -> int:
    """What a function says; 0 without the library."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return 0
    function.restype = ctypes.c_long
    return int(function())


def reopened() -> None:
    """The logs are recovered from here on: they may be synced again. Needs no library."""
    calls = ctypes.CDLL(None)
    if hasattr(calls, "failing_reopened"):
        calls.failing_reopened()


def disarm() -> tuple[int, int, str | None]:
    """How many calls of the kind there were, how many failed, and the log that was synced again."""
    calls = ctypes.CDLL(None)
    calls.failing_disarm()
    calls.failing_count.restype = calls.failing_hits.restype = ctypes.c_long
    calls.failing_resynced.restype = ctypes.c_char_p
    resynced = calls.failing_resynced()
    found = None if resynced is None else os.fsdecode(resynced)
    return calls.failing_count(), calls.failing_hits(), found


@contextlib.contextmanager
def held(kind: str, part: str) -> Iterator[Callable[[], bool]]:
    """Have the next write at a place, or sync, of a file with this in its path stand still, once it
    is done, to the end of the block. Gives a function: True once it does.
    """
    calls = ctypes.CDLL(None)
    calls.failing_hold.argtypes = [ctypes.c_int, ctypes.c_char_p]
    calls.failing_hold(KINDS.index(kind), part.encode())
    try:
        yield lambda: bool(calls.failing_held())
    finally:
        calls.failing_release()


def refuse_queued() -> None:
    """Have the kernel take no sync that it makes meanwhile, from now on."""
    ctypes.CDLL(None).failing_refuse_queued()


def move_clock(milliseconds: int) -> None:
    """Set the wall clock, as this process sees it, off by so much."""
    calls = ctypes.CDLL(None)
    calls.clock_move.argtypes = [ctypes.c_longlong]
    calls.clock_move(milliseconds)
