"""Processes that share a store: how they write together, wake each other, and outlive each other.

The bench has the store open itself; the others are children that do what they are told. What is
compared is done in turns by the same processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from logs import BATCH_RECORDS, KB, TOPIC, arrow_batches, open_store, renew_segments
from measure import percentile, record
from process_child import MOMENT_BYTES, wait_until
from sizes import Sizes

from eoslog.consumer.consumer import ARROW_BYTES_MAX
from eoslog.store.store import engine_of, parts_of

CHILD = Path(__file__).parent / "process_child.py"
MEMORY_CHILD = Path(__file__).parent / "memory_child.py"
# The C library copies this much and more past the caches.
PAST_THE_CACHES = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=262144"}
SMALL_RECORDS = 10
SMALL_WRITERS = 4
# Between two records: long enough for the other process to be asleep again.
PAUSE_S = 0.001
# Records, and the same over a pipe, and so on, take turns so often.
WAKE_BLOCKS = 10
START_IN_NS = 50_000_000
# A process that was stopped and kept others waiting for so long holds the lock.
HELD_S = 0.05
TRIES_PER_TAKEOVER = 40


class Process:
    """A child with the store open, or another one that does what it is told."""

    def __init__(self, store_path: Path, command: list[str] | None = None) -> None:
        self._child = subprocess.Popen(
            command or [sys.executable, str(CHILD), str(store_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(PAST_THE_CACHES if command else {})},
        )
        self.answer()

    def tell(self, command: str, *numbers: int) -> None:
        self.give(" ".join([command, *map(str, numbers)]).encode() + b"\n")

    def give(self, data: bytes) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(data)
        self._child.stdin.flush()

    def answer(self) -> Any:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended: {self._child.wait()}")
        return json.loads(line)

    def ask(self, command: str, *numbers: int) -> Any:
        self.tell(command, *numbers)
        return self.answer()

    def signal(self, number: int) -> None:
        os.kill(self._child.pid, number)

    def end(self) -> None:
        """Have it close the store; one that was killed is only waited for."""
        assert self._child.stdin is not None and self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.wait(60)
        self._child.stdout.close()


@contextmanager
def processes(
    store_path: Path, count: int, command: list[str] | None = None
) -> Iterator[list[Process]]:
    started: list[Process] = []
    try:
        for _ in range(count):
            started.append(Process(store_path, command))
        yield started
    finally:
        for one in started:
            one.end()


def memory_processes(total_bytes: int, count: int) -> AbstractContextManager[list[Process]]:
    """Processes that share nothing, and only move bytes."""
    command = [sys.executable, str(MEMORY_CHILD), str(total_bytes)]
    return processes(Path(), count, command)


def renew(partition: Any, children: list[Process]) -> None:
    """Make the full segments' files usable again, once every process has taken them in."""
    for child in children:
        child.ask("look", 0)
    renew_segments(partition)


def soon_ns() -> int:
    return time.perf_counter_ns() + START_IN_NS


def bench_two_partitions(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """1,000 records of 1 KB a batch: two processes, each to its partition, beside one of them. The
    same by processes that share nothing, and only copy as much past the caches.
    """
    batches = max(1, sizes.process_append_bytes // (KB * BATCH_RECORDS))
    alone: list[float] = []
    together: list[float] = []
    copied: list[float] = []
    path = bench_path / "store"
    with (
        open_store(path, segment_bytes=sizes.segment_bytes, partitions=2) as store,
        processes(path, 2) as children,
        memory_processes(sizes.process_append_bytes, 2) as peers,
    ):

        def rate(writers: list[Process], tell: Callable[[int, int], None]) -> float:
            """Batches a second, for as long as all of these write."""
            start_ns = soon_ns()
            for number in range(len(writers)):
                tell(number, start_ns)
            ends = [writer.answer() for writer in writers]
            first_done_ns = min(each[-1] for each in ends)
            done = sum(bisect_right(each, first_done_ns) for each in ends)
            return done / (first_done_ns - start_ns) * 1e9

        def append(*numbers: int) -> float:
            def tell(index: int, start_ns: int) -> None:
                children[numbers[index]].tell("append", numbers[index], batches, start_ns)

            return rate([children[number] for number in numbers], tell)

        def copy(*numbers: int) -> float:
            def tell(index: int, start_ns: int) -> None:
                peers[numbers[index]].tell("copy", start_ns)

            return rate([peers[number] for number in numbers], tell)

        def run() -> None:
            copied.append(copy(0, 1) / statistics.mean([copy(0), copy(1)]))
            for number, child in enumerate(children):
                child.ask("renew", number)
            alone.append(statistics.mean([append(0), append(1)]))
            for number, child in enumerate(children):
                child.ask("renew", number)
            together.append(append(0, 1))

        for number, child in enumerate(children):
            child.ask("prepare", number)
        benchmark.pedantic(run, rounds=sizes.process_rounds, warmup_rounds=2)
        rounds = sizes.process_rounds + 2
        for number in range(2):
            end = store.partition(TOPIC, number).log_end_offset
            assert end == 2 * rounds * batches * BATCH_RECORDS
    ratios = [both / one for one, both in zip(alone[2:], together[2:], strict=True)]
    amount = BATCH_RECORDS * KB / 1e9
    record(
        benchmark,
        "processes_two_partitions",
        statistics.median(ratios),
        spread=ratios,
        beside=f"{amount * statistics.median(together[2:]):.2f} GB/s and "
        f"{amount * statistics.median(alone[2:]):.2f} GB/s; two that share nothing and only copy: "
        f"{statistics.median(copied[2:]):.2f} times",
    )


def bench_one_partition(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Batches of 10 records of 100 bytes: four processes to one partition, beside one alone. How
    long one stands still is asked of four that only count, too.
    """
    alone: list[float] = []
    together: list[float] = []
    pauses_ms: list[float] = []
    alone_pauses_ms: list[float] = []
    counting_pauses_ms: list[float] = []
    least_shares: list[float] = []
    duration_ns = int(sizes.process_seconds * 1e9)
    path = bench_path / "store"
    appended = 0
    with (
        open_store(path, segment_bytes=sizes.segment_bytes) as store,
        processes(path, SMALL_WRITERS) as children,
    ):
        partition = engine_of(store).partition(TOPIC, 0)

        def append(writers: list[Process]) -> list[dict[str, int]]:
            nonlocal appended
            start_ns = soon_ns()
            for child in writers:
                child.tell("append_small", 0, SMALL_RECORDS, start_ns, start_ns + duration_ns)
            answers = [child.answer() for child in writers]
            appended += sum(answer["count"] for answer in answers)
            return answers

        def run() -> None:
            renew(partition, children)
            (one,) = append(children[:1])
            alone.append(one["count"] / sizes.process_seconds)
            alone_pauses_ms.append(one["pause_ns"] / 1e6)
            renew(partition, children)
            answers = append(children)
            counts = [answer["count"] for answer in answers]
            together.append(sum(counts) / sizes.process_seconds)
            least_shares.append(min(counts) / sum(counts))
            pauses_ms.append(longest_ms(answers))
            start_ns = soon_ns()
            for child in children:
                child.tell("count", start_ns, start_ns + duration_ns)
            counting_pauses_ms.append(longest_ms([child.answer() for child in children]))

        append(children)  # So that each has seen the partition.
        benchmark.pedantic(run, rounds=sizes.rounds)
        assert partition.log_end_offset == appended * SMALL_RECORDS
    ratios = [many / one for many, one in zip(together, alone, strict=True)]
    record(
        benchmark,
        "processes_one_partition",
        statistics.median(ratios),
        spread=ratios,
        beside=f"{statistics.median(together):,.0f} and {statistics.median(alone):,.0f} batches/s",
    )
    record(
        benchmark,
        "processes_one_partition_pause",
        max(pauses_ms),
        spread=pauses_ms,
        beside=f"one alone: {max(alone_pauses_ms):.0f} ms; four that share nothing and only count: "
        f"{max(counting_pauses_ms):.0f} ms; the slowest wrote "
        f"{100 * min(least_shares):.0f} % of all",
    )


def longest_ms(answers: list[dict[str, int]]) -> float:
    return max(answer["pause_ns"] for answer in answers) / 1e6


def bench_wake_up(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """A record of one process, until the consumer of another has it. The same over a pipe, and with
    the wake-up word alone: what is left is an append and a poll, both out of cold caches. An append
    that wakes nobody, after the same pause, says how cold they are.
    """
    latencies: list[float] = []
    of_pipe: list[float] = []
    of_word: list[float] = []
    of_append: list[float] = []
    path = bench_path / "store"
    with (
        open_store(path, segment_bytes=sizes.producer_segment_bytes) as store,
        processes(path, 1) as (child,),
    ):
        producer = store.producer()

        def run() -> None:
            for _ in range(WAKE_BLOCKS):
                block(sizes.wake_count // WAKE_BLOCKS)

        def block(count: int) -> None:
            child.ask("watch", 0, count)
            for _ in range(count):
                time.sleep(PAUSE_S)
                moment = time.perf_counter_ns().to_bytes(MOMENT_BYTES, "big")
                producer.append(TOPIC, partition=0, values=[moment])
            latencies.extend(one / 1000 for one in child.answer())
            child.ask("watch_pipe", count)
            for _ in range(count):
                time.sleep(PAUSE_S)
                child.give(time.perf_counter_ns().to_bytes(MOMENT_BYTES, "big"))
            of_pipe.extend(one / 1000 for one in child.answer())
            child.ask("watch_word", count)
            for _ in range(count):
                time.sleep(PAUSE_S)
                moment_ns = time.perf_counter_ns()
                parts_of(store).files.signal.wake()
                child.give(moment_ns.to_bytes(MOMENT_BYTES, "big"))
            of_word.extend(one / 1000 for one in child.answer())
            for _ in range(count):
                time.sleep(PAUSE_S)
                moment_ns = time.perf_counter_ns()
                producer.append(TOPIC, partition=0, values=[b"nobody"])
                of_append.append((time.perf_counter_ns() - moment_ns) / 1000)

        benchmark.pedantic(run, rounds=1)
        assert len(latencies) == len(of_pipe) == sizes.wake_count
        assert store.partition(TOPIC, 0).log_end_offset == 2 * sizes.wake_count
    for name, share in (("wake_up", 0.5), ("wake_up_p99", 0.99)):
        record(
            benchmark,
            name,
            percentile(latencies, share),
            beside=f"a pipe: {percentile(of_pipe, share):.0f} µs; the word alone: "
            f"{percentile(of_word, share):.0f} µs; an append that wakes nobody: "
            f"{percentile(of_append, share):.0f} µs",
        )


def bench_tail(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """1,000 records of 1 KB a batch at full speed, with and without another process that reads; and
    with one that shares nothing and only copies as many bytes, at the same speed.
    """
    columns = arrow_batches(KB, sizes.distinct_batches)
    batches = max(1, sizes.process_append_bytes // (KB * BATCH_RECORDS))
    alone: list[float] = []
    read: list[float] = []
    beside_copies: list[float] = []
    path = bench_path / "store"
    with (
        open_store(path, segment_bytes=sizes.segment_bytes) as store,
        processes(path, 1) as (child,),
        memory_processes(sizes.process_append_bytes, 1) as (peer,),
    ):
        partition = engine_of(store).partition(TOPIC, 0)
        producer = store.producer()

        def append() -> float:
            begin = time.perf_counter()
            for index in range(batches):
                producer.append(TOPIC, partition=0, values=columns[index % len(columns)])
            return time.perf_counter() - begin

        def run() -> None:
            renew(partition, [child])
            alone.append(append())
            renew(partition, [child])
            child.ask("tail", 0, batches * BATCH_RECORDS)
            read.append(append())
            assert child.answer()["rows"] >= batches * BATCH_RECORDS
            renew(partition, [child])
            start_ns = soon_ns()
            peer.tell("read", start_ns, int(alone[-1] * 1e9))
            wait_until(start_ns)
            beside_copies.append(append())
            peer.answer()

        benchmark.pedantic(run, rounds=sizes.process_rounds, warmup_rounds=2)
        assert partition.log_end_offset == 3 * (sizes.process_rounds + 2) * batches * BATCH_RECORDS
    slower, beside_slower = (
        [
            100 * (after / before - 1)
            for before, after in zip(alone[2:], with_other[2:], strict=True)
        ]
        for with_other in (read, beside_copies)
    )
    amount = batches * BATCH_RECORDS * KB / 1e9
    record(
        benchmark,
        "tail_reader_cost",
        statistics.median(slower),
        spread=slower,
        beside=f"{amount / statistics.median(read[2:]):.2f} GB/s and "
        f"{amount / statistics.median(alone[2:]):.2f} GB/s; reads of {ARROW_BYTES_MAX >> 20} MiB; "
        f"beside one that shares nothing and only copies as much: "
        f"{statistics.median(beside_slower):.1f} % slower",
    )


def bench_takeover(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """SIGKILL of a process that holds the partition's lock in the middle of an append of 1,000
    records of 1 KB; until the append of another, which waits for that lock, returns.
    """
    times_ms: list[float] = []
    plain_ms: list[float] = []
    column = arrow_batches(KB, 1)[0]
    path = bench_path / "store"
    with open_store(path, segment_bytes=sizes.segment_bytes) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        producer = store.producer()

        def append() -> float:
            producer.append(TOPIC, partition=0, values=column)
            return time.perf_counter()

        def run() -> None:
            renew_segments(partition)
            begin = time.perf_counter()
            plain_ms.append((append() - begin) * 1e3)
            times_ms.append(takeover_seconds(path, append) * 1e3)

        benchmark.pedantic(run, rounds=sizes.takeover_count)
        assert len(partition.read(partition.log_start_offset)) > 0
        assert partition.verify() == []
    record(
        benchmark,
        "takeover",
        max(times_ms),
        spread=times_ms,
        beside=f"median {statistics.median(times_ms):.2f} ms; an append alone: "
        f"{statistics.median(plain_ms):.2f} ms",
    )


def takeover_seconds(store_path: Path, append: Callable[[], float]) -> float:
    """From the kill of a writer that holds the lock until `append`, which says when, returned."""
    victim = Process(store_path)
    victim.ask("prepare", 0)
    victim.ask("append_for_ever", 0)
    try:
        for _ in range(TRIES_PER_TAKEOVER):
            time.sleep(random.uniform(0.005, 0.02))
            victim.signal(signal.SIGSTOP)
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(append)
                with suppress(TimeoutError):
                    waiting.result(HELD_S)
                    victim.signal(signal.SIGCONT)
                    continue  # It did not hold the lock.
                begin = time.perf_counter()
                victim.signal(signal.SIGKILL)
                return waiting.result() - begin
        raise RuntimeError(f"stopped {TRIES_PER_TAKEOVER} times, and it never held the lock")
    finally:
        victim.signal(signal.SIGKILL)
        victim.end()
