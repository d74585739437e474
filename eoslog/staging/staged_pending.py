"""A staged job on its way: decided, or just being decided, and not complete."""

from dataclasses import dataclass
from pathlib import Path

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError
from eoslog.staging.staged_adoption import FindPartition, HeldPartitions, is_adopted
from eoslog.staging.staged_application import ApplicationRecord
from eoslog.staging.staged_job import (
    StagedJob,
    bounds_of_record,
    job_of_record,
    topic_ids_of_record,
)
from eoslog.staging.staged_names import run_path
from eoslog.staging.staged_spans import JobSpan, span_of_bounds, span_of_job


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

    def span(self, find: FindPartition, staging_path: Path) -> JobSpan:
        """Return the span of the job, if it is decided: readers may see all of it by now."""
        try:
            job = job_of_application(staging_path, self.record) if self.job is None else self.job
            found = HeldPartitions(find, job.topic_ids)
            if is_adopted(job, found):
                return span_of_job(job, found)
        except EoslogError:
            pass  # Its completion will say why; readers are held.
        described = self.record.job or {"topics": {}}
        return span_of_bounds(topic_ids_of_record(described), bounds_of_record(described))


def job_of_application(staging_path: Path, record: ApplicationRecord) -> StagedJob:
    """The job that an application's record decides; StagedCommitError if its list is damaged."""
    run = run_path(staging_path, record.app_id, str(record.run_id))
    return job_of_record(record.app_id, record.version, run, record.job or {})
