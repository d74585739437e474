"""Staged jobs that are decided and not complete: taken up, and completed step by step.

The steps and their crash points are in `docs/staged-commit.md`. All this happens under the lock of
staged jobs.
"""

import logging
from pathlib import Path

from eoslog.errors import EoslogError, InvalidRequestError, StagedJobIncompleteError
from eoslog.groups.group_metadata import check_group_id
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.staging.staged_adoption import HeldPartitions, Offsets, adopt_files, is_adopted
from eoslog.staging.staged_application import PREPARED, ApplicationRecord
from eoslog.staging.staged_job import (
    StagedJob,
    bounds_of_record,
    is_listed_apart,
    topic_ids_of_record,
)
from eoslog.staging.staged_leftovers import Leftovers
from eoslog.staging.staged_names import directory_name, is_nameless
from eoslog.staging.staged_offsets import adopt_offsets
from eoslog.staging.staged_pending import PendingJob, job_of_application
from eoslog.staging.staged_spans import RecentJobs, span_of_job
from eoslog.staging.staged_undone import UndoneJobs
from eoslog.storage.engine import Engine
from eoslog.transactions.state_log import StateLog

_log = logging.getLogger(__name__)


class StagedJobsUnderWay:
    """Jobs under way, a part of the `StagedCommits`, which are made on top of it."""

    _engine: Engine
    _state_log: StateLog
    _group_offsets: GroupOffsets
    _staging_path: Path
    _undone: UndoneJobs
    _recent: RecentJobs
    _leftovers: Leftovers
    _pending: dict[str, PendingJob]

    def _settled(self, app_id: str) -> ApplicationRecord:
        """The application's record, with no job under way."""
        name = directory_name(app_id, "app_id")
        record = ApplicationRecord.read(self._state_log, app_id)
        if record is not None and record.state == PREPARED and name not in self._pending:
            self._take_up(record)
        if name in self._pending:
            self._settle(name)
            record = ApplicationRecord.read(self._state_log, app_id)
        return ApplicationRecord(app_id) if record is None else record

    def _settle(self, name: str) -> None:
        """Complete a pending job; one that was interrupted in its decision is undone instead."""
        pending = self._pending[name]
        if not pending.decided:
            # Its record may be in the log, though nobody was told. Nothing of it was adopted, so
            # the record of before, written again, takes the decision back.
            pending.record.write(self._state_log)
            pending.held.release()
            self._group_offsets.release(name)
            del self._pending[name]
            return
        self._complete(pending)

    def _take_up(self, record: ApplicationRecord) -> None:
        """Have a job of an earlier life of the store, or of another process, as pending.

        Readers are held at its bounds, unless all of it is in the log: they may have seen it then.
        """
        self._undone.begin()
        described = record.job or {"topics": {}}
        bounds = bounds_of_record(described)
        held = HeldPartitions(self._engine.find_partition, topic_ids_of_record(described))
        try:
            job = job_of_application(self._staging_path, record)
            if is_adopted(job, held):
                held.have(bounds)
                held.let_in_if_begun()
            else:
                held.hold(bounds)
        except EoslogError:
            job = None  # Its completion will say why.
            held.hold(bounds)
        self._pending[record.name] = PendingJob(
            record, held, frozenset(bounds), decided=True, job=job, of_others=True
        )

    def _retry_pending(self) -> None:
        for name in list(self._pending):
            try:
                self._settle(name)
            except EoslogError as error:
                _log.error("%s", error)

    def _complete(self, pending: PendingJob) -> Offsets:
        """Steps A1 to F. Raises StagedJobIncompleteError; the job is then still pending."""
        record = pending.record
        state_log = self._state_log
        try:
            if pending.job is None:
                pending.job = job_of_application(self._staging_path, record)
            job = pending.job
            if pending.of_others and self._engine.syncs:
                state_log.sync(record.name)  # The decision comes before what follows from it.
            self._group_offsets.hold_back(record.name, job.offset_keys)
            synced = self._engine.syncs
            # Of a later attempt the checks of the first one say nothing any more.
            checked, pending.checked = pending.checked, False
            offsets = adopt_files(job, pending.held, sync=synced, checked=checked)
            if synced:
                pending.held.sync()
            # Behind the data, so that no offset is seen without them, and none below is held back.
            adopt_offsets(job.offsets, self._group_offsets, self._engine.registry.id_of)
            self._group_offsets.release(record.name)
            self._ensure_group(record.app_id)
            span = span_of_job(job, pending.held)
            pending.held.release()
            self._sync_offsets(job)
            if span.ranges:
                self._recent.note(span, others_are_held=len(self._pending) > 1)
            # Mostly unsynced: a power cut brings the job back as decided, and all of it is in the
            # log. To find that out its list of files is needed, which is removed with them.
            listed_apart = is_listed_apart(record.job or {})
            record.completed().write(state_log, sync=None if listed_apart else False)
        except (EoslogError, MemoryError) as error:
            raise StagedJobIncompleteError(
                f"version {record.version} of application {record.app_id!r} is decided, but not "
                f"completely in the log yet: {error}"
            ) from error
        del self._pending[record.name]
        try:
            self._leftovers.leave(job, str(record.run_id))
        except (EoslogError, MemoryError) as error:
            # The job is complete: who heard of an error now would write it again. What is left of
            # it is swept.
            _log.warning("application %r: what was staged is removed later: %s", job.app_id, error)
        return offsets

    def _sync_offsets(self, job: StagedJob) -> None:
        if not self._engine.syncs:
            return
        for one in job.offsets:
            partition = self._engine.partitions.offsets_partition(one.number)
            partition.sync_up_to(partition.log_end_offset)

    def _ensure_group(self, app_id: str) -> None:
        """Have the application's group be there, which shows its version. Nothing waits for it."""
        if is_nameless(app_id):
            return
        try:
            self._group_offsets.ensure_group(check_group_id(app_id))
        except InvalidRequestError:
            return  # No group can have the name.
        except (EoslogError, MemoryError) as error:
            _log.warning("application %r has no group to show its version: %s", app_id, error)
