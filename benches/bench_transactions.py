"""What transactions cost: at the writer, at its disk, at the reader, and among very many of them.

Each figure stands beside a peer of the same run: the same appends without a transaction, the same
records read without a filter, two bare synced writes, a log with one transaction. Both take turns.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_durable import SyncedFile, microseconds
from logs import (
    BATCH_RECORDS,
    KB,
    TOPIC,
    arrow_batches,
    arrow_values,
    encoded_batches,
    engine_log,
    open_store,
    random_values,
    renew_segments,
)
from measure import percentile, record
from sizes import Sizes

from eoslog import TopicPartition
from eoslog.store.store import engine_of

FETCH_BYTES = 8 << 20
SMALL_RECORDS = 10
SMALL_BYTES = 100
THREADS = 16
THREAD_PARTITIONS = 4
WRITERS = 8
# For so long each of their transactions does nothing.
OPEN_S = 0.002
# About what a coordinator's record of a decision takes.
DECISION_BYTES = 200
MOMENT_MS = 1_700_000_000_000
APPENDS_BETWEEN_RENEWALS = 200


def transactional_producer(store: Any, transactional_id: str = "bench") -> Any:
    producer = store.producer(transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def bench_transaction_append(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """1,000 records of 1 KB as a transaction, and as a plain idempotent append, in turns."""
    columns = arrow_batches(KB, sizes.distinct_batches)
    ours: list[float] = []
    plain: list[float] = []
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes, partitions=2) as store:
        partitions = [engine_of(store).partition(TOPIC, number) for number in range(2)]
        producer = transactional_producer(store)
        other = store.producer()

        def commit(column: Any) -> None:
            with producer.transaction():
                producer.append(TOPIC, partition=0, values=column)

        def append(column: Any) -> None:
            other.append(TOPIC, partition=1, values=column)

        def run() -> None:
            for index in range(sizes.transaction_pairs):
                if index % APPENDS_BETWEEN_RENEWALS == 0:
                    for partition in partitions:
                        renew_segments(partition)
                column = columns[index % len(columns)]
                # Who comes first finds the column out of the processor's cache: that changes too.
                turns = [(ours, commit), (plain, append)]
                for times, action in turns if index & 1 else reversed(turns):
                    times.append(microseconds(action, column))

        benchmark.pedantic(run, rounds=1)
        ends = [partition.log_end_offset for partition in partitions]
        assert ends[1] == sizes.transaction_pairs * BATCH_RECORDS
        assert ends[0] == ends[1] + sizes.transaction_pairs, "each transaction has a marker"
        assert partitions[0].last_stable_offset == ends[0]
    ours_us, plain_us = statistics.median(ours), statistics.median(plain)
    record(
        benchmark,
        "transaction_append",
        (ours_us / plain_us - 1) * 100,
        beside=f"{ours_us:.0f} µs and {plain_us:.0f} µs",
        transaction_us=ours_us,
    )


def bench_transaction_small(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """send() of 10 records of 100 bytes to two partitions, begun and committed around them."""
    values = [row.tobytes() for row in random_values(SMALL_BYTES, SMALL_RECORDS)]
    times: list[float] = []
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes, partitions=2) as store:
        producer = transactional_producer(store)

        def commit() -> None:
            with producer.transaction():
                for index, value in enumerate(values):
                    producer.send(TOPIC, value, partition=index & 1)

        def run() -> None:
            for _ in range(sizes.transaction_count):
                times.append(microseconds(commit))

        benchmark.pedantic(run, rounds=1)
        for number in range(2):
            end = sizes.transaction_count * (SMALL_RECORDS // 2 + 1)
            assert store.partition(TOPIC, number).last_stable_offset == end
    record_times(benchmark, "transaction_small", times)


def bench_transaction_one(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """One record a transaction, durability `process`."""
    value = random_values(SMALL_BYTES, 1)[0].tobytes()
    times: list[float] = []
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes) as store:
        producer = transactional_producer(store)

        def run() -> None:
            for _ in range(sizes.transaction_count):
                times.append(microseconds(commit_one, producer, value))

        benchmark.pedantic(run, rounds=1)
        assert store.partition(TOPIC, 0).last_stable_offset == 2 * sizes.transaction_count
    record_times(benchmark, "transaction_one", times)


def commit_one(producer: Any, value: bytes, partition: int = 0) -> None:
    with producer.transaction():
        producer.send(TOPIC, value, partition=partition)


def record_times(benchmark: Any, name: str, times: list[float]) -> None:
    p99 = percentile(times, 0.99)
    record(
        benchmark,
        name,
        statistics.median(times),
        beside=f"99th percentile {p99:.0f} µs",
        p99_us=p99,
    )


def bench_transaction_synced(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """One record of 1 KB a transaction, durability `commit`: the data synced, then the decision.

    The peer writes and syncs the same batch to one filled file, and then some bytes to another.
    """
    row = random_values(KB, 1)
    value, encoded = row[0].tobytes(), encoded_batches([arrow_values(row)])[0]
    ours: list[float] = []
    bare: list[float] = []
    files = [
        SyncedFile(bench_path / name, sizes.synced_segment_bytes) for name in ("data", "decision")
    ]
    with open_store(
        bench_path / "store", segment_bytes=sizes.synced_segment_bytes, durability="commit"
    ) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        partition.prepare_spare()
        producer = transactional_producer(store)

        def write_both() -> None:
            files[0].append(encoded)
            files[1].append(bytes(DECISION_BYTES))

        def run() -> None:
            for _ in range(sizes.transaction_synced_count):
                bare.append(microseconds(write_both))
                ours.append(microseconds(commit_one, producer, value))

        benchmark.pedantic(run, rounds=1)
        assert partition.last_stable_offset == 2 * sizes.transaction_synced_count
    for file in files:
        file.close()
    p50, bare_p50 = statistics.median(ours), statistics.median(bare)
    p99, bare_p99 = percentile(ours, 0.99), percentile(bare, 0.99)
    record(
        benchmark,
        "transaction_synced",
        p50,
        beside=f"two files, each pwrite and fdatasync: {bare_p50:.0f} µs",
    )
    record(benchmark, "transaction_synced_beside_two_files", p50 / bare_p50)
    record(
        benchmark,
        "transaction_synced_p99",
        p99,
        beside=f"two files, each pwrite and fdatasync: {bare_p99:.0f} µs",
    )


def bench_transaction_offsets(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """One record with the offset of a group, beside one record alone; what compacts the offsets
    counts too.
    """
    taken_us: dict[bool, float] = {}
    where = TopicPartition(TOPIC, 0)
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes) as store:
        producer = transactional_producer(store)

        def turn(offsets: bool) -> None:
            begin_s = time.process_time()
            for number in range(sizes.transaction_offsets_count):
                producer.begin_transaction()
                producer.send(TOPIC, b"v", partition=0)
                if offsets:
                    producer.send_offsets_to_transaction({where: number}, "bench")
                producer.commit_transaction()
            each_s = (time.process_time() - begin_s) / sizes.transaction_offsets_count
            taken_us[offsets] = each_s * 1e6

        def run() -> None:
            for offsets in (False, True):
                turn(offsets)

        benchmark.pedantic(run, rounds=1)
    record(
        benchmark,
        "transaction_offsets",
        taken_us[True] / taken_us[False],
        beside=f"{taken_us[True]:.2f}/{taken_us[False]:.2f} µs",
    )


def bench_transaction_threads(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """The same by 16 threads, each with a transactional id of its own, beside one of them alone."""
    value = random_values(KB, 1)[0].tobytes()
    each = max(1, sizes.transaction_synced_count // 4)
    with open_store(
        bench_path / "store",
        segment_bytes=sizes.synced_segment_bytes,
        partitions=THREAD_PARTITIONS,
        durability="commit",
    ) as store:
        producers = [transactional_producer(store, f"bench-{one}") for one in range(THREADS)]
        for number, producer in enumerate(producers):
            commit_one(producer, value, number % THREAD_PARTITIONS)

        def commit_all(number: int) -> None:
            for _ in range(each):
                commit_one(producers[number], value, number % THREAD_PARTITIONS)

        begin = time.perf_counter()
        commit_all(0)
        alone = each / (time.perf_counter() - begin)

        def run() -> None:
            threads = [threading.Thread(target=commit_all, args=(one,)) for one in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        begin = time.perf_counter()
        benchmark.pedantic(run, rounds=1)
        together = THREADS * each / (time.perf_counter() - begin)
        stable = sum(
            store.partition(TOPIC, number).last_stable_offset for number in range(THREAD_PARTITIONS)
        )
        assert stable == 2 * (THREADS * (each + 1) + each)
    record(
        benchmark,
        "transaction_threads",
        together,
        beside=f"one thread alone: {alone:,.0f} records/s",
    )
    record(benchmark, "transaction_threads_growth", together / alone)


def bench_snapshots_beside_writers(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Writers whose transactions overlap without a pause, with snapshots in a loop and without."""
    rates: dict[bool, float] = {}
    stops_ms: dict[bool, float] = {}
    taken: list[dict[Any, int]] = []
    with open_store(
        bench_path / "store", segment_bytes=sizes.segment_bytes, partitions=WRITERS
    ) as store:
        for number in range(WRITERS):
            partition = engine_of(store).partition(TOPIC, number)
            for _ in range(sizes.snapshot_batches):
                partition.append_columns([b"v"])
        producers = [transactional_producer(store, f"bench-{one}") for one in range(WRITERS)]

        def write(
            number: int, stop: threading.Event, counts: list[int], longest: list[int]
        ) -> None:
            producer = producers[number]
            while not stop.is_set():
                producer.begin_transaction()
                producer.append(TOPIC, partition=number, values=[b"v"])
                time.sleep(OPEN_S)
                begin = time.perf_counter_ns()
                producer.append(TOPIC, partition=(number + 1) % WRITERS, values=[b"v"])
                producer.commit_transaction()
                longest.append(time.perf_counter_ns() - begin)
                counts[number] += 1

        def turn(snapshots: bool) -> None:
            stop, counts, longest = threading.Event(), [0] * WRITERS, [0]
            threads = [
                threading.Thread(target=write, args=(one, stop, counts, longest))
                for one in range(WRITERS)
            ]
            begin = time.perf_counter()
            for thread in threads:
                thread.start()
            while time.perf_counter() - begin < sizes.process_seconds:
                if snapshots:
                    taken.append(store.snapshot([TOPIC]))
                else:
                    time.sleep(OPEN_S)
            stop.set()
            for thread in threads:
                thread.join()
            rates[snapshots] = sum(counts) / (time.perf_counter() - begin)
            stops_ms[snapshots] = max(longest) / 1e6

        def run() -> None:
            for snapshots in (False, True):
                turn(snapshots)

        benchmark.pedantic(run, rounds=1)
    advances = len({tuple(one.values()) for one in taken})
    record(
        benchmark,
        "snapshot_beside_writers",
        rates[True] / rates[False],
        beside=f"{rates[True]:,.0f} and {rates[False]:,.0f} transactions/s, "
        f"{len(taken)} snapshots with {advances} different cuts",
    )
    record(benchmark, "snapshot_stop", stops_ms[True], beside=f"without: {stops_ms[False]:.1f} ms")


@contextmanager
def filled_store(path: Path, columns: list[Any], total_bytes: int, aborts: bool) -> Iterator[Any]:
    """A store with so many committed bytes; with `aborts`, as many again that are not."""
    count = max(1, total_bytes // (KB * BATCH_RECORDS))
    with open_store(path, segment_bytes=max(1 << 20, total_bytes // 2)) as store:
        producer = transactional_producer(store)
        for index in range(count):
            column = columns[index % len(columns)]
            if aborts:
                producer.begin_transaction()
                producer.append(TOPIC, partition=0, values=column)
                producer.abort_transaction()
            with producer.transaction():
                producer.append(TOPIC, partition=0, values=column)
        partition = engine_of(store).partition(TOPIC, 0)
        partition.flush()
        end = partition.last_stable_offset
        assert len(partition.aborted_transactions(0, end - 1)) == (count if aborts else 0)
        yield store, count * BATCH_RECORDS


def bench_read_committed(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """poll_arrow of the same committed records: unfiltered, filtered, and between aborted ones."""
    columns = arrow_batches(KB, sizes.distinct_batches)
    seconds: dict[str, list[float]] = {"unfiltered": [], "filtered": [], "aborts": []}
    with (
        filled_store(bench_path / "plain", columns, sizes.transaction_read_bytes, False) as plain,
        filled_store(bench_path / "aborts", columns, sizes.transaction_read_bytes, True) as half,
    ):
        readers = {
            "unfiltered": reader(plain[0], "read_uncommitted"),
            "filtered": reader(plain[0], "read_committed"),
            "aborts": reader(half[0], "read_committed"),
        }
        count = plain[1]
        assert half[1] == count

        def run() -> None:
            for name, consumer in readers.items():
                consumer.seek_to_beginning()
                begin = time.perf_counter()
                rows = read_rows(consumer, count)
                seconds[name].append(time.perf_counter() - begin)
                assert rows == count
                assert consumer.poll_arrow(timeout=0).num_rows == 0

        benchmark.pedantic(run, rounds=sizes.rounds, warmup_rounds=1)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    speeds = {name: count * KB / 1e9 / one for name, one in medians.items()}
    record(
        benchmark,
        "read_committed",
        (medians["filtered"] / medians["unfiltered"] - 1) * 100,
        beside=f"{speeds['filtered']:.2f} GB/s and {speeds['unfiltered']:.2f} GB/s",
    )
    record(
        benchmark,
        "read_committed_aborts",
        (medians["aborts"] / medians["unfiltered"] - 1) * 100,
        beside=f"{speeds['aborts']:.2f} GB/s of committed bytes",
    )


def reader(store: Any, isolation_level: str) -> Any:
    consumer = store.consumer(
        isolation_level=isolation_level, config={"max.partition.fetch.bytes": FETCH_BYTES}
    )
    consumer.assign([TopicPartition(TOPIC, 0)])
    return consumer


def read_rows(consumer: Any, count: int) -> int:
    rows = 0
    while rows < count:
        batch = consumer.poll_arrow(timeout=1.0, max_bytes=FETCH_BYTES)
        assert batch.num_rows > 0
        rows += batch.num_rows
    return rows


VALUE = [b"v" * SMALL_BYTES]


def begin_transaction(log: Any, producer_id: int, epoch: int = 0) -> None:
    log.append_columns(
        VALUE,
        timestamp_ms=MOMENT_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )


def end_transaction(log: Any, producer_id: int, epoch: int = 1, *, commit: bool) -> None:
    log.append_marker(producer_id, epoch, 0, commit, timestamp_ms=MOMENT_MS)


def transaction_on(log: Any, producer_id: int, epoch: int) -> None:
    """Begin one and end it; the last stable offset is worked out twice."""
    begin_transaction(log, producer_id, epoch)
    assert log.last_stable_offset <= 1
    end_transaction(log, producer_id, epoch + 1, commit=True)


def bench_open_transactions(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """The engine's transactions of one record while one other is open, and while very many are."""
    few_times: list[float] = []
    many_times: list[float] = []
    open_count = sizes.open_transaction_count
    with (
        engine_log(bench_path / "few", segment_bytes=sizes.producer_segment_bytes) as few,
        engine_log(bench_path / "many", segment_bytes=sizes.producer_segment_bytes) as many,
    ):
        begin_transaction(few, 1)
        for producer_id in range(1, open_count + 1):
            begin_transaction(many, producer_id)

        def run() -> None:
            for index in range(sizes.transaction_count):
                # Epochs are few: after the last one comes another producer.
                producer_id, epoch = open_count + 1 + index // 30_000, index % 30_000
                few_times.append(microseconds(transaction_on, few, producer_id, epoch))
                many_times.append(microseconds(transaction_on, many, producer_id, epoch))

        benchmark.pedantic(run, rounds=1)
        assert few.log_end_offset == 1 + 2 * sizes.transaction_count
        assert many.log_end_offset == open_count + 2 * sizes.transaction_count
        assert many.last_stable_offset == few.last_stable_offset == 0
        assert len(many.open_transactions()) == open_count
        end_transaction(many, 1, commit=True)
        assert many.last_stable_offset == 1
    few_us, many_us = statistics.median(few_times), statistics.median(many_times)
    record(
        benchmark,
        "open_transactions_growth",
        many_us / few_us,
        beside=f"{many_us:.2f} µs and {few_us:.2f} µs",
        transactions=open_count,
    )


def bench_aborted_transactions(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """The engine's filtered read of one record in two logs of the same batches: in one of them a
    single transaction was aborted, in the other all were. Both are read in the same places.
    """
    few_times: list[float] = []
    many_times: list[float] = []
    count = sizes.aborted_transaction_count
    with (
        engine_log(bench_path / "few", segment_bytes=sizes.producer_segment_bytes) as few,
        engine_log(bench_path / "many", segment_bytes=sizes.producer_segment_bytes) as many,
    ):
        end_all(few, count, aborted_count=1)
        end_all(many, count, aborted_count=count)

        def run() -> None:
            for index in range(sizes.lookup_count):
                offset = 3 * (index * 7919 % count) + 2
                few_times.append(microseconds(read_one, few, offset))
                many_times.append(microseconds(read_one, many, offset))

        benchmark.pedantic(run, rounds=1)
        assert len(few.aborted_transactions(0, few.log_end_offset)) == 1
        assert len(many.aborted_transactions(0, many.log_end_offset)) == count
    few_us, many_us = statistics.median(few_times), statistics.median(many_times)
    record(
        benchmark,
        "aborted_transactions_growth",
        many_us / few_us,
        beside=f"{many_us:.2f} µs and {few_us:.2f} µs",
        transactions=count,
    )


def end_all(log: Any, count: int, aborted_count: int) -> None:
    """Transactions of one record, a plain record behind each; the first ones are aborted."""
    for index in range(count):
        producer_id, epoch = index // 30_000, index % 30_000
        begin_transaction(log, producer_id, epoch)
        end_transaction(log, producer_id, epoch + 1, commit=index >= aborted_count)
        log.append_columns(VALUE, timestamp_ms=MOMENT_MS)


def read_one(log: Any, offset: int) -> None:
    """The plain record at an offset, and no other."""
    records, _ = log.fetch_records(offset, 1, 100, committed=True)
    assert records[0].offset == offset


def bench_init_transactions(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """init_transactions() of an id that the store knows, its last transaction committed."""
    times: list[float] = []
    value = random_values(SMALL_BYTES, 1)[0].tobytes()
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes) as store:
        for index in range(sizes.transaction_init_count):
            commit_one(transactional_producer(store, f"bench-{index}"), value)

        def run() -> None:
            for index in range(sizes.transaction_init_count):
                producer = store.producer(transactional_id=f"bench-{index}")
                times.append(microseconds(producer.init_transactions))
                assert producer.producer_epoch == 2

        benchmark.pedantic(run, rounds=1)
    record_times(benchmark, "transaction_init", times)
