"""Appends that are synced before they return, beside a bare pwrite() and fdatasync().

The peer writes the log's own bytes to a file that was filled before, so that neither side pays for
the growth of a file; single appends of both take turns.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from logs import KB, TOPIC, arrow_values, encoded_batches, open_store, random_values
from measure import percentile, record
from sizes import Sizes

from eoslog.store.store import engine_of

THREADS = 8
GROUP_RECORDS = 128


class SyncedFile:
    """A filled file that takes the same bytes over and over, each write synced."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._size_bytes = size_bytes
        self._position_bytes = 0
        for position in range(0, size_bytes, 1 << 20):
            os.pwrite(self._file, bytes(min(1 << 20, size_bytes - position)), position)
        os.fsync(self._file)

    def append(self, data: bytes) -> None:
        if self._position_bytes + len(data) > self._size_bytes:
            self._position_bytes = 0
        os.pwrite(self._file, data, self._position_bytes)
        os.fdatasync(self._file)
        self._position_bytes += len(data)

    def close(self) -> None:
        os.close(self._file)


def microseconds(action: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    action(*arguments)
    return (time.perf_counter() - begin) * 1e6


def bench_append_synced(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """One record of 1 KB a call, each synced before the call returns."""
    column = arrow_values(random_values(KB, 1))
    encoded = encoded_batches([column])[0]
    ours: list[float] = []
    bare: list[float] = []
    peer = SyncedFile(bench_path / "plain", sizes.synced_segment_bytes)
    with open_store(
        bench_path / "store", segment_bytes=sizes.synced_segment_bytes, durability="always"
    ) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        partition.prepare_spare()
        producer = store.producer()

        def run() -> None:
            for _ in range(sizes.synced_count):
                bare.append(microseconds(peer.append, encoded))
                begin = time.perf_counter()
                producer.append(TOPIC, partition=0, values=column)
                ours.append((time.perf_counter() - begin) * 1e6)

        benchmark.pedantic(run, rounds=1)
        assert partition.log_end_offset == sizes.synced_count
    peer.close()
    bare_p50, bare_p99 = statistics.median(bare), percentile(bare, 0.99)
    p50, p99 = statistics.median(ours), percentile(ours, 0.99)
    record(benchmark, "append_synced", p50, beside=f"pwrite and fdatasync: {bare_p50:.0f} µs")
    record(benchmark, "append_synced_beside_pwrite", p50 / bare_p50)
    record(benchmark, "append_synced_p99", p99, beside=f"pwrite and fdatasync: {bare_p99:.0f} µs")


def bench_append_synced_threads(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """The same by several threads at once, which share syncs."""
    column = arrow_values(random_values(KB, 1))
    each = max(1, sizes.synced_count // 2)
    latencies: list[list[float]] = [[] for _ in range(THREADS)]
    with open_store(
        bench_path / "store", segment_bytes=sizes.synced_segment_bytes, durability="always"
    ) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        producers = [store.producer() for _ in range(THREADS)]
        for producer in producers:
            producer.append(TOPIC, partition=0, values=column)

        def append_all(number: int) -> None:
            for _ in range(each):
                begin = time.perf_counter()
                producers[number].append(TOPIC, partition=0, values=column)
                latencies[number].append((time.perf_counter() - begin) * 1e6)

        def run() -> None:
            threads = [threading.Thread(target=append_all, args=(one,)) for one in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        begin = time.perf_counter()
        benchmark.pedantic(run, rounds=1)
        seconds = time.perf_counter() - begin
        assert partition.log_end_offset == THREADS * (each + 1)
    p99 = percentile([one for thread in latencies for one in thread], 0.99)
    record(
        benchmark,
        "append_synced_threads",
        THREADS * each / seconds,
        beside=f"99th percentile {p99:.0f} µs",
        p99_us=p99,
    )


def bench_flush_group(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """flush() after each group of single appends: durability `commit`."""
    value = random_values(KB, 1)[0].tobytes()
    latencies: list[float] = []
    groups = max(2, sizes.synced_count // 2)
    with open_store(
        bench_path / "store", segment_bytes=sizes.synced_segment_bytes, durability="commit"
    ) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        partition.prepare_spare()
        producer = store.producer()

        def run() -> None:
            for _ in range(groups):
                for _ in range(GROUP_RECORDS):
                    producer.send(TOPIC, value)
                latencies.append(microseconds(producer.flush))

        benchmark.pedantic(run, rounds=1)
        assert partition.log_end_offset == groups * GROUP_RECORDS
    record(
        benchmark,
        "flush_p99",
        percentile(latencies, 0.99),
        beside=f"median {statistics.median(latencies):.0f} µs",
        p50_us=statistics.median(latencies),
    )
