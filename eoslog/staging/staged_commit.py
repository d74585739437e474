"""The decision about staged jobs, and the work that follows it: `docs/staged-commit.md`.

Invariants: one record decides a job, and nothing of it is in the log before; from before the
decision until all of it is in, readers see nothing of it; versions of an application only rise;
no staged file of a decided job is removed before the job is complete.

Several processes take turns, under one lock. Each keeps in memory the jobs that it knows to be
undone, and asks the applications' records about them whenever it has the lock: another process may
have completed them. What a process left undone, dead or not, whoever has the lock next takes up.

Order of locks: the one of this class comes first, before all others that processes share; then the
store's, then a partition's.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

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
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.staging.pending_jobs import PendingJob, PendingJobs, verify_pending_jobs
from eoslog.staging.staged_adoption import (
    HeldPartitions,
    check_job,
    check_room,
    make_run_directory,
    sync_staged,
)
from eoslog.staging.staged_application import (
    COMPLETE,
    NO_VERSION,
    ApplicationRecord,
    ApplicationState,
)
from eoslog.staging.staged_job import (
    JobFile,
    OffsetsOfGroups,
    StagedJob,
    StagedOffsets,
    TopicIdsOfGroups,
    files_of_messages,
    prepare_offsets,
)
from eoslog.staging.staged_leftovers import Leftovers, is_decided
from eoslog.staging.staged_message import StagedMessage, check_version, run_of
from eoslog.staging.staged_names import directory_name, run_path
from eoslog.staging.staged_source import VersionCount, VersionSource
from eoslog.staging.staged_spans import RecentJobs
from eoslog.storage.damage import Problem
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.compacted_partition import APPLICATION
from eoslog.transactions.transaction_owner import TransactionOwner, run_overtaken

# A job of another process may take minutes.
LOCK_TIMEOUT_S = 600.0
# What could not be completed is tried again so often after the first time, where no job comes by.
RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """Result of `Store.commit_staged`.

    `committed` is True if this call decided the version, False if it, or a later one, was in
    already; then `records` is 0 and `offsets` is empty. `offsets` holds for each partition the
    first and the last offset of the job's records, both inclusive; records of others may lie
    between them.
    """

    committed: bool
    records: int = 0
    offsets: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


class StagedCommits:
    """The staged jobs of one store: `pending` has those that are not complete, `leftovers` what
    complete ones left.
    """

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        *,
        none_is_open: Callable[[], bool],
        expiry_clock: ExpiryClock,
    ) -> None:
        """`none_is_open()` is True if no transaction is undecided.

        Staged files expire by `expiry_clock`.
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
        self._undone = self.pending.undone
        self._retry_due_s = 0.0
        group_offsets.ask_staged(self._undone.hold_back, self._find_applications)
        # Who registered the newest run of an application in this life of the store.
        self._owners: dict[str, TransactionOwner] = {}

    # The public side.

    def commit(
        self,
        app_id: str,
        version: int,
        messages: Iterable[StagedMessage],
        run_id: str | None = None,
        offsets: OffsetsOfGroups | None = None,
        source: VersionSource | None = None,
        sent_for: TopicIdsOfGroups | None = None,
        decision: str = "",
    ) -> StagedCommit:
        """Make the staged files of all messages part of the log, in their order, all at once.

        A version that is in already, or is below one that is, changes nothing. `run_id` is that of
        the messages; without messages it registers the run all the same. `offsets` are committed by
        the same decision; with `sent_for` without those whose topics do not have these ids any
        more. `source` says who counts the version, `decision` is a name to know it again by
        (`record_of_decision`). On return the job is in the log and visible, as durable as the
        store's durability says.

        Raises StagedCommitError (also where an earlier version cannot be completed just now),
        StagedSourceError, StagedRunFencedError, StoreFullError, ValueError, TypeError, and what a
        commit of offsets raises: nothing is decided; StoreFailedError: unknown until the store is
        opened again; StagedJobIncompleteError: decided, and completed later.
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
                    # A replay: the driver before this one is out from here on.
                    newest = record.decided(record.version, run_id, None, self._process, count)
                    newest.write(self._state_log)
                self.leftovers.discard(app_id, run_id, found)
                return StagedCommit(committed=False)
            record.check_run(run_id, self._engine.session.slots.describe)
            staged_offsets = prepare_offsets(offsets, self._group_offsets, sent_for)
            if not staged_offsets and not any(message.files for message in found):
                decided = record.decided(version, run_id, None, self._process, count, decision)
                decided.write(self._state_log)
                self.pending.ensure_group(app_id)
                self.leftovers.discard(app_id, run_id, found)
                return StagedCommit(committed=True)
            groups = offsets or {}
            pending = self._decide(
                record, version, run_id, found, staged_offsets, groups, count, decision
            )
            where = self.pending.complete(pending)
            job = pending.job
            return StagedCommit(True, 0 if job is None else job.records, where)

    def _refuse_if_behind(
        self, app_id: str, version: int, source: VersionSource | None, error: StoreError
    ) -> None:
        """Raise StagedCommitError if it is an earlier version that cannot be completed: nothing of
        this one is decided.
        """
        pending = ApplicationRecord.read(self._state_log, app_id)
        if pending is not None:
            count = pending.counted_by(source, version, self._state_log)
            if version + (0 if count is None else count.base) > pending.version:
                raise StagedCommitError(
                    f"version {version} of application {app_id!r} is not decided, and can be "
                    f"committed again, as it is, once the one before it is complete: {error}"
                ) from error

    def application(self, app_id: str) -> ApplicationState | None:
        """The application's newest version and run; None if the store never heard of it."""
        self._engine.check_open()
        self._settle_interrupted(directory_name(app_id, "app_id"))
        record = ApplicationRecord.read(self._state_log, app_id)
        return None if record is None else record.shown

    def _settle_interrupted(self, name: str) -> None:
        """A decision that was interrupted may be taken back: not after it was told."""
        pending = self.pending.by_name.get(name)
        if pending is None or pending.decided:
            return
        with IfFree(self._lock) as held:
            if not held:
                return  # A thread is just deciding it.
            with self._at_work(), suppress(StagedJobIncompleteError):  # Decided all the same.
                if name in self.pending.by_name:
                    self.pending.settle(name)

    def record_of_decision(self, app_id: str, version: int) -> ApplicationRecord | None:
        """The application's record if the version, or a later one, is decided; None if it is not,
        and will not be: a decision that was interrupted is completed, or taken back.

        Raises StoreError.
        """
        with self._at_work():
            self._engine.check_open()
            name = directory_name(app_id, "app_id")
            if name in self.pending.by_name:
                with suppress(StagedJobIncompleteError):  # Decided all the same.
                    self.pending.settle(name)
            record = ApplicationRecord.read(self._state_log, app_id)
            return None if record is None or record.version < version else record

    def begin_run(self, app_id: str, owner: TransactionOwner | None = None) -> str:
        """Register a new run of an application and return its name; all others are overtaken.

        `owner` is who has it, and will be told who takes over. Durable on return, whatever the
        store's durability.
        """
        with self._at_work():
            self._engine.check_open()
            record = self.pending.settled(app_id).registered(self._process)
            record.write(self._state_log, sync=True)
            newer = TransactionOwner.here() if owner is None else owner
            older = self._owners.get(record.name)
            self._owners[record.name] = newer
            if older is not None:
                older.fence(run_overtaken(app_id, str(record.run_id), newer))
            return str(record.run_id)

    def sweep_run(self, app_id: str, run_id: str) -> int:
        """Remove what a run staged that will not be committed; how many files went.

        Attempts that are still writing lose their files; what they write later is swept too, and
        can be committed until then. A decided job is left alone.
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
        """Complete the jobs that were decided and not completed; called before anybody reads.

        One that cannot be completed now stays pending, invisible to readers, and is tried again.
        """
        with self._at_work():
            self.pending.take_up_others()
            # All are held before the first one takes its time.
            self.pending.settle_all()

    def recover_dead_peers(self) -> None:
        """Complete what other processes left undone, unless one of them is at work just now.

        Called now and then; it costs nothing where nothing is undone.
        """
        if not self._undone.any:
            return
        with IfFree(self._lock) as held:
            if not held:
                return
            if self._lock.holder_died or time.monotonic() >= self._retry_due_s:
                with self._at_work():
                    self.pending.settle_all()
                self._retry_due_s = time.monotonic() + RETRY_S

    def verify(self) -> list[Problem]:
        """Return the problems of jobs that are decided, and not complete."""
        return verify_pending_jobs(
            self._undone, self._state_log, self._engine.find_partition, self._staging_path
        )

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
            self._undone.settle()

    def _look_around(self) -> None:
        """Learn what others have done, and left undone, since this process had the lock."""
        self.pending.look_around()
        if self._lock.holder_died:
            # It may have died between an application's first record and its group.
            self.renew_groups()
            self._lock.holder_died = False

    def renew_groups(self) -> None:
        """Restore the applications' groups that an unclean stop took."""
        with self._lock:  # Others may be at work on what is not complete.
            for name in self._state_log.names(APPLICATION):
                record = ApplicationRecord.read_by_name(self._state_log, name)
                if record is not None and record.state == COMPLETE and record.version > NO_VERSION:
                    self.pending.ensure_group(record.app_id)

    def sweep(self) -> None:
        """Remove staged files that nobody needs any more, unless a job is just being decided."""
        with IfFree(self._lock) as held:
            if not held:
                return
            with self._at_work():
                self.pending.settle_all()
            retention_ms = self._engine.config["eoslog.staging.retention.ms"]
            oldest_ms = self._expiry_clock.now_ms() - retention_ms
            self.leftovers.sweep(oldest_ms)

    def clear_leftovers(self) -> None:
        """Remove what complete jobs left; for the background thread, and before the store closes.

        Raises StoreFailedError if the store's files were replaced: those there now are not ours.
        """
        self.leftovers.clear()
        if not self.leftovers.any:
            return
        # Not while a job without files may be making its directory there.
        with IfFree(self._lock) as held:
            if held:
                self.leftovers.remove_emptied()

    def standing_still(self) -> LockBlock[None]:
        """Return a block in which no process decides or completes a job.

        Readers can see everything of each job then, or nothing, in all partitions.
        """
        return LockBlock(self._lock, prepare=lambda _: self._stand_still())

    def _stand_still(self) -> None:
        self._working.check()
        self._look_around()

    def quiet(self) -> LockBlock[bool]:
        """Do as `standing_still`, but without waiting: give True if it holds.

        If so, `producer_ids` has the ids of all jobs that are not complete, of any process, and no
        power cut brings back one that is.
        """

        def prepare(held: bool) -> bool:
            if held:
                self._stand_still()
                if self._engine.syncs:
                    self._state_log.sync_all()
            return held

        return LockBlock(IfFree(self._lock), prepare=prepare)

    def versions(self, groups: Iterable[str]) -> dict[str, int]:
        """The newest versions of the applications that have one and the name of a group."""
        is_application = self._find_applications()
        found = {}
        for group in filter(is_application, groups):
            state = self.application(group)
            if state is not None and state.version > NO_VERSION:
                found[group] = state.version
        return found

    def _find_applications(self) -> Callable[[str], bool]:
        """Return the function that is true of a group if an application has its name."""
        names = frozenset(self._state_log.names(APPLICATION))
        return lambda group: bool(names) and directory_name(group, "group") in names

    def producer_ids(self) -> frozenset[int]:
        """The producer ids that must not expire: of jobs that are not complete on the disk too."""
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
        decision: str,
    ) -> PendingJob:
        """Check the job and decide it; readers are held when this returns."""
        owner = record
        if run_id is None:
            # Offsets alone: they are of the newest run, the first if there is none yet.
            owner = record if record.run_id is not None else record.registered(self._process)
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
        held = HeldPartitions(self._engine.find_partition, topic_ids)
        pending = PendingJob(record, held, partitions, checked=True)
        self._undone.begin()
        self._retry_due_s = 0.0
        try:
            bounds = held.hold_at_end(partitions)
            if self._engine.syncs:
                held.sync()
            run = run_path(self._staging_path, record.app_id, str(run_id))
            if not files:
                # Whoever opens the store looks for jobs under way where there are directories.
                make_run_directory(run, self._engine.path, self._engine.syncs)
            job = StagedJob(record.app_id, version, run, topic_ids, bounds, files, offsets)
            described = job.described(sync=self._engine.syncs)
            decided = owner.decided(version, run_id, described, self._process, count, decision)
            pending.job, pending.deciding = job, decided
            # From here on an error or an interrupt may leave a decision behind.
            self.pending.by_name[record.name] = pending
            self._group_offsets.hold_back(record.name, job.offset_keys)
            state_log = self._state_log
            # Whoever is a member here still is one when the decision stands.
            with (
                state_log.held(APPLICATION, record.name),
                self._group_offsets.committing_all(groups),
            ):
                decided.write(state_log)
        except BaseException as error:
            held.release()
            if isinstance(error, EoslogError) and error.outcome == "not_appended":
                self.pending.by_name.pop(record.name, None)
                self._group_offsets.release(record.name)
            raise
        pending.record, pending.decided = decided, True
        return pending

    def _check_room(self, files: Sequence[JobFile]) -> None:
        try:
            check_room(files, self._engine.path, self._engine.segment_bytes)
        except StoreFullError:
            self.leftovers.empty_trash(of_others=True)
            check_room(files, self._engine.path, self._engine.segment_bytes)

    def _make_way(self, partitions: frozenset[TopicPartition]) -> None:
        """Complete earlier jobs on these partitions: a partition is held for one job at a time."""
        jobs = self.pending.by_name.items()
        for name in [name for name, one in jobs if one.partitions & partitions]:
            try:
                self.pending.settle(name)
            except EoslogError as error:
                raise StagedCommitError(
                    f"an earlier job holds back the same partitions: {error}"
                ) from error

    @property
    def _process(self) -> bytes:
        return self._engine.session.slots.own
