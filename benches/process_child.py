"""A process that has a store open beside others, and does what the lines of its standard input say.

python benches/process_child.py STORE

Each line is a name of `COMMANDS` with its numbers; the answer is a line of JSON. Moments are those
of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from logs import KB, TOPIC, arrow_batches, renew_segments

import eoslog
from eoslog import TopicPartition
from eoslog.store.store import engine_of, parts_of

SMALL_BYTES = 100
MOMENT_BYTES = 8
COUNT_TO = 200  # Takes about as long as a small append.


class Child:
    """The open store and what was made of it."""

    def __init__(self, path: str) -> None:
        self.store = eoslog.open(path, durability="process")
        self.producer = self.store.producer()
        self._columns: list[Any] = []
        self._consumers: dict[int, Any] = {}

    def prepare(self, partition: int) -> None:
        """Have the partition open and the columns made."""
        self.store.partition(TOPIC, partition)
        self._columns = arrow_batches(KB, 4)

    def look(self, partition: int) -> dict[str, int]:
        """Take in what others appended: before their segments go."""
        return {"end": self.store.partition(TOPIC, partition).log_end_offset}

    def renew(self, partition: int) -> None:
        """Make the full segments' files usable again."""
        renew_segments(engine_of(self.store).partition(TOPIC, partition))

    def append(self, partition: int, batch_count: int, start_ns: int) -> list[int]:
        """Batches of 1,000 records of 1 KB, from a moment on: when each was in."""
        ends_ns = []
        wait_until(start_ns)
        for index in range(batch_count):
            column = self._columns[index % len(self._columns)]
            self.producer.append(TOPIC, partition=partition, values=column)
            ends_ns.append(time.perf_counter_ns())
        return ends_ns

    def append_small(
        self, partition: int, record_count: int, start_ns: int, end_ns: int
    ) -> dict[str, int]:
        """Small batches between two moments: how many, and the longest time without one."""
        values = [os.urandom(SMALL_BYTES) for _ in range(record_count)]
        wait_until(start_ns)
        count, pause_ns, last_ns = 0, 0, start_ns
        while last_ns < end_ns:
            self.producer.append(TOPIC, partition=partition, values=values)
            now_ns = time.perf_counter_ns()
            pause_ns = max(pause_ns, now_ns - last_ns)
            last_ns = now_ns
            count += 1
        return {"count": count, "pause_ns": pause_ns}

    def count(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Nothing but counting between two moments: the longest time in which it stood still."""
        wait_until(start_ns)
        pause_ns, last_ns = 0, start_ns
        while last_ns < end_ns:
            sum(range(COUNT_TO))
            now_ns = time.perf_counter_ns()
            pause_ns = max(pause_ns, now_ns - last_ns)
            last_ns = now_ns
        return {"pause_ns": pause_ns}

    def append_for_ever(self, partition: int) -> None:
        """Say so, and append until killed."""
        print("{}", flush=True)
        while True:
            for column in self._columns:
                self.producer.append(TOPIC, partition=partition, values=column)

    def watch(self, partition: int, count: int) -> list[int]:
        """Wait for single records that hold the moment of their sending: ns from then to here."""
        consumer = self._tail(partition)
        print("{}", flush=True)
        latencies_ns = []
        while len(latencies_ns) < count:
            records = consumer.poll(timeout=60)
            now_ns = time.perf_counter_ns()
            latencies_ns += [now_ns - int.from_bytes(one.value, "big") for one in records]
        return latencies_ns

    def watch_word(self, count: int) -> list[int]:
        """The same with nothing but the wake-up word, which rises when a moment is told."""
        word = parts_of(self.store).files.signal.sleeper()
        print("{}", flush=True)
        latencies_ns: list[int] = []
        told = 0
        while told < count:
            word.look()
            word.sleep(60)
            woken_ns = time.perf_counter_ns()
            # Past the buffer; a wake-up that was missed leaves its moment in front of the newest.
            sent = os.read(sys.stdin.fileno(), MOMENT_BYTES * count)
            told += len(sent) // MOMENT_BYTES
            latencies_ns.append(woken_ns - int.from_bytes(sent[-MOMENT_BYTES:], "big"))
        return latencies_ns

    def watch_pipe(self, count: int) -> list[int]:
        """The same over standard input: what two processes take without a log."""
        print("{}", flush=True)
        latencies_ns = []
        for _ in range(count):
            sent = sys.stdin.buffer.read(MOMENT_BYTES)
            latencies_ns.append(time.perf_counter_ns() - int.from_bytes(sent, "big"))
        return latencies_ns

    def tail(self, partition: int, count: int) -> dict[str, int]:
        """Read so many records at the end of the log while they are being written."""
        consumer = self._tail(partition)
        print("{}", flush=True)
        rows = batches = 0
        while rows < count:
            rows += consumer.poll_arrow(timeout=60).num_rows
            batches += 1
        return {"rows": rows, "batches": batches}

    def _tail(self, partition: int) -> Any:
        consumer = self._consumers.get(partition)
        if consumer is None:
            consumer = self._consumers[partition] = self.store.consumer()
            consumer.assign([TopicPartition(TOPIC, partition)])
        consumer.seek_to_end()
        return consumer


def wait_until(moment_ns: int) -> None:
    while (left_ns := moment_ns - time.perf_counter_ns()) > 0:
        time.sleep(left_ns / 2e9)


COMMANDS: dict[str, Callable[..., Any]] = {
    method.__name__: method
    for method in (
        Child.prepare,
        Child.look,
        Child.renew,
        Child.append,
        Child.append_small,
        Child.append_for_ever,
        Child.count,
        Child.watch,
        Child.watch_pipe,
        Child.watch_word,
        Child.tail,
    )
}


def main() -> None:
    child = Child(sys.argv[1])
    print("{}", flush=True)
    # By the buffer: what follows a line is for the command.
    while line := sys.stdin.buffer.readline():
        name, *numbers = line.decode().split()
        print(json.dumps(COMMANDS[name](child, *map(int, numbers)) or {}), flush=True)
    child.store.close()


if __name__ == "__main__":
    main()
