"""Pending staged jobs: decided, or just being decided, and not complete.

A process keeps those that it knows in memory, with their partitions held. It also takes up those of
other processes, dead or not. The steps of a completion and their crash points are in
`docs/staged-commit.md`. Everything but the queries of `UndoneJobs` and `verify_pending_jobs`
happens under the lock of staged jobs.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eoslog.bindings.shared_page import SharedPage
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    InvalidRequestError,
    StagedCommitError,
    StagedJobIncompleteError,
)
from eoslog.groups.metadata import check_group_id
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import OffsetKey
from eoslog.staging.adoption import (
    FindPartition,
    HeldPartitions,
    Offsets,
    adopt_files,
    check_decided_file,
    is_adopted,
    is_any_file_begun,
    is_file_adopted,
)
from eoslog.staging.application import PREPARED, ApplicationRecord
from eoslog.staging.job import (
    StagedJob,
    bounds_of_record,
    job_of_record,
    manifest_path,
    topic_ids_of_record,
)
from eoslog.staging.leftovers import Leftovers
from eoslog.staging.lost_files import (
    LostFiles,
    lost_files,
    problem_of_lost,
    without_lost_files,
)
from eoslog.staging.names import directory_name, is_nameless, run_path
from eoslog.staging.spans import JobSpan, RecentJobs, span_of_bounds, span_of_job
from eoslog.staging.undone_flag import UndoneFlag
from eoslog.storage.damage import Problem, problem
from eoslog.storage.engine import Engine
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PendingJob:
    """Pending job, with its partitions held as long as readers must see nothing of it.

    `record` is the application's. While the job is not `decided`, it is the one before the
    decision, and `deciding` the one that decides it, None until it may be in the log. `of_others`:
    this process did not see the decision reach the disk. `checked`: the checksums of all files were
    verified just now.
    """

    record: ApplicationRecord
    held: HeldPartitions
    decided: bool = False
    job: StagedJob | None = None
    deciding: ApplicationRecord | None = None
    of_others: bool = False
    checked: bool = False

    def span(self, staging_path: Path) -> JobSpan:
        """Return the span of a decided job, of which readers may see everything by now."""
        try:
            job = self.job or _job_of(staging_path, self.record)
            if is_adopted(job, self.held):
                return span_of_job(job, self.held)
        except EoslogError:
            pass  # Its completion raises the error; readers are held.
        return span_of_bounds(*_topic_ids_and_bounds(self.record))


class UndoneJobs:
    """Undone jobs of all processes, found by the applications' records.

    The next holder of the lock of staged jobs that finds their `flag` set looks for jobs of others.
    """

    def __init__(
        self,
        staging_path: Path,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        shared: SharedPage,
    ) -> None:
        self._staging_path = staging_path
        self._state_log = state_log
        self._group_offsets = group_offsets
        self.flag = UndoneFlag(shared)

    def prepared(self) -> Iterator[ApplicationRecord]:
        """Yield the applications that have a job which is decided and not complete."""
        for name in self._state_log.prepared_applications():
            record = ApplicationRecord.read_by_name(self._state_log, name)
            if record is not None and record.state == PREPARED:
                yield record

    def hold_back(self, key: OffsetKey) -> bool:
        """True if an undone job commits this offset, and has not done so yet."""
        return self.flag.is_set and any(
            self._is_to_commit(record, key) for record in self.prepared()
        )

    def _is_to_commit(self, record: ApplicationRecord, key: OffsetKey) -> bool:
        try:
            offsets = _job_of(self._staging_path, record).offsets
        except EoslogError:
            return False  # Its list of files was removed: it was completed just now.
        is_done = self._group_offsets.are_staged_committed
        return any(
            key in one.offset_keys and not is_done(one.number, one.producer_id) for one in offsets
        )


class PendingJobs:
    """Pending jobs of one store, by the names of their applications' directories."""

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        leftovers: Leftovers,
        recent: RecentJobs,
    ) -> None:
        self.by_name: dict[str, PendingJob] = {}
        self._warnings = RepeatedWarnings(_log)  # Of what is tried again.
        self.undone = UndoneJobs(
            engine.paths.staging, state_log, group_offsets, engine.session.shared
        )
        self._engine = engine
        self._state_log = state_log
        self._group_offsets = group_offsets
        self._leftovers = leftovers
        self._recent = recent
        self._staging_path = engine.paths.staging

    def look_around(self) -> None:
        """Take in what other processes did, and left undone, since this one had the lock."""
        for name in list(self.by_name):
            self._compare_with_record(name)
        if self.undone.flag.is_set:
            self.take_up_others()
            self._let_go_of_others()

    def files(self) -> list[Path]:
        """Return the files of all jobs that are decided and not complete, with the lists of files
        that are not in their records. The caller holds the lock. Raises StagedCommitError.
        """
        found: list[Path] = []
        for record in self.undone.prepared() if self.undone.flag.is_set else ():
            run = run_path(self._staging_path, record.app_id, str(record.run_id))
            manifest = manifest_path(run, record.job or {})
            found += [] if manifest is None else [manifest]
            found += [one.path for one in _job_of(self._staging_path, record).files]
        return found

    def look_on(self) -> list[ApplicationRecord]:
        """Know the jobs that other processes decided and did not complete, in a store that this one
        only reads. Return the records of all applications: while they are the same, no job was
        decided or completed.
        """
        names = self._state_log.names(APPLICATION)
        records = [ApplicationRecord.read_by_name(self._state_log, name) for name in names]
        known = [one for one in records if one is not None]
        self.by_name = {}
        for record in known:
            if record.state == PREPARED:
                topic_ids, bounds = _topic_ids_and_bounds(record)
                held = HeldPartitions(self._engine.find_partition, topic_ids, bounds)
                self.by_name[record.name] = PendingJob(record, held, decided=True, of_others=True)
        return known

    def _compare_with_record(self, name: str) -> None:
        """Check if a known job is still pending."""
        pending = self.by_name[name]
        record = ApplicationRecord.read_by_name(self._state_log, name) or ApplicationRecord(
            pending.record.app_id
        )
        if not pending.decided and record.says_the_same(pending.deciding):
            # The decision is in the log. It is taken back later if nothing was adopted.
            if not self._is_untouched(pending):
                pending.record, pending.decided, pending.of_others = record, True, True
        elif not record.says_the_same(pending.record):
            # Another process completed it, and released the readers.
            del self.by_name[name]

    def _is_untouched(self, pending: PendingJob) -> bool:
        """True if nothing of the job or its offsets is in the partitions. Raises EoslogError."""
        job, is_in = pending.job, self._group_offsets.is_staged_batch_in
        return job is not None and not (
            is_any_file_begun(job, pending.held)
            or any(is_in(one.number, one.producer_id) for one in job.offsets)
        )

    def take_up_others(self) -> None:
        """Take up each job that is decided, not complete, and unknown to this process."""
        for record in self.undone.prepared():
            if record.name not in self.by_name:
                self._take_up(record)

    def _let_go_of_others(self) -> None:
        """Release readers of partitions that are held for no job: their holder is dead."""
        wanted = {where for one in self.by_name.values() for where in one.held.wanted}
        for partition in self.held_partitions():
            if partition.topic_partition not in wanted:
                partition.release_readers()

    def held_partitions(self) -> list[UnifiedLog]:
        """Open and return the partitions in which any process holds readers."""
        for error in self._engine.partitions.open_held():
            self._warnings.warning("readers may be held without a reason: %s", error)
        return [one for one in self._engine.partitions.opened() if one.hold_offset >= 0]

    def _take_up(self, record: ApplicationRecord) -> None:
        """Take up a job of an earlier session or of another process."""
        self.undone.flag.begin()
        topic_ids, bounds = _topic_ids_and_bounds(record)
        held = HeldPartitions(self._engine.find_partition, topic_ids, bounds)
        pending = PendingJob(record, held, decided=True, of_others=True)
        self.by_name[record.name] = pending
        _log.debug("application %r: its decided job is taken up", record.app_id)
        self._hold_again(pending)

    def _hold_again(self, pending: PendingJob) -> None:
        """Hold readers at a job's bounds, unless all of it is in the log: they may have seen it."""
        _, bounds = _topic_ids_and_bounds(pending.record)
        try:
            pending.job = _job_of(self._staging_path, pending.record)
            if is_adopted(pending.job, pending.held):
                pending.held.release_if_begun()
            else:
                pending.held.hold(bounds)
        except EoslogError:
            pending.held.hold(bounds)  # The completion raises the error.

    def settled(self, app_id: str) -> ApplicationRecord:
        """Return the application's record after its pending job, if any, was settled."""
        name = directory_name(app_id, "app_id")
        record = ApplicationRecord.read(self._state_log, app_id)
        if record is not None and record.state == PREPARED and name not in self.by_name:
            self._take_up(record)
        if name in self.by_name:
            self.settle(name)
            record = ApplicationRecord.read(self._state_log, app_id)
        return record or ApplicationRecord(app_id)

    def settle(self, name: str) -> None:
        """Complete a pending job; take back one whose decision was interrupted."""
        pending = self.by_name[name]
        if not pending.decided:
            if pending.deciding is not None:
                # Its record may be in the log, but no caller got the answer. Nothing of it was
                # adopted, so the record before it, written again, takes the decision back.
                _log.debug(
                    "application %r: a decision that was interrupted is taken back",
                    pending.record.app_id,
                )
                pending.record.write(self._state_log)
            self.drop(pending)
            return
        self.complete(pending)

    def drop(self, pending: PendingJob) -> None:
        """Let readers in, and forget a job that is not decided."""
        pending.held.release()
        del self.by_name[pending.record.name]

    def give_up_lost_files(self) -> list[LostFiles]:
        """Decide each pending job without the files that are gone; return what is lost.

        Crash points: before the record the job is as it was, after it the next opening completes
        the rest. Raises EoslogError.
        """
        found = []
        for name, pending in list(self.by_name.items()):
            of_rest = without_lost_files(
                pending.record, self._staging_path, pending.held, self._engine.syncs
            )
            if of_rest is not None:
                record, lost = of_rest
                record.write(self._state_log)
                pending.held.release()  # Of partitions that the rest has nothing for, too.
                del self.by_name[name]
                self._take_up(record)
                found.append(lost)
        return found

    def settle_all(self) -> None:
        """Settle each pending job; log those that cannot be settled now, and keep them."""
        for name in list(self.by_name):
            try:
                self.settle(name)
            except EoslogError as error:
                self._warnings.error("%s", error)

    def complete(self, pending: PendingJob) -> Offsets:
        """Do steps A1 to F. If it raises StagedJobIncompleteError, the job is still pending."""
        record = pending.record
        state_log = self._state_log
        synced = self._engine.syncs
        try:
            if pending.of_others:
                if synced:
                    state_log.sync(record.name)  # The decision comes before what follows from it.
                self._hold_again(pending)  # An interrupt may have come before it was done.
            job = pending.job or _job_of(self._staging_path, record)
            # A later attempt must not rely on the checks before the first one.
            checked, pending.checked = pending.checked, False
            offsets = adopt_files(job, pending.held, sync=synced, checked=checked)
            if synced:
                pending.held.sync()
            # After the data: no offset is seen without them, and no record before them is held.
            for one in job.offsets:
                columns = partial(one.columns, self._engine.registry.id_of)
                self._group_offsets.adopt(one.number, columns, one.producer_id)
            self.ensure_group(record.app_id)
            span = span_of_job(job, pending.held)
            pending.held.release()
            if synced:
                self._sync_offsets(job)
            if span.ranges:
                self._recent.note(span, others_are_held=len(self.by_name) > 1)
            # Without a sync if the record has the list of files: after a power cut the job is
            # decided again, and the list shows that all of it is in the log. A list in a file of
            # its own is removed with the staged files.
            listed_inside = "manifest" in (record.job or {})
            record.completed().write(state_log, sync=False if listed_inside else None)
        except (EoslogError, MemoryError) as error:
            raise StagedJobIncompleteError(
                f"version {record.version} of application {record.app_id!r} is decided, but not "
                f"completely in the log yet: {str(error) or type(error).__name__}"
            ) from error
        _log.debug(
            "application %r: version %s is complete: %s",
            *(record.app_id, record.version),
            ", ".join(f"{where} {first}-{last}" for where, (first, last) in offsets.items())
            or "nothing was left to be adopted",
        )
        del self.by_name[record.name]
        try:
            self._leftovers.leave(job, str(record.run_id))
        except (EoslogError, MemoryError) as error:
            # The job is complete: an error would make the caller write it again. A sweep removes
            # the rest.
            _log.warning("application %r: staged files are removed later: %s", job.app_id, error)
        return offsets

    def _sync_offsets(self, job: StagedJob) -> None:
        for one in job.offsets:
            partition = self._engine.partitions.offsets_partition(one.number)
            partition.make_durable(partition.log_end_offset)

    def ensure_group(self, app_id: str) -> None:
        """Create the application's group, which shows its version; errors are logged."""
        if is_nameless(app_id):
            return
        try:
            self._group_offsets.ensure_group(check_group_id(app_id))
        except InvalidRequestError:
            return  # No group can have the name.
        except (EoslogError, MemoryError) as error:
            self._warnings.warning(
                "application %r has no group to show its version: %s", app_id, error
            )

    def spans(self) -> list[JobSpan]:
        """Return the spans of the jobs that a snapshot may have to leave out; called under the lock
        of staged jobs.
        """
        undone = [one for one in self.by_name.values() if one.decided]
        return self._recent.spans() + [one.span(self._staging_path) for one in undone]

    def producer_ids(self) -> frozenset[int]:
        """Return the producer ids of the jobs. Takes no lock."""
        jobs = [one.job for one in list(self.by_name.values()) if one.job is not None]
        return frozenset().union(*(job.all_producer_ids for job in jobs))


def _job_of(staging_path: Path, record: ApplicationRecord) -> StagedJob:
    """Return the job that a record decides. Raises StagedCommitError if its list is damaged."""
    run = run_path(staging_path, record.app_id, str(record.run_id))
    return job_of_record(record.app_id, record.version, run, record.job or {})


def _topic_ids_and_bounds(
    record: ApplicationRecord,
) -> tuple[dict[str, str], dict[TopicPartition, int]]:
    described = record.job or {"topics": {}}
    return topic_ids_of_record(described), bounds_of_record(described)


# Verification.


def verify_pending_jobs(
    undone: UndoneJobs, state_log: CompactedLog, find: FindPartition, staging_path: Path
) -> list[Problem]:
    """Check that each decided job is all in the log, or that readers are held before it.

    Another process may adopt a job, complete it, or delete a topic of it at any moment.
    """
    problems: list[Problem] = []
    for record in undone.prepared():
        gone = None
        found: list[Problem] = []
        # Records of a deleted topic are not missing: if one was deleted since, look again.
        while gone != (gone := _gone(record, find)):
            found = _wrong(record, find, staging_path)
        # A job that was completed or deleted with its topic since is no problem.
        now = ApplicationRecord.read_by_name(state_log, record.name)
        if now is not None and now.says_the_same(record):
            problems += found
    return problems


def _gone(record: ApplicationRecord, find: FindPartition) -> frozenset[TopicPartition]:
    """Return the job's partitions whose topics were deleted since the decision."""
    try:
        topic_ids, bounds = _topic_ids_and_bounds(record)
        held = HeldPartitions(find, topic_ids, bounds)
        return frozenset(where for where in bounds if held.find(where) is None)
    except EoslogError:
        return frozenset()  # The check reports the error.


def _wrong(record: ApplicationRecord, find: FindPartition, staging_path: Path) -> list[Problem]:
    path = staging_path / record.name
    what = f"version {record.version} of {record.app_id!r}"
    try:
        job = _job_of(staging_path, record)
        held = HeldPartitions(find, job.topic_ids, job.bounds)
        problems = [
            problem(path, f"{what} is half in the log, and readers of {where} are not held")
            for where in job.bounds
            if _is_shown(job, held, where)
        ]
        if problems and is_adopted(job, held):
            problems = []  # All of it is there: the process that completes it released readers.
        return problems + _wrong_files(job, held, what)
    except EoslogError as error:
        run = run_path(staging_path, record.app_id, str(record.run_id))
        manifest = manifest_path(run, record.job or {})
        if manifest is None or not isinstance(error, StagedCommitError):
            return [problem(path, f"{what} is decided and not complete: {error}")]
        return [problem_of_lost(manifest, what, error if manifest.exists() else None)]


def _wrong_files(job: StagedJob, held: HeldPartitions, what: str) -> list[Problem]:
    """Return the files that the completion of the job needs, and that are missing or damaged."""
    lost = lost_files(job, held)
    problems = [problem_of_lost(one.path, what) for one in lost]
    for one in job.files:
        if one in lost or is_file_adopted(one, held):
            continue
        try:
            check_decided_file(one)
        except StagedCommitError as error:
            problems.append(problem_of_lost(one.path, what, error))
    return problems


def _is_shown(job: StagedJob, held: HeldPartitions, where: TopicPartition) -> bool:
    """True if readers can read a partition's records of a job."""
    partition = held.find(where)
    if partition is None:
        return False
    states = [partition.producer(one) for one in job.producer_ids.get(where, [])]
    lasts = [one.last_offset for one in states if one is not None]
    if not lasts or max(lasts) < partition.log_start_offset:
        return False
    hold = partition.hold_offset
    return hold < 0 or hold > max(lasts)
