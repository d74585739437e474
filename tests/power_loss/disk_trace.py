"""What a process did to the files of a store, in its order, as `disk_trace.c` wrote it down."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("disk_trace.c")
NUMBERS = struct.Struct("<4Q")

BEGUN, CREATED, FOLDER, REMOVED, RENAMED, MOVED, SIZED, WRITTEN, SYNCED, MARK = "bcdurvswym"


class NoCompilerError(Exception):
    """There is no C compiler to build the library with."""


class Event(NamedTuple):
    kind: str
    inode: int
    number: int
    first: bytes
    second: bytes


def build_library(folder: Path) -> Path:
    """Compile the library that has to be preloaded."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompilerError
    library = folder / "disk_trace.so"
    flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def begin(folder: Path, trace: Path) -> None:
    """Write down, from now on, what this process does below the folder."""
    calls = ctypes.CDLL(None)
    calls.trace_begin(os.fsencode(folder), os.fsencode(trace))


def mark(**fields: Any) -> None:
    """Put a note among the events."""
    ctypes.CDLL(None).trace_mark(json.dumps(fields).encode())


def end() -> None:
    ctypes.CDLL(None).trace_end()


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
