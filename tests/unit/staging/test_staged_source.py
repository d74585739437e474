"""Versions that a source counts: replays, drivers, and counts that begin anew (rules K1-K8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from staged_jobs import (
    APP,
    stage_job,
    staged_files,
    visible_numbers,
)

import eoslog
from eoslog.errors import (
    StagedCommitError,
    StagedReplayError,
    StagedRunFencedError,
    StagedSourceError,
)
from eoslog.staging.source import OVERTAKEN_MAX, VersionSource, version_run_id
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import CompactedLog

ROWS = 20


def rows_of(part: int) -> range:
    return range(part * ROWS, (part + 1) * ROWS)


def staged(
    store_path: Path, version: int, part: int, source: str = "query", driver: str = "driver-1"
) -> tuple[str, list[Any]]:
    """The run and the messages of one driver's attempt at one version."""
    run_id = version_run_id(version, source, driver)
    return run_id, stage_job(store_path, run_id, rows_of(part), name=f"{part}-")


def commit(
    store: Any,
    version: int,
    part: int,
    source: str = "query",
    driver: str = "driver-1",
    app_id: str = APP,
    **options: Any,
) -> bool:
    """Stage rows of a part and commit them as a version; whether they were committed."""
    run_id = version_run_id(version, source, driver)
    messages = stage_job(store.path, run_id, rows_of(part), app_id=app_id, name=f"{part}-")
    known = VersionSource(source, driver, **options)
    return store.commit_staged(app_id, version, messages, run_id=run_id, source=known).committed


def parts_in(store: Any) -> list[int]:
    """Which parts are in the log, each of them whole and once."""
    numbers = [number for found in visible_numbers(store).values() for number in found]
    parts = sorted({number // ROWS for number in numbers})
    assert sorted(numbers) == [number for part in parts for number in rows_of(part)]
    return parts


# A count that goes on.


def test_a_replay_by_a_new_driver_is_a_no_op(store):
    assert commit(store, 0, 0)
    assert not commit(store, 0, 1, driver="driver-2")
    assert commit(store, 1, 2, driver="driver-2")
    assert parts_in(store) == [0, 2]
    assert staged_files(store.path) == []


def test_the_application_says_who_counts(store):
    commit(store, 3, 0)
    known = store.application(APP)
    assert (known.version, known.source_id, known.base) == (3, "query", 0)


def test_versions_of_one_driver_are_one_run(store):
    for version in range(3):
        commit(store, version, version)
    assert store.application(APP).generation == 1
    commit(store, 3, 3, driver="driver-2")
    assert store.application(APP).generation == 2


def test_a_version_without_records_counts(store):
    run_id = version_run_id(0, "query", "driver-1")
    source = VersionSource("query", "driver-1")
    assert store.commit_staged(APP, 0, [], run_id=run_id, source=source).committed
    assert not store.commit_staged(APP, 0, [], run_id=run_id, source=source).committed
    assert store.application(APP).version == 0


def test_a_source_needs_a_run_id(store):
    with pytest.raises(ValueError, match="run id"):
        store.commit_staged(APP, 0, [], source=VersionSource("query", "driver-1"))


# Drivers.


def test_an_older_driver_is_refused(store):
    commit(store, 0, 0)
    commit(store, 1, 1, driver="driver-2")
    with pytest.raises(StagedRunFencedError, match="driver-2"):
        commit(store, 2, 2)
    assert parts_in(store) == [0, 1]


def test_an_older_driver_is_refused_for_a_version_that_is_in_too(store):
    commit(store, 0, 0)
    commit(store, 1, 1, driver="driver-2")
    with pytest.raises(StagedRunFencedError):
        commit(store, 1, 2)
    assert parts_in(store) == [0, 1]


def test_a_replay_puts_the_driver_before_out(path):
    with eoslog.open(path) as store:
        commit(store, 0, 0)
        assert not commit(store, 0, 1, driver="driver-2")
    with eoslog.open(path) as store:
        with pytest.raises(StagedRunFencedError):
            commit(store, 1, 2)
        assert commit(store, 1, 3, driver="driver-2")
        assert parts_in(store) == [0, 3]


def test_so_many_drivers_are_remembered(store):
    for number in range(OVERTAKEN_MAX + 2):
        commit(store, number, number, driver=f"driver-{number}")
    with pytest.raises(StagedRunFencedError):
        commit(store, OVERTAKEN_MAX + 2, 99, driver="driver-1")
    # The oldest one looks new again; its versions are behind all the same.
    with pytest.raises(StagedSourceError):
        commit(store, 0, 99, driver="driver-0")


# A count that begins anew.


@pytest.mark.parametrize("last", [0, 5])
@pytest.mark.parametrize("version", [0, 1, 9])
def test_another_source_is_refused(store, last, version):
    commit(store, last, 0)
    with pytest.raises(StagedSourceError, match=f"version {last}.*'query'.*'another'"):
        commit(store, version, 1, source="another", driver="driver-2")
    assert parts_in(store) == [0]
    assert store.application(APP).source_id == "query"
    # Nothing was changed by it.
    assert commit(store, last + 1, 2)


def test_a_source_is_refused_where_versions_were_given_by_hand(store):
    messages = stage_job(store.path, "by-hand", rows_of(0))
    store.commit_staged(APP, 7, messages)
    with pytest.raises(StagedSourceError):
        commit(store, 0, 1)
    assert commit(store, 0, 2, new_allowed=True)
    assert store.application(APP).version == 8


def test_a_source_that_is_allowed_follows_on(path):
    with eoslog.open(path) as store:
        for version in range(3):
            commit(store, version, version)
        assert commit(store, 0, 3, source="another", driver="driver-2", new_allowed=True)
        known = store.application(APP)
        assert (known.version, known.source_id, known.base) == (3, "another", 3)
    with eoslog.open(path) as store:
        # A replay is a no-op, allowed or not; the count goes on.
        assert not commit(store, 0, 4, source="another", driver="driver-3", new_allowed=True)
        assert not commit(store, 0, 5, source="another", driver="driver-3")
        assert commit(store, 1, 6, source="another", driver="driver-3")
        assert store.application(APP).version == 4
        assert parts_in(store) == [0, 1, 2, 3, 6]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_source_that_was_replaced_is_out_for_ever(store, allowed):
    commit(store, 0, 0)
    commit(store, 0, 1, source="another", driver="driver-2", new_allowed=True)
    with pytest.raises(StagedSourceError, match="replaced"):
        commit(store, 1, 2, driver="driver-3", new_allowed=allowed)
    assert parts_in(store) == [0, 1]


@pytest.mark.parametrize("driver", ["driver-1", "driver-2"])
def test_a_count_that_goes_back_is_refused(store, driver):
    """What is below the newest version is no replay: an older copy of a checkpoint is back."""
    for version in range(3):
        commit(store, version, version)
    with pytest.raises(StagedSourceError, match="counts 1, after 2"):
        commit(store, 1, 3, driver=driver)
    assert parts_in(store) == [0, 1, 2]
    assert commit(store, 3, 4)


def test_a_count_that_goes_back_and_is_allowed_follows_on(store):
    for version in range(3):
        commit(store, version, version)
    assert commit(store, 1, 3, driver="driver-2", new_allowed=True)
    known = store.application(APP)
    assert (known.version, known.source_id, known.base) == (3, "query", 2)
    assert not commit(store, 1, 4, driver="driver-3", new_allowed=True)
    assert commit(store, 2, 5, driver="driver-3")
    assert parts_in(store) == [0, 1, 2, 3, 5]


FIRST = {"input_id": "first", "rows": ROWS}


@pytest.mark.parametrize("driver", ["driver-1", "driver-2"])
@pytest.mark.parametrize(
    "other",
    [
        {"input_id": "second", "rows": ROWS},
        {"rows": ROWS + 1},
        {"rows": 0},
        {"input_id": "second"},
    ],
)
def test_the_newest_number_with_another_content_is_refused(path, other, driver):
    """A checkpoint of one version ago is back: its next version is new, and none that is in."""
    with eoslog.open(path) as store:
        commit(store, 0, 0, input_id="none", rows=ROWS)
        commit(store, 1, 1, **FIRST)
    with eoslog.open(path) as store:
        with pytest.raises(StagedReplayError, match="counts 1, which is in"):
            commit(store, 1, 2, driver=driver, **other)
        assert parts_in(store) == [0, 1]
        assert commit(store, 1, 3, driver=driver, new_allowed=True, **other)
        assert not commit(store, 1, 4, driver=driver, **other)
        assert commit(store, 2, 5, driver=driver, **FIRST)
        assert parts_in(store) == [0, 1, 3, 5]


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (FIRST, FIRST),
        (FIRST, {"input_id": "first", "rows": 3}),
        (FIRST, {"rows": ROWS}),
        (FIRST, {}),
        ({"rows": ROWS}, FIRST),
        ({"input_id": "first"}, {"rows": 3}),
        ({}, FIRST),
    ],
)
def test_a_replay_is_known_by_its_input_or_else_by_its_rows(store, before, again):
    """A query need not be deterministic: one input may give other rows."""
    commit(store, 0, 0, **before)
    assert not commit(store, 0, 1, driver="driver-2", **again)
    assert not commit(store, 0, 1, driver="driver-2", new_allowed=True, **again)
    assert parts_in(store) == [0]


def test_a_replay_keeps_the_content_of_the_first_time(store):
    commit(store, 0, 0, **FIRST)
    commit(store, 0, 1, driver="driver-2", input_id="first", rows=3)
    assert not commit(store, 0, 2, driver="driver-3", rows=ROWS)


def test_a_source_that_left_its_place_to_another_application_is_out(path):
    """Else an old copy of a checkpoint would go on beside the one that took its place."""
    with eoslog.open(path) as store:
        commit(store, 0, 0, app_id="first", place="/checkpoint")
        options = {"place": "/checkpoint", "new_allowed": True}
        commit(store, 0, 1, source="another", app_id="second", **options)
    with eoslog.open(path) as store:
        for part, place in enumerate(("/checkpoint", "/moved", None), 3):
            options = {"place": place, "new_allowed": part != 3}
            with pytest.raises(StagedSourceError, match="'second'"):
                commit(store, 1, part, driver="driver-2", app_id="first", **options)
        assert commit(store, 1, 2, source="another", driver="driver-3", app_id="second")
        assert parts_in(store) == [0, 1, 2]


def test_a_source_that_left_one_of_its_applications_goes_on_with_the_others(store):
    """A query's foreachBatch may write under several names, and has no place."""
    for app_id, part in (("first", 0), ("second", 1)):
        commit(store, 0, part, app_id=app_id)
    commit(store, 0, 2, source="another", app_id="first", new_allowed=True)
    assert commit(store, 1, 3, driver="driver-2", app_id="second")
    assert parts_in(store) == [0, 1, 2, 3]


def test_a_place_knows_which_application_counted_there(store):
    commit(store, 0, 0, app_id="first", place="/checkpoint")
    with pytest.raises(StagedSourceError, match=r"/checkpoint.*'first'"):
        commit(store, 0, 1, source="another", app_id="second", place="/checkpoint")
    assert commit(store, 0, 2, source="another", app_id="third", place="/elsewhere")
    options = {"place": "/checkpoint", "new_allowed": True}
    assert commit(store, 0, 3, source="another", app_id="second", **options)
    assert commit(store, 1, 4, source="another", app_id="second", place="/checkpoint")
    assert parts_in(store) == [0, 2, 3, 4]


def test_a_place_without_versions_is_free(store):
    """A first driver that died before its decision leaves nothing that could be repeated."""
    staged(store.path, 0, 0)
    store.begin_run("first")
    assert commit(store, 0, 1, app_id="second", place="/checkpoint")


def test_a_count_that_moved_leaves_its_place(store):
    commit(store, 0, 0, app_id="first", place="/checkpoint")
    commit(store, 1, 1, app_id="first", place="/moved")
    assert commit(store, 0, 2, source="another", app_id="second", place="/checkpoint")


@pytest.mark.parametrize("version", [0, 1, 20260131])
def test_versions_by_hand_are_refused_once_a_source_counts(store, version):
    """One above the count would make the source's next versions look old."""
    commit(store, 0, 0)
    messages = stage_job(store.path, "by-hand", rows_of(1))
    with pytest.raises(StagedSourceError, match="of their own"):
        store.commit_staged(APP, version, messages)
    assert commit(store, 1, 2)
    assert parts_in(store) == [0, 2]


# Runs whose names tell their version.


def test_a_run_tells_its_version():
    run_id = version_run_id(12, "query", "86394d25-07be-4fcf-8d4d-29c641621bd9")
    assert run_id.startswith("v0000000000000000012-")
    assert run_id.endswith("-86394d25-07be-4fcf-8d4d-29c641621bd9")
    assert len(version_run_id((1 << 63) - 1, "query", "x" * 46)) == 80


@pytest.mark.parametrize("text", ["x" * 47, "with spaces", "über", "-", "x/y"])
def test_any_text_makes_a_safe_run(text):
    first, second = version_run_id(1, "query", text), version_run_id(1, "query", text + "+")
    assert first != second
    assert len(first) <= 80
    assert "/" not in first and " " not in first


def test_what_dead_drivers_staged_goes_with_the_version(store):
    staged(store.path, 0, 0, driver="dead-1")
    staged(store.path, 1, 1, driver="dead-1")
    staged(store.path, 0, 2, driver="dead-2")
    assert commit(store, 0, 3)
    assert {path.split("/")[1] for path in map(str, staged_files(store.path))} == {
        version_run_id(1, "query", "dead-1")
    }
    assert commit(store, 1, 4)
    assert staged_files(store.path) == []


def test_what_a_zombie_stages_later_is_swept(store):
    commit(store, 0, 0)
    staged(store.path, 0, 1, driver="dead")
    parts_of(store).staged.sweep()
    assert staged_files(store.path) == []


def test_the_files_of_another_source_stay(store):
    """A new source stages its version 0 while the application is at a higher one."""
    commit(store, 5, 0)
    run_id, messages = staged(store.path, 0, 1, source="another", driver="driver-2")
    parts_of(store).staged.sweep()
    commit(store, 6, 2)
    allowed = VersionSource("another", "driver-2", new_allowed=True)
    assert store.commit_staged(APP, 0, messages, run_id=run_id, source=allowed).committed
    assert parts_in(store) == [0, 1, 2]


def test_the_files_of_a_source_that_was_replaced_go(store):
    commit(store, 0, 0)
    staged(store.path, 7, 1)
    commit(store, 0, 2, source="another", driver="driver-2", new_allowed=True)
    assert staged_files(store.path) == []


def test_versions_that_no_source_counts_have_such_runs_too(store):
    for text, version in (("dead", 4), ("dead", 5), ("alive", 4)):
        stage_job(store.path, version_run_id(version, None, text), rows_of(version))
    run_id = version_run_id(4, None, "done")
    messages = stage_job(store.path, run_id, rows_of(4))
    assert store.commit_staged(APP, 4, messages).committed
    assert {path.split("/")[1] for path in map(str, staged_files(store.path))} == {
        version_run_id(5, None, "dead")
    }
    stage_job(store.path, version_run_id(3, None, "late"), rows_of(3))
    store.commit_staged(APP, 5, stage_job(store.path, version_run_id(5, None, "x"), rows_of(5)))
    assert staged_files(store.path) == []


# Around the decision.


@pytest.mark.parametrize("allowed", [False, True])
def test_a_decision_that_never_was_leaves_the_count_as_it_was(path, monkeypatch, allowed):
    with eoslog.open(path) as store:
        commit(store, 0, 0)
        run_id, messages = staged(store.path, 0, 1, source="another", driver="driver-2")
        source = VersionSource("another", "driver-2", new_allowed=allowed)
        victim = next(store.path.glob(f"staging/*/{run_id}/*/*.batches"))
        victim.write_bytes(victim.read_bytes()[:-1])
        with pytest.raises(StagedCommitError):
            store.commit_staged(APP, 0, messages, run_id=run_id, source=source)
    with eoslog.open(path) as store:
        known = store.application(APP)
        assert (known.version, known.source_id, known.base) == (0, "query", 0)
        assert commit(store, 1, 2)
        assert parts_in(store) == [0, 2]


def test_an_interrupted_decision_takes_the_count_back_too(store, monkeypatch):
    commit(store, 0, 0)
    append = CompactedLog.append

    def append_and_stop(*arguments: Any, **options: Any) -> None:
        append(*arguments, **options)
        raise KeyboardInterrupt

    run_id, messages = staged(store.path, 0, 1, source="another", driver="driver-2")
    source = VersionSource("another", "driver-2", new_allowed=True)
    monkeypatch.setattr(CompactedLog, "append", append_and_stop)
    with pytest.raises(KeyboardInterrupt):
        store.commit_staged(APP, 0, messages, run_id=run_id, source=source)
    monkeypatch.setattr(CompactedLog, "append", append)
    assert commit(store, 1, 2)
    known = store.application(APP)
    assert (known.version, known.source_id) == (1, "query")
    assert parts_in(store) == [0, 2]


# What is handed in.


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"source_id": ""}, ValueError),
        ({"driver_id": ""}, ValueError),
        ({"place": ""}, ValueError),
        ({"source_id": 7}, TypeError),
        ({"new_allowed": "true"}, TypeError),
        ({"input_id": ""}, ValueError),
        ({"input_id": 7}, TypeError),
        ({"rows": -1}, ValueError),
        ({"rows": "7"}, TypeError),
        ({"rows": True}, TypeError),
    ],
)
def test_what_is_no_source(fields, error):
    with pytest.raises(error):
        VersionSource(**{"source_id": "query", "driver_id": "driver", **fields})


def test_versions_end_somewhere(store):
    commit(store, 0, 0)
    with pytest.raises(ValueError, match="outside"):
        commit(store, (1 << 63) - 1, 1, source="another", new_allowed=True)
