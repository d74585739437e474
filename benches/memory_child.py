"""A process that has no store, and moves as many bytes through memory as a writer or reader has to.

python benches/memory_child.py BYTES

Commands and answers are lines, as those of `process_child`. Copies are stored past the caches, as
large batches are: the C library does that above a size, which the bench sets by GLIBC_TUNABLES.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy
from process_child import wait_until

PIECE_BYTES = 1 << 20
SOURCES = 4


class Memory:
    """Sources that fit into a cache, and memory that does not."""

    def __init__(self, total_bytes: int) -> None:
        self._count = max(1, total_bytes // PIECE_BYTES)
        generator = numpy.random.default_rng(1)
        self._sources = [
            generator.integers(0, 255, PIECE_BYTES, numpy.uint8) for _ in range(SOURCES)
        ]
        # Written once, so that all of it is there.
        self._memory = numpy.ones((self._count, PIECE_BYTES), numpy.uint8)

    def copy(self, start_ns: int) -> list[int]:
        """Fill the memory, from a moment on: when each piece was in."""
        ends_ns = []
        wait_until(start_ns)
        for index in range(self._count):
            self._memory[index] = self._sources[index % SOURCES]
            ends_ns.append(time.perf_counter_ns())
        return ends_ns

    def read(self, start_ns: int, duration_ns: int) -> list[int]:
        """Copy the memory out piece by piece, spread over so long; as who reads at a tail does."""
        wait_until(start_ns)
        for index in range(self._count):
            wait_until(start_ns + duration_ns * (index + 1) // self._count)
            self._sources[index % SOURCES][:] = self._memory[index]
        return []


def main() -> None:
    memory = Memory(int(sys.argv[1]))
    commands: dict[str, Any] = {"copy": memory.copy, "read": memory.read}
    print("{}", flush=True)
    while line := sys.stdin.buffer.readline():
        name, *numbers = line.decode().split()
        print(json.dumps(commands[name](*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
