"""The states that power cuts can leave of one piece of work, each recovered and checked.

The work is done in a forked child, whose trace then tells what was synced at each moment. Each
state has a number, and all that is drawn for it comes from the work's name and that number. Every
fifth one is cut a second time, in the midst of its recovery.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from harness.fork import in_child
from power_loss import disk_trace
from power_loss.disk_model import Disk, PowerCut
from power_loss.disk_trace import BEGUN, MARK, Event
from power_loss.promises import Promises, check_state, look
from power_loss.workload import Workload
from store_copies import copy_store
from stores import QUIET

import eoslog
from eoslog.store.store import abandon

STEPS = 60
# Draws that may be had of one trace for each distinct state that is wanted.
DRAWS_PER_STATE = 3
RECOVERY_EVERY = 5
SECONDS_MAX = 120


@dataclass(frozen=True)
class Piece:
    """One piece of work."""

    kind: str
    durability: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.durability}:{self.seed}"


@dataclass
class Outcome:
    """What became of the states of a piece of work."""

    drawn: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class States:
    """Of one piece of work; `root` is an empty folder for it."""

    def __init__(self, piece: Piece, root: Path, keep: Path | None, trace: Path | None) -> None:
        self.piece = piece
        self.root = root
        self.keep = keep
        self.workload = Workload(root / "live", piece.kind, piece.durability, piece.seed)
        if trace is None:
            trace = root / "trace"
            self.workload.create()
            self._in_child(self.workload.path, trace, lambda: self.workload.run(STEPS))
        self.trace = trace
        self.events = list(disk_trace.read(trace))
        self.notes = [json.loads(one.first) for one in self.events if one.kind == MARK]
        self.begun = next(at for at, one in enumerate(self.events) if one.kind == BEGUN) + 1
        shutil.rmtree(self.workload.path, ignore_errors=True)

    def _in_child(self, folder: Path, trace: Path, work: Callable[[], object]) -> None:
        """Do it in a child, and have the trace of it."""

        def traced() -> None:
            disk_trace.begin(folder, trace)
            work()
            disk_trace.end()

        in_child(traced)

    def check(self, wanted: int, announce: Callable[[int], None]) -> Outcome:
        """Check so many distinct states, as far as there are that many."""
        outcome = Outcome()
        numbers = range(wanted * DRAWS_PER_STATE)
        moments = {number: self._noise(number).randint(self.begun, len(self.events))
                   for number in numbers}  # fmt: skip
        # In batches, so that no more are drawn than are wanted; each batch in the order of time.
        seen: set[bytes] = set()
        for first in range(0, len(numbers), wanted):
            left = wanted - len(seen)
            if left <= 0:
                break
            batch = sorted(numbers[first : first + left], key=moments.__getitem__)
            for number, disk, count in self._disks(batch, moments):
                announce(number)
                outcome.drawn += 1
                self._check_one(number, disk, count, seen, outcome)
        outcome.counts["distinct"] = len(seen)
        return outcome

    def check_number(self, number: int) -> Outcome:
        """Check the state of this number alone."""
        outcome = Outcome(drawn=1)
        moment = self._noise(number).randint(self.begun, len(self.events))
        for _, disk, count in self._disks([number], {number: moment}):
            self._check_one(number, disk, count, set(), outcome)
        return outcome

    def _noise(self, number: int) -> random.Random:
        return random.Random(f"{self.piece} {number}")

    def _disks(
        self, numbers: list[int], moments: dict[int, int]
    ) -> Iterator[tuple[int, Disk, int]]:
        """The disk at the moment of each number, with how many notes were made until then."""
        disk = Disk()
        note_count = 0
        for number in numbers:
            for event in self.events[disk.count : moments[number]]:
                disk.take(event)
                note_count += event.kind == MARK
            yield number, disk, note_count

    def _check_one(
        self, number: int, disk: Disk, note_count: int, seen: set[bytes], outcome: Outcome
    ) -> None:
        noise = self._noise(number)
        noise.random()
        cut, target = self._lay_down(disk, noise)
        digest = cut.digest
        promises = Promises(self.piece.durability, self.notes, note_count)
        recovered = number % RECOVERY_EVERY == RECOVERY_EVERY - 1
        try:
            with _limited_time():
                if recovered:
                    cut, target = self._cut_recovery(target, noise)
                    digest += cut.digest
                if digest in seen:
                    return
                seen.add(digest)
                self._keep_state(target, number)
                promised = check_state(target, self.workload, promises, deeply=number % 8 == 0)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._report(number, cut, note_count, error, outcome)
            return
        outcome.counts["torn"] += cut.torn
        outcome.counts["reordered"] += cut.reordered
        outcome.counts["in recovery"] += recovered
        outcome.counts.update(promised)

    def _lay_down(self, disk: Disk, noise: random.Random) -> tuple[PowerCut, Path]:
        cut = PowerCut(disk, noise)
        files = cut.draw()
        target = self.root / "after"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        cut.write(target, files)
        return cut, target

    def _cut_recovery(self, target: Path, noise: random.Random) -> tuple[PowerCut, Path]:
        trace = self.root / "recovery"
        close = noise.random() < 0.5
        self._in_child(target, trace, lambda: self._recover(target, close))
        events = list(disk_trace.read(trace))
        begun = next(at for at, one in enumerate(events) if one.kind == BEGUN) + 1
        return self._lay_down(_disk_after(events, noise.randint(begun, len(events))), noise)

    def _recover(self, path: Path, close: bool) -> None:
        durability: Any = self.piece.durability
        store = eoslog.open(path, durability=durability, config=QUIET)
        look(store)
        store.groups()
        if close:
            store.close()
        else:
            abandon(store)

    def _keep_state(self, target: Path, number: int) -> None:
        """Of the only state that is asked for, keep the files as the cut left them."""
        if self.keep is not None:
            kept = self.root / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            copy_store(target, kept)

    def _report(
        self, number: int, cut: PowerCut, note_count: int, error: BaseException, outcome: Outcome
    ) -> None:
        text = "".join(traceback.format_exception(error))
        place = ""
        if self.keep is not None:
            name = f"{self.piece.kind}-{self.piece.durability}-{self.piece.seed}"
            self.keep.mkdir(parents=True, exist_ok=True)
            kept = self.keep / f"{name}.trace"
            if self.trace != kept:
                shutil.copyfile(self.trace, kept)
            place = f"\nits trace: {kept}"
            if (self.root / "kept").exists():
                state = self.keep / f"{name}-{number}"
                shutil.rmtree(state, ignore_errors=True)
                copy_store(self.root / "kept", state)
                place += f"\nits files: {state}"
        head = f"state {self.piece}:{number} ({cut.describe()}, after {note_count} notes)"
        outcome.failures.append(f"{head}{place}\n{text}")


def _disk_after(events: list[Event], count: int) -> Disk:
    disk = Disk()
    for event in events[:count]:
        disk.take(event)
    return disk


@contextmanager
def _limited_time() -> Iterator[None]:
    def too_long(*_: object) -> NoReturn:
        raise TimeoutError(f"more than {SECONDS_MAX} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
