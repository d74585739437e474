"""Columnar appends: one thread, batches of 1,000 records, durability `process`, recycled segments.

GB/s counts the bytes of the values alone. The peer writes the log's own bytes, framing and all, to
a new file with one write() a batch; neither side syncs, and the rounds of both take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logs import (
    BATCH_RECORDS,
    KB,
    TOPIC,
    PlainFile,
    Recycled,
    arrow_batches,
    encoded_batches,
    engine_log,
    open_store,
    random_values,
    renew_segments,
)
from measure import Interleaved, median_ratio, percentile, rates, record, round_seconds
from sizes import Sizes

from eoslog.store.store import engine_of

# Until each file of the log was used and recycled, and the host has supplied the pages.
WARMUP_ROUNDS = 3


def append_rounds(
    benchmark: Any,
    path: Path,
    sizes: Sizes,
    log: Recycled,
    columns: list[Any],
    append: Callable[[Any], Any],
    value_bytes: int,
) -> tuple[list[float], list[float], int]:
    """Rounds of a segment's bytes each: seconds of ours and of write(), and the records of one."""
    encoded = encoded_batches(columns)
    count = max(1, sizes.segment_bytes // len(encoded[0]))
    latencies: list[int] = []
    end_before = log.log_end_offset

    def run() -> None:
        clock = time.perf_counter_ns
        distinct = len(columns)
        for index in range(count):
            begin = clock()
            append(columns[index % distinct])
            latencies.append(clock() - begin)

    plain = PlainFile(path / "plain", encoded, count)
    peer = Interleaved(plain.write, lambda: renew_segments(log), plain.remove)
    benchmark.pedantic(run, setup=peer.setup, rounds=sizes.rounds, warmup_rounds=WARMUP_ROUNDS)
    rounds = sizes.rounds + WARMUP_ROUNDS
    record_count = count * BATCH_RECORDS
    assert log.log_end_offset - end_before == rounds * record_count
    benchmark.extra_info |= {
        "value_bytes": value_bytes,
        "batch_records": BATCH_RECORDS,
        "append_us_p50": percentile(latencies, 0.5) / 1000,
        "append_us_p99": percentile(latencies, 0.99) / 1000,
    }
    return round_seconds(benchmark), peer.seconds(sizes.rounds), record_count


def check_last_batch(fetch: Callable[[int], Any], end: int, column: Any, value_bytes: int) -> None:
    """The last batch holds what was given last."""
    found = fetch(end - BATCH_RECORDS)
    assert found.record_count == BATCH_RECORDS
    assert int(found.offsets[0]) == end - BATCH_RECORDS
    whole = found.value_data.tobytes()
    for index in (0, 1, BATCH_RECORDS - 1):
        given = column[index].as_py() if hasattr(column[index], "as_py") else bytes(column[index])
        assert whole[index * value_bytes : (index + 1) * value_bytes] == given


@pytest.mark.parametrize("value_bytes", [KB, 100], ids=["1kb", "100b"])
def bench_append_async(benchmark: Any, bench_path: Path, sizes: Sizes, value_bytes: int) -> None:
    """Producer.append of an Arrow column, idempotent."""
    columns = arrow_batches(value_bytes, sizes.distinct_batches)
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes) as store:
        producer = store.producer()
        partition = engine_of(store).partition(TOPIC, 0)
        ours, peer, record_count = append_rounds(
            benchmark,
            bench_path,
            sizes,
            partition,
            columns,
            lambda column: producer.append(TOPIC, partition=0, values=column),
            value_bytes,
        )
        check_last_batch(
            lambda offset: partition.fetch_columns(offset, 1 << 21),
            partition.log_end_offset,
            last_of(columns, record_count),
            value_bytes,
        )
    gigabytes = record_count * value_bytes / 1e9
    peer_rate = f"write(): {statistics.median(rates(gigabytes, peer)):.2f} GB/s"
    pairs = [one / two for one, two in zip(peer, ours, strict=True)]
    if value_bytes == KB:
        speed = rates(gigabytes, ours)
        record(benchmark, "append_1kb", statistics.median(speed), spread=speed, beside=peer_rate)
        record(benchmark, "append_1kb_beside_write", median_ratio(ours, peer), spread=pairs)
    else:
        speed = rates(record_count, ours)
        record(benchmark, "append_100b", statistics.median(speed), spread=speed, beside=peer_rate)
        record(benchmark, "append_100b_beside_write", median_ratio(ours, peer), spread=pairs)


@pytest.mark.parametrize("kind", ["engine", "list", "numpy"])
def bench_append_inputs(benchmark: Any, bench_path: Path, sizes: Sizes, kind: str) -> None:
    """The engine's own append, from each kind of column."""
    rows = [random_values(KB, seed=seed) for seed in range(sizes.distinct_batches)]
    columns: list[Any] = list(rows)
    if kind == "engine":
        columns = arrow_batches(KB, sizes.distinct_batches)
    elif kind == "list":
        columns = [[row.tobytes() for row in one] for one in rows]
    sequence = 0
    with engine_log(bench_path / "log", segment_bytes=sizes.segment_bytes) as log:

        def append(column: Any) -> None:
            nonlocal sequence
            log.append_columns(
                column, timestamp_ms=1, producer_id=1, producer_epoch=0, base_sequence=sequence
            )
            sequence += BATCH_RECORDS

        ours, _, record_count = append_rounds(
            benchmark, bench_path, sizes, log, columns, append, KB
        )
        check_last_batch(log.fetch_columns, log.log_end_offset, last_of(columns, record_count), KB)
    speed = rates(record_count * KB / 1e9, ours)
    record(benchmark, f"append_1kb_{kind}", statistics.median(speed), spread=speed)


def last_of(columns: list[Any], record_count: int) -> Any:
    """The column that a round of so many records appends last."""
    return columns[(record_count // BATCH_RECORDS - 1) % len(columns)]


Appends = dict[bool, Callable[[Any], Any]]


def idempotence_pairs(
    benchmark: Any, sizes: Sizes, log: Any, columns: list[Any], appends: Appends
) -> dict[bool, list[int]]:
    """Nanoseconds of each append, idempotent and not, in turns, to the same log.

    The order of the two changes with each pair, and medians are compared: a batch that rolled a
    segment, or lost the processor, tells nothing about idempotence.
    """
    batch_bytes = len(encoded_batches(columns[:1])[0])
    pairs_a_segment = max(1, sizes.segment_bytes // (2 * batch_bytes) - 1)
    pair_count = min(sizes.idempotence_pairs, 4 * pairs_a_segment)
    times: dict[bool, list[int]] = {True: [], False: []}

    def run_pairs(count: int) -> None:
        clock = time.perf_counter_ns
        for index in range(count):
            for second, idempotent in enumerate((index % 2 == 0, index % 2 == 1)):
                # Each append reads another column: none finds its own in the cache.
                column = columns[(2 * index + second) % len(columns)]
                append = appends[idempotent]
                begin = clock()
                append(column)
                times[idempotent].append(clock() - begin)

    def run() -> None:
        left = pair_count
        while left > 0:
            renew_segments(log)
            run_pairs(min(left, pairs_a_segment))
            left -= pairs_a_segment

    for _ in range(WARMUP_ROUNDS):
        renew_segments(log)
        run_pairs(pairs_a_segment)
    warm_count = len(times[True])
    times[True].clear()
    times[False].clear()
    benchmark.pedantic(run, rounds=1)
    assert log.log_end_offset == 2 * (warm_count + pair_count) * BATCH_RECORDS
    # The one has a producer id in the table, the other leaves no trace there.
    (producer,) = log.producers()
    assert producer.last_sequence == (warm_count + pair_count) * BATCH_RECORDS - 1
    return times


def record_idempotence(benchmark: Any, name: str, times: dict[bool, list[int]]) -> None:
    on, off = (statistics.median(times[idempotent]) for idempotent in (True, False))
    beside = f"{on / 1000:.2f} µs and {off / 1000:.2f} µs a batch"
    record(benchmark, name, 100 * (on / off - 1), beside=beside, pairs=len(times[True]))


@pytest.mark.parametrize("value_bytes", [KB, 100], ids=["1kb", "100b"])
def bench_append_idempotence(
    benchmark: Any, bench_path: Path, sizes: Sizes, value_bytes: int
) -> None:
    """Batches of an idempotent producer beside those of one that is not."""
    columns = arrow_batches(value_bytes, sizes.distinct_batches)
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes) as store:
        on = store.producer()
        off = store.producer(config={"enable.idempotence": False})
        appends: Appends = {
            True: lambda column: on.append(TOPIC, partition=0, values=column),
            False: lambda column: off.append(TOPIC, partition=0, values=column),
        }
        times = idempotence_pairs(
            benchmark, sizes, engine_of(store).partition(TOPIC, 0), columns, appends
        )
    name = "idempotence_cost" if value_bytes == KB else "idempotence_cost_100b"
    record_idempotence(benchmark, name, times)


def bench_append_idempotence_engine(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """The same, by the engine without the Python API: the verdict alone."""
    columns = arrow_batches(100, sizes.distinct_batches)
    sequence = 0
    with engine_log(bench_path / "log", segment_bytes=sizes.segment_bytes) as log:

        def append_numbered(column: Any) -> None:
            nonlocal sequence
            log.append_columns(
                column, timestamp_ms=1, producer_id=1, producer_epoch=0, base_sequence=sequence
            )
            sequence += BATCH_RECORDS

        def append_plain(column: Any) -> None:
            log.append_columns(
                column, timestamp_ms=1, producer_id=-1, producer_epoch=-1, base_sequence=-1
            )

        times = idempotence_pairs(
            benchmark, sizes, log, columns, {True: append_numbered, False: append_plain}
        )
    record_idempotence(benchmark, "idempotence_cost_engine", times)
