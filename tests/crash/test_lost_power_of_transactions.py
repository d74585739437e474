"""The power goes under transactions: the committed ones are whole, the others are nothing.

States that a crash may leave are built from the order in which the work reached the logs, opened,
and looked at: what returned from a commit is there once, on all its partitions, with its offsets;
nothing else is seen; no partition holds readers back; every producer can go on.
"""

from __future__ import annotations

import os
import random
import shutil
from itertools import product
from pathlib import Path

import pytest
from crash.numbered import Numbered
from crash.transaction_states import (
    CrashStates,
    Expected,
    check_nothing_is_open,
    check_state,
    committed_values,
    go_on,
)
from crash.transaction_trace import QUIET, LiveStore, end_of_life, ends_on_disk
from short_form import short_form

import eoslog

pytestmark = pytest.mark.crash

SEED = int(os.environ.get("EOSLOG_SEED", "100"))
SEEDS = int(os.environ.get("EOSLOG_SEEDS", "60"))


def drawn_work(path: Path, seed: int, durability: str = "commit", steps: int = 60) -> LiveStore:
    """Producers whose state partitions coincide and differ; some about to use up their epochs."""
    noise = random.Random(seed)
    live = LiveStore(path, seed, durability)
    live.create(
        segment_bytes=noise.choice((2000, 20_000)),
        epochs=tuple(noise.choice((0, 0, 32_760, 32_765, 32_766)) for _ in range(3)),
    )
    work_on(live, steps)
    return live


def work_on(live: LiveStore, steps: int) -> None:
    for _ in range(steps):
        live.step()
        if live.noise.random() < 0.02:
            live.reopen(clean=live.noise.random() < 0.5)
    live.remember()


# The power.


def cut_the_power(root: Path, *, seed: int, cuts: int) -> int:
    """How many different outcomes the cuts had."""
    live = drawn_work(root / "live", seed)
    states = CrashStates(live)
    outcomes = set()
    for cut in range(cuts):
        noise = random.Random(seed * 1000 + cut)
        at = noise.randint(live.moments[0].at, len(live.trace.events))
        states.power_cut(root / "after", at, noise)
        with Numbered(f"seed {seed}, cut {cut}, after {at} of {len(live.trace.events)} events"):
            there = check_state(root / "after", live, Expected(live, at), deeply=cut % 8 == 0)
        outcomes.add(frozenset(there))
        shutil.rmtree(root / "after")
    end_of_life(live.store)
    return len(outcomes)


@pytest.mark.parametrize("seed", short_form(range(3), 0))
def test_the_power_is_cut_at_any_moment(tmp_path, seed):
    assert cut_the_power(tmp_path, seed=seed, cuts=15) > 3


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_power_is_cut_thousands_of_times(tmp_path):
    for seed in range(SEED, SEED + SEEDS):
        cut_the_power(tmp_path / str(seed), seed=seed, cuts=40)
        shutil.rmtree(tmp_path / str(seed))


def cut_again(root: Path, *, seed: int, cuts: int) -> None:
    """One cut after the other, each under the recovery from the one before, or under later work."""
    live = drawn_work(root / "0", seed, steps=40)
    for cut in range(1, cuts + 1):
        noise = random.Random(seed * 1000 + cut)
        at = noise.randint(live.moments[0].at, len(live.trace.events))
        expected = Expected(live, at)
        states = CrashStates(live)
        after, taken = root / "after", root / str(cut)
        states.power_cut(after, at, noise)
        shutil.copytree(after, taken)
        with Numbered(f"seed {seed}, cut {cut}, after {at} of {len(live.trace.events)} events"):
            there = check_state(after, live, expected, deeply=False)
            end_of_life(live.store)
            shutil.rmtree(after)
            following = LiveStore(taken, seed * 1000 + cut)
            following.take_up(live, there)
            if noise.random() < 0.7:
                work_on(following, noise.randint(1, 20))
        shutil.rmtree(live.path)
        live = following
    end_of_life(live.store)


@pytest.mark.parametrize("seed", short_form(range(3), 0))
def test_the_power_is_cut_again_and_again(tmp_path, seed):
    cut_again(tmp_path, seed=seed, cuts=10)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_power_is_cut_again_and_again_thousands_of_times(tmp_path):
    for seed in range(SEED, SEED + SEEDS):
        cut_again(tmp_path / str(seed), seed=seed, cuts=40)
        shutil.rmtree(tmp_path / str(seed))


# The same without the power: everything that was appended is there.


def die_at_every_event(root: Path, durability: str, *, seed: int, every: int = 1) -> int:
    """Process deaths between any two events; how many."""
    live = drawn_work(root / "live", seed, durability)
    states = CrashStates(live)
    moments = range(live.moments[0].at, len(live.trace.events) + 1, every)
    for at in moments:
        ends, _ = live.trace.at(at)
        states.at_ends(root / "after", at, ends)
        with Numbered(f"seed {seed}, after {at} of {len(live.trace.events)} events"):
            check_state(
                root / "after",
                live,
                Expected(live, at, ends),
                durability=durability,
                deeply=at % 16 == 0,
            )
        shutil.rmtree(root / "after")
    end_of_life(live.store)
    return len(moments)


@pytest.mark.parametrize("durability", short_form(["process", "commit"], "commit"))
def test_the_process_dies_between_any_two_events(tmp_path, durability):
    assert die_at_every_event(tmp_path, durability, seed=7, every=5) > 20


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_the_process_dies_between_any_two_events_of_much_work(tmp_path, durability):
    for seed in range(SEED, SEED + SEEDS // 4):
        die_at_every_event(tmp_path / str(seed), durability, seed=seed)
        shutil.rmtree(tmp_path / str(seed))


# All states that there are of little work.


def little_work(path: Path, kind: str, epoch: int) -> LiveStore:
    """Two transactions of one id, one after the other, with offsets; the second is left open."""
    live = LiveStore(path, 1, ids=("Aa-writer",), partitions=2, value_bytes=40)
    live.create(epochs=(epoch,))
    live.begin("Aa-writer")
    live.write("Aa-writer", 0)
    live.write("Aa-writer", 1)
    live.send_offset("Aa-writer")
    if kind == "fenced":
        live.init("Aa-writer")
    else:
        live.end("Aa-writer", commit=kind == "committed")
    live.begin("Aa-writer")
    live.write("Aa-writer", 1)
    live.producers["Aa-writer"].flush()
    live.look()
    return live


def states_of(live: LiveStore) -> dict[tuple[tuple[str, int], ...], int]:
    """Every way in which each log can end after a cut, and the last event at which it can."""
    found: dict[tuple[tuple[str, int], ...], int] = {}
    for at in range(live.moments[0].at, len(live.trace.events) + 1):
        ends, synced = live.trace.at(at)
        appended: dict[str, list[int]] = {name: [synced.get(name, 0)] for name in ends}
        for event in live.trace.events[:at]:
            if event.kind == "append" and event.offset > synced.get(event.log, 0):
                appended[event.log].append(event.offset)
        for chosen in product(*appended.values()):
            found[tuple(zip(appended, chosen, strict=True))] = at
    return found


@pytest.mark.parametrize(
    ("kind", "epoch"),
    [
        ("committed", 0),
        pytest.param("aborted", 0, marks=pytest.mark.soak),
        pytest.param("fenced", 0, marks=pytest.mark.soak),
        ("committed", 32_765),
        pytest.param("aborted", 32_765, marks=pytest.mark.soak),
        pytest.param("fenced", 32_765, marks=pytest.mark.soak),
        pytest.param("committed", 32_764, marks=pytest.mark.soak),
        pytest.param("fenced", 32_764, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(600)
def test_every_state_that_a_cut_can_leave_of_little_work(tmp_path, kind, epoch):
    live = little_work(tmp_path / "live", kind, epoch)
    states = CrashStates(live)
    found = states_of(live)
    assert len(found) > 50
    outcomes = set()
    for chosen, at in found.items():
        ends = dict(chosen)
        states.at_ends(tmp_path / "after", at, ends)
        with Numbered(f"logs that end at {ends}, after {at} events"):
            there = check_state(tmp_path / "after", live, Expected(live, at, ends), deeply=False)
        outcomes.add(frozenset(there))
        shutil.rmtree(tmp_path / "after")
    assert len(outcomes) == (2 if kind == "committed" else 1)
    end_of_life(live.store)


# A store whose durability promises nothing of a cut.


def cut_without_promises(root: Path, *, seed: int, cuts: int) -> None:
    """Transactions may be gone in part, but nobody waits, and every producer goes on."""
    live = drawn_work(root / "live", seed, "process")
    states = CrashStates(live)
    for cut in range(cuts):
        noise = random.Random(seed * 1000 + cut)
        at = noise.randint(live.moments[0].at, len(live.trace.events))
        states.power_cut(root / "after", at, noise)
        with Numbered(f"seed {seed}, cut {cut}, after {at} of {len(live.trace.events)} events"):
            store = eoslog.open(root / "after", durability="process", config=QUIET)
            try:
                seen = committed_values(store, live.partitions)
                check_nothing_is_open(store)
                added = go_on(store, live)
                check_nothing_is_open(store)
                assert committed_values(store, live.partitions) == {
                    number: seen.get(number, []) + added[number]
                    for number in range(live.partitions)
                }
            finally:
                end_of_life(store)
        shutil.rmtree(root / "after")
    end_of_life(live.store)


@pytest.mark.parametrize("seed", range(2))
def test_without_promises_producers_go_on_all_the_same(tmp_path, seed):
    cut_without_promises(tmp_path, seed=seed, cuts=15)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_without_promises_producers_go_on_after_thousands_of_cuts(tmp_path):
    for seed in range(SEED, SEED + SEEDS):
        cut_without_promises(tmp_path / str(seed), seed=seed, cuts=40)
        shutil.rmtree(tmp_path / str(seed))


def test_the_work_ends_where_its_trace_says(tmp_path):
    """Else the states above are not those of this work."""
    live = drawn_work(tmp_path, 5)
    assert live.trace.at(len(live.trace.events))[0] == {
        name: end for name, end in ends_on_disk(tmp_path).items() if end
    }
    assert {work.committed for work in live.works if not work.plain} >= {True, False}
    assert any(event.kind == "sync" for event in live.trace.events)
    end_of_life(live.store)
