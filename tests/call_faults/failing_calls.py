"""Calls to the operating system that fail when they are told to; see `failing_calls.c`."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from c_library import built_library

SOURCE = Path(__file__).with_name("failing_calls.c")
KINDS = (
    *("none", "open", "map", "truncate", "reserve", "write", "sync", "rename", "link", "unlink"),
    *("make_folder", "memory", "change", "begin", "queue"),
)


def build_library(folder: Path) -> Path:
    """Compile the library that has to be preloaded."""
    return built_library(SOURCE, folder)


def arm(folder: Path, kind: str, number: int, error: int, *, again: bool) -> None:
    """Let the call of this number fail, from 1, and with `again` all of its kind that follow."""
    calls = ctypes.CDLL(None)
    calls.failing_arm.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 1, ctypes.c_long] + [
        ctypes.c_int
    ] * 2
    calls.failing_arm(os.fsencode(folder), KINDS.index(kind), number, error, int(again))


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


def move_clock(milliseconds: int) -> None:
    """Set the wall clock, as this process sees it, off by so much."""
    calls = ctypes.CDLL(None)
    calls.clock_move.argtypes = [ctypes.c_longlong]
    calls.clock_move(milliseconds)
