"""A process dies before each call of its close that changes the files of a store's counters.

It had folded what an earlier process left when it began. Whatever it died at, the counts are exact
right after that, and after the next process has folded what it left.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from crash.numbered_calls import arm, count
from harness.fork import dies_in_child

from eoslog.bindings.shared_page import SESSION_BYTES, SharedPage
from eoslog.session.counters import StoreCounters, read_counts
from eoslog.session.process_slots import ProcessSlots

SESSION = os.urandom(SESSION_BYTES)


def process(state: Path) -> StoreCounters:
    """The counters of a new process of the session."""
    shared = SharedPage(str(state / "shared"), SESSION, create=False)
    return StoreCounters(state, ProcessSlots(state, SESSION), shared)


def begin(state: Path) -> None:
    """Totals of one process, and a page of one that died."""
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    SharedPage(str(state / "shared"), SESSION, create=True).close()
    with_totals = process(state)
    with_totals.begin()
    with_totals.add("rebalances", 1)
    with_totals.close(sync=False)

    def left() -> None:
        process(state).add("rebalances", 10)

    assert not dies_in_child(left)


def live(state: Path, number: int) -> int:
    """A life of a process that dies before that call; 0: it ends, and the count of its calls."""
    counters = process(state)
    counters.add("rebalances", 100)
    counters.add("journal_bytes", 7)
    arm(state, number)
    counters.fold_dead(sync=True)
    counters.add("rebalances", 1000)
    counters.close(sync=True)
    calls = count()
    arm(state, 0)
    return calls


def rebalances(state: Path) -> int:
    return read_counts(state).counts["rebalances"]


def main(folder: Path) -> None:
    state = folder / "state"
    begin(state)
    calls = live(state, 0)
    assert rebalances(state) == 1111
    for number in range(1, calls + 1):
        begin(state)
        since_ms = read_counts(state).since_ms
        assert dies_in_child(lambda number=number: live(state, number)), number
        found = read_counts(state)
        assert found.since_ms == since_ms
        assert found.counts["journal_bytes"] == 7, number
        # It died in the fold, or in its close.
        assert rebalances(state) in (111, 1111), number
        before = found.counts
        later = process(state)
        later.fold_dead(sync=False)
        assert read_counts(state).counts == before, number
        later.close(sync=False)
        assert read_counts(state).counts == before, number
        assert [path.name for path in (state / "metrics").iterdir()] == ["totals.json"], number
    print(f"{calls} deaths")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
