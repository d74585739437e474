"""Staged jobs in the records of `__transaction_state`, read while no process has the store open.

A job counts as acknowledged once its application's record says that it is complete, or once its
staged files are gone: they go only after that. While the decision of such a job is in the log, it
tells which batches have to be there, and a note of recent jobs how far the log went.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eoslog.common.config import INT64_MAX
from eoslog.common.json_text import fields_read_of, loads_json
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, StagedCommitError
from eoslog.fs.identity_files import read_partition_metadata
from eoslog.fs.offline_log import OfflineLog
from eoslog.session.store_paths import StorePaths
from eoslog.staging.staged_application import COMPLETE, PREPARED
from eoslog.staging.staged_job import (
    StagedJob,
    bounds_of_record,
    job_of_record,
    topic_ids_of_record,
)
from eoslog.staging.staged_names import run_path
from eoslog.staging.staged_spans import JobSpan
from eoslog.transactions.state_key import APPLICATION, RECENT_JOBS, TYPE_BYTES, name_of, type_of

# As long as a batch is looked for under an id, which sequence it has at least does not matter.
_ANY_SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class JobPart:
    """Part of an acknowledged job in one partition: all of it is from offset `bound` on.

    `last_sequences` has the last sequence of each producer id; it is empty where nobody knows the
    ids any more. At least `records` records are there. `app_id` is "" for jobs taken together.
    """

    name: str
    app_id: str
    bound: int
    records: int
    last_sequences: Mapping[int, int] = field(default_factory=dict)

    @property
    def offset_min(self) -> int:
        """The log went up to here, or further."""
        return self.bound + self.records

    def is_cut(self, log: OfflineLog) -> bool:
        """True if the whole batches of a log lack something of the job."""
        left = dict(self.last_sequences)
        begun = False
        for header, _ in log.batches() if left else ():
            wanted = left.get(header.producer_id)
            if wanted is not None:
                begun = True
                if header.base_sequence + header.record_count > wanted:
                    del left[header.producer_id]
        # Where the log begins further up, what is missing may have been deleted.
        return bool(left) and (begun or log.first_offset <= self.bound)


def complete_job_parts(
    paths: StorePaths, records: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[TopicPartition, JobPart]]:
    """The parts of all jobs that the records of one partition show to be complete, oldest first."""
    return _job_parts(paths, records, {})


def job_parts(
    paths: StorePaths, records: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[TopicPartition, JobPart]]:
    """The parts of all acknowledged jobs of which the records of one partition tell, oldest first.

    `records` are keys and values; those of other types are passed over.
    """
    prepared: dict[str, Mapping[str, Any]] = {}
    yield from _job_parts(paths, records, prepared)
    topic_ids = _TopicIds(paths)
    for decided in prepared.values():
        try:
            yield from _of_job(paths, decided, topic_ids, only_if_gone=True)
        except CorruptRecordError:
            continue


def _job_parts(
    paths: StorePaths,
    records: Iterator[tuple[bytes, bytes]],
    prepared: dict[str, Mapping[str, Any]],
) -> Iterator[tuple[TopicPartition, JobPart]]:
    """Yield the parts of complete jobs; the records of others are in `prepared` at the end."""
    topic_ids = _TopicIds(paths)
    for key, value in records:
        if len(key) < TYPE_BYTES or type_of(key) not in (APPLICATION, RECENT_JOBS):
            continue
        try:
            with fields_read_of("a record of staged jobs"):
                state = loads_json(value)
                if type_of(key) == RECENT_JOBS:
                    yield from _of_spans(state["spans"], topic_ids)
                    continue
                name = name_of(key)
                decided = prepared.pop(name, None)
                if state["state"] == PREPARED:
                    prepared[name] = state
                elif decided is not None and _completes(state, decided):
                    yield from _of_job(paths, decided, topic_ids)
        except CorruptRecordError:
            continue  # What it says is for the check of that log.


class _TopicIds:
    """The ids that the partitions' directories carry."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._known: dict[TopicPartition, str | None] = {}

    def is_of(self, where: TopicPartition, topic_id: str | None) -> bool:
        """True if the partition is of the topic with this id, and not of one made later.

        One that has lost its id, or that is damaged, is taken for it.
        """
        if where not in self._known:
            try:
                self._known[where] = read_partition_metadata(self._paths.partition(where))
            except CorruptRecordError:
                self._known[where] = None
        known = self._known[where]
        if known is None:
            return self._paths.partition(where).is_dir()
        return known == topic_id


def _completes(state: Mapping[str, Any], decided: Mapping[str, Any]) -> bool:
    """True if a record completes the job that one before decided; it may take it back instead."""
    return state["state"] == COMPLETE and bool(state["app_version"] == decided["app_version"])


def _of_spans(
    spans: list[Mapping[str, Any]], topic_ids: _TopicIds
) -> Iterator[tuple[TopicPartition, JobPart]]:
    for span in map(JobSpan.of_record, spans):
        for where, one in span.ranges.items():
            if one.upper_bound < INT64_MAX and topic_ids.is_of(where, span.topic_ids[where.topic]):
                yield where, JobPart("recent staged jobs", "", one.upper_bound, 0)


def _of_job(
    paths: StorePaths, decided: Mapping[str, Any], topic_ids: _TopicIds, only_if_gone: bool = False
) -> Iterator[tuple[TopicPartition, JobPart]]:
    """Yield the parts of a decided job. With `only_if_gone`, none of a job that can still be
    adopted.
    """
    with fields_read_of("a decided job"):
        app_id, version, described = decided["app_id"], decided["app_version"], decided["job"]
        run = run_path(paths.staging, app_id, str(decided["run_id"]))
        name = f"staged job {version} of application {app_id!r}"
        job = _listed(app_id, version, run, described)
        if only_if_gone and job is not None and all(one.path.exists() for one in job.files):
            return
        ids = topic_ids_of_record(described)
        sequences: dict[TopicPartition, dict[int, int]] = {}
        records: dict[TopicPartition, int] = {}
        for one in () if job is None else job.files:
            where, count = one.file.topic_partition, one.file.records
            sequences.setdefault(where, {})[one.file.producer_id] = count - 1
            records[where] = records.get(where, 0) + count
        for where, bound in bounds_of_record(described).items():
            if topic_ids.is_of(where, ids.get(where.topic)):
                # Each partition of a job has at least one record of it.
                found = records.get(where, 1), sequences.get(where, {})
                yield where, JobPart(name, app_id, bound, *found)
        yield from _of_offsets(name, job, topic_ids)


def _listed(app_id: str, version: int, run: Path, described: Mapping[str, Any]) -> StagedJob | None:
    """The job, None if its list of files is not in the record, and gone."""
    try:
        return job_of_record(app_id, version, run, described)
    except StagedCommitError:
        return None


def _of_offsets(
    name: str, job: StagedJob | None, topic_ids: _TopicIds
) -> Iterator[tuple[TopicPartition, JobPart]]:
    """The batches of offsets, of which nothing is known but their ids."""
    if job is None:
        return
    for one in job.offsets:
        is_there = any(
            topic_ids.is_of(TopicPartition(of.topic, of.partition), one.topic_ids.get(of.topic))
            for of in one.offsets
        )
        if is_there:
            where = TopicPartition(CONSUMER_OFFSETS_TOPIC, one.number)
            yield where, JobPart(name, job.app_id, 0, 0, {one.producer_id: _ANY_SEQUENCE})
