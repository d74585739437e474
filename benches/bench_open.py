"""Opening after a clean and after an unclean stop, and closing.

A store is open once its partition takes appends: partitions are opened when they are first used, so
opening the directory alone would say little.
"""

from __future__ import annotations

import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from logs import (
    KB,
    TOPIC,
    arrow_batches,
    encoded_batches,
    engine_log,
    fill,
    open_engine_log,
    open_store,
)
from measure import Interleaved, rates, record, round_seconds
from page_cache import disk_read_bytes, drop_from_cache
from sizes import GIB, Sizes
from unclean_child import checkpointed_offset

import eoslog

WARMUP_ROUNDS = 1
COLD_ROUNDS = 3
SPACE_FACTOR = 2.5  # Free space that is asked for, in times of the larger store.


def make_closed_store(path: Path, total_bytes: int, segment_bytes: int) -> int:
    """A cleanly closed store with so many bytes of 1 KB records in one partition; their number."""
    with open_store(path, segment_bytes=segment_bytes) as store:
        producer = store.producer()
        columns = arrow_batches(KB, 4)
        count = fill(
            lambda column: producer.append(TOPIC, partition=0, values=column), columns, total_bytes
        )
        producer.close()
    return count


class Opener:
    """Opens one store over and over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_end_offset = -1
        self._store: Any = None

    def open(self) -> None:
        self._store = eoslog.open(self.path, durability="process")
        self.log_end_offset = self._store.partition(TOPIC, 0).log_end_offset

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def bench_open(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """A small and a large store in turns: what it costs does not depend on the log's length."""
    large_bytes = sizes.store_large_bytes
    free_bytes = shutil.disk_usage(bench_path).free
    note = ""
    if free_bytes < SPACE_FACTOR * large_bytes:
        note = f"only {free_bytes / GIB:.0f} GiB free"
        large_bytes = sizes.store_fallback_bytes
        if free_bytes < SPACE_FACTOR * large_bytes:
            pytest.skip(f"{free_bytes / GIB:.1f} GiB free; {large_bytes / GIB:.0f} GiB are written")
    small, large = Opener(bench_path / "small"), Opener(bench_path / "large")
    segment_bytes = sizes.store_segment_bytes
    small_count = make_closed_store(small.path, sizes.store_small_bytes, segment_bytes)
    large_count = make_closed_store(large.path, large_bytes, segment_bytes)
    peer = Interleaved(small.open, large.close, small.close)
    benchmark.pedantic(
        large.open, setup=peer.setup, rounds=sizes.open_rounds, warmup_rounds=WARMUP_ROUNDS
    )
    large.close()
    assert (small.log_end_offset, large.log_end_offset) == (small_count, large_count)
    cold: list[float] = []
    for _ in range(COLD_ROUNDS):
        drop_from_cache(large.path)
        begin = time.perf_counter()
        large.open()
        cold.append((time.perf_counter() - begin) * 1000)
        assert large.log_end_offset == large_count
        large.close()
    small_ms = [one * 1000 for one in peer.seconds(sizes.open_rounds)]
    large_ms = [one * 1000 for one in round_seconds(benchmark)]
    said = "; ".join([f"{large_bytes / GIB:.3g} GiB of values", *([note] if note else [])])
    record(benchmark, "open_small", statistics.median(small_ms), spread=small_ms)
    record(benchmark, "open_large", statistics.median(large_ms), spread=large_ms, beside=said)
    ratio = statistics.median(large_ms) / statistics.median(small_ms)
    record(benchmark, "open_ratio", ratio)
    record(benchmark, "open_cold", statistics.median(cold), spread=cold)


def bench_recover(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """The engine's recovery of a whole log, every checksum verified, from page cache."""
    segment_bytes = max(1 << 20, sizes.recover_bytes // 8)
    columns = arrow_batches(KB, sizes.distinct_batches)
    batch_bytes = len(encoded_batches(columns[:1])[0])
    with engine_log(bench_path, segment_bytes=segment_bytes) as log:
        count = fill(
            lambda column: log.append_columns(column, timestamp_ms=1), columns, sizes.recover_bytes
        )
    # Once for the page cache; it also seals all segments but the last.
    recovered: list[Any] = []

    def run() -> None:
        recovered.append(
            open_engine_log(bench_path, clean=False, recovery_point=0, segment_bytes=segment_bytes)
        )

    def stop() -> None:
        while recovered:
            log = recovered.pop()
            assert log.log_end_offset == count
            log.close(clean=False)

    benchmark.pedantic(run, setup=stop, rounds=sizes.rounds, warmup_rounds=WARMUP_ROUNDS)
    stop()
    scanned_bytes = count // len(columns[0]) * batch_bytes
    speed = rates(scanned_bytes / 1e9, round_seconds(benchmark))
    record(
        benchmark,
        "recover",
        statistics.median(speed),
        spread=speed,
        scanned_bytes=scanned_bytes,
    )


def bench_recover_store(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """A store whose process was killed, none of it in page cache: only the tail is read."""
    path = bench_path / "store"
    segment_bytes = max(1 << 20, sizes.recover_bytes // 8)
    head_bytes = sizes.recover_bytes - sizes.tail_bytes
    child = Path(__file__).with_name("unclean_child.py")
    numbers = [segment_bytes, head_bytes, sizes.tail_bytes]
    done = subprocess.run(
        [sys.executable, str(child), str(path), *map(str, numbers)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    count = int(done.stdout)
    checkpoint = checkpointed_offset(path)
    assert 0 < checkpoint <= count
    columns = arrow_batches(KB, 1)
    batch_bytes = len(encoded_batches(columns)[0])
    tail_bytes = (count - checkpoint) // len(columns[0]) * batch_bytes
    drop_from_cache(path)
    opener = Opener(path)
    before_bytes = disk_read_bytes()
    benchmark.pedantic(opener.open, rounds=1)
    read_bytes = disk_read_bytes() - before_bytes
    assert opener.log_end_offset == count
    opener.close()
    seconds = round_seconds(benchmark)[0]
    record(
        benchmark,
        "recover_store",
        seconds * 1000,
        beside=f"{tail_bytes / 1e6:.0f} MB past the checkpoint, read from disk",
    )
    if read_bytes > 0 and tail_bytes > 0:
        record(
            benchmark,
            "recover_share",
            read_bytes / tail_bytes,
            beside=f"{read_bytes / 1e6:.0f} MB read of {sizes.recover_bytes / 1e6:.0f} MB",
            read_bytes=read_bytes,
            tail_bytes=tail_bytes,
        )


def bench_close(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """close() after a flush(), with a few more records appended in between."""
    path = bench_path / "store"
    make_closed_store(path, sizes.tail_bytes, sizes.store_segment_bytes)
    column = arrow_batches(KB, 1)[0]
    stores: list[Any] = []

    def setup() -> None:
        store = eoslog.open(path, durability="commit")
        producer = store.producer()
        producer.append(TOPIC, partition=0, values=column)
        producer.flush()
        stores.append(store)

    def run() -> None:
        stores[-1].close()

    benchmark.pedantic(run, setup=setup, rounds=sizes.open_rounds)
    assert not path.joinpath("state", "lock").is_dir()
    milliseconds = [one * 1000 for one in round_seconds(benchmark)]
    record(benchmark, "close_synced", statistics.median(milliseconds), spread=milliseconds)


@pytest.mark.parametrize("command", ["topics", "groups", "transactions"])
def bench_listing(benchmark: Any, bench_path: Path, sizes: Sizes, command: str) -> None:
    """A command that lists what a closed store has, from the start of its process to its end."""
    path = bench_path / "store"
    count = sizes.listed_partitions
    with open_store(path, segment_bytes=sizes.store_segment_bytes, partitions=count) as store:
        producer = store.producer()
        for number in range(count):
            producer.append(TOPIC, number, values=[b"x"])
        for number in range(min(count, 20)):
            with store.producer(transactional_id=f"t{number}") as transactional:
                transactional.init_transactions()
                with transactional.transaction():
                    transactional.send(TOPIC, b"x", partition=number)
            store.consumer(group=f"g{number}").commit({eoslog.TopicPartition(TOPIC, number): 1})
    taken: list[float] = []

    def run() -> None:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "eoslog", command, "--store", str(path)],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    benchmark.pedantic(run, rounds=sizes.open_rounds, warmup_rounds=WARMUP_ROUNDS)
    record(benchmark, f"list_{command}", statistics.median(taken[1:]), spread=taken[1:])
