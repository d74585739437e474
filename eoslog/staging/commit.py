"""Decision and completion of staged jobs: `docs/staged-commit.md`.

Invariants: one record decides a job, and nothing of it is in the log before; from before the
decision until all of it is in, readers see nothing of it; versions of an application only rise;
no staged file of a decided job is removed before the job is complete.

Several processes take turns, under one lock. Each keeps in memory the undone jobs that it knows,
and compares them with the applications' records when it takes the lock: another process may have
completed them. The next holder of the lock takes up jobs that another process, dead or not, left
undone.

Order of locks: the one of this class comes first, before all others that processes share; then the
store's, then a partition's.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from eoslog.bindings.lock_block import IfFree, LockBlock
from eoslog.bindings.shared_page import LOCK_STAGED
from eoslog.bindings.store_wide_lock import StoreWideLock
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.clock import ExpiryClock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    StagedCommitError,
    StagedJobIncompleteError,
    StoreError,
    StoreFullError,
)
from eoslog.groups.offsets import GroupOffsets
from eoslog.staging.adoption import (
    HeldPartitions,
    check_job,
    check_room,
    sync_staged,
)
from eoslog.staging.application import (
    COMPLETE,
    NO_VERSION,
    ApplicationRecord,
    ApplicationState,
)
from eoslog.staging.job import (
    JobFile,
    OffsetsOfGroups,
    StagedJob,
    StagedOffsets,
    files_of_messages,
    prepare_offsets,
)
from eoslog.staging.leftovers import Leftovers, is_decided, never
from eoslog.staging.lost_files import LostFiles
from eoslog.staging.message import StagedMessage, check_version, run_of
from eoslog.staging.names import directory_name, run_path
from eoslog.staging.pending_jobs import PendingJob, PendingJobs, verify_pending_jobs
from eoslog.staging.source import VersionCount, VersionSource
from eoslog.staging.spans import RecentJobs
from eoslog.storage.damage import Problem, problem
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

# A job of another process may take minutes.
_log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 600.0
# Interval between attempts to complete a job, if no other job is committed in between.
RETRY_S = 30.0

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """Result of `Store.commit_staged`.

    Attributes
    ----------
    committed : bool
        True if this call decided the version; False if it, or a later one, was in the log.
    records : int
        Number of records added; 0 if not committed.
    offsets : mapping of TopicPartition to (int, int)
        First and last offset of the job's records, both inclusive; records of others may lie
        between them. Empty if not committed.
    """

    committed: bool
    records: int = 0
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


class StagedCommits:
    """Staged jobs of one store: `pending` has those that are not complete, `leftovers` the files
    and producer ids of complete ones.
    """

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        none_is_open: Callable[[], bool],
        expiry_clock: ExpiryClock,
    ) -> None:
        """`none_is_open()` is True only if no transaction is undecided; staged files expire by
        `expiry_clock`.
        """
        self._engine = engine
        self._state_log = state_log
        self._group_offsets = group_offsets
        self._expiry_clock = expiry_clock
        self._staging_path: Path = engine.paths.staging
        self._lock = StoreWideLock(engine.session.shared, LOCK_STAGED, LOCK_TIMEOUT_S)
        self._working = ThreadLock()
        self.leftovers = Leftovers(engine, state_log)
        recent = RecentJobs(state_log, engine.find_partition, none_is_open)
        self.pending = PendingJobs(engine, state_log, group_offsets, self.leftovers, recent)
        self._retry_due_s = 0.0

    # The public side.

    def commit(
        self,
        app_id: str,
        version: int,
        messages: Iterable[StagedMessage],
        run_id: str | None = None,
        offsets: OffsetsOfGroups | None = None,
        source: VersionSource | None = None,
    ) -> StagedCommit:
        """Make the staged files of all messages part of the log, in their order, all at once.

        A version at or below the newest one changes nothing. `run_id` is that of the messages;
        without messages it still registers the run. `offsets` are committed by the same decision.
        `source` counts the version. On return the job is in the log and visible, as durable as the
        store's durability says.

        Raises StagedCommitError (also if an earlier version cannot be completed now),
        StagedSourceError, StagedRunFencedError, StoreFullError, ValueError, TypeError, and the
        errors of a commit of offsets: nothing is decided. StoreFailedError: unknown until the store
        is opened again. StagedJobIncompleteError: decided, and completed later.
        """
        check_version(version)
        found = list(messages)
        run_id = run_of(app_id, found, run_id)
        if source is not None and run_id is None:
            raise ValueError("a version of a source is committed under a run id")
        with self._at_work():
            self._engine.check_open()
            try:
                record = self.pending.settled(app_id)
            except StagedJobIncompleteError as error:
                self._refuse_if_behind(app_id, version, source, error)
                raise
            count = record.counted_by(source, version, self._state_log)
            if count is not None:
                version += count.base
                check_version(version)
            if record.version >= version:
                if count is not None and count.overtakes(record.count):
                    # A replay: from now on the driver before this one is fenced.
                    newest = record.decided(record.version, run_id, None, self._process, count)
                    newest.write(self._state_log)
                self.leftovers.discard(app_id, run_id, found)
                return StagedCommit(committed=False)
            record.check_run(run_id, self._engine.session.slots.describe)
            staged_offsets = prepare_offsets(offsets, self._group_offsets)
            if not staged_offsets and not any(message.files for message in found):
                decided = record.decided(version, run_id, None, self._process, count)
                decided.write(self._state_log)
                self.pending.ensure_group(app_id)
                self.leftovers.discard(app_id, run_id, found)
                return StagedCommit(committed=True)
            pending = self._decide(
                record, version, run_id, found, staged_offsets, offsets or {}, count
            )
            where = self.pending.complete(pending)
            job = pending.job
            return StagedCommit(True, 0 if job is None else job.records, where)

    def _refuse_if_behind(
        self, app_id: str, version: int, source: VersionSource | None, error: StoreError
    ) -> None:
        """Raise StagedCommitError if the version that cannot be completed is an earlier one."""
        pending = ApplicationRecord.read(self._state_log, app_id)
        if pending is not None:
            count = pending.counted_by(source, version, self._state_log)
            if version + (0 if count is None else count.base) > pending.version:
                raise StagedCommitError(
                    f"version {version} of application {app_id!r} is not decided, and can be "
                    f"committed again, as it is, once the one before it is complete: {error}"
                ) from error

    def application(self, app_id: str) -> ApplicationState | None:
        """Return the application's newest version and run; None if it is unknown."""
        self._engine.check_open()
        self._settle_interrupted(directory_name(app_id, "app_id"))
        record = ApplicationRecord.read(self._state_log, app_id)
        return None if record is None else record.shown

    def _settle_interrupted(self, name: str) -> None:
        """Settle an interrupted decision: once it was returned, it must not be taken back."""
        pending = self.pending.by_name.get(name)
        if pending is None or pending.decided:
            return
        with IfFree(self._lock) as held:
            if not held:
                return  # Another thread decides it now.
            with self._at_work(), suppress(StagedJobIncompleteError):  # It is decided.
                if name in self.pending.by_name:
                    self.pending.settle(name)

    def begin_run(self, app_id: str) -> str:
        """Register a new run of an application and return its name; it overtakes all others.

        Durable on return under any durability.
        """
        with self._at_work():
            self._engine.check_open()
            record = self.pending.settled(app_id).registered(self._process)
            record.write(self._state_log, sync=True)
            return str(record.run_id)

    def sweep_run(self, app_id: str, run_id: str) -> int:
        """Remove the files of a run that will not be committed; return how many were removed.

        Attempts that are still writing lose their files; files that they write later are swept too,
        and can be committed until then. A decided job stays.
        """
        with self._at_work():
            self._engine.check_open()
            name = directory_name(app_id, "app_id")
            pending = self.pending.by_name.get(name)
            if pending is not None and not pending.decided:
                self.pending.settle(name)
            record = ApplicationRecord.read(self._state_log, app_id)
            if is_decided(directory_name(run_id, "run_id"), record):
                return 0
            return self.leftovers.remove_run(run_path(self._staging_path, app_id, run_id))

    # For the store.

    def roll_forward(self) -> None:
        """Complete the jobs that were decided and not completed; called before any reader begins.

        A job that cannot be completed now stays pending, invisible to readers, and is tried again.
        """
        with self._at_work():
            self.pending.take_up_others()
            # All are held before the first one takes its time.
            self.pending.settle_all()

    def give_up_lost_files(self) -> list[LostFiles]:
        """Complete the pending jobs without the files of theirs that are gone; return these. For a
        repair: nothing else makes a decided job smaller.
        """
        with self._at_work():
            found = self.pending.give_up_lost_files()
            self.pending.settle_all()
        return found

    def recover_dead_peers(self) -> None:
        """Complete jobs that other processes left undone, unless one of them is at work now.

        Called periodically; it costs nothing if no job is undone.
        """
        if not self.pending.undone.flag.is_set:
            return
        with IfFree(self._lock) as held:
            if not held:
                return
            if self._lock.holder_died or time.monotonic() >= self._retry_due_s:
                with self._at_work():
                    self.pending.settle_all()
                self._retry_due_s = time.monotonic() + RETRY_S

    def verify(self) -> list[Problem]:
        """Return the problems of jobs that are decided and not complete, and of partitions in which
        readers are held for no job.
        """
        problems = verify_pending_jobs(
            self.pending.undone, self._state_log, self._engine.find_partition, self._staging_path
        )
        with IfFree(self._lock) as held:
            # Otherwise a job is being decided, or the next look completes or undoes one.
            if held and not self.pending.undone.flag.is_set:
                problems += [
                    problem(one.path, f"readers are held at offset {one.hold_offset} for no job")
                    for one in self.pending.held_partitions()
                ]
        return problems

    def _at_work(self) -> LockBlock[None]:
        """Return a block in which no other process, and no other thread, decides or completes jobs.

        Raises ConcurrentAccessError for a thread that is in it.
        """
        return LockBlock(
            self._lock,
            self._working,
            prepare=lambda *_: self._look_around(),
            finish=self._settle_undone,
        )

    def _settle_undone(self) -> None:
        if not self.pending.by_name:
            self.pending.undone.flag.settle()

    def _look_around(self) -> None:
        """Take in what other processes did, and left undone, since this one had the lock."""
        self.pending.look_around()
        if self._lock.holder_died:
            # It may have died between an application's first record and its group.
            self.renew_groups()
            self._lock.holder_died = False

    def renew_groups(self) -> None:
        """Re-create the applications' groups that an unclean stop lost."""
        with self._lock:  # Other processes may be completing jobs.
            for name in self._state_log.names(APPLICATION):
                record = ApplicationRecord.read_by_name(self._state_log, name)
                if record is not None and record.state == COMPLETE and record.version > NO_VERSION:
                    self.pending.ensure_group(record.app_id)

    def sweep(self, enough: Callable[[], bool] = never) -> None:
        """Remove staged files that are no longer needed, unless a job is being decided now. Once
        `enough()` the rest is left to the next sweep.
        """
        with IfFree(self._lock) as held:
            if not held:
                return
            with self._at_work():
                self.pending.settle_all()
            retention_ms = self._engine.config["eoslog.staging.retention.ms"]
            oldest_ms = self._expiry_clock.now_ms() - retention_ms
            self.leftovers.sweep(oldest_ms, enough)

    def clear_leftovers(self, enough: Callable[[], bool] = never) -> None:
        """Remove files and ids of complete jobs; for the background thread, and before the close.
        Once `enough()` files are left, to the next call or the next opening.

        Raises StoreFailedError if the store's files were replaced: the present ones are not ours.
        """
        self.leftovers.clear(enough)
        if not self.leftovers.any:
            return
        # Not while a job without files may be creating its directory there.
        with IfFree(self._lock) as held:
            if held:
                self.leftovers.remove_emptied()

    def standing_still(self) -> LockBlock[None]:
        """Return a block in which no process decides or completes a job.

        Readers can see everything of each job then, or nothing, in all partitions.
        """
        return LockBlock(self._lock, prepare=lambda _: self._stand_still())

    def read_still(self, read: Callable[[], _Read]) -> _Read:
        """Return what `read` reads while no process decides or completes a job: under the lock, or
        in a store that is only read, again until no process has done so in between.
        """
        with self.standing_still():
            if not self._engine.follows:
                return read()
            while True:
                before = self.pending.look_on()
                found = read()
                if self.pending.look_on() == before:
                    return found

    def _stand_still(self) -> None:
        self._working.check()
        if not self._engine.follows:
            self._look_around()

    def quiet(self) -> LockBlock[bool]:
        """Do as `standing_still` without waiting; the block gets True if it has the lock.

        Then `producer_ids` has the ids of all incomplete jobs of any process, and no power cut
        brings back a complete one.
        """

        def prepare(held: bool) -> bool:
            if held:
                self._stand_still()
                if self._engine.syncs:
                    self._state_log.sync_all()
            return held

        return LockBlock(IfFree(self._lock), prepare=prepare)

    def versions(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the newest versions of the applications that have one and the name of a group."""
        is_application = self.find_applications()
        found = {}
        for group in filter(is_application, groups):
            state = self.application(group)
            if state is not None and state.version > NO_VERSION:
                found[group] = state.version
        return found

    def find_applications(self) -> Callable[[str], bool]:
        """Return a function that is True for a group with the name of an application."""
        names = frozenset(self._state_log.names(APPLICATION))
        return lambda group: bool(names) and directory_name(group, "group") in names

    def producer_ids(self) -> frozenset[int]:
        """Return the producer ids that must not expire: those of jobs not complete on disk."""
        return self.pending.producer_ids() | self.leftovers.producer_ids()

    # The decision.

    def _decide(
        self,
        record: ApplicationRecord,
        version: int,
        run_id: str | None,
        messages: Sequence[StagedMessage],
        offsets: Sequence[StagedOffsets],
        groups: OffsetsOfGroups,
        count: VersionCount | None,
    ) -> PendingJob:
        """Check the job and decide it; on return readers are held."""
        owner = record
        if run_id is None:
            # Offsets alone are of the newest run, or of a first one if there is none.
            if record.run_id is None:
                owner = record.registered(self._process)
            run_id = owner.run_id
        files = files_of_messages(self._staging_path, messages)
        partitions = frozenset(one.file.topic_partition for one in files)
        self._make_way(partitions)
        topic_ids = check_job(files, self._engine.find_partition, self._engine.batch_bytes_max)
        self._check_room(files)
        if self._engine.syncs:
            unsynced = [message for message in messages if not message.synced]
            sync_staged(
                [one.path for one in files_of_messages(self._staging_path, unsynced)],
                self._engine.path,
            )
        held = HeldPartitions(self._engine.find_partition, topic_ids, partitions)
        pending = PendingJob(record, held, checked=True)
        self.pending.undone.flag.begin()
        self._retry_due_s = 0.0
        # What an error or an interrupt leaves is settled by the next block that has the lock.
        self.pending.by_name[record.name] = pending
        try:
            bounds = held.hold_at_end()
            if self._engine.syncs:
                held.sync()
            run = run_path(self._staging_path, record.app_id, str(run_id))
            job = StagedJob(record.app_id, version, run, topic_ids, bounds, files, offsets)
            described = job.described(sync=self._engine.syncs)
            decided = owner.decided(version, run_id, described, self._process, count)
            # From here on there may be a decision in the log.
            pending.job, pending.deciding = job, decided
            state_log = self._state_log
            # A member at this check is still one at the decision.
            with (
                state_log.held(APPLICATION, record.name),
                self._group_offsets.committing_all(groups),
            ):
                decided.write(state_log)
        except BaseException as error:
            refused = isinstance(error, EoslogError) and error.outcome == "not_appended"
            if refused or pending.deciding is None:
                self.pending.drop(pending)
            else:
                held.release()
            raise
        pending.record, pending.decided = decided, True
        _log.debug(
            "application %r: version %d is decided: %d files, the offsets of %d groups",
            *(record.app_id, version, len(files), len(offsets)),
        )
        return pending

    def _check_room(self, files: Sequence[JobFile]) -> None:
        try:
            check_room(files, self._engine.path, self._engine.segment_bytes)
        except StoreFullError:
            self.leftovers.empty_trash(of_others=True)
            check_room(files, self._engine.path, self._engine.segment_bytes)

    def _make_way(self, partitions: frozenset[TopicPartition]) -> None:
        """Complete earlier jobs on these partitions: each is held for one job at a time."""
        jobs = self.pending.by_name.items()
        for name in [name for name, one in jobs if one.held.wanted & partitions]:
            try:
                self.pending.settle(name)
            except EoslogError as error:
                raise StagedCommitError(
                    f"an earlier job holds back the same partitions: {error}"
                ) from error

    @property
    def _process(self) -> bytes:
        return self._engine.session.slots.own
