"""Jobs, runs, full disks, sweeps and crashes in any order, against a model of a few lines."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
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
from store_copies import copy_store

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    StagedCommitError,
    StagedJobIncompleteError,
    StagedRunFencedError,
    StoreFullError,
)
from eoslog.staging.on_demand import VERSION_PARTITION
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import parts_of

GROUP = "readers"
READ = TopicPartition(TOPIC, 0)


class StagedMachine(RuleBasedStateMachine):
    """The model: the jobs in the order of their decisions, and which runs overtook which."""

    def __init__(self) -> None:
        super().__init__()
        self.undo = ExitStack()
        otherwise = Path(self.undo.enter_context(TemporaryDirectory()))
        self.directory = self.undo.enter_context(quick_directory(otherwise))
        self.lives = 0
        self.jobs: list[range] = []
        self.pending = False  # Of the last job, not all may be in.
        self.version = -1
        self.offset: int | None = None  # Of the group; the pending job may have another one.
        self.pending_offset: int | None = None
        self.has_group = False  # The application's, which shows its version.
        self.next_number = 0
        self.attempts = 0
        self.newest: str | None = None
        self.overtaken: set[str] = set()
        self.runs = ["own-0", "own-1", "own-2"]
        self.adoptions_left = -1  # -1: the disk has room.
        adopt = UnifiedLog.adopt
        machine = self

        def adopt_while_there_is_room(partition: UnifiedLog, *arguments: Any) -> Any:
            if machine.adoptions_left == 0:
                raise StoreFullError("no space")
            machine.adoptions_left -= machine.adoptions_left > 0
            return adopt(partition, *arguments)

        patch = self.undo.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(UnifiedLog, "adopt", adopt_while_there_is_room)

    @property
    def path(self) -> Path:
        return self.directory / f"store-{self.lives}"

    @initialize()
    def create(self) -> None:
        self.store = eoslog.open(self.path, create=True)
        self.store.create_topic(TOPIC, partitions=PARTITIONS)

    def teardown(self) -> None:
        self.store.close()
        self.undo.close()

    @rule(
        step=st.sampled_from([-1, 0, 1, 1, 1, 4]),
        run=st.integers(0, 20),
        count=st.sampled_from([0, 1, 7, 60]),
        tasks=st.integers(1, 3),
        room=st.sampled_from([None, None, 0, 1, 2, 4]),
        with_offsets=st.booleans(),
    )
    def commit(
        self, step: int, run: int, count: int, tasks: int, room: int | None, with_offsets: bool
    ) -> None:
        """Commit a job; with so much room for adoptions, if `room` is given."""
        run_id = self.runs[run % len(self.runs)]
        version = max(0, self.version + step)
        job = range(self.next_number, self.next_number + count)
        self.next_number += count
        if self.pending and run_id == self.newest and not run_id.startswith("run-"):
            return  # A run of the caller's own naming is for one job.
        if room is not None and not self.pending:
            self.adoptions_left = room
        self.attempts += 1
        messages = stage_job(
            self.store.path,
            run_id,
            job,
            tasks=tasks,
            name=f"{self.attempts}-",
            durability="process",
        )
        offset = self.attempts if with_offsets else None
        offsets = {GROUP: {READ: offset}} if with_offsets else None
        try:
            result = self.store.commit_staged(APP, version, messages, offsets=offsets)
        except StagedJobIncompleteError:
            assert self.adoptions_left == 0
            if self.store.application(APP).version != self.version:
                self.settled()
                self.decided(version, run_id, job)
                self.pending, self.pending_offset = True, offset
            else:
                assert self.pending, "there is an earlier job to wait for"
                assert version <= self.version, "it is decided itself, or one behind it is"
            return
        except StagedRunFencedError:
            assert version > self.version
            assert run_id in self.overtaken
            self.settled()
            return
        except StagedCommitError:
            assert self.adoptions_left == 0
            assert self.pending, "there is an earlier job to wait for"
            assert version > self.version
            assert self.store.application(APP).version == self.version
            return
        self.settled()
        assert result.committed == (version > self.version)
        assert result.records == (count if result.committed else 0)
        if result.committed:
            assert run_id not in self.overtaken
            self.decided(version, run_id, job)
            self.pending, self.pending_offset = True, offset
            self.settled()

    def settled(self) -> None:
        """No job is pending any more; what the last one held back is seen now."""
        if self.pending:
            self.has_group = True
            if self.pending_offset is not None:
                self.offset = self.pending_offset
        self.pending, self.pending_offset = False, None

    @rule()
    def the_group_commits_by_itself(self) -> None:
        self.attempts += 1
        parts_of(self.store).files.group_offsets.commit(GROUP, {READ: self.attempts})
        self.offset = self.attempts

    def decided(self, version: int, run_id: str, job: range) -> None:
        self.version = version
        self.jobs.append(job)
        self.overtake_by(run_id)

    def overtake_by(self, run_id: str) -> None:
        if self.newest is not None and self.newest != run_id:
            self.overtaken.add(self.newest)
        self.newest = run_id

    @rule()
    def begin_run(self) -> None:
        try:
            run_id = self.store.begin_run(APP)
        except StagedJobIncompleteError:
            assert self.pending
            return
        self.settled()
        # All that are registered are overtaken, though they never committed anything.
        self.overtaken.update(one for one in self.runs if one.startswith("run-"))
        self.overtake_by(run_id)
        self.runs.append(run_id)

    @precondition(lambda self: self.adoptions_left >= 0)
    @rule()
    def disk_has_room_again(self) -> None:
        self.adoptions_left = -1

    @rule()
    def sweep(self) -> None:
        parts_of(self.store).staged.sweep()
        self.look_again()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = eoslog.open(self.path)
        self.look_again()

    @rule()
    def crash(self) -> None:
        """What a killed process leaves is what its files hold at this moment."""
        before = self.path
        self.lives += 1
        parts_of(self.store).checkpointer.stop()  # It removes what is being copied.
        copy_store(before, self.path)
        self.store.close()
        shutil.rmtree(before)
        self.store = eoslog.open(self.path)
        self.look_again()

    def look_again(self) -> None:
        """A pending job was tried once more."""
        state = self.store.application(APP)
        if state is None or state.state != "prepared":
            self.settled()
        assert not (self.pending and self.adoptions_left), "there was room for it"

    @invariant()
    def whole_jobs_are_visible_and_no_part_of_another(self) -> None:
        if not hasattr(self, "store"):
            return
        whole = self.jobs[:-1] if self.pending else self.jobs
        assert visible_numbers(self.store) == expected_numbers(*whole)
        state = self.store.application(APP)
        assert (-1 if state is None else state.version) == self.version
        groups = self.store.groups()
        offset = groups.get(GROUP, {}).get(READ)
        assert (None if offset is None else offset.offset) == self.offset
        progress = groups.get(APP, {}).get(VERSION_PARTITION)
        shown = self.version if self.has_group else -1
        assert (-1 if progress is None else progress.offset) == shown
        if self.pending:
            run = f"{APP}/{state.run_id}/"
            assert any(name.startswith(run) for name in staged_files(self.store.path))


TestStaged = StagedMachine.TestCase
