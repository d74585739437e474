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

from eoslog.bindings.shared_page import COUNTER_STAGED_BEGUN, COUNTER_STAGED_SETTLED, SharedPage
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    InvalidRequestError,
    StagedCommitError,
    StagedJobIncompleteError,
)
from eoslog.groups.group_metadata import check_group_id
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.groups.group_records import OffsetKey
from eoslog.staging.staged_adoption import (
    FindPartition,
    HeldPartitions,
    Offsets,
    adopt_files,
    check_decided_file,
    is_adopted,
    is_file_adopted,
    is_untouched,
)
from eoslog.staging.staged_application import PREPARED, ApplicationRecord
from eoslog.staging.staged_job import (
    StagedJob,
    bounds_of_record,
    job_of_record,
    topic_ids_of_record,
)
from eoslog.staging.staged_leftovers import Leftovers, application_directories
from eoslog.staging.staged_names import directory_name, is_nameless, run_path
from eoslog.staging.staged_spans import JobSpan, RecentJobs, span_of_bounds, span_of_job
from eoslog.storage.damage import Problem, problem
from eoslog.storage.engine import Engine
from eoslog.transactions.compacted_log import CompactedLog

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PendingJob:
    """Pending job, with its partitions held as long as readers must see nothing of it.

    `record` is the application's. While the job is not `decided`, it is the one before the
    decision, and `deciding` the one that decides it. `of_others`: this process did not see the
    decision reach the disk. `checked`: the checksums of all files were verified just now.
    """

    record: ApplicationRecord
    held: HeldPartitions
    partitions: frozenset[TopicPartition]
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

    The page that processes share has a flag for them, made of two counters. It is set before a
    job's first partition is held, and reset when no job is undone; both under the lock of staged
    jobs. The next holder of that lock that finds the flag set looks for jobs of others.
    """

    def __init__(self, staging_path: Path, state_log: CompactedLog, shared: SharedPage) -> None:
        self._staging_path = staging_path
        self._state_log = state_log
        self._shared = shared

    @property
    def any(self) -> bool:
        """True if there may be undone jobs of any process."""
        # In this order the flag may look set while it is set and reset, but never reset.
        settled = self._shared.counter(COUNTER_STAGED_SETTLED)
        return self._shared.counter(COUNTER_STAGED_BEGUN) != settled

    def begin(self) -> None:
        """Set the flag. The caller holds the lock."""
        if not self.any:
            self._shared.raise_counter(COUNTER_STAGED_BEGUN)

    def settle(self) -> None:
        """Reset the flag. The caller holds the lock."""
        if self.any:
            self._shared.raise_counter(COUNTER_STAGED_SETTLED)

    def prepared(self) -> Iterator[ApplicationRecord]:
        """Yield the applications that have a job which is decided and not complete.

        Each of them has a directory, even if its job has no files.
        """
        for path in application_directories(self._staging_path):
            record = ApplicationRecord.read_by_name(self._state_log, path.name)
            if record is not None and record.state == PREPARED:
                yield record

    def hold_back(self, key: OffsetKey) -> bool:
        """True if an undone job commits this offset."""
        return self.any and any(key in self._offset_keys(record) for record in self.prepared())

    def _offset_keys(self, record: ApplicationRecord) -> frozenset[OffsetKey]:
        try:
            return _job_of(self._staging_path, record).offset_keys
        except EoslogError:
            return frozenset()  # Its list of files was removed: it was completed just now.


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
        self.undone = UndoneJobs(engine.paths.staging, state_log, engine.session.shared)
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
        if self.undone.any:
            self.take_up_others()
            self._let_go_of_others()

    def _compare_with_record(self, name: str) -> None:
        """Check if a known job is still pending."""
        pending = self.by_name[name]
        record = ApplicationRecord.read_by_name(self._state_log, name) or ApplicationRecord(
            pending.record.app_id
        )
        if not pending.decided and record.says_the_same(pending.deciding):
            # The decision is in the log. It is taken back later if nothing was adopted.
            if pending.job is None or not is_untouched(pending.job, pending.held):
                pending.record, pending.decided = record, True
        elif not record.says_the_same(pending.record):
            # Another process completed it, and released the readers.
            del self.by_name[name]
            self._group_offsets.release(name)

    def take_up_others(self) -> None:
        """Take up each job that is decided, not complete, and unknown to this process."""
        for record in self.undone.prepared():
            if record.name not in self.by_name:
                self._take_up(record)

    def _let_go_of_others(self) -> None:
        """Release readers of partitions that are held for no job: their holder is dead."""
        wanted = {where for one in self.by_name.values() for where in one.partitions}
        for error in self._engine.partitions.open_held():
            self._warnings.warning("readers may be held without a reason: %s", error)
        for partition in self._engine.partitions.opened():
            if partition.hold_offset >= 0 and partition.topic_partition not in wanted:
                partition.release_readers()

    def _take_up(self, record: ApplicationRecord) -> None:
        """Take up a job of an earlier session or of another process.

        Readers are held at its bounds, unless all of it is in the log: they may have seen it.
        """
        self.undone.begin()
        topic_ids, bounds = _topic_ids_and_bounds(record)
        held = HeldPartitions(self._engine.find_partition, topic_ids)
        try:
            job = _job_of(self._staging_path, record)
            if is_adopted(job, held):
                held.have(bounds)
                held.let_in_if_begun()
            else:
                held.hold(bounds)
        except EoslogError:
            job = None  # Its completion raises the error.
            held.hold(bounds)
        self.by_name[record.name] = PendingJob(
            record, held, frozenset(bounds), decided=True, job=job, of_others=True
        )

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
            # Its record may be in the log, but no caller got the answer. Nothing of it was adopted,
            # so the record before it, written again, takes the decision back.
            pending.record.write(self._state_log)
            pending.held.release()
            self._group_offsets.release(name)
            del self.by_name[name]
            return
        self.complete(pending)

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
            if pending.job is None:
                pending.job = _job_of(self._staging_path, record)
            job = pending.job
            if pending.of_others and synced:
                state_log.sync(record.name)  # The decision comes before what follows from it.
            self._group_offsets.hold_back(record.name, job.offset_keys)
            # A later attempt must not rely on the checks before the first one.
            checked, pending.checked = pending.checked, False
            offsets = adopt_files(job, pending.held, sync=synced, checked=checked)
            if synced:
                pending.held.sync()
            # After the data: no offset is seen without them, and no record before them is held.
            for one in job.offsets:
                columns = partial(one.columns, self._engine.registry.id_of)
                self._group_offsets.adopt(one.number, columns, one.producer_id)
            self._group_offsets.release(record.name)
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
                f"completely in the log yet: {error}"
            ) from error
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

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted. Takes no lock: the caller may hold the store's."""
        for pending in list(self.by_name.values()):
            pending.held.forget_topic(topic)


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
        # Records of a deleted topic are not missing: if one was deleted meanwhile, look again.
        while gone != (gone := _gone(record, find)):
            found = _wrong(record, find, staging_path)
        # A job that was completed or deleted with its topic meanwhile is no problem.
        now = ApplicationRecord.read_by_name(state_log, record.name)
        if now is not None and now.says_the_same(record):
            problems += found
    return problems


def _gone(record: ApplicationRecord, find: FindPartition) -> frozenset[TopicPartition]:
    """Return the job's partitions whose topics were deleted since the decision."""
    try:
        topic_ids, bounds = _topic_ids_and_bounds(record)
        held = HeldPartitions(find, topic_ids)
        return frozenset(where for where in bounds if held.find(where) is None)
    except EoslogError:
        return frozenset()  # The check reports the error.


def _wrong(record: ApplicationRecord, find: FindPartition, staging_path: Path) -> list[Problem]:
    path = staging_path / record.name
    what = f"version {record.version} of {record.app_id!r}"
    try:
        job = _job_of(staging_path, record)
        held = HeldPartitions(find, job.topic_ids)
        problems = [
            problem(path, f"{what} is half in the log, and readers of {where} are not held")
            for where in job.bounds
            if _is_shown(job, held, where)
        ]
        if problems and is_adopted(job, held):
            problems = []  # All of it is there: the process that completes it released readers.
        return problems + _wrong_files(job, held, what)
    except EoslogError as error:
        return [problem(path, f"{what} is decided and not complete: {error}")]


def _wrong_files(job: StagedJob, held: HeldPartitions, what: str) -> list[Problem]:
    """Return the files that the completion of the job needs, and that are missing or damaged."""
    problems: list[Problem] = []
    for one in job.files:
        if is_file_adopted(one, held):
            continue
        if not one.path.exists():
            problems.append(problem(one.path, f"{what} is decided, and this file of it is gone"))
            continue
        try:
            check_decided_file(one)
        except StagedCommitError as error:
            problems.append(
                problem(one.path, f"{what} is decided, and this file of it is damaged: {error}")
            )
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
