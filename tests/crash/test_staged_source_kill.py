"""Versions that a source counts, by drivers that are killed around each decision (rules K1-K7).

Then another driver runs the version again, as Spark does from its checkpoint: each version's rows
are in once, in the order of versions, and the driver that died is out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.fork import Kill, dies_in_child
from staged_jobs import (
    APP,
    PARTITIONS,
    TOPIC,
    expected_numbers,
    quick_directory,
    stage_job,
    staged_files,
    visible_numbers,
)

import eoslog
from eoslog.errors import StagedRunFencedError, StagedSourceError
from eoslog.staging import leftovers as staged_leftovers
from eoslog.staging.adoption import HeldPartitions
from eoslog.staging.leftovers import Leftovers
from eoslog.staging.source import VersionSource, version_run_id
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import CompactedLog

pytestmark = pytest.mark.crash

ROWS = 30
# The record that decides, the one that completes, and what lies between and behind them.
NOT_DECIDED = [Kill(HeldPartitions, "hold_at_end"), Kill(CompactedLog, "append")]
DECIDED = [
    Kill(CompactedLog, "append", when="after"),
    Kill(UnifiedLog, "adopt"),
    Kill(UnifiedLog, "adopt", nth=3, when="after"),
    Kill(CompactedLog, "append", nth=2),
    Kill(CompactedLog, "append", nth=2, when="after"),
    Kill(Leftovers, "put_away"),
    Kill(Leftovers, "put_away", when="after"),
    Kill(staged_leftovers, "outdated_runs"),
]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with quick_directory(tmp_path) as directory:
        with eoslog.open(directory / "store", create=True) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
        yield directory / "store"


def rows_of(number: int) -> range:
    return range(number * ROWS, (number + 1) * ROWS)


def commit(
    store: Any, version: int, number: int, driver: str, source: str = "query", **options: Any
) -> bool:
    """Stage the rows of a number and commit them as a version of the source."""
    run_id = version_run_id(version, source, driver)
    messages = stage_job(store.path, run_id, rows_of(number), name=f"{number}-")
    known = VersionSource(source, driver, **options)
    return store.commit_staged(APP, version, messages, run_id=run_id, source=known).committed


def die_in_commit(path: Path, tmp_path: Path, kill: Kill, *arguments: Any, **options: Any) -> None:
    """A driver of its own, which dies in its commit."""

    def work() -> None:
        with eoslog.open(path) as store:
            kill.arm()
            commit(store, *arguments, **options)

    assert dies_in_child(work)


def check(store: Any, *numbers: int) -> None:
    assert visible_numbers(store) == expected_numbers(*map(rows_of, numbers))
    assert staged_files(store.path) == []


@pytest.mark.parametrize("kill", [*NOT_DECIDED, *DECIDED], ids=str)
def test_the_next_driver_runs_the_version_again(path, tmp_path, kill):
    with eoslog.open(path) as store:
        commit(store, 0, 0, "driver-1")
    die_in_commit(path, tmp_path, kill, 1, 1, "driver-1")
    with eoslog.open(path) as store:
        # The replay holds the same rows; here it has others, to tell whose are in.
        assert commit(store, 1, 2, "driver-2") == (kill in NOT_DECIDED)
        with pytest.raises(StagedRunFencedError):
            commit(store, 1, 3, "driver-1")
        with pytest.raises(StagedRunFencedError):
            commit(store, 2, 3, "driver-1")
        assert commit(store, 2, 4, "driver-2")
        parts_of(store).staged.sweep()
        check(store, 0, 2 if kill in NOT_DECIDED else 1, 4)


@pytest.mark.parametrize("kill", [*NOT_DECIDED, *DECIDED], ids=str)
def test_a_new_source_is_in_with_its_first_version_or_not_at_all(path, tmp_path, kill):
    with eoslog.open(path) as store:
        commit(store, 0, 0, "driver-1")
        commit(store, 1, 1, "driver-1")
    die_in_commit(path, tmp_path, kill, 0, 2, "driver-2", "another", new_allowed=True)
    with eoslog.open(path) as store:
        known = store.application(APP)
        if kill in NOT_DECIDED:
            assert (known.version, known.source_id, known.base) == (1, "query", 0)
            with pytest.raises(StagedSourceError):
                commit(store, 0, 6, "driver-3", "another")
            assert commit(store, 0, 3, "driver-3", "another", new_allowed=True)
        else:
            assert (known.version, known.source_id, known.base) == (2, "another", 2)
            assert not commit(store, 0, 3, "driver-3", "another")
        with pytest.raises(StagedSourceError):
            commit(store, 2, 4, "driver-1", new_allowed=True)
        assert commit(store, 1, 5, "driver-3", "another")
        parts_of(store).staged.sweep()
        check(store, 0, 1, 3 if kill in NOT_DECIDED else 2, 5)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replay_dies_at_the_record_that_makes_it_the_newest_driver(path, tmp_path, when):
    with eoslog.open(path) as store:
        commit(store, 0, 0, "driver-1")
    die_in_commit(path, tmp_path, Kill(CompactedLog, "append", when=when), 0, 1, "driver-2")
    with eoslog.open(path) as store:
        if when == "after":
            with pytest.raises(StagedRunFencedError):
                commit(store, 1, 2, "driver-1")
        assert not commit(store, 0, 3, "driver-3")
        with pytest.raises(StagedRunFencedError):
            commit(store, 1, 4, "driver-1")
        assert commit(store, 1, 5, "driver-3")
        parts_of(store).staged.sweep()
        check(store, 0, 5)
