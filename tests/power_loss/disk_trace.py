"""What a process did to the files of a store, in its order, as `disk_trace.c` wrote it down."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from c_library import built_library
from harness.crew import NurseryClient, printed_by

SOURCE = Path(__file__).with_name("disk_trace.c")
NUMBERS = struct.Struct("<4Q")

BEGUN, CREATED, FOLDER, REMOVED, RENAMED, MOVED, SIZED, WRITTEN, SYNCED, MARK = "bcdurvswym"
ALL_SYNCED = "a"
SYNC_BEGUN, SYNC_ENDED = "ge"


class Event(NamedTuple):
    kind: str
    inode: int
    number: int
    first: bytes
    second: bytes


def build_library(folder: Path) -> Path:
    """Compile the library that has to be preloaded."""
    return built_library(SOURCE, folder)


def begin(folder: Path, trace: Path) -> None:
    """Write down, from now on, what this process does below the folder."""
    calls = ctypes.CDLL(None)
    calls.trace_begin(os.fsencode(folder), os.fsencode(trace))


def mark(**fields: Any) -> None:
    """Put a note among the events."""
    ctypes.CDLL(None).trace_mark(json.dumps(fields).encode())


def end() -> None:
    ctypes.CDLL(None).trace_end()


def events_of(nursery: NurseryClient, module: str, folder: Path, *arguments: object) -> list[Event]:
    """Run a test module as a program, preloaded, and return the events that it left in the file
    "trace" of the folder; that is its first argument.
    """
    code = f"import runpy; runpy.run_module('power_loss.{module}', run_name='__main__')"
    printed_by(code, folder, *arguments, of=nursery)
    return list(read(folder / "trace"))


def read(path: Path) -> Iterator[Event]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        kind = chr(data[at])
        inode, number, first_bytes, second_bytes = NUMBERS.unpack_from(data, at + 1)
        at += 1 + NUMBERS.size
        first = data[at : at + first_bytes]
        at += first_bytes
        second = data[at : at + second_bytes]
        at += second_bytes
        yield Event(kind, inode, number, first, second)
