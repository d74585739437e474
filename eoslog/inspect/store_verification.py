"""Check all of a store against its own logs: `Store.verify`.

The store may be in use, so the order matters. Files that refer to a log are read before the log,
which only grows: it then holds all that they refer to. The list of topics is read first of all: a
topic that is still the same at the end was the same all the time. One that is not is left out, and
so is one that was created later. A partition that seems to be ahead of the transaction log is
judged by what that log has afterwards (`transaction_verification`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, EoslogError, OffsetOutOfRangeError
from eoslog.fs.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
)
from eoslog.groups.offsets_index import GroupOffsetsIndex, KeptOffsets
from eoslog.groups.offsets_state import GroupOffsetsState, RowKey
from eoslog.inspect.directory_verification import verify_directories
from eoslog.inspect.transaction_log_verification import TransactionLogVerification
from eoslog.inspect.transaction_verification import OLDER, TORN, FollowedTransactions, missing_ends
from eoslog.session.paths import StorePaths
from eoslog.storage.damage import UNREADABLE, Problem, problem, problem_of
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.partition_directory import lost_by_pages
from eoslog.storage.topic_registry import TopicDescription, TopicRegistry
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.state_index import StateIndex

Progress = Callable[[int, int, TopicPartition], None]
Checkpoints = dict[str, dict[TopicPartition, int]]
_READ_BYTES = 4 << 20


@dataclass
class StoreVerification:
    """One check of a store, with the parts of the store that it looks at."""

    paths: StorePaths
    # Of the store itself, also where `paths` are those of an overlay.
    own_paths: StorePaths
    partitions: OpenedPartitions
    registry: TopicRegistry
    lmdb: LmdbEnvironment
    # Partitions of internal topics that were gone, and were re-created.
    recreated: Mapping[TopicPartition, int]
    # Deleted topics whose files are not all gone, and why.
    unremoved: Mapping[str, EoslogError]
    verify_staged: Callable[[], list[Problem]]
    # Called with the number of sound records of each partition, if it is given.
    counted: Callable[[TopicPartition, int], object] | None = None
    # Read before the partitions.
    _checkpoints: Checkpoints = field(init=False)
    _transaction_log: TransactionLogVerification = field(init=False)
    _jobs_reached: dict[TopicPartition, tuple[int, str]] = field(init=False)
    # By topic, the transactions in the partitions that were read.
    _followed: dict[str, list[FollowedTransactions]] = field(default_factory=dict)

    def problems(self, progress: Progress | None) -> list[Problem]:
        """Return a dict of path, position_bytes and reason for each problem of the store.

        A topic that another process or thread deletes now is left out, also if it makes a new
        one of that name.
        """
        topics = self.registry.all()
        self._checkpoints, found = read_checkpoints(self.paths)
        found += verify_directories(self.own_paths, self.registry)
        found += lost_partitions(self.own_paths, self._checkpoints, dict(self.recreated))
        for name, error in self.unremoved.items():
            reason = f"topic {name} was deleted, and not all of it removed: {error}"
            found.append(problem(self.paths.root, reason))
        self._transaction_log = TransactionLogVerification(
            self.paths, self.partitions, StateIndex(self.lmdb)
        )
        found += self._transaction_log.problems()
        self._jobs_reached = self._transaction_log.jobs_reached()
        targets = [
            (topic, where)
            for topic in topics
            for where in topic.topic_partitions()
            if not topic.internal or self.partitions.has_files(where)
        ]
        for done, (topic, where) in enumerate(targets):
            if progress is not None:
                progress(done, len(targets), where)
            found += self._of_partition_if_there(topic, where)
        # What shows only where the partitions of a topic are looked at together.
        found += [
            problem(self.paths.partition(where), reason)
            for topic in topics
            for where, reason in missing_ends(self._followed.get(topic.name, []))
            if self.registry.get(topic.name) == topic
        ]
        return found + self.verify_staged()

    def _of_partition_if_there(
        self, topic: TopicDescription, where: TopicPartition
    ) -> list[Problem]:
        """Return the problems of a partition; none if its topic was deleted."""
        try:
            found = self._of_partition(topic, where)
        except EoslogError:
            if self.registry.get(topic.name) == topic:
                raise
            return []
        return found if self.registry.get(topic.name) == topic else []

    def _of_partition(self, topic: TopicDescription, where: TopicPartition) -> list[Problem]:
        try:
            partition = self._opened(where)
        except UNREADABLE as error:
            return [problem_of(error)]
        if partition is None:
            return []
        # An internal topic is never created again.
        created_ms = 0 if topic.internal else topic.created_ms
        followed = FollowedTransactions(where, self._transaction_log.decided, created_ms)
        found = partition.verify(
            followed,
            counted=None if self.counted is None else partial(self.counted, where),
        )
        found += [problem(partition.path, one.text) for one in partition.all_damage()]
        ahead = followed.ahead(partition.open_transactions(), self._transaction_log.read_on)
        found += [problem(partition.path, reason) for reason in ahead]
        if where.topic == CONSUMER_OFFSETS_TOPIC and not found:
            found += _verify_groups(partition, GroupOffsetsIndex(self.lmdb))
        if where in self.recreated:
            return found
        self._followed.setdefault(topic.name, []).append(followed)
        end = partition.log_end_offset
        reached, job = self._jobs_reached.get(where, (0, ""))
        if reached > end:
            reason = f"{OLDER}{job} is complete, and went up to offset {reached}; the log ends at "
            found.append(problem(partition.path, f"{reason}{end}{TORN}"))
        # A high watermark may be beyond the end: a power cut takes what was not synced.
        for name in (RECOVERY_POINT, LOG_START_OFFSET):
            offset = self._checkpoints.get(name, {}).get(where, 0)
            if offset > end:
                reason = f"{where} has offset {offset} here, and ends at {end}"
                found.append(problem(self.paths.root / name, reason))
        return found

    def _opened(self, where: TopicPartition) -> UnifiedLog | None:
        topic = self.registry.get(where.topic)
        if topic is not None and topic.internal:
            return self.partitions.internal_partition(where.topic, where.partition)
        return self.partitions.find(where)


def read_checkpoints(paths: StorePaths) -> tuple[Checkpoints, list[Problem]]:
    """Read the checkpoints; return also the problems of the files themselves."""
    found: Checkpoints = {}
    problems = []
    for name in (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK):
        try:
            found[name] = read_checkpoint(paths.root / name)
        except CorruptRecordError as error:
            problems.append(problem_of(error))
    return found, problems


def lost_partitions(
    paths: StorePaths, checkpoints: Checkpoints, recreated: Mapping[TopicPartition, int]
) -> list[Problem]:
    """Return the partitions of internal topics whose directories are gone, with all their records.

    Those of users' topics are met when they are opened. `recreated` are those that this process has
    re-created, with the offsets that the checkpoints or their pages had.
    """
    problems = []
    for where, offset in sorted(recreated.items()):
        reason = f"its directory was gone, and its log went up to offset {offset}"
        problems.append(problem(paths.partition(where), reason))
    known: dict[TopicPartition, int] = {}
    stated: Iterable[Mapping[TopicPartition, int]] = (
        checkpoints.get(RECOVERY_POINT, {}),
        checkpoints.get(HIGH_WATERMARK, {}),
        lost_by_pages(paths),
    )
    for offsets in stated:
        for where, offset in offsets.items():
            known[where] = max(offset, known.get(where, 0))
    for where, offset in sorted(known.items()):
        path = paths.partition(where)
        is_lost = offset > 0 and where.topic in INTERNAL_TOPICS and where not in recreated
        if is_lost and not path.is_dir():
            reason = f"the directory is gone, and its log went up to offset {offset}"
            problems.append(problem(path, reason))
    return problems


def _verify_groups(partition: UnifiedLog, index: GroupOffsetsIndex) -> list[Problem]:
    """Check that LMDB holds what a replay of a partition of `__consumer_offsets` gives."""
    try:
        kept = index.read(partition.partition)
    except StateStoreDamagedError:
        kept = None  # It was re-created.
    except CorruptRecordError as error:
        return [problem(index.environment.path, f"a row of a group cannot be read: {error}")]
    try:
        return _differences(partition, kept, index.environment.path)
    except UNREADABLE as error:
        return [problem_of(error)]
    except OffsetOutOfRangeError:
        return []  # Another process compacted it since: what was kept is older than the log.


def _differences(partition: UnifiedLog, kept: KeptOffsets | None, path: Path) -> list[Problem]:
    where = partition.topic_partition
    start, end = partition.log_start_offset, partition.log_end_offset
    if kept is not None and kept.offset > end:
        reason = f"{where}: groups are kept up to offset {kept.offset}, the log ends at {end}"
        return [problem(path, reason)]
    state = _replayed(partition, start, end if kept is None else kept.offset)
    if kept is None or kept.offset < start:
        return []
    rows = dict(kept.rows)
    compared = state.all_rows()
    if start == 0:
        # Where compaction has cut the beginning off, a row may be above the offset, as a copy.
        compared |= rows.keys()
    wrong = [
        f"{where}: {_shown(row)} is kept otherwise than the log has it up to offset {kept.offset}"
        for row in sorted(compared, key=str)
        if state.row(row) != rows.get(row)
    ]
    return [problem(path, reason) for reason in wrong]


def _replayed(partition: UnifiedLog, offset: int, upper_bound: int) -> GroupOffsetsState:
    """Replay the records of groups in the log, from an offset on.

    Raises CorruptRecordError, and OffsetOutOfRangeError if it begins further up by now.
    """
    state = GroupOffsetsState()
    while offset < upper_bound:
        data = memoryview(partition.read(offset, _READ_BYTES))
        if not data:
            break
        for header in iter_batches(data):
            if header.base_offset >= upper_bound:
                return state
            batch = data[header.position_bytes : header.position_bytes + header.batch_bytes]
            records = decode_records(batch, partition.topic, partition.partition)
            state.replay(header, records)
            offset = header.last_offset + 1
    return state


def _shown(row: RowKey) -> str:
    of_whom = "" if row.producer_id < 0 else f" of producer {row.producer_id}"
    return f"{tuple(row.key)}{of_whom}"
