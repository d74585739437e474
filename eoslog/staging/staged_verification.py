"""Check that a staged job that is decided is all in the log, or that readers are held before it."""

from pathlib import Path

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, StagedCommitError
from eoslog.staging.staged_adoption import (
    FindPartition,
    HeldPartitions,
    is_adopted,
    is_file_adopted,
)
from eoslog.staging.staged_application import ApplicationRecord
from eoslog.staging.staged_file_check import check_decided_file
from eoslog.staging.staged_job import StagedJob, bounds_of_record, topic_ids_of_record
from eoslog.staging.staged_pending import job_of_application
from eoslog.staging.staged_undone import UndoneJobs
from eoslog.storage.damage import Problem, problem
from eoslog.transactions.state_log import StateLog


def verify_staged_jobs(
    undone: UndoneJobs, state_log: StateLog, find: FindPartition, staging_path: Path
) -> list[Problem]:
    """Another process may be adopting a job, complete it, or delete a topic of it at any moment."""
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
    described = record.job or {"topics": {}}
    try:
        held = HeldPartitions(find, topic_ids_of_record(described))
        return frozenset(where for where in bounds_of_record(described) if held.find(where) is None)
    except EoslogError:
        return frozenset()  # The check says why.


def _wrong(record: ApplicationRecord, find: FindPartition, staging_path: Path) -> list[Problem]:
    path = staging_path / record.name
    what = f"version {record.version} of {record.app_id!r}"
    try:
        job = job_of_application(staging_path, record)
        held = HeldPartitions(find, job.topic_ids)
        problems = [
            problem(path, f"{what} is half in the log, and readers of {where} are not held")
            for where in job.bounds
            if _is_shown(job, held, where)
        ]
        if problems and is_adopted(job, held):
            problems = []  # All of it is there: whoever completes it has let readers in.
        problems += _wrong_files(job, held, what)
    except EoslogError as error:
        return [problem(path, f"{what} is decided and not complete: {error}")]
    return problems


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
