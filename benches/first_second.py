"""Durable commits of a process's first moments beside those of its fourth second, in one run; with
`--starting`, the CPU that a process takes for its start.

    python benches/first_second.py                              prints the table
    python benches/first_second.py --update docs/benchmarks.md  puts it between the marks, too
    python benches/first_second.py --quick                      see that it works
    python benches/first_second.py --starting [...]             the CPU, with the same options

Each process commits transactions in a loop, from its opening of the store on. Its rate from 0.1 to
0.6 s is divided by that of its fourth second: both see the same machine. A round has one process on
a new store, and one that opens the same store again, after the first one closed it.

The CPU of a start is that of a whole process, the interpreter's included, beside one that does
nothing; they take turns. Python's files are compiled by then. Measure it where eoslog is installed
from its wheel: an editable install has an import hook.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from conftest import bench_root
from figures import Figure
from machine import describe_machine
from report import HEADING, measured_on, row, update_page

import eoslog

BEGIN = "<!-- first second: begin -->"
END = "<!-- first second: end -->"
STARTING_BEGIN = "<!-- starting: begin -->"
STARTING_END = "<!-- starting: end -->"
PARTITIONS = 50
ROUNDS = 5
STARTS = 15
LISTED_PARTITIONS = 100
MS_PER_S = 1000


class Work(NamedTuple):
    """What a process does: so many threads, each over so many partitions at a time."""

    what: str
    threads: int
    partitions: int
    value_bytes: int
    at_least_kept: float
    at_least_new: float


WORKS = {
    "1": Work("one record of 1 KB, 1 thread", 1, 1, 1000, 0.8, 0.6),
    "16": Work("one record of 1 KB, 16 threads", 16, 1, 1000, 0.8, 0.6),
    "wide": Work("100 bytes to each of 50 partitions, 1 thread", 1, PARTITIONS, 100, 0.6, 0.4),
}


class Times(NamedTuple):
    """The moments of a process's life that are compared, in seconds."""

    begin: tuple[float, float]
    later: tuple[float, float]


FULL = Times((0.1, 0.6), (3.0, 4.0))
QUICK = Times((0.0, 0.2), (0.2, 0.4))


def commit(path: Path, work: Work, seconds: float) -> list[float]:
    """When each commit was done, in seconds after the first one began."""
    with eoslog.open(path, create=True) as store:
        if "t" not in store.topics():
            store.create_topic("t", partitions=PARTITIONS)
        threads, done = [], [[] for _ in range(work.threads)]
        producers = [store.producer(transactional_id=f"{one}") for one in range(work.threads)]
        for producer in producers:
            producer.init_transactions()
        begin_s = time.perf_counter()
        for number, producer in enumerate(producers):
            places = range(number, number + work.partitions)
            target = looped(producer, places, bytes(work.value_bytes), begin_s, seconds)
            threads.append(threading.Thread(target=target, args=(done[number],)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(moment for one in done for moment in one)


def looped(
    producer: eoslog.TransactionalProducer,
    places: range,
    value: bytes,
    begin_s: float,
    seconds: float,
) -> Callable[[list[float]], None]:
    def run(done: list[float]) -> None:
        while not done or done[-1] < seconds:
            with producer.transaction():
                for place in places:
                    producer.append("t", place, [value])
            done.append(time.perf_counter() - begin_s)

    return run


def rate(done: list[float], between: tuple[float, float]) -> float:
    count = bisect.bisect(done, between[1]) - bisect.bisect(done, between[0])
    return count / (between[1] - between[0])


def run_process(path: Path, name: str, times: Times) -> tuple[float, float]:
    """The two rates of a process."""
    command = [sys.executable, __file__, "--process", name, str(path), str(times.later[1])]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    done = json.loads(found.stdout)
    return rate(done, times.begin), rate(done, times.later)


def make_report(times: Times, rounds: int) -> str:
    """The machine's facts and the table, as Markdown."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="eoslog-bench-", dir=bench_root()) as name:
        folder = Path(name)
        facts = describe_machine(folder, "full" if times is FULL else "quick")
        for number in range(rounds):
            for work in WORKS:
                for store in ("new", "kept"):
                    path = folder / f"{number}-{work}"
                    rates = run_process(path, work, times)
                    found.setdefault((work, store), []).append(rates)
    lines = [measured_on(f"{datetime.now(UTC):%Y-%m-%d}", facts), "", *HEADING]
    for (work, store), pairs in found.items():
        ratios = [first / later for first, later in pairs if later]
        first, later = (statistics.median(one) for one in zip(*pairs, strict=True))
        is_new = store == "new"
        at_least = WORKS[work].at_least_new if is_new else WORKS[work].at_least_kept
        where = "a new store" if is_new else "one that was closed"
        figure = Figure(f"{WORKS[work].what}, {where}", "times", at_least=at_least)
        said = {"beside": f"{first:,.0f}/{later:,.0f} commits/s"}
        if ratios:
            said |= {"measured": statistics.median(ratios)}
            said |= {"least": min(ratios), "greatest": max(ratios)}
        lines.append(row(figure, said if ratios else None))
    return "\n".join(lines)


IMPORT = "import eoslog"
FIRST_COMMIT = """
import sys
import eoslog
with eoslog.open(sys.argv[1], create=True) as store:
    store.create_topic("t")
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"v")
"""
LISTING = "import sys; from eoslog.cli import main; main(sys.argv[1:])"
FIXTURE = """
import shutil, statistics, sys, time
import eoslog
spent_ms = []
for number in range(int(sys.argv[2])):
    path = f"{sys.argv[1]}/{number}"
    began_ns = time.process_time_ns()
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
    spent_ms.append((time.process_time_ns() - began_ns) / 1e6)
    shutil.rmtree(path)
print(statistics.median(spent_ms[1:]), min(spent_ms[1:]), max(spent_ms[1:]))
"""
CPU = "ms of CPU"
STARTED = {
    "": Figure("a process that does nothing", CPU),
    "import": Figure("`import eoslog`, beyond that", CPU, at_most=10),
    "commit": Figure("import, a new store, a transaction of one record", CPU, at_most=150),
    **{
        name: Figure(f"`eoslog {name}`, {LISTED_PARTITIONS} partitions", CPU, at_most=200)
        for name in ("topics", "groups", "transactions")
    },
}
FIXTURE_FIGURE = Figure(
    "in a warm process on tmpfs: a new store without durability, one topic, close", CPU, at_most=5
)


def cpu_ms(*arguments: object) -> float:
    """The CPU that a process of Python takes, user and system."""
    command = [sys.executable, "-c", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd="/")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: status {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * MS_PER_S


def make_store_to_list(path: Path) -> None:
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=LISTED_PARTITIONS)
        with store.producer() as producer:
            for number in range(LISTED_PARTITIONS):
                producer.append("t", number, [b"v"] * 10)
        with store.producer(transactional_id="x") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.append("t", 0, [b"v"])
        store.consumer("g").commit({eoslog.TopicPartition("t", 0): 1})


def make_starting_report(mode: str, rounds: int) -> str:
    """The machine's facts and the table of starts, as Markdown."""
    found: dict[str, list[float]] = {name: [] for name in STARTED}
    with tempfile.TemporaryDirectory(prefix="eoslog-bench-", dir=bench_root()) as name:
        folder = Path(name)
        facts = describe_machine(folder, mode)
        listed, new = folder / "listed", folder / "new"
        make_store_to_list(listed)
        for number in range(rounds + 1):
            for what, spent in found.items():
                if what == "":
                    one = cpu_ms("pass")
                elif what == "import":
                    one = cpu_ms(IMPORT)
                elif what == "commit":
                    one = cpu_ms(FIRST_COMMIT, new)
                    shutil.rmtree(new)
                else:
                    one = cpu_ms(LISTING, "--store", listed, what)
                if number:  # The first one of each compiles what it loads.
                    spent.append(one)
    bare_ms = statistics.median(found[""])
    lines = [measured_on(f"{datetime.now(UTC):%Y-%m-%d}", facts), "", *HEADING]
    for what, spent in found.items():
        beyond_ms = bare_ms if what == "import" else 0
        said = {
            "measured": statistics.median(spent) - beyond_ms,
            "least": min(spent) - beyond_ms,
            "greatest": max(spent) - beyond_ms,
        }
        if what:
            said["beside"] = f"{statistics.median(spent) / bare_ms:.1f} times as much as nothing"
        lines.append(row(STARTED[what], said))
    lines.append(row(FIXTURE_FIGURE, fixture_said(rounds)))
    return "\n".join(lines)


def fixture_said(rounds: int) -> dict[str, float] | None:
    """What the life of a test's store in memory takes; None where there is no memory for it."""
    if not os.access("/dev/shm", os.W_OK):
        return None
    with tempfile.TemporaryDirectory(prefix="eoslog-bench-", dir="/dev/shm") as memory:
        command = [sys.executable, "-c", FIXTURE, memory, str(2 * rounds + 1)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    values = map(float, done.stdout.split())
    return dict(zip(("measured", "least", "greatest"), values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the durable commits of first moments.")
    parser.add_argument("--starting", action="store_true", help="show the CPU of a start")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    parser.add_argument("--update", type=Path, help="a Markdown file to put the table into")
    parser.add_argument("--process", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        work, path, seconds = arguments.process
        print(json.dumps(commit(Path(path), WORKS[work], float(seconds))))
        return
    if arguments.starting:
        is_quick = arguments.quick
        text = make_starting_report("quick" if is_quick else "full", 2 if is_quick else STARTS)
        marks = STARTING_BEGIN, STARTING_END
    else:
        text = make_report(QUICK if arguments.quick else FULL, 1 if arguments.quick else ROUNDS)
        marks = BEGIN, END
    print(text)
    if arguments.update is not None:
        update_page(arguments.update, text, *marks)


if __name__ == "__main__":
    main()
