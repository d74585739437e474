"""A store's process dies before some of the calls that change its files; see crash_points.

`make crash-points` has it die before all of them, and before each store through a map. Here is the
build that users have, in which nothing of the places in native/ is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from crash.numbered_calls import run
from staged_jobs import quick_directory

import eoslog

pytestmark = pytest.mark.crash

# Of some 2700 calls alone, and 1800 beside a process that lives on.
STEPS = {"alone": 211, "beside": 607}
STEP_AGAIN = 701


def died(tmp_path: Path, *options: str) -> str:
    """What the program says of its deaths; it fails if one of them was not made good."""
    with quick_directory(tmp_path) as folder:
        printed = run("crash.crash_points", tmp_path, str(folder), "--workers", "2", *options)
    print(printed)
    return printed.splitlines()[-1]


@pytest.mark.parametrize("mode", STEPS)
def test_whoever_comes_after_a_death_finds_all_that_was_acknowledged_once(tmp_path, mode):
    said = died(tmp_path, "--mode", mode, "--first", "7", "--step", str(STEPS[mode]))
    assert int(said.split()[0]) >= 3
    assert " 0 failed" in said


def test_whoever_dies_in_the_recovery_leaves_it_to_the_next(tmp_path):
    said = died(tmp_path, "--again", "--first", "101", "--step", str(STEP_AGAIN))
    assert int(said.split()[0]) >= 2
    assert " 0 failed" in said


@pytest.mark.parametrize("layer", ["native", "bindings"])
def test_nothing_of_the_places_to_die_at_is_in_this_build(layer):
    folder = Path(eoslog.__file__).parent / layer
    modules = [*folder.glob("*.so")] or [*folder.parents[1].glob(f"{layer}/*.so")]
    assert len(modules) > 20
    for module in modules:
        code = module.read_bytes()
        assert b"numbered_store" not in code, module
        assert b"control page: sequence odd" not in code, module
