"""Durable commits of eoslog, of other stores and of bare files, in one run.

    python benches/durable.py                                  prints the tables
    python benches/durable.py --update docs/benchmarks.md      puts them between the marks, too
    python benches/durable.py --quick bare sqlite transaction_1   some works, in a moment

Each work (`durable_works.WORKS`) has processes of its own, which stay open. In a round the works
take several short turns, so that all of them see the same machine; a ratio is one of two rates of
the same round. What a commit syncs and writes to the disk is counted in a run of its own, after the
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from conftest import bench_root
from durable_works import HAS_ROCKSDB, TURNS, WORKS, Work
from figures import Figure
from machine import describe_machine
from measure import percentile
from report import HEADING, measured_on, number, row, update_page

TESTS = Path(__file__).parent.parent / "tests"
COUNTER = Path(__file__).with_name("sync_counter.c")
BEGIN = "<!-- durable: begin -->"
END = "<!-- durable: end -->"
SECTOR_BYTES = 512
START_NS = 5_000_000  # All processes of a work are awake by then.


class Effort(NamedTuple):
    """How long a run takes."""

    name: str
    rounds: int
    turns: int  # Of each work in each round.
    seconds: float  # Of a turn; the run that counts takes as long as all turns of a round.
    pause_seconds: float  # Before each turn, for what the one before it left to be written.
    warm_turns: int  # Before the run that counts: until a journal has the size that it needs.


FULL = Effort("full", rounds=5, turns=TURNS, seconds=0.2, pause_seconds=0.02, warm_turns=20)
QUICK = Effort("quick", rounds=1, turns=1, seconds=0.05, pause_seconds=0, warm_turns=1)


@dataclass
class Round:
    """What one work did in one round."""

    seconds: float = 0
    latencies_ns: list[int] = field(default_factory=list)

    @property
    def commits_per_s(self) -> float:
        return len(self.latencies_ns) / self.seconds


class Team:
    """The processes of one work."""

    def __init__(self, name: str, folder: Path, env: dict[str, str]) -> None:
        folder.mkdir()
        self._children: list[subprocess.Popen[str]] = []
        for index in range(WORKS[name].processes):
            command = [sys.executable, str(Path(__file__).with_name("durable_works.py"))]
            child = subprocess.Popen(
                [*command, name, str(folder), str(index)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._children.append(child)
            # The first one makes the store.
            answer_of(child)

    def ask(self, *words: object) -> list[Any]:
        """Have all processes do the same at once; what each answered."""
        for child in self._children:
            assert child.stdin is not None
            print(*words, file=child.stdin, flush=True)
        return [answer_of(child) for child in self._children]

    def run(self, seconds: float, into: Round) -> None:
        """Commit in all processes for a while, as a part of a round."""
        start_ns = time.perf_counter_ns() + START_NS
        answers = self.ask("run", start_ns, start_ns + int(seconds * 1e9))
        into.seconds += max(answer["seconds"] for answer in answers)
        for answer in answers:
            into.latencies_ns += answer["latencies_ns"]

    def close(self) -> None:
        for child in self._children:
            child.communicate()
        assert not any(child.returncode for child in self._children)


def answer_of(child: subprocess.Popen[str]) -> Any:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"{child.args} ended without an answer")
    return json.loads(line)


@contextmanager
def team_of(name: str, folder: Path, env: dict[str, str]) -> Iterator[Team]:
    """A work's processes, closed afterwards."""
    team = Team(name, folder / name, env)
    try:
        yield team
    finally:
        team.close()


class Cost(NamedTuple):
    """What a commit takes from the disk."""

    syncs: float
    written_bytes: float | None  # None: not on a disk that counts.


def run_rounds(names: Sequence[str], folder: Path, effort: Effort) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {name: [] for name in names}
    with ExitStack() as stack:
        teams = {name: stack.enter_context(team_of(name, folder, {**os.environ})) for name in names}
        # The first round warms them up.
        for _ in range(1 + effort.rounds):
            for name in names:
                found[name].append(Round())
            for turn in range(effort.turns):
                for name, team in teams.items():
                    time.sleep(effort.pause_seconds)
                    team.run(effort.seconds, found[name][-1])
                    team.ask("renew", int(turn == effort.turns - 1))
    return {name: all_rounds[1:] for name, all_rounds in found.items()}


def count_costs(names: Sequence[str], folder: Path, effort: Effort) -> dict[str, Cost]:
    """The syncs and the bytes of a commit, each work for itself, in a directory of its own."""
    sys.path.insert(0, str(TESTS))
    from c_library import built_library

    env = {**os.environ, "LD_PRELOAD": str(built_library(COUNTER, folder))}
    found = {}
    for name in names:
        with team_of(name, folder, env) as team:
            for _ in range(effort.warm_turns):
                team.run(effort.seconds, Round())
                team.ask("renew", 0)
            os.sync()
            bytes_before, syncs_before = written_bytes(folder), sum(team.ask("syncs"))
            counted = Round()
            for _ in range(effort.turns):
                team.run(effort.seconds, counted)
                team.ask("renew", 0)
            commit_count = len(counted.latencies_ns)
            syncs = sum(team.ask("syncs")) - syncs_before
            os.sync()
            bytes_after = written_bytes(folder)
        has_bytes = bytes_before is not None and bytes_after is not None
        each = (bytes_after - bytes_before) / commit_count if has_bytes else None
        found[name] = Cost(syncs / commit_count, each)
    return found


def written_bytes(folder: Path) -> int | None:
    """How much was written to the disk of a folder, by all processes; None if it does not count.

    A process's own count in /proc takes a large page that became dirty for written, though only its
    dirty blocks are.
    """
    device = folder.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(path.read_text().split()[6]) * SECTOR_BYTES if path.exists() else None


class Results:
    """What was found, and the tables of it."""

    def __init__(self, rounds: dict[str, list[Round]], costs: dict[str, Cost]) -> None:
        self._rounds = rounds
        self._costs = costs

    def ratios(self, name: str, beside: str) -> list[float]:
        """How many commits of a work there were beside one of another, for each round."""
        pairs = zip(self._rounds[name], self._rounds[beside], strict=True)
        return [one.commits_per_s / other.commits_per_s for one, other in pairs]

    def latency_us(self, name: str, share: float) -> float:
        """The percentile of all rounds."""
        latencies_ns = [taken for one in self._rounds[name] for taken in one.latencies_ns]
        return percentile(latencies_ns, share) / 1e3

    def work_row(self, name: str, work: Work) -> str:
        rates = [one.commits_per_s for one in self._rounds[name]]
        cost = self._costs[name]
        cells = [
            work.what,
            f"{statistics.median(rates):,.0f}",
            self.beside_cell(name, work.beside) if work.beside in self._rounds else "",
            f"{self.latency_us(name, 0.5):,.0f}",
            f"{self.latency_us(name, 0.99):,.0f}",
            f"{cost.syncs:.3g}",
            *self.bytes_cells(cost.written_bytes, work),
        ]
        return f"| {' | '.join(cells)} |"

    def beside_cell(self, name: str, beside: str) -> str:
        """The rate of a work beside that of another, and what it is to reach."""
        ratios = self.ratios(name, beside)
        bound = TO_REACH.get(name)
        if bound is None:
            return in_range(ratios)
        missed = "" if statistics.median(ratios) >= bound else "**no**: "
        return f"{missed}{in_range(ratios)}, ≥{bound:g}"

    @staticmethod
    def bytes_cells(written: float | None, work: Work) -> tuple[str, str]:
        if written is None:
            return "not counted", ""
        return f"{written:,.0f}", number(written / work.commit_bytes, "times")

    def ratio_row(self, wanted: Ratio) -> str:
        ratios = self.ratios(wanted.name, wanted.beside)
        found = {
            "measured": statistics.median(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
        }
        return row(wanted.figure, found)

    def p99_row(self, name: str, figure: Figure) -> str:
        """The 99th percentile beside the larger one of its two bounds."""
        p50, p99 = self.latency_us(name, 0.5), self.latency_us(name, 0.99)
        bare_p99 = self.latency_us("bare", 0.99)
        return row(figure, {"measured": p99 / max(4 * p50, 1.5 * bare_p99)})

    def bytes_row(self, figure: Figure) -> str:
        written = self._costs["transaction_1"].written_bytes
        if written is None:
            return row(figure, None)
        return row(figure, {"measured": written / WORKS["transaction_1"].commit_bytes})

    def rates(self) -> list[dict[str, object]]:
        """Commits a second of each work, for drawings."""
        found: list[dict[str, object]] = []
        for name, rounds in self._rounds.items():
            rates = [one.commits_per_s for one in rounds]
            values = (statistics.median(rates), min(rates), max(rates))
            found.append(dict(zip(("measured", "least", "greatest"), values, strict=True)))
            found[-1]["what"] = WORKS[name].what
        return found

    def tables(self) -> list[str]:
        lines = [
            "| one commit | commits/s | beside the bare sync, to reach | p50 µs | p99 µs | syncs "
            "| bytes to disk | per byte of value |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [self.work_row(name, WORKS[name]) for name in self._rounds]
        lines += [
            "",
            *HEADING,
        ]
        has = self._rounds.keys()
        lines += [self.ratio_row(one) for one in RATIOS if {one.name, one.beside} <= has]
        for name, figure in P99_FIGURES.items():
            if {name, "bare"} <= has:
                lines.append(self.p99_row(name, figure))
        if "transaction_1" in has:
            lines.append(self.bytes_row(BYTES_FIGURE))
        return lines


def in_range(values: Sequence[float]) -> str:
    """The median, and the range in brackets."""
    least, middle, greatest = (
        number(one, "times") for one in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} [{least}, {greatest}]"


class Ratio(NamedTuple):
    """A figure: the rate of one work beside that of another."""

    name: str
    beside: str
    figure: Figure


def ratio(name: str, beside: str, what: str, at_least: float | None) -> Ratio:
    return Ratio(name, beside, Figure(what, "times", at_least=at_least))


# Of the column "beside the bare sync"; the growing file for those of 1,000 records.
TO_REACH = {
    "transaction_1": 0.9,
    "transaction_4": 2,
    "transaction_16": 3.5,
    "transaction_32": 4.5,
    "transaction_8_processes": 2.5,
    "column_new": 1,
    "column_recycled": 1.25,
    "sends_new": 0.75,
}
RATIOS = (
    ratio("transaction_1", "sqlite", "transaction of one record beside SQLite", 1.1),
    ratio("transaction_1", "rocksdb", "the same beside RocksDB", 1.2),
    ratio("wide_50", "wide_1", "transaction over 50 partitions beside one over 1, 100 bytes", 0.5),
    ratio("wide_50_1kb", "transaction_1", "the same, 1 KB to each", None),
    ratio("column_new", "lmdb_1000", "1,000 records as a column beside LMDB", 2),
)
P99_FIGURES = {
    f"transaction_{threads}": Figure(
        f"p99 of {threads} threads beside 4 p50 or 1.5 p99 of the bare sync",
        "times",
        at_most=1,
    )
    for threads in (4, 16, 32)
}
BYTES_FIGURE = Figure("bytes to disk per byte of value, one thread", "bytes", at_most=6)


def make_report(names: Sequence[str], effort: Effort, results_path: Path | None) -> str:
    """The machine's facts and the tables, as Markdown; the rates as JSON, if a file is given."""
    with tempfile.TemporaryDirectory(prefix="eoslog-bench-", dir=bench_root()) as name:
        folder = Path(name)
        facts = describe_machine(folder, effort.name)
        (folder / "rounds").mkdir()
        (folder / "counted").mkdir()
        rounds = run_rounds(names, folder / "rounds", effort)
        costs = count_costs(names, folder / "counted", effort)
    if not HAS_ROCKSDB:
        facts["RocksDB"] = "rocksdict is not installed"
    found, day = Results(rounds, costs), f"{datetime.now(UTC):%Y-%m-%d}"
    if results_path is not None:
        results = {"datetime": day, "machine_info": {"eoslog": facts}, "commits": found.rates()}
        results_path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return "\n".join([measured_on(day, facts), "", *found.tables()])


def main() -> None:
    parser = argparse.ArgumentParser(description="Show durable commits beside those of others.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORKS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="see that it works")
    parser.add_argument("--update", type=Path, help="a Markdown file to put the tables into")
    parser.add_argument("--json", type=Path, help="a file for the rates, for benches/plots.py")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - WORKS.keys()
    if unknown:
        parser.error(f"no such work: {', '.join(sorted(unknown))}")
    effort = QUICK if arguments.quick else FULL
    text = make_report(arguments.names or list(WORKS), effort, arguments.json)
    print(text)
    if arguments.update is not None:
        update_page(arguments.update, text, BEGIN, END)


if __name__ == "__main__":
    main()
