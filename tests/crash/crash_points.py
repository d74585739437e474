"""A store's process dies before each of its changes in turn, and whoever comes next is checked.

`python -m crash.crash_points FOLDER`, with the library of `numbered_calls` preloaded and
PYTHONHASHSEED=0. All changes that the program of `crash_workload` makes to a store are numbered:
calls, and in the build for it stores through maps. For each number the program runs in a new store
until there; then `crash_checks` opens it, and goes on. Options choose the numbers, what else there
is, and how many run at once.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crash.crash_beside import beside
from crash.crash_checks import check_after, look_and_check
from crash.crash_workload import Acknowledged, be_deterministic, opened, run
from crash.numbered_calls import arm, count, dies_before
from harness.fork import Fork, all_said, in_child
from read_only_stores import check_reading
from store_copies import copy_store

from eoslog.checking import Recorder

CALLS = ("create", "link", "rename", "reserve", "sync", "time", "truncate", "unlink", "write")


class Place:
    """A folder in which one death after another is died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.acknowledged = folder / "acknowledged"
        self.histories = [folder / f"history-{number}" for number in range(3)]

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def work(self) -> None:
        run(self.store, self.histories[0], self.acknowledged)

    def check(self) -> None:
        check_after(self.store, self.histories, self.acknowledged)

    def read(self) -> None:
        """Before anything is recovered."""
        check_reading(self.store)

    def look(self) -> None:
        """What a check does first, up to the first thing that it changes by itself."""
        with Recorder(self.histories[1]) as recorder, opened(self.store) as store:
            look_and_check(store, recorder, Acknowledged.read(self.acknowledged))


def changes_of(place: Place, work: Callable[[], None]) -> list[str]:
    """What kind of change each number is, from 1 on."""
    path = place.folder / "trace"

    def traced() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        ctypes.CDLL(None).numbered_trace(descriptor)
        arm(place.store, 0)
        work()
        ctypes.CDLL(None).numbered_trace(-1)
        assert count() == len(path.read_text().splitlines())

    in_child(traced)
    return path.read_text().splitlines()


def die_once(place: Place, number: int, mode: str, sure: int) -> None:
    """A run makes at least `sure` changes: it may end before a number above."""
    place.begin()
    if mode == "beside":
        with beside(place.store, place.histories, place.acknowledged) as check:
            die_or_end(place, number, sure)
            check()
        return
    die_or_end(place, number, sure)
    in_child(place.read)
    in_child(place.check)


def die_or_end(place: Place, number: int, sure: int) -> None:
    died = dies_before(number, place.store, place.work)
    assert died or number > sure, "it did not get so far"


def die_again(place: Place, number: int, sure: int) -> None:
    """Die once, and again in what the next one does first."""
    place.begin()
    die_or_end(place, number, sure)
    left = place.folder.with_name(place.folder.name + "-left")
    shutil.rmtree(left, ignore_errors=True)
    copy_store(place.folder, left)
    changes = sure_changes(changes_of(place, place.look))
    if changes:
        place.begin()
        copy_store(left, place.folder, dirs_exist_ok=True)
        # Another place of it with each number; the same with each repetition.
        second = 1 + number * 2_654_435_761 % changes
        assert dies_before(second, place.store, place.look), f"not so far as {second} of {changes}"
        in_child(place.check)
    shutil.rmtree(left)


def work_off(
    fork: Fork, place: Place, numbers: list[int], sure: int, options: argparse.Namespace
) -> None:
    """One of those that run at once: die at each of the numbers, and say how it went."""
    place.begin()
    place.work()  # Everything is imported before it forks.
    check_after(place.store, place.histories, place.acknowledged)
    gc.freeze()
    for number in numbers:
        error = ""
        try:
            if options.again:
                die_again(place, number, sure)
            else:
                die_once(place, number, options.mode, sure)
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            kept = place.folder.with_name(f"died-at-{number}")
            shutil.rmtree(kept, ignore_errors=True)
            copy_store(place.folder, kept)
        fork.say((number, error))
    shutil.rmtree(place.folder, ignore_errors=True)


def all_at_once(
    folder: Path, numbers: list[int], sure: int, options: argparse.Namespace
) -> dict[int, str]:
    """Die at all numbers, by several processes; what went wrong, by number."""
    children = []
    for worker in range(options.workers):
        place, own = Place(folder / f"place-{worker}"), numbers[worker :: options.workers]
        work = partial(work_off, place=place, numbers=own, sure=sure, options=options)
        children.append(Fork(work, seconds=0))
    failed: dict[int, str] = {}
    began, done = time.monotonic(), 0
    for number, error in all_said(children):
        done += 1
        if error:
            failed[number] = error
            print(f"FAILED at {number}: {error}", flush=True)
        if done % 500 == 0:
            passed_s = time.monotonic() - began
            print(f"{done} of {len(numbers)} in {passed_s:.0f} s", file=sys.stderr, flush=True)
    assert done == len(numbers)
    return failed


def by_kind(changes: list[str]) -> str:
    """How many calls and stores, and of each kind."""
    kinds = Counter(line.split("\t")[0] for line in changes)
    calls = {kind: kinds[kind] for kind in sorted(kinds) if kind in CALLS}
    stores = {kind: kinds[kind] for kind in sorted(kinds) if kind not in CALLS}
    parts = [
        f"{sum(one.values())} {what} ({', '.join(f'{kind} {many}' for kind, many in one.items())})"
        for what, one in (("calls", calls), ("stores", stores))
        if one
    ]
    return "; ".join(parts)


def chosen_numbers(changes: list[str], options: argparse.Namespace) -> list[int]:
    if options.only:
        return list(options.only)
    last = min(options.last or len(changes), len(changes))
    numbers = range(options.first, last + 1, options.step)
    if options.stores:
        return [n for n in numbers if changes[n - 1].split("\t")[0] not in CALLS]
    return list(numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=int, nargs="+", help="these numbers")
    parser.add_argument("--first", type=int, default=1, help="from this number on (1)")
    parser.add_argument("--last", type=int, help="up to this number (the last there is)")
    parser.add_argument("--step", type=int, default=1, help="each so-and-so-many-th (1)")
    parser.add_argument("--stores", action="store_true", help="no calls, only stores")
    parser.add_argument("--mode", choices=("alone", "beside"), default="alone")
    parser.add_argument("--again", action="store_true", help="and die again in the recovery")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    be_deterministic()
    place = Place(options.folder / "counted")
    changes = numbered_changes(place, options.mode)
    print(f"{len(changes)} changes: {by_kind(changes)}", flush=True)
    numbers = chosen_numbers(changes, options)
    began = time.monotonic()
    failed = all_at_once(options.folder, numbers, sure_changes(changes), options)
    for number in sorted(failed):
        print(f"number {number}: {changes[number - 1]}: {failed[number]}")
    what = f"{options.mode}{', and again in the recovery' if options.again else ''}"
    passed_s = time.monotonic() - began
    print(f"{len(numbers)} deaths ({what}), {len(failed)} failed, {passed_s:.0f} s", flush=True)
    return 1 if failed else 0


def numbered_changes(place: Place, mode: str) -> list[str]:
    """The changes of a run that nobody ends; two runs make the same.

    But for one entry of a time index: whether closing a log adds it hangs on a millisecond.
    """
    found = []
    for _ in range(2):
        place.begin()
        if mode == "beside":
            with beside(place.store, place.histories, place.acknowledged) as check:
                found.append(changes_of(place, place.work))
                check()
        else:
            found.append(changes_of(place, place.work))
            in_child(place.check)
    alike = [[line for line in changes if not _is_time_entry(line)] for changes in found]
    first, second = ([line.split("\t")[0] for line in changes] for changes in alike)
    for number, kinds in enumerate(zip(first, second, strict=False), start=1):
        if kinds[0] != kinds[1]:
            around = [changes[number - 4 : number + 4] for changes in alike]
            raise AssertionError(f"two runs make different changes from {number} on: {around}")
    assert len(first) == len(second)
    assert set(CALLS) <= set(first), "the program does not do all that it is to do"
    return found[0]


def sure_changes(changes: list[str]) -> int:
    """How many of these any other run makes too."""
    return sum(not _is_time_entry(line) for line in changes)


def _is_time_entry(line: str) -> bool:
    kind, *names = line.split("\t")
    return kind == "write" and names[0].endswith(".timeindex")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    status = main()
    sys.stdout.flush()
    os._exit(status)
