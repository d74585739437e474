"""Each kind of anomaly, planted alone in a clean history, is found by name, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planted import PLANTS, Planted
from simulated_log import World

from eoslog.checking import ANOMALIES, check

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@settings(max_examples=settings().max_examples // 3)
@given(seed=SEEDS)
def test_a_planted_anomaly_is_found_and_named(plant: Callable[[World], Planted], seed: int) -> None:
    world = World(seed)
    planted = plant(world)
    assume(planted is not None)
    assert planted is not None
    expected, named = planted
    with TemporaryDirectory() as folder:
        report = check([world.write(Path(folder) / "h.jsonl")], visible_within_s=0)
    found = {one.kind: one.count for one in report.found if one.count}
    assert found == expected, list(report.lines())
    for anomaly in report.anomalies:
        assert anomaly.operations
    assert named in "\n".join(report.lines())


def test_every_kind_of_anomaly_is_planted() -> None:
    planted: set[str] = set()
    for plant in PLANTS:
        found = next(filter(None, (plant(World(seed)) for seed in range(50))))
        planted |= found[0].keys()
    assert planted == set(ANOMALIES)
