"""Every storage scenario, run by the model and by the engine."""

from __future__ import annotations

from dataclasses import fields

import pytest
from conformance import steps
from conformance.engines import BindingsEngine, ModelEngine, error_name
from conformance.log_transaction_scenarios import LOG_SCENARIOS
from conformance.storage_scenarios import IN_OTHER_TESTS, NOT_IN_THIS_STAGE, PLAIN_SCENARIOS
from conformance.store_engine import StoreEngine, is_told_by_the_store
from conformance.transaction_scenarios import TRANSACTION_SCENARIOS
from reference_model.producer_model import ModelError

from eoslog.common.config import TOPIC_SETTINGS
from eoslog.errors import EoslogError

SCENARIO_NUMBERS = range(1, 90)
SCENARIOS = [*PLAIN_SCENARIOS, *TRANSACTION_SCENARIOS]
ALL_SCENARIOS = [*SCENARIOS, *LOG_SCENARIOS]


ENGINES = {
    "model": lambda scenario, root: ModelEngine(scenario),
    "bindings": BindingsEngine,
    "store": StoreEngine,
}
CASES = [
    pytest.param(scenario, name, id=f"{name}-{scenario.id}")
    for name in ENGINES
    for scenario in ALL_SCENARIOS
    if name != "store" or is_told_by_the_store(scenario)
]


@pytest.fixture
def engine_of(tmp_path, monkeypatch):
    # The scenarios' segments and indexes are smaller than the store lets a user make them.
    for name in ("segment.bytes", "segment.index.bytes"):
        smaller = TOPIC_SETTINGS[name]._replace(smallest=1)
        monkeypatch.setitem(TOPIC_SETTINGS, name, smaller)
    made = []

    def make(name, scenario):
        made.append(ENGINES[name](scenario, tmp_path))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize(("scenario", "name"), CASES)
def test_scenario(scenario, name, engine_of):
    engine = engine_of(name, scenario)
    for number, step in enumerate(scenario.steps):
        try:
            run_step(engine, step)
        except AssertionError as error:
            raise AssertionError(
                f"{scenario.id} ({scenario.name}), step {number}: {step}\n{error}"
            ) from error


def run_step(engine, step):
    RUNNERS[type(step)](engine, step)


def run_append(engine, step):
    try:
        base_offset, last_offset, duplicate = engine.append(
            engine.batch(step), getattr(step, "verified", False)
        )
    except (EoslogError, ModelError) as error:
        assert error_name(error) == getattr(step, "error", None), str(error)
        return
    assert getattr(step, "error", None) is None, f"appended at {base_offset}"
    assert (base_offset, last_offset) == (step.offset, step.offset + step.count - 1)
    assert duplicate == getattr(step, "duplicate", False)


def run_marker(engine, step):
    try:
        offset = engine.mark(step)
    except (EoslogError, ModelError) as error:
        assert error_name(error) == step.error, str(error)
        return
    assert step.error is None, f"written at {offset}"
    assert (offset is not None) == step.written
    if step.written and step.offset is not None:
        assert offset == step.offset


def run_stable(engine, step):
    offset, opened = engine.opened()
    assert offset == step.offset
    if step.opened is not None:
        assert opened == list(step.opened)


def run_aborted(engine, step):
    assert engine.aborted(step.first, step.upper_bound) == list(step.entries)


def run_stored(engine, step):
    engine.replicate(engine.stored_batch(step))


def run_stored_marker(engine, step):
    engine.replicate(engine.stored_marker(step))


def run_state(engine, step):
    state = engine.state(step.producer_id)
    assert state is not None, "nothing is known of the producer"
    expected = {
        field.name: getattr(step, field.name)
        for field in fields(step)
        if field.name != "producer_id" and getattr(step, field.name) is not None
    }
    assert {name: state[name] for name in expected} == expected


def run_unknown(engine, step):
    assert engine.state(step.producer_id) is None


def run_reopen(engine, step):
    restored_from = engine.reopen(step.clean, step.recovery_point)
    if step.restored_from is not None:
        assert restored_from == step.restored_from


def run_bounds(engine, step):
    found = engine.bounds()
    for name in ("start", "end", "segments", "snapshots", "recovery_point"):
        expected = getattr(step, name)
        if expected is not None:
            assert found[name] == expected, name
    if step.segment_count is not None:
        assert len(found["segments"]) == step.segment_count
    if step.snapshots_up_to is not None:
        assert max(found["snapshots"], default=-1) <= step.snapshots_up_to
    if step.largest_times_ms is not None:
        times_ms = tuple(newest - engine.start_ms for newest in found["largest_times_ms"])
        assert times_ms == step.largest_times_ms


def run_roll(engine, step):
    assert engine.roll() == step.base


def run_flush(engine, step):
    assert engine.flush() == step.recovery_point


def run_truncate(engine, step):
    engine.truncate(step.offset)


def run_advance_start(engine, step):
    engine.advance_start(step.offset)


def run_delete_segments(engine, step):
    assert engine.delete_segments(step.up_to) == step.count


def run_expire(engine, step):
    assert tuple(engine.expire(engine.start_ms + step.at_ms)) == step.expired


def run_snapshot(engine, step):
    assert engine.snapshot() == step.written


def run_read(engine, step):
    try:
        offsets, position = engine.read(step.offset, step.record_count_max, step.committed)
    except (EoslogError, ModelError) as error:
        assert error_name(error) == step.error, str(error)
        return
    assert step.error is None, f"got {offsets}"
    assert offsets == step.offsets
    if step.position is not None:
        assert position == step.position


def run_find_time(engine, step):
    assert engine.find_time(engine.start_ms + step.at_ms) == step.offset


def run_break_file(engine, step):
    engine.break_file(step)


def run_stray_file(engine, step):
    assert engine.stray_file(step) == (not step.removed)


RUNNERS = {
    steps.Append: run_append,
    steps.Plain: run_append,
    steps.Stored: run_stored,
    steps.StoredMarker: run_stored_marker,
    steps.State: run_state,
    steps.Unknown: run_unknown,
    steps.Reopen: run_reopen,
    steps.Bounds: run_bounds,
    steps.Roll: run_roll,
    steps.Flush: run_flush,
    steps.Truncate: run_truncate,
    steps.AdvanceStart: run_advance_start,
    steps.DeleteSegments: run_delete_segments,
    steps.Expire: run_expire,
    steps.Snapshot: run_snapshot,
    steps.Read: run_read,
    steps.FindTime: run_find_time,
    steps.BreakFile: run_break_file,
    steps.StrayFile: run_stray_file,
    steps.Marker: run_marker,
    steps.Stable: run_stable,
    steps.Aborted: run_aborted,
}


def test_every_number_is_in_exactly_one_place():
    told = {scenario.number for scenario in SCENARIOS}
    places = [told, set(IN_OTHER_TESTS), set(NOT_IN_THIS_STAGE)]
    for number in SCENARIO_NUMBERS:
        assert sum(number in place for place in places) == 1, f"S{number:02d}"
    assert set().union(*places) == set(SCENARIO_NUMBERS)


def test_every_scenario_has_an_id_of_its_own():
    ids = [scenario.id for scenario in ALL_SCENARIOS]
    assert len(ids) == len(set(ids))


def test_every_scenario_left_out_says_why():
    assert all(len(reason) > 10 for reason in NOT_IN_THIS_STAGE.values())


def test_the_store_tells_all_that_users_can_do():
    """The rest asks for steps that only the store's maintenance takes."""
    told = {scenario.number for scenario in SCENARIOS if is_told_by_the_store(scenario)}
    assert len(told) > len({scenario.number for scenario in SCENARIOS}) // 2
