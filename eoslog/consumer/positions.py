"""Positions of a consumer at each partition that it was assigned, and where it begins.

Invariants: a partition without a position was not begun. It begins at the offset of the consumer's
group, else where `auto_offset_reset` says; under "read_committed" not while an undecided
transaction may move the group. An offset that the log does not hold is left for the latter too.
"""

from collections.abc import Iterable, Mapping

from eoslog.bindings.record_batch import BatchHeader, Record
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.tail_wait import next_records, wait_for_more
from eoslog.common.durability import IsolationLevel
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnstableOffsetCommitError,
)
from eoslog.groups.offsets import GroupOffsets
from eoslog.session.append_signal import AppendSignal
from eoslog.storage.unified_log import UnifiedLog

Positions = dict[TopicPartition, int | None]

NOTHING_PAUSED: frozenset[TopicPartition] = frozenset()
RESETS = ("earliest", "latest", "none")
# Over a longer way only the distance is returned: what is counted is read.
COUNTED_OFFSETS_MAX = 100_000
_READ_BYTES = 1 << 20


class ConsumerPositions:
    """The positions of one consumer; its thread guards them."""

    def __init__(
        self,
        group: str | None,
        group_offsets: GroupOffsets,
        isolation_level: IsolationLevel,
        reset: str,
    ) -> None:
        self.partitions: dict[TopicPartition, UnifiedLog] = {}
        self.topic_ids: dict[str, str] = {}  # Of their topics.
        self.current: Positions = {}  # The positions themselves.
        self.paused: frozenset[TopicPartition] = NOTHING_PAUSED
        self._group = group
        self._group_offsets = group_offsets
        self._isolation_level = isolation_level
        self._committed_only = isolation_level == "read_committed"
        self._reset = reset

    @property
    def begins_at_oldest(self) -> bool:
        """True if a partition at which the group has no offset begins at its oldest record."""
        return self._reset == "earliest"

    def assign(self, partitions: Mapping[TopicPartition, UnifiedLog]) -> None:
        """Assign these partitions and no others; those that stay keep their positions, and stay
        paused.

        One of a topic that was re-created does not stay: its records are others.
        """
        stay = {where for where, one in partitions.items() if self._is_of_same_topic(where, one)}
        positions = {
            where: self.current.get(where) if where in stay else None for where in partitions
        }
        paused = self.paused & stay
        assigned = dict(partitions)
        topic_ids: dict[str, str] = {}
        for where, one in assigned.items():
            if topic_ids.setdefault(where.topic, one.topic_id) != one.topic_id:
                topic_ids[where.topic] = ""  # Re-created just now: nothing of it can be committed.
        # No interrupt comes between them.
        self.current, self.partitions, self.topic_ids = positions, assigned, topic_ids
        self.paused = paused

    def add(self, partitions: Mapping[TopicPartition, UnifiedLog]) -> None:
        """Assign the given partitions besides, or in the place of those that they have the names
        of.
        """
        self.assign({**self.partitions, **partitions})

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign the given partitions."""
        gone = frozenset(partitions)
        self.assign({where: one for where, one in self.partitions.items() if where not in gone})

    def _is_of_same_topic(self, where: TopicPartition, partition: UnifiedLog) -> bool:
        known = self.partitions.get(where)
        return known is None or known.topic_id == partition.topic_id

    def get(self, where: TopicPartition) -> int | None:
        """The position; None if the partition was not begun, or is not assigned."""
        return self.current.get(where)

    def set(self, where: TopicPartition, position: int | None) -> None:
        """Go on there; without a position the partition begins from scratch."""
        self.current[where] = position

    def begun(self) -> dict[TopicPartition, int]:
        """The positions of the partitions that were begun."""
        return {where: at for where, at in self.current.items() if at is not None}

    def begin_all(self) -> None:
        """Begin at every partition, but where the group's offset is not decided."""
        if self.are_begun():
            return
        for where, position in self.current.items():
            if position is None:
                try:
                    self.begin(where)
                except UnstableOffsetCommitError:
                    continue

    def begin(self, where: TopicPartition) -> int:
        """The position, found if there is none yet.

        Raises UnstableOffsetCommitError, NoOffsetForPartitionError.
        """
        position = self.current[where]
        if position is not None:
            return position
        if self._group is not None:
            committed = self._group_offsets.fetch(self._group, where, self._committed_only)
            if committed is not None:
                self.current[where] = committed.offset
                return committed.offset
        return self._reset_position(where)

    def within_log(self, where: TopicPartition, position: int) -> int:
        """Return the position, or where the partition begins again if the log does not hold it.

        Raises OffsetOutOfRangeError.
        """
        partition = self.partitions[where]
        if partition.log_start_offset <= position <= partition.log_end_offset:
            return position
        return self.out_of_range(where, position)

    def out_of_range(self, where: TopicPartition, position: int) -> int:
        """The log does not hold the position any more, or not yet: the new one, which stands."""
        if self._reset == "none":
            partition = self.partitions[where]
            raise OffsetOutOfRangeError(
                f"{where}: offset {position} is not in "
                f"[{partition.log_start_offset}, {partition.log_end_offset}]"
            )
        return self._reset_position(where)

    def end_of(self, partition: UnifiedLog) -> int:
        """Return up to where the consumer may read a partition."""
        return partition.readable_end(self._isolation_level)

    def are_begun(self) -> bool:
        """True if there is a position at every partition."""
        return None not in self.current.values()

    def wait_for_more(self, signal: AppendSignal, timeout_s: float) -> None:
        """Sleep until there may be something to read; all partitions were begun.

        May return early. Raises LogClosedError for a partition that is closed.
        """
        partitions, positions = self.partitions, self.begun()
        if self.paused:
            positions = {where: at for where, at in positions.items() if where not in self.paused}
        wait_for_more(
            signal.shared,
            [partitions[where].log for where in positions],
            list(positions.values()),
            self._committed_only,
            timeout_s,
        )

    def is_one(self) -> bool:
        """True if there is a single partition, which is not paused, and a position at it."""
        return len(self.current) == 1 and self.are_begun() and not self.paused

    def awaited_records(
        self, shared: SharedPage, timeout_s: float, max_records: int, max_bytes: int
    ) -> tuple[list[Record], Positions]:
        """Sleep until the single partition has more: its next records, and the positions after
        them. May return early, without any.
        """
        ((where, position),) = self.begun().items()
        try:
            found = next_records(
                shared,
                self.partitions[where].log,
                position,
                self._committed_only,
                timeout_s,
                max_records,
                max_bytes,
            )
        except EoslogError:
            found = None  # The next look meets it too.
        return ([], self.current) if found is None else (found[0], {where: found[1]})

    def waits_for_the_group(self) -> bool:
        """True if a partition may not begin before the group's offset is decided."""
        return self._committed_only and None in self.current.values()

    def anything_to_read(self) -> bool:
        """True if a partition has records after its position, or may begin now."""
        partitions, current = self.partitions, self.current
        for where, position in current.items():
            if position is None:
                if self._may_begin(where):
                    return True
            elif where in self.paused:
                continue
            elif partitions[where].readable_end(self._isolation_level) > position:
                return True
        return False

    def _may_begin(self, where: TopicPartition) -> bool:
        group = self._group if self._committed_only else None
        return group is None or self._group_offsets.is_stable(group, where)

    def _reset_position(self, where: TopicPartition) -> int:
        partition = self.partitions[where]
        if self._reset == "none":
            raise NoOffsetForPartitionError(
                f"{where} has no position, and auto_offset_reset is 'none': seek first"
            )
        at_oldest = self._reset == "earliest"
        position = partition.log_start_offset if at_oldest else self.end_of(partition)
        self.current[where] = position
        return position


def count_visible(
    partition: UnifiedLog, first: int, upper_bound: int, isolation_level: IsolationLevel
) -> int:
    """Return the number of records in [first, upper_bound) that a consumer of the isolation level
    gets: markers of transactions, and records of aborted ones, take offsets too.

    Over more than 100,000 offsets it is their number. Raises OffsetOutOfRangeError.
    """
    if upper_bound - first > COUNTED_OFFSETS_MAX:
        return upper_bound - first
    count = 0
    offset = first
    while offset < upper_bound:
        headers = partition.read_headers(offset, _READ_BYTES, isolation_level)
        if not headers:
            break
        for header in headers:
            if header.base_offset >= upper_bound:
                return count
            if not header.is_control:
                count += _count_of(partition, header, offset, upper_bound)
            offset = max(offset, header.last_offset + 1)
    return count


def _count_of(partition: UnifiedLog, header: BatchHeader, first: int, upper_bound: int) -> int:
    """The records of a batch in [first, upper_bound); compaction may have taken some out."""
    first = max(first, header.base_offset)
    upper_bound = min(upper_bound, header.last_offset + 1)
    offset_count = header.last_offset - header.base_offset + 1
    if header.record_count == offset_count:
        return max(0, upper_bound - first)
    if upper_bound - first == offset_count:
        return header.record_count
    records, _ = partition.fetch_records(first, offset_count, 1)  # Of one batch.
    return sum(record.offset < upper_bound for record in records)
