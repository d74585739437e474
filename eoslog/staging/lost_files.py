"""Decided jobs whose staged files are gone: a repair decides them once more, without these. It sets
damaged files aside first.

A power cut may leave a decision of a store with durability "process", and neither the job's data
nor its files; a person may delete files. Such a job can never be completed, and holds back the
readers of its partitions. The new decision is one record, like the first one: a process that opens
the store from then on completes the rest of the job.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eoslog.errors import StagedCommitError
from eoslog.staging.adoption import HeldPartitions, is_file_adopted
from eoslog.staging.application import ApplicationRecord
from eoslog.staging.job import JobFile, StagedJob, job_of_record, manifest_path
from eoslog.staging.names import run_path
from eoslog.storage.damage import Problem, problem

_GONE = "is decided, and this file of it is gone"
_DAMAGED = "is decided, and this file of it is damaged"


@dataclass(frozen=True)
class LostFiles:
    """Files that a job was completed without; `records` is None if the list of them is gone."""

    path: Path
    app_id: str
    version: int
    files: int
    bytes: int
    records: int | None

    @property
    def what(self) -> str:
        if self.records is None:
            return "given up, since the list of its files is gone"
        return f"completed without {self.files} files that are gone, of {self.records} records"


def problem_of_lost(path: Path, what: str, damage: object = None) -> Problem:
    """Return the problem that a file of a decided job is gone, or damaged."""
    if damage is None:
        return problem(path, f"{what} {_GONE}; a repair completes the job without it")
    return problem(path, f"{what} {_DAMAGED}, and a repair completes the job without it: {damage}")


def is_of_lost(one: Problem) -> bool:
    """True if a problem is that a file of a decided job is gone."""
    return _GONE in str(one["reason"])


def is_of_damaged(one: Problem) -> bool:
    """True if a problem is that a file of a decided job is damaged."""
    return _DAMAGED in str(one["reason"])


def lost_files(job: StagedJob, held: HeldPartitions) -> list[JobFile]:
    """Return the files that are neither all in the log nor there. Raises EoslogError."""
    return [one for one in job.files if not is_file_adopted(one, held) and not one.path.exists()]


def without_lost_files(
    record: ApplicationRecord, staging_path: Path, held: HeldPartitions, sync: bool
) -> tuple[ApplicationRecord, LostFiles] | None:
    """Return the record that decides the rest of a job, and what that lacks; None if nothing is
    lost. Raises EoslogError.
    """
    run = run_path(staging_path, record.app_id, str(record.run_id))
    described: Mapping[str, Any] = record.job or {}
    app_id, version = record.app_id, record.version
    try:
        job = job_of_record(app_id, version, run, described)
    except StagedCommitError:
        manifest = manifest_path(run, described)
        if manifest is None or os.path.lexists(manifest):
            raise
        rest = StagedJob(app_id, version, run, {}, {}, [])
        all_of_it = LostFiles(run, app_id, version, 0, 0, None)
        return replace(record, job=rest.described(sync)), all_of_it
    lost = lost_files(job, held)
    if not lost:
        return None
    files = [one for one in job.files if one not in lost]
    partitions = {one.file.topic_partition for one in files}
    topics = {where.topic for where in partitions}
    rest = replace(
        job,
        files=files,
        bounds={where: bound for where, bound in job.bounds.items() if where in partitions},
        topic_ids={topic: one for topic, one in job.topic_ids.items() if topic in topics},
    )
    size = sum(one.file.bytes for one in lost)
    records = sum(one.file.records for one in lost)
    found = LostFiles(run, app_id, version, len(lost), size, records)
    return replace(record, job=rest.described(sync)), found
