"""Reads from page cache: columns, records, batch headers, offsets by time.

GB/s counts the bytes of the values that arrived in the caller's columns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logs import BATCH_RECORDS, KB, TOPIC, arrow_batches, engine_log, fill, open_store
from measure import percentile, rates, record, round_seconds
from sizes import Sizes

from eoslog import TopicPartition
from eoslog.store.store import engine_of

FETCH_BYTES = 8 << 20
SCAN_VALUE_BYTES = 100
FIRST_MS = 1_700_000_000_000
MS_A_BATCH = 1000


@pytest.fixture
def read_store(bench_path: Path, sizes: Sizes) -> Iterator[tuple[Any, int]]:
    """A store with `read_bytes` of 1 KB records, one millisecond apart; and their number."""
    columns = arrow_batches(KB, sizes.distinct_batches)
    segment_bytes = max(1 << 20, sizes.read_bytes // 4)
    moment = FIRST_MS
    with open_store(bench_path / "store", segment_bytes=segment_bytes) as store:
        producer = store.producer()

        def append(column: Any) -> None:
            nonlocal moment
            timestamps = list(range(moment, moment + MS_A_BATCH))
            producer.append(TOPIC, partition=0, values=column, timestamps=timestamps)
            moment += MS_A_BATCH

        record_count = fill(append, columns, sizes.read_bytes)
        engine_of(store).partition(TOPIC, 0).flush()
        yield store, record_count


def assigned_consumer(store: Any) -> Any:
    consumer = store.consumer(config={"max.partition.fetch.bytes": FETCH_BYTES})
    consumer.assign([TopicPartition(TOPIC, 0)])
    return consumer


def bench_poll_arrow(benchmark: Any, read_store: tuple[Any, int], sizes: Sizes) -> None:
    """poll_arrow of the whole partition, into one Arrow batch after the other."""
    store, record_count = read_store
    consumer = assigned_consumer(store)
    found: dict[str, int] = {}

    def run() -> None:
        rows = value_bytes = offset_sum = 0
        while rows < record_count:
            batch = consumer.poll_arrow(timeout=1.0, max_bytes=FETCH_BYTES)
            assert batch.num_rows > 0
            value = batch.column("value")
            value_bytes += value.buffers()[2].size
            offset_sum += batch.column("offset")[0].as_py()
            assert batch.column("offset")[0].as_py() == rows
            rows += batch.num_rows
        found.update(rows=rows, value_bytes=value_bytes)

    def rewind() -> None:
        consumer.seek(TopicPartition(TOPIC, 0), 0)

    benchmark.pedantic(run, setup=rewind, rounds=sizes.rounds, warmup_rounds=1)
    assert found == {"rows": record_count, "value_bytes": record_count * KB}
    speed = rates(record_count * KB / 1e9, round_seconds(benchmark))
    record(benchmark, "poll_arrow", statistics.median(speed), spread=speed)


def bench_scan_duckdb(benchmark: Any, read_store: tuple[Any, int], sizes: Sizes) -> None:
    """A sum over the values in DuckDB beside poll_arrow of the same records: processor time."""
    duckdb = pytest.importorskip("duckdb")
    store, record_count = read_store
    consumer = assigned_consumer(store)
    connection = duckdb.connect()
    scanned, polled = [], []

    def poll() -> None:
        consumer.seek(TopicPartition(TOPIC, 0), 0)
        begin = time.process_time()
        rows = 0
        while rows < record_count:
            rows += consumer.poll_arrow(timeout=1.0, max_bytes=FETCH_BYTES).num_rows
        polled.append(time.process_time() - begin)

    def run() -> None:
        begin = time.process_time()
        scan = store.scan(TOPIC, columns=["value"])  # noqa: F841 -- DuckDB finds it by its name.
        (found,) = connection.execute("select sum(octet_length(value)) from scan").fetchall()
        scanned.append(time.process_time() - begin)
        assert found == (record_count * KB,)

    benchmark.pedantic(run, setup=poll, rounds=sizes.rounds, warmup_rounds=1)
    pairs = list(zip(scanned, polled, strict=True))[1:]
    ratios = [peer / ours for ours, peer in pairs]
    speed = rates(record_count * KB / 1e9, [ours for ours, _ in pairs])
    beside = statistics.median(rates(record_count * KB / 1e9, [peer for _, peer in pairs]))
    record(benchmark, "scan_duckdb", statistics.median(speed), spread=speed)
    record(
        benchmark,
        "scan_duckdb_beside_poll_arrow",
        statistics.median(ratios),
        spread=ratios,
        beside=f"poll_arrow: {beside:.2f} GB/s",
    )


def bench_fetch_columns(benchmark: Any, read_store: tuple[Any, int], sizes: Sizes) -> None:
    """The engine's fetch into columns, below the consumer."""
    store, record_count = read_store
    partition = engine_of(store).partition(TOPIC, 0)

    def run() -> int:
        offset = value_bytes = 0
        while offset < record_count:
            columns = partition.fetch_columns(offset, FETCH_BYTES)
            value_bytes += columns.value_data.size
            offset = columns.next_offset
        return value_bytes

    value_bytes = benchmark.pedantic(run, rounds=sizes.rounds, warmup_rounds=1)
    assert value_bytes == record_count * KB
    speed = rates(value_bytes / 1e9, round_seconds(benchmark))
    record(benchmark, "fetch_columns", statistics.median(speed), spread=speed)


def bench_poll(benchmark: Any, read_store: tuple[Any, int], sizes: Sizes) -> None:
    """poll() of records as Python objects."""
    store, record_count = read_store
    consumer = assigned_consumer(store)
    count = min(sizes.poll_count, record_count)

    def run() -> int:
        polled = 0
        while polled < count:
            records = consumer.poll(timeout=1.0, max_records=500)
            assert records[0].offset == polled
            assert len(records[-1].value) == KB
            polled += len(records)
        return polled

    def rewind() -> None:
        consumer.seek(TopicPartition(TOPIC, 0), 0)

    polled = benchmark.pedantic(run, setup=rewind, rounds=sizes.rounds, warmup_rounds=1)
    speed = rates(polled, round_seconds(benchmark))
    record(benchmark, "poll", statistics.median(speed), spread=speed)


@pytest.mark.parametrize("batch_records", [10, BATCH_RECORDS])
def bench_scan(benchmark: Any, bench_path: Path, sizes: Sizes, batch_records: int) -> None:
    """A walk over the headers of all batches."""
    small = batch_records < BATCH_RECORDS
    batch_count = sizes.scan_batch_count if small else sizes.scan_large_batch_count
    column = arrow_batches(SCAN_VALUE_BYTES, 1)[0]
    with engine_log(bench_path / "log", segment_bytes=sizes.scan_segment_bytes) as log:
        for _ in range(batch_count * batch_records // BATCH_RECORDS):
            log.append_columns(column, timestamp_ms=1, batch_records_max=batch_records)
        end = log.log_end_offset
        assert end == batch_count * batch_records
        found = benchmark.pedantic(log.scan_headers, rounds=sizes.rounds, warmup_rounds=1)
        assert found == (batch_count, end, end)
    speed = rates(batch_count, round_seconds(benchmark))
    record(benchmark, "scan" if small else "scan_large", statistics.median(speed), spread=speed)


def bench_lookup_time(benchmark: Any, read_store: tuple[Any, int], sizes: Sizes) -> None:
    """Offsets for times, spread over the whole partition."""
    store, record_count = read_store
    consumer = assigned_consumer(store)
    topic_partition = TopicPartition(TOPIC, 0)
    latencies: list[float] = []

    def run() -> None:
        for index in range(sizes.lookup_count):
            offset = index * 7919 % record_count
            begin = time.perf_counter()
            found = consumer.offsets_for_times({topic_partition: FIRST_MS + offset})
            latencies.append((time.perf_counter() - begin) * 1e6)
            assert found[topic_partition].offset == offset

    benchmark.pedantic(run, rounds=1)
    p99 = percentile(latencies, 0.99)
    record(
        benchmark,
        "lookup_time",
        statistics.median(latencies),
        beside=f"99th percentile {p99:.1f} µs",
        p99_us=p99,
    )
