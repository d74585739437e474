"""Staged jobs on their way: decided, or just being decided, and not complete.

A process keeps those that it knows of in memory, with their partitions held. What another process
left, dead or not, it takes up. The steps of a completion and their crash points are in
`docs/staged-commit.md`. All but the questions of `UndoneJobs` and `verify_pending_jobs` happens
under the lock of staged jobs.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eoslog.bindings.shared_page import COUNTER_STAGED_BEGUN, COUNTER_STAGED_SETTLED, SharedPage
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
    adopt_offsets,
    bounds_of_record,
    is_listed_apart,
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
    """Pending job: it has its partitions held, as long as readers must see nothing of it.

    `record` is the application's: while the job is not `decided`, that of before, and `deciding`
    the one that decides it. `of_others`: this process did not see the decision reach the disk.
    `checked`: the checksums of all files were verified just now.
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
        """Return the span of the job, if it is decided: readers may see all of it by now."""
        try:
            job = self.job or _job_of(staging_path, self.record)
            if is_adopted(job, self.held):
                return span_of_job(job, self.held)
        except EoslogError:
            pass  # Its completion will say why; readers are held.
        return span_of_bounds(*_topic_ids_and_bounds(self.record))


class UndoneJobs:
    """Undone jobs of all processes, known by the applications' records.

    The page that processes share has a flag for them, made of two counters. It is set before a
    job's first partition is held, and reset when nothing is left undone; both under the lock of
    staged jobs. So the next holder of that lock that finds it set looks at what others left.
    Without a shared page there is no other process to tell: it is never set.
    """

    def __init__(
        self, staging_path: Path, state_log: CompactedLog, shared: SharedPage | None
    ) -> None:
        self._staging_path = staging_path
        self._state_log = state_log
        self._shared = shared

    @property
    def any(self) -> bool:
        """True if there may be such jobs, of any process."""
        if self._shared is None:
            return False
        # In this order: while it is set and reset it may look set, and never reset.
        settled = self._shared.counter(COUNTER_STAGED_SETTLED)
        return self._shared.counter(COUNTER_STAGED_BEGUN) != settled

    def begin(self) -> None:
        """Note that there is one now. The caller holds the lock."""
        if self._shared is not None and not self.any:
            self._shared.raise_counter(COUNTER_STAGED_BEGUN)

    def settle(self) -> None:
        """Note that there is none any more. The caller holds the lock."""
        if self._shared is not None and self.any:
            self._shared.raise_counter(COUNTER_STAGED_SETTLED)

    def prepared(self) -> Iterator[ApplicationRecord]:
        """The applications that have a job which is decided and not complete.

        Each of them has a directory, whether or not its job has files.
        """
        for path in application_directories(self._staging_path):
            record = ApplicationRecord.read_by_name(self._state_log, path.name)
            if record is not None and record.state == PREPARED:
                yield record

    def hold_back(self, key: OffsetKey) -> bool:
        """True if such a job commits this offset."""
        return self.any and any(key in self._offset_keys(record) for record in self.prepared())

    def _offset_keys(self, record: ApplicationRecord) -> frozenset[OffsetKey]:
        try:
            return _job_of(self._staging_path, record).offset_keys
        except EoslogError:
            return frozenset()  # Its list of files is gone: it was completed just now.


class PendingJobs:
    """Pending jobs of one store, `by_name` of their application's directory."""

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        leftovers: Leftovers,
        recent: RecentJobs,
    ) -> None:
        self.by_name: dict[str, PendingJob] = {}
        self.undone = UndoneJobs(engine.paths.staging, state_log, engine.session.shared)
        self._engine = engine
        self._state_log = state_log
        self._group_offsets = group_offsets
        self._leftovers = leftovers
        self._recent = recent
        self._staging_path = engine.paths.staging

    def look_around(self) -> None:
        """Learn what others have done, and left undone, since this process had the lock."""
        for name in list(self.by_name):
            self._compare_with_record(name)
        if self.undone.any:
            self.take_up_others()
            self._let_go_of_others()

    def _compare_with_record(self, name: str) -> None:
        """See whether a job of which this process knows is still to be done."""
        pending = self.by_name[name]
        record = ApplicationRecord.read_by_name(self._state_log, name) or ApplicationRecord(
            pending.record.app_id
        )
        if not pending.decided and record.says_the_same(pending.deciding):
            # The decision is in the log. It is taken back if nobody has acted on it.
            if pending.job is None or not is_untouched(pending.job, pending.held):
                pending.record, pending.decided = record, True
        elif not record.says_the_same(pending.record):
            # Another process did the rest; it has let readers in too.
            del self.by_name[name]
            self._group_offsets.release(name)

    def take_up_others(self) -> None:
        """Take up every job that is decided and not complete, and that this process does not
        know of.
        """
        for record in self.undone.prepared():
            if record.name not in self.by_name:
                self._take_up(record)

    def _let_go_of_others(self) -> None:
        """Let readers into partitions that are held for no job: their holder is dead."""
        wanted = {where for one in self.by_name.values() for where in one.partitions}
        for error in self._engine.partitions.open_held():
            _log.warning("readers may be held without a reason: %s", error)
        for partition in self._engine.partitions.opened():
            if partition.hold_offset >= 0 and partition.topic_partition not in wanted:
                partition.release_readers()

    def _take_up(self, record: ApplicationRecord) -> None:
        """Have a job of an earlier life of the store, or of another process, as pending.

        Readers are held at its bounds, unless all of it is in the log: they may have seen it then.
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
            job = None  # Its completion will say why.
            held.hold(bounds)
        self.by_name[record.name] = PendingJob(
            record, held, frozenset(bounds), decided=True, job=job, of_others=True
        )

    def settled(self, app_id: str) -> ApplicationRecord:
        """The application's record, with no job under way."""
        name = directory_name(app_id, "app_id")
        record = ApplicationRecord.read(self._state_log, app_id)
        if record is not None and record.state == PREPARED and name not in self.by_name:
            self._take_up(record)
        if name in self.by_name:
            self.settle(name)
            record = ApplicationRecord.read(self._state_log, app_id)
        return record or ApplicationRecord(app_id)

    def settle(self, name: str) -> None:
        """Complete a pending job; one that was interrupted in its decision is undone instead."""
        pending = self.by_name[name]
        if not pending.decided:
            # Its record may be in the log, though nobody was told. Nothing of it was adopted, so
            # the record of before, written again, takes the decision back.
            pending.record.write(self._state_log)
            pending.held.release()
            self._group_offsets.release(name)
            del self.by_name[name]
            return
        self.complete(pending)

    def settle_all(self) -> None:
        """Settle each pending job; what cannot be settled now is logged, and tried again later."""
        for name in list(self.by_name):
            try:
                self.settle(name)
            except EoslogError as error:
                _log.error("%s", error)

    def complete(self, pending: PendingJob) -> Offsets:
        """Do steps A1 to F. Raises StagedJobIncompleteError; the job is then still pending."""
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
            # Of a later attempt the checks of the first one say nothing any more.
            checked, pending.checked = pending.checked, False
            offsets = adopt_files(job, pending.held, sync=synced, checked=checked)
            if synced:
                pending.held.sync()
            # Behind the data, so that no offset is seen without them, and none below is held back.
            adopt_offsets(job.offsets, self._group_offsets, self._engine.registry.id_of)
            self._group_offsets.release(record.name)
            self.ensure_group(record.app_id)
            span = span_of_job(job, pending.held)
            pending.held.release()
            if synced:
                self._sync_offsets(job)
            if span.ranges:
                self._recent.note(span, others_are_held=len(self.by_name) > 1)
            # Mostly unsynced: a power cut brings the job back as decided, and all of it is in the
            # log. To find that out its list of files is needed, which is removed with them.
            listed_apart = is_listed_apart(record.job or {})
            record.completed().write(state_log, sync=None if listed_apart else False)
        except (EoslogError, MemoryError) as error:
            raise StagedJobIncompleteError(
                f"version {record.version} of application {record.app_id!r} is decided, but not "
                f"completely in the log yet: {error}"
            ) from error
        del self.by_name[record.name]
        try:
            self._leftovers.leave(job, str(record.run_id))
        except (EoslogError, MemoryError) as error:
            # The job is complete: who heard of an error now would write it again. What is left of
            # it is swept.
            _log.warning("application %r: what was staged is removed later: %s", job.app_id, error)
        return offsets

    def _sync_offsets(self, job: StagedJob) -> None:
        for one in job.offsets:
            partition = self._engine.partitions.offsets_partition(one.number)
            partition.sync_up_to(partition.log_end_offset)

    def ensure_group(self, app_id: str) -> None:
        """Have the application's group be there, which shows its version. Nothing waits for it."""
        if is_nameless(app_id):
            return
        try:
            self._group_offsets.ensure_group(check_group_id(app_id))
        except InvalidRequestError:
            return  # No group can have the name.
        except (EoslogError, MemoryError) as error:
            _log.warning("application %r has no group to show its version: %s", app_id, error)

    def spans(self) -> list[JobSpan]:
        """Return the spans of the jobs that a snapshot may have to leave out; to be called while
        they stand still.
        """
        undone = [one for one in self.by_name.values() if one.decided]
        return self._recent.spans() + [one.span(self._staging_path) for one in undone]

    def producer_ids(self) -> frozenset[int]:
        """Return the producer ids of the jobs. Takes no lock."""
        jobs = [one.job for one in list(self.by_name.values()) if one.job is not None]
        return frozenset().union(*(job.all_producer_ids for job in jobs))

    def forget_topic(self, topic: str) -> None:
        """The topic is being deleted. Takes no lock: the caller may hold the store's."""
        for pending in list(self.by_name.values()):
            pending.held.forget_topic(topic)


def _job_of(staging_path: Path, record: ApplicationRecord) -> StagedJob:
    """The job that an application's record decides; StagedCommitError if its list is damaged."""
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
        # What is gone with its topic is not missed: if one went meanwhile, look again.
        while gone != (gone := _gone(record, find)):
            found = _wrong(record, find, staging_path)
        # What was completed, or deleted with its topic, meanwhile is no problem.
        now = ApplicationRecord.read_by_name(state_log, record.name)
        if now is not None and now.says_the_same(record):
            problems += found
    return problems


def _gone(record: ApplicationRecord, find: FindPartition) -> frozenset[TopicPartition]:
    """The job's partitions whose topics were deleted since the decision."""
    try:
        topic_ids, bounds = _topic_ids_and_bounds(record)
        held = HeldPartitions(find, topic_ids)
        return frozenset(where for where in bounds if held.find(where) is None)
    except EoslogError:
        return frozenset()  # The check says why.


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
            problems = []  # All of it is there: the process that completes it let readers in.
        return problems + _wrong_files(job, held, what)
    except EoslogError as error:
        return [problem(path, f"{what} is decided and not complete: {error}")]


def _wrong_files(job: StagedJob, held: HeldPartitions, what: str) -> list[Problem]:
    """Files that the completion of the job will ask for, and that it cannot take as they are."""
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
    """True if readers get at what a partition has of a job."""
    partition = held.find(where)
    if partition is None:
        return False
    states = [partition.producer(one) for one in job.producer_ids.get(where, [])]
    lasts = [one.last_offset for one in states if one is not None]
    if not lasts or max(lasts) < partition.log_start_offset:
        return False
    hold = partition.hold_offset
    return hold < 0 or hold > max(lasts)
