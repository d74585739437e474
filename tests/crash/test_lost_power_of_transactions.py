"""The power goes under transactions: the committed ones are whole, the others are nothing.

States that a cut may leave are built from the order in which the work reached the logs, opened, and
looked at: what returned from a commit is there once, on all its partitions, with its offsets;
nothing else is seen; no partition holds readers back; every producer can go on.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from crash.transaction_states import CrashStates, Expected, check_state
from crash.transaction_trace import LiveStore, end_of_life

pytestmark = pytest.mark.crash


def drawn_work(path: Path, seed: int, durability: str = "commit", steps: int = 60) -> LiveStore:
    """Producers whose state partitions coincide and differ; some about to use up their epochs."""
    noise = random.Random(seed)
    epochs = tuple(noise.choice((0, 0, 32_760, 32_765, 32_766)) for _ in range(3))
    live = LiveStore(path, seed, durability, epochs=epochs, segment_bytes=noise.choice((2000, 20_000)))
    for _ in range(steps):
        live.step()
        if noise.random() < 0.02:
            live.reopen(clean=noise.random() < 0.5)
    live.remember()
    return live


def cut_the_power(root: Path, *, seed: int, cuts: int, steps: int = 60) -> int:
    """How many different outcomes the cuts had."""
    live = drawn_work(root / "live", seed, steps=steps)
    states = CrashStates(live)
    outcomes = set()
    for cut in range(cuts):
        noise = random.Random(seed * 1000 + cut)
        first = live.moments[0].at
        at = noise.randint(first, len(live.trace.events))
        target = root / "after"
        states.power_cut(target, at, noise)
        try:
            there = check_state(target, live, Expected(live, at), deeply=cut % 8 == 0)
        except BaseException as error:
            error.add_note(f"seed {seed}, cut {cut}, after {at} of {len(live.trace.events)} events")
            raise
        outcomes.add(frozenset(there))
        shutil.rmtree(target)
    end_of_life(live.store)
    return len(outcomes)


@pytest.mark.parametrize("seed", range(3))
def test_the_power_is_cut_at_any_moment(tmp_path, seed):
    assert cut_the_power(tmp_path, seed=seed, cuts=15) > 3


@pytest.mark.soak
def test_the_power_is_cut_thousands_of_times(tmp_path):
    first = int(os.environ.get("EOSLOG_SEED", "100"))
    for seed in range(first, first + int(os.environ.get("EOSLOG_SEEDS", "60"))):
        cut_the_power(tmp_path / str(seed), seed=seed, cuts=40)
        shutil.rmtree(tmp_path / str(seed))
