"""What many producers cost: memory, verdicts, and the way back from LMDB."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

from logs import TOPIC, engine_log, open_store
from measure import percentile, record
from sizes import Sizes

from eoslog.bindings.partition_log import PRODUCER_ROW_BYTES, PartitionLog, empty_row
from eoslog.store.store import engine_of

VALUE = [b"v" * 100]


def append_first_batches(log: PartitionLog, first_id: int, count: int) -> None:
    """One record by each of `count` producers that the log has not seen yet."""
    append = log.append_columns
    evicted = log.evicted_producer_count > 0
    for producer_id in range(first_id, first_id + count):
        if evicted:
            log.install_producer(empty_row(producer_id), was_evicted=False)
        append(VALUE, timestamp_ms=1, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def bench_producer_memory(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Bytes of the table with all producers in it, and what it keeps of evicted ones.

    What an evicted producer costs is what the table grew by between the eviction of a tenth of them
    and that of all: the rest is the table's own, be there producers or none.
    """
    count = sizes.producer_count
    tenth = count // 10
    with engine_log(bench_path / "log", segment_bytes=sizes.producer_segment_bytes) as log:
        append_first_batches(log, 0, tenth)
        evict_all(log)
        empty_bytes = log.producer_memory_bytes
        benchmark.pedantic(append_first_batches, args=(log, tenth, count), rounds=1)
        assert log.producer_count == count
        held_bytes = log.producer_memory_bytes
        rows = evict_all(log)
        assert (log.producer_count, log.evicted_producer_count) == (0, tenth + count)
        evicted_bytes = log.producer_memory_bytes - empty_bytes
        # The rows still hold all of them: the first goes on where it was.
        log.install_producer(rows[:PRODUCER_ROW_BYTES])
        assert log.producer(tenth).last_sequence == 0
    record(
        benchmark,
        "producer_held",
        held_bytes / count,
        beside=f"{count:,} producers",
        producers=count,
    )
    record(
        benchmark,
        "producer_evicted",
        evicted_bytes / count,
        beside=f"{empty_bytes / 1000:.0f} kB for the empty table",
        producers=count,
    )


def evict_all(log: Any) -> bytes:
    """Take all producers out of memory as after they were stored; their rows."""
    rows, offset = log.dirty_producers()
    log.producers_persisted(offset)
    log.evict_producers(0)
    return rows


def bench_verdict(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Single-record appends among few and among many producers, in turns.

    Both logs get batches of one record by producers in random order; what differs is how many there
    are to find, so the difference is that of cold memory.
    """
    few_times: list[int] = []
    many_times: list[int] = []
    order = random.Random(1)
    with (
        engine_log(bench_path / "few", segment_bytes=sizes.producer_segment_bytes) as few,
        engine_log(bench_path / "many", segment_bytes=sizes.producer_segment_bytes) as many,
    ):
        append_first_batches(few, 0, 1)
        append_first_batches(many, 0, sizes.producer_count)
        sequences = [1] * sizes.producer_count

        def run() -> None:
            clock = time.perf_counter_ns
            for index in range(sizes.verdict_count):
                producer_id = order.randrange(sizes.producer_count)
                begin = clock()
                few.append_columns(
                    VALUE, timestamp_ms=2, producer_id=0, producer_epoch=0, base_sequence=index + 1
                )
                middle = clock()
                many.append_columns(
                    VALUE,
                    timestamp_ms=2,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequences[producer_id],
                )
                many_times.append(clock() - middle)
                few_times.append(middle - begin)
                sequences[producer_id] += 1

        benchmark.pedantic(run, rounds=1)
        assert few.log_end_offset == 1 + sizes.verdict_count
        assert many.log_end_offset == sizes.producer_count + sizes.verdict_count
        assert many.producer_count == sizes.producer_count
    few_ns, many_ns = statistics.median(few_times), statistics.median(many_times)
    record(
        benchmark,
        "verdict_growth",
        many_ns / few_ns,
        beside=f"{many_ns:.0f} ns and {few_ns:.0f} ns",
        producers=sizes.producer_count,
    )


def bench_producer_return(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Appends by producers whose rows LMDB alone has, each the first since its eviction."""
    count = sizes.producer_return_count
    latencies: list[float] = []
    with open_store(bench_path / "store", segment_bytes=sizes.producer_segment_bytes) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        append_first_batches(partition.log, 1_000_000, count)
        partition.producer_state.cached_max = 0
        partition.producer_state.persist()
        assert (partition.log.producer_count, partition.log.evicted_producer_count) == (0, count)

        def run() -> None:
            for producer_id in range(1_000_000, 1_000_000 + count):
                begin = time.perf_counter()
                partition.append_columns(
                    VALUE,
                    timestamp_ms=2,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=1,
                )
                latencies.append((time.perf_counter() - begin) * 1e6)

        benchmark.pedantic(run, rounds=1)
        assert partition.log_end_offset == 2 * count
        assert partition.producer(1_000_000).last_sequence == 1
    p99 = percentile(latencies, 0.99)
    record(
        benchmark,
        "producer_return",
        statistics.median(latencies),
        beside=f"99th percentile {p99:.1f} µs",
        p99_us=p99,
    )
