"""Histories of a log that keeps its promises raise no alarm, whatever its clients live through."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from simulated_group import Group
from simulated_log import World

from eoslog.checking import check

SEEDS = st.integers(0, 2**32 - 1)


def found_in(world: World | Group) -> list[str]:
    with TemporaryDirectory() as folder:
        report = check([world.write(Path(folder) / "h.jsonl")], visible_within_s=0)
    return list(report.lines())


@given(SEEDS)
@example(0)
def test_a_clean_history_raises_no_alarm(seed: int) -> None:
    lines = found_in(World(seed))
    assert lines[0].startswith("clean: "), lines


@pytest.mark.soak
@given(SEEDS)
def test_a_long_clean_history_raises_no_alarm(seed: int) -> None:
    lines = found_in(World(seed, steps=500))
    assert lines[0].startswith("clean: "), lines


@given(SEEDS)
@example(0)
def test_a_group_that_is_moved_raises_no_alarm(seed: int) -> None:
    lines = found_in(Group(seed))
    assert lines[0].startswith("clean: "), lines
