"""Checking a history: loops that read, process and write, and readers of what they wrote.

The history is clean and generated: plain sends with their offsets, transactions that poll eight
records, send eight and commit the group's offsets with them, and two readers of the output.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from measure import record, round_seconds
from sizes import Sizes

from eoslog.checking import check

LOOPS = 4
BATCH = 8
STEP_NS = 1_000


class Writing:
    """The lines of a history, with times that go on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._now = 0
        self.count = 0

    def line(self, client: str, kind: str, **fields: Any) -> None:
        self._now += STEP_NS
        times = {"begin_ns": self._now, "end_ns": self._now + STEP_NS // 2, "outcome": "ok"}
        self._file.write(json.dumps({"client": client, "kind": kind, **times, **fields}) + "\n")
        self.count += 1

    def close(self) -> None:
        self._file.close()


def write_history(path: Path, operation_count: int) -> int:
    """A clean history of at least so many operations; how many it has."""
    history = Writing(path)
    for loop in range(LOOPS):
        init = {"transactional_id": f"loop-{loop}", "producer_id": loop, "producer_epoch": 0}
        history.line(f"loop-{loop}", "init", **init)
    read_up_to = {f"out-{loop}": 0 for loop in range(LOOPS)}
    round_number = 0
    while history.count < operation_count:
        for loop in range(LOOPS):
            one_round(history, loop, round_number)
        round_number += 1
        # Each transaction has its records and a marker.
        positions = dict.fromkeys(read_up_to, round_number * (BATCH + 1))
        for reader in range(2):
            records = {
                f"out-{loop}": [
                    [read_up_to[f"out-{loop}"] + index, f"o-{loop}-{round_number - 1}-{index}"]
                    for index in range(BATCH)
                ]
                for loop in range(LOOPS)
            }
            history.line(f"reader-{reader}", "poll", records=records, next=positions)
        read_up_to = positions
    history.close()
    return history.count


def one_round(history: Writing, loop: int, round_number: int) -> None:
    """Eight inputs, and the transaction that makes eight records of them."""
    first = round_number * BATCH
    inputs = [[first + index, f"i-{loop}-{first + index}"] for index in range(BATCH)]
    for offset, value in inputs:
        history.line(
            f"source-{loop}", "send", topic="in", partition=loop, offset=offset, value=value
        )
    of = {"transaction": f"t-{loop}-{round_number}"}
    partition, end = f"in-{loop}", {f"in-{loop}": first + BATCH}
    history.line(f"reads-{loop}", "poll", records={partition: inputs}, next=end, **of)
    of |= {"transactional_id": f"loop-{loop}"}
    named = {**of, "producer_id": loop, "producer_epoch": 0}
    for index in range(BATCH):
        value = f"o-{loop}-{round_number}-{index}"
        history.line(f"loop-{loop}", "send", topic="out", partition=loop, value=value, **named)
    history.line(f"loop-{loop}", "offsets", group=f"group-{loop}", offsets=end, **of)
    history.line(f"loop-{loop}", "commit", **named)


def bench_checking(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """`check` of one file, from its lines to the report."""
    path = bench_path / "history.jsonl"
    count = write_history(path, sizes.checked_operation_count)

    processor_seconds: list[float] = []

    def run() -> None:
        begin = time.process_time()
        report = check([path])
        processor_seconds.append(time.process_time() - begin)
        assert report.clean, list(report.lines())
        assert report.counts["operations"] == count

    benchmark.pedantic(run, rounds=sizes.checked_rounds, warmup_rounds=0)
    for name, seconds in (
        ("check_history", round_seconds(benchmark)),
        ("check_processor", processor_seconds),
    ):
        of_a_million = [one * 1e6 / count for one in seconds]
        record(benchmark, name, statistics.median(of_a_million), spread=of_a_million)
