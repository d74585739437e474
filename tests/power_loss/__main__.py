"""Cuts the power under stores at work, at random moments, and looks at what is left.

`python -m power_loss --states 10000 --seed 1` (in `tests/`): so many distinct states, over all
kinds of work and all durabilities. `--repeat appends:commit:1000:17` has one state again, and keeps
its files if a promise is broken. The exit status is 1 then.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sized
from contextlib import suppress
from pathlib import Path

from harness.fork import ChildError, Fork
from power_loss import disk_trace
from power_loss.cut_states import Outcome, Piece, States
from power_loss.workload import STEPS
from staged_jobs import quick_directory

DURABILITIES = ("process", "commit", "always")
STATES_PER_PIECE_MAX = 40
PRELOADED = "EOSLOG_DISK_TRACE"


def pieces(states: int, seed: int, kinds: list[str], durabilities: list[str]) -> list[Piece]:
    """So many pieces of work that they have as many states as are wanted; all kinds alike."""
    cells = [(kind, durability) for kind in kinds for durability in durabilities]
    count = -(-states // per_piece(states, cells))
    first = seed * 100_000
    return [Piece(*cells[at % len(cells)], first + at // len(cells)) for at in range(count)]


def per_piece(states: int, cells: Sized) -> int:
    """How many states of each piece; few are of many pieces too."""
    return max(1, min(STATES_PER_PIECE_MAX, states // len(cells)))


class Job:
    """A child that checks the states of a piece of work, and says at which it is."""

    def __init__(self, piece: Piece, wanted: int, root: Path, keep: Path | None) -> None:
        self.piece = piece

        def check(fork: Fork) -> Outcome:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with tempfile.TemporaryDirectory(dir=root) as folder:
                return States(piece, Path(folder), keep, None).check(wanted, fork.say)

        self._fork = Fork(check, seconds=0)

    def end(self) -> Outcome:
        """Wait for it. If the work failed or the process died, which state it was at."""
        try:
            return self._fork.end()
        except ChildError as error:
            last = self._fork.said[-1] if self._fork.said else "none"
            return Outcome(0, Counter(), [f"state {self.piece}:{last}: {error}"])


def _outcomes(
    wanted: list[Piece], states: int, jobs: int, root: Path, keep: Path | None
) -> Iterator[tuple[Piece, Outcome]]:
    """Of each piece, several at a time; in the order in which they were begun."""
    left, each = states, per_piece(states, {(one.kind, one.durability) for one in wanted})
    running: list[Job] = []
    for piece in wanted:
        if len(running) == jobs:
            job = running.pop(0)
            yield job.piece, job.end()
        count = min(each, left)
        left -= count
        running.append(Job(piece, count, root, keep))
    for job in running:
        yield job.piece, job.end()


def run(arguments: argparse.Namespace) -> int:
    """Everything that was asked for; what was found is printed."""
    begun_s = time.monotonic()
    kinds = arguments.workload or list(STEPS)
    durabilities = arguments.durability or list(DURABILITIES)
    totals: dict[tuple[str, str], Counter[str]] = {}
    failures: list[str] = []
    # Children that were at work may still write when it is removed.
    with suppress(OSError), quick_directory(arguments.keep) as root:
        try:
            wanted = pieces(arguments.states, arguments.seed, kinds, durabilities)
            count = 0
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            while count < arguments.states:
                for piece, outcome in _outcomes(
                    wanted, arguments.states - count, arguments.jobs, root, arguments.keep
                ):
                    total = totals.setdefault((piece.kind, piece.durability), Counter())
                    total.update(outcome.counts)
                    total["drawn"] += outcome.drawn
                    total["pieces"] += 1
                    failures += outcome.failures
                    count += outcome.counts["distinct"]
                    for text in outcome.failures:
                        print(text, flush=True)
                if failures and count == 0:
                    break
                # Some pieces have not as many states as were wanted of them.
                newest = max(piece.seed for piece in wanted) + 1
                more = pieces(arguments.states - count, 0, kinds, durabilities)
                wanted = [Piece(one.kind, one.durability, newest + one.seed) for one in more]
        except KeyboardInterrupt:
            print("interrupted: what was checked until now")
    _print(arguments.seed, totals, failures, time.monotonic() - begun_s)
    return 1 if failures else 0


def _print(
    seed: int, totals: dict[tuple[str, str], Counter[str]], failures: list[str], seconds: float
) -> None:
    columns = ("pieces", "drawn", "distinct", "torn", "reordered", "in recovery")
    print(f"seed {seed}")
    print(f"{'work':26}" + "".join(f"{name:>13}" for name in columns))
    for (kind, durability), total in sorted(totals.items()):
        print(f"{kind + ', ' + durability:26}" + "".join(f"{total[one]:13}" for one in columns))
    everything = sum(totals.values(), Counter[str]())
    print(f"{'all':26}" + "".join(f"{everything[one]:13}" for one in columns))
    for name in sorted(set(everything) - set(columns)):
        print(f"{everything[name]} states: {name}")
    print(f"{len(failures)} broken promises; {seconds:.0f} s")


def repeat(arguments: argparse.Namespace) -> int:
    """One state once more."""
    kind, durability, seed, number = arguments.repeat.split(":")
    with quick_directory(arguments.keep) as root:
        states = States(Piece(kind, durability, int(seed)), root, arguments.keep, arguments.trace)
        outcome = states.check_number(int(number))
    for text in outcome.failures:
        print(text)
    print(f"{arguments.repeat}: {'broken' if outcome.failures else 'as promised'}")
    return 1 if outcome.failures else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="power_loss", description=__doc__)
    parser.add_argument("--states", type=int, default=10_000, help="how many distinct ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--workload", action="append", choices=list(STEPS))
    parser.add_argument("--durability", action="append", choices=DURABILITIES)
    parser.add_argument("--keep", type=Path, default=Path("../build/power-loss"),
                        help="where traces and files of broken promises go")  # fmt: skip
    parser.add_argument("--repeat", help="one state: work:durability:seed:number")
    parser.add_argument("--trace", type=Path, help="of the state to repeat, as it was kept")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    arguments.keep = arguments.keep.resolve()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    if PRELOADED not in os.environ:
        library = disk_trace.build_library(arguments.keep)
        environment = os.environ | {"LD_PRELOAD": str(library), PRELOADED: "1"}
        command = [sys.executable, "-m", "power_loss", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode
    logging.disable(logging.CRITICAL)
    return repeat(arguments) if arguments.repeat else run(arguments)


if __name__ == "__main__":
    sys.exit(main())
