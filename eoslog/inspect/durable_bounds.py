"""Durable bounds: how far each log was acknowledged as durable, by files that no process has open.

A record counts as acknowledged where something that was durable refers to it: the recovery point, a
committed offset of a group, the decision of a transaction that wrote it, or a staged job that is
complete. A job is complete once its application's record has it so, or once its staged files are
gone: they are removed only after that. While its decision is in the log, the decision names the
batches that must be there. After that, a note of recent jobs has the end of the log.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eoslog.bindings.control_state import synced_before
from eoslog.bindings.record_batch import decode_records
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.common.config import INT64_MAX
from eoslog.common.json_text import fields_read_of, loads_json
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, StagedCommitError
from eoslog.fs.identity_files import id_bytes, read_partition_metadata
from eoslog.fs.offline_log import OfflineLog
from eoslog.fs.os_errors import named_os_errors
from eoslog.groups.offsets_state import GroupOffsetsState
from eoslog.session.paths import StorePaths
from eoslog.staging.application import COMPLETE, PREPARED
from eoslog.staging.job import (
    StagedJob,
    bounds_of_record,
    job_of_record,
    topic_ids_of_record,
)
from eoslog.staging.names import run_path
from eoslog.staging.spans import JobSpan
from eoslog.storage.topic_registry import partition_directories
from eoslog.transactions.state_key import (
    APPLICATION,
    RECENT_JOBS,
    TYPE_BYTES,
    is_transaction_key,
    name_of,
    transactional_id_of,
    type_of,
)

_COMMITTED = frozenset(("PrepareCommit", "CompleteCommit"))
# As long as a batch is looked for under an id, which sequence it has at least does not matter.
_ANY_SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class JobPart:
    """Part of a complete job in one partition: all of it is from offset `bound` on.

    `last_sequences` has the last sequence of each producer id; it is empty where the ids are not
    known any more. At least `records` records are there. `app_id` is "" for jobs taken together.
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


@dataclass
class DurableBounds:
    """Durable bounds of all partitions. `offsets`: the bound of each, and what states it."""

    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    # Of each partition, the transactions that were decided to commit: (producer id, epoch of the
    # markers), with the transactional id.
    committed: dict[TopicPartition, dict[tuple[int, int], str]] = field(default_factory=dict)
    # Of each partition, the newest job: those before it are below its bound. Of a partition of
    # `__consumer_offsets`, which has no bounds, the newest of each application.
    jobs: dict[TopicPartition, dict[str, JobPart]] = field(default_factory=dict)

    def note(self, where: TopicPartition, offset: int, who: str) -> None:
        """Note that, according to `who`, everything below an offset was there."""
        if offset > self.offsets.get(where, (0, ""))[0]:
            self.offsets[where] = offset, who

    def note_job(self, where: TopicPartition, part: JobPart) -> None:
        """Note that a partition had all of a job."""
        self.note(where, part.offset_min, f"the record of {part.name}")
        of_partition = self.jobs.setdefault(where, {})
        key = part.app_id if where.topic == CONSUMER_OFFSETS_TOPIC else ""
        if key not in of_partition or part.bound >= of_partition[key].bound:
            of_partition[key] = part

    def objection(self, where: TopicPartition, log: OfflineLog, offset: int) -> str | None:
        """Return why a partition's log must not be cut at an offset; None if it may be."""
        known, who = self.offsets.get(where, (0, ""))
        if known > offset:
            return f"{who} shows that the log went up to offset {known}"
        for (producer_id, epoch), name in self._without_marker(where, log).items():
            return (
                f"the transaction of {name!r} (producer {producer_id}, epoch {epoch}) was decided "
                "to commit, and nothing before the break is of it"
            )
        for part in self.jobs.get(where, {}).values():
            if part.is_cut(log):
                return f"{part.name} was complete, and the break is before some of it"
        return None

    def _without_marker(
        self, where: TopicPartition, log: OfflineLog
    ) -> Mapping[tuple[int, int], str]:
        """Return the committed transactions of which the whole batches of a log hold nothing."""
        left = dict(self.committed.get(where, {}))
        newest: dict[int, int] = {}
        for header, _ in log.batches() if left else ():
            if header.is_transactional:
                newest[header.producer_id] = header.producer_epoch
                left.pop((header.producer_id, header.producer_epoch), None)
        # The batches are of the epoch before, and its marker may be what is broken. Where the log
        # begins further up, a producer that is not in it may have been deleted with its batches.
        unknown = -1 if not left or log.first_offset == 0 else 1 << 15
        return {
            (producer_id, epoch): name
            for (producer_id, epoch), name in left.items()
            if newest.get(producer_id, unknown) < epoch - 1
        }


def read_durable_bounds(
    paths: StorePaths, recovery_points: Mapping[TopicPartition, int]
) -> DurableBounds:
    """Read the durable bounds from the files of a closed store."""
    found = DurableBounds()
    for where, offset in recovery_points.items():
        found.note(where, offset, "the recovery point")
    for where, path in partition_directories(paths.root):
        found.note(where, synced_by_page(paths, where), "the page of its last sessions")
        log = OfflineLog(path)
        if where.topic == CONSUMER_OFFSETS_TOPIC:
            _note_groups(found, log)
        elif where.topic == TRANSACTION_STATE_TOPIC:
            _note_decisions(found, log)
            for of_job, part in job_parts(paths, _records_of(log)):
                found.note_job(of_job, part)
    return found


def synced_by_page(paths: StorePaths, where: TopicPartition) -> int:
    """Return the offset up to which a partition was synced, by its control page, else 0.

    It is raised after each sync, and so true after a power cut.
    """
    try:
        topic_id = read_partition_metadata(paths.partition(where))
    except CorruptRecordError:
        return 0
    if topic_id is None:
        return 0
    page = paths.control(where)
    with named_os_errors(f"looking at {page}"):
        return synced_before(str(page), id_bytes(topic_id), where.partition)


def _note_groups(found: DurableBounds, log: OfflineLog) -> None:
    state = GroupOffsetsState()
    with suppress(CorruptRecordError):  # The check of that log reports it.
        for header, batch in log.batches():
            state.replay(header, decode_records(batch))
    for group in state.groups():
        for where, written in state.committed(group).items():
            found.note(where, written.value.offset, f"the committed offset of group {group!r}")


def _note_decisions(found: DurableBounds, log: OfflineLog) -> None:
    undecided: dict[bytes, dict[str, Any]] = {}
    for key, value in _records_of(log):
        if not is_transaction_key(key):
            continue
        with suppress(CorruptRecordError):
            state = decode_transaction_value(value)
            judged = undecided.pop(key, None)
            if judged is not None and state["state"] == "CompleteCommit":
                _note_decision(found, key, judged)
            if state["state"] in _COMMITTED and state["ends"] is None:
                _note_decision(found, key, state)
            elif state["ends"] is not None:
                # As the newest record of its id it counts only if its data is there.
                undecided[key] = state


def _note_decision(found: DurableBounds, key: bytes, state: Mapping[str, Any]) -> None:
    transaction = state["producer_id"], state["producer_epoch"]
    for topic, number in state["partitions"] or ():
        of_partition = found.committed.setdefault(TopicPartition(topic, number), {})
        of_partition[transaction] = transactional_id_of(key)


def _records_of(log: OfflineLog) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a log, up to the first batch with records that cannot be read.

    The check of that log reports the batch.
    """
    for _, batch in log.batches():
        try:
            records = decode_records(batch)
        except CorruptRecordError:
            return
        for record in records:
            if record.key is not None and record.value is not None:
                yield record.key, record.value


# Staged jobs in the records of `__transaction_state`.


def job_parts(
    paths: StorePaths, records: Iterable[tuple[bytes, bytes]], *, only_recorded: bool = False
) -> Iterator[tuple[TopicPartition, JobPart]]:
    """Yield the parts of complete jobs in the keys and values of one partition, oldest first.

    With `only_recorded`, a job without staged files does not count as complete unless a
    record has it so. Records of other types and unreadable ones are passed over; the check of that
    log reports the latter.
    """
    topic_ids = _TopicIds(paths)
    prepared: dict[str, Mapping[str, Any]] = {}
    for key, value in records:
        if len(key) < TYPE_BYTES or type_of(key) not in (APPLICATION, RECENT_JOBS):
            continue
        with suppress(CorruptRecordError), fields_read_of("a record of staged jobs"):
            state = loads_json(value)
            if type_of(key) == RECENT_JOBS:
                yield from _of_spans(state["spans"], topic_ids)
                continue
            decided = prepared.pop(name_of(key), None)
            if state["state"] == PREPARED:
                prepared[name_of(key)] = state
            elif decided is not None and state["state"] == COMPLETE:
                is_same = state["app_version"] == decided["app_version"]  # Else it was taken back.
                yield from _of_job(paths, decided, topic_ids) if is_same else ()
    for decided in () if only_recorded else prepared.values():
        with suppress(CorruptRecordError):
            yield from _of_job(paths, decided, topic_ids, only_if_gone=True)


def decided_job(staging: Path, state: Mapping[str, Any]) -> StagedJob | None:
    """Return the job that an application's record decides; None if its list of files is gone.

    Raises CorruptRecordError if the record is not as it was written.
    """
    with fields_read_of("a decided job"):
        app_id = state["app_id"]
        run = run_path(staging, app_id, str(state["run_id"]))
        try:
            return job_of_record(app_id, state["app_version"], run, state["job"])
        except StagedCommitError:
            return None


class _TopicIds:
    """Topic ids that the partitions' directories carry."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._known: dict[TopicPartition, str | None] = {}

    def is_of(self, where: TopicPartition, topic_id: str | None) -> bool:
        """True if the partition is of the topic with this id, and not of a later one of its name.

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
        job = decided_job(paths.staging, decided)
        if only_if_gone and job is not None and all(one.path.exists() for one in job.files):
            return
        app_id, described = decided["app_id"], decided["job"]
        name = f"staged job {decided['app_version']} of application {app_id!r}"
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
        # Of the batches of offsets, only the producer ids are known.
        for batch in () if job is None else job.offsets:
            if any(
                topic_ids.is_of(
                    TopicPartition(of.topic, of.partition), batch.topic_ids.get(of.topic)
                )
                for of in batch.offsets
            ):
                where = TopicPartition(CONSUMER_OFFSETS_TOPIC, batch.number)
                yield where, JobPart(name, app_id, 0, 0, {batch.producer_id: _ANY_SEQUENCE})
