"""Acknowledged end of each log, found in files that no process has open.

A record counts as acknowledged where something that was durable says that it was there: the
recovery point, a group's offset behind it, the decision of a transaction that wrote it, or the
records of a staged job that is complete.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from eoslog.bindings.control_state import synced_before
from eoslog.bindings.record_batch import decode_records
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.common.kafka_uuid import id_bytes
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.identity_files import read_partition_metadata
from eoslog.fs.offline_log import OfflineLog
from eoslog.fs.os_errors import named_os_errors
from eoslog.groups.group_offsets_state import GroupOffsetsState
from eoslog.inspect.acknowledged_jobs import JobPart, job_parts
from eoslog.session.store_paths import StorePaths
from eoslog.storage.topic_registry import partition_directories
from eoslog.transactions.state_key import is_transaction_key, transactional_id_of

_COMMITTED = frozenset(("PrepareCommit", "CompleteCommit"))


@dataclass
class Acknowledged:
    """Acknowledged ends of all partitions. `offsets`: the end of each, and what states it."""

    offsets: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    # Of each partition, the transactions that were decided to commit: (producer id, epoch of the
    # markers), with the transactional id.
    committed: dict[TopicPartition, dict[tuple[int, int], str]] = field(default_factory=dict)
    # Of each partition, the newest job: those before it are below its bound. Of a partition of
    # `__consumer_offsets`, which has no bounds, the newest of each application.
    jobs: dict[TopicPartition, dict[str, JobPart]] = field(default_factory=dict)

    def note(self, where: TopicPartition, offset: int, who: str) -> None:
        """Somebody says that everything below an offset was there."""
        if offset > self.offsets.get(where, (0, ""))[0]:
            self.offsets[where] = offset, who

    def note_job(self, where: TopicPartition, part: JobPart) -> None:
        """A partition had all of a job."""
        self.note(where, part.offset_min, f"the record of {part.name}")
        of_partition = self.jobs.setdefault(where, {})
        key = part.app_id if where.topic == CONSUMER_OFFSETS_TOPIC else ""
        if key not in of_partition or part.bound >= of_partition[key].bound:
            of_partition[key] = part

    def objection(self, where: TopicPartition, log: OfflineLog, offset: int) -> str | None:
        """Return why a partition's log must not be cut at an offset; None if it may be."""
        known, who = self.offsets.get(where, (0, ""))
        if known > offset:
            return f"{who} says that the log went up to offset {known}"
        for (producer_id, epoch), name in self._without_marker(where, log).items():
            return (
                f"the transaction of {name!r} (producer {producer_id}, epoch {epoch}) was decided "
                "to commit, and nothing before the break is of it"
            )
        for part in self.jobs.get(where, {}).values():
            if part.is_cut(log):
                return f"{part.name} was complete, and the break is in front of some of it"
        return None

    def _without_marker(
        self, where: TopicPartition, log: OfflineLog
    ) -> Mapping[tuple[int, int], str]:
        """The committed transactions of which the whole batches of a log hold nothing."""
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


def find_acknowledged(
    paths: StorePaths, recovery_points: Mapping[TopicPartition, int]
) -> Acknowledged:
    """Read what the files of a closed store say is acknowledged."""
    found = Acknowledged()
    for where, offset in recovery_points.items():
        found.note(where, offset, "the recovery point")
    for where, path in partition_directories(paths.root):
        found.note(where, synced_by_page(paths, where), "the page of its last sessions")
        if where.topic == CONSUMER_OFFSETS_TOPIC:
            _note_groups(found, OfflineLog(path))
        elif where.topic == TRANSACTION_STATE_TOPIC:
            log = OfflineLog(path)
            _note_decisions(found, log)
            for of_job, part in job_parts(paths, _records_of(log)):
                found.note_job(of_job, part)
    return found


def synced_by_page(paths: StorePaths, where: TopicPartition) -> int:
    """Return up to where a partition was synced, as its control page says; 0 if it does not say. It
    is raised after each sync, and so true after a power cut.
    """
    try:
        topic_id = read_partition_metadata(paths.partition(where))
    except CorruptRecordError:
        return 0
    if topic_id is None:
        return 0
    page = paths.control(where)
    with named_os_errors(f"looking at {page}"):
        return synced_before(str(page), id_bytes(topic_id))


def _note_groups(found: Acknowledged, log: OfflineLog) -> None:
    state = GroupOffsetsState()
    for header, batch in log.batches():
        try:
            state.replay(header, decode_records(batch))
        except CorruptRecordError:
            break  # What it says is for the check of that log.
    for group in state.groups():
        for where, written in state.committed(group).items():
            found.note(where, written.value.offset, f"the committed offset of group {group!r}")


def _note_decisions(found: Acknowledged, log: OfflineLog) -> None:
    for record_key, value in _records_of(log):
        if not is_transaction_key(record_key):
            continue
        try:
            state = decode_transaction_value(value)
        except CorruptRecordError:
            continue
        if state["state"] in _COMMITTED:
            key = state["producer_id"], state["producer_epoch"]
            for topic, number in state["partitions"] or ():
                of_partition = found.committed.setdefault(TopicPartition(topic, number), {})
                of_partition[key] = transactional_id_of(record_key)


def _records_of(log: OfflineLog) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a log, up to the first batch with records that cannot be read."""
    for _, batch in log.batches():
        try:
            records = decode_records(batch)
        except CorruptRecordError:
            return  # What it says is for the check of that log.
        for record in records:
            if record.key is not None and record.value is not None:
                yield record.key, record.value
