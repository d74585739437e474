"""A backup of a store that is written to: how fast it is beside `cp`, and how long appends wait.

Copies and backups take turns, while the same processes commit transactions to a disk.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from logs import BATCH_RECORDS, KB, TOPIC, arrow_batches
from measure import record
from sizes import Sizes

import eoslog

PARTITIONS = 6
WRITERS = 3
# Small transactions over two partitions, one after another, until the input ends; at the end, the
# moments at which an append had taken long, and how long.
WRITER = f"""
import json, select, sys, time
import eoslog
path, number = sys.argv[1], int(sys.argv[2])
with eoslog.open(path) as store:
    producer = store.producer(transactional_id=f"writer-{{number}}")
    producer.init_transactions()
    print("ready", flush=True)
    count, long, values = 0, [], [bytes(1000)] * 5
    while not select.select([sys.stdin], [], [], 0)[0]:
        with producer.transaction():
            for step in range(2):
                began_ns = time.perf_counter_ns()
                producer.append({TOPIC!r}, (number + count + step) % {PARTITIONS}, values)
                took_ns = time.perf_counter_ns() - began_ns
                if took_ns > 1_000_000:
                    long.append((began_ns, took_ns))
        count += 1
print(json.dumps(long))
"""


class Writers:
    """Processes that write until the block ends; `long` has their appends that took long then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._children: list[subprocess.Popen[bytes]] = []
        self.long: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        for number in range(WRITERS):
            command = [sys.executable, "-c", WRITER, str(self._path), str(number)]
            self._children.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
        for child in self._children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            said, _ = child.communicate()
            self.long += json.loads(said)

    def longest_ms(self, windows: list[tuple[int, int]]) -> float:
        """The longest append that was under way in one of these times."""
        found = [
            took
            for began, took in self.long
            if any(began < end and begin < began + took for begin, end in windows)
        ]
        return max(found, default=1_000_000) / 1e6


def copy_with_cp(store: eoslog.Store, target: Path) -> float:
    """Copy the logs as an administrator would, and sync: bytes a second."""
    target.mkdir()
    directories = [str(path) for path in store.path.glob(f"{TOPIC}-*")]
    began_s = time.perf_counter()
    subprocess.run(["cp", "-r", *directories, str(target)], check=True)
    subprocess.run(["sync", "-f", str(target)], check=True)
    took_s = time.perf_counter() - began_s
    copied = sum(path.stat().st_size for path in target.rglob("*.log"))
    shutil.rmtree(target)
    return copied / took_s


def bench_backup(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    path, target = bench_path / "store", bench_path / "copy"
    store = eoslog.open(path, create=True)
    store.create_topic(TOPIC, partitions=PARTITIONS)
    columns = arrow_batches(KB, sizes.distinct_batches)
    with store.producer() as producer:
        for index in range(sizes.store_small_bytes // (KB * BATCH_RECORDS)):
            producer.append(TOPIC, index % PARTITIONS, columns[index % len(columns)])
    store.flush()
    stops_ms: list[float] = []
    rates: list[float] = []
    ratios: list[float] = []
    # When backups were made, and when cp was at work.
    backups: list[tuple[int, int]] = []
    copies: list[tuple[int, int]] = []

    def by_cp() -> float:
        began_ns = time.perf_counter_ns()
        rate = copy_with_cp(store, target)
        copies.append((began_ns, time.perf_counter_ns()))
        return rate

    def one_round() -> None:
        before = by_cp()
        began_ns = time.perf_counter_ns()
        result = store.backup(target)
        backups.append((began_ns, time.perf_counter_ns()))
        rates.append(result.copied_bytes / (backups[-1][1] - began_ns))
        stops_ms.append(result.held_ms)
        shutil.rmtree(target)
        # The disk's speed drifts.
        ratios.append(rates[-1] * 1e9 / statistics.mean((before, by_cp())))

    with Writers(path) as writers:
        benchmark.pedantic(one_round, rounds=sizes.backup_rounds, iterations=1, warmup_rounds=0)
    store.close()
    longest_ms, beside_ms = writers.longest_ms(backups), writers.longest_ms(copies)
    record(
        benchmark,
        "backup_stop",
        max(stops_ms),
        spread=stops_ms,
        beside=f"longest append: {longest_ms:.1f} ms; while cp copied: {beside_ms:.1f} ms",
    )
    record(benchmark, "backup_rate", statistics.median(rates), spread=rates)
    record(benchmark, "backup_beside_cp", statistics.median(ratios), spread=ratios)
