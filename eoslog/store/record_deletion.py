"""Deleting the records below an offset, or before a time, as Kafka's DeleteRecords does.

Invariant: all is checked before anything changes, and nothing at or above a partition's last stable
offset goes.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from eoslog.common.arguments import whole_number
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.errors import OffsetOutOfRangeError, StoreFullError
from eoslog.storage.engine import Engine
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.retention import delete_below
from eoslog.transactions.named_producers import NamedProducers

_log = logging.getLogger(__name__)

# As in Kafka it stands for the highest offset that is possible.
HIGHEST_OFFSET = -1
_SCAN_BYTES = 8 << 20

Offsets = Mapping[TopicPartition, int]


class DeletableRecords(NamedTuple):
    """Effect of a deletion of one partition's records.

    The partition begins at `offset` then. `record_count` records are no longer read, aborted ones
    included, markers not; `freed_bytes` is the size of the segments that go as a whole.
    `older_left` records, all above, are older than the time of a deletion by time: their
    timestamps are out of order. It is 0 for a deletion by offset.
    """

    offset: int
    record_count: int
    freed_bytes: int
    older_left: int


def find_offsets(
    engine: Engine, offsets: Offsets | None, before_ms: int | None, topics: Iterable[str] | None
) -> dict[UnifiedLog, int]:
    """Return where each partition is to begin; see `Store.delete_records`."""
    if (offsets is None) is (before_ms is None):
        raise ValueError("give either offsets or before_ms")
    if offsets is not None:
        if topics is not None:
            raise ValueError("topics goes with before_ms: offsets name their partitions")
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets must map partitions to offsets, got {type(offsets).__name__}")
        asked = {
            as_topic_partition(where): whole_number(offset, "an offset")
            for where, offset in offsets.items()
        }
        opened = {engine.partition(*where): offset for where, offset in asked.items()}
        return {one: _checked(one, offset) for one, offset in opened.items()}
    moment_ms = whole_number(before_ms, "before_ms")
    if isinstance(topics, str):
        raise TypeError("topics must be a list of names, got one name")
    wanted = engine.topics().values() if topics is None else map(engine.topic, topics)
    partitions = [where for topic in wanted for where in topic.topic_partitions()]
    return {one: _first_since(one, moment_ms) for one in (engine.partition(*w) for w in partitions)}


def delete_records(
    names: NamedProducers, offsets: Mapping[UnifiedLog, int]
) -> dict[TopicPartition, int]:
    """Delete the records below the offsets that `find_offsets` found."""
    for partition, offset in offsets.items():
        if partition.active_base_offset < offset == partition.log_end_offset:
            with suppress(StoreFullError):  # Only its file stays then.
                partition.roll()
        start = partition.log_start_offset
        delete_below(partition, names, offset)
        _log.info(
            "%s: records deleted: the log begins at offset %d, and began at %d",
            *(partition.topic_partition, partition.log_start_offset, start),
        )
    return {one.topic_partition: one.log_start_offset for one in offsets}


def deletable_records(
    offsets: Mapping[UnifiedLog, int], before_ms: int | None
) -> dict[TopicPartition, DeletableRecords]:
    """Return what the deletion below these offsets does."""
    return {
        one.topic_partition: DeletableRecords(
            offset,
            _count_records(one, offset),
            _freed_bytes(one, offset),
            _older_left(one, offset, before_ms),
        )
        for one, offset in offsets.items()
    }


def _checked(partition: UnifiedLog, offset: int) -> int:
    """Return the offset that a partition is to begin at. Raises OffsetOutOfRangeError."""
    # What holds readers is looked at first: what ends in between makes the end rise.
    held, opened = partition.hold_offset, partition.open_transactions()
    highest, where = partition.last_stable_offset, partition.topic_partition
    if offset < HIGHEST_OFFSET:
        raise OffsetOutOfRangeError(
            f"{where}: offset {offset} is below 0; {HIGHEST_OFFSET} is the highest one, {highest}"
        )
    if offset > highest:
        reason = "the log ends there"
        if held == highest:
            reason = "a staged job is being adopted from there on"
        elif opened and opened[0].first_offset == highest:
            reason = f"the transaction of producer id {opened[0].producer_id} is open from there on"
        raise OffsetOutOfRangeError(
            f"{where}: records can be deleted up to offset {highest}, not {offset}: {reason}"
        )
    return max(partition.log_start_offset, highest if offset == HIGHEST_OFFSET else offset)


def _first_since(partition: UnifiedLog, moment_ms: int) -> int:
    """Return the offset of the first record that is not older, else the last stable one."""
    stable = partition.last_stable_offset
    found = partition.offset_for_timestamp(moment_ms, "read_committed")
    return stable if found is None else min(found[0], stable)


def _count_records(partition: UnifiedLog, offset: int) -> int:
    """Return how many records are between the log's start and an offset."""
    count, start = 0, partition.log_start_offset
    position = start
    while position < offset:
        headers = partition.read_headers(position, _SCAN_BYTES)
        if not headers:
            break
        for header in headers:
            position = header.last_offset + 1
            offsets = min(position, offset) - max(header.base_offset, start)
            if offsets > 0 and not header.is_control:
                count += min(offsets, header.record_count)
    return count


def _freed_bytes(partition: UnifiedLog, offset: int) -> int:
    sizes = partition.segment_sizes()
    ends = [*(base_offset for base_offset, _ in sizes[1:]), partition.log_end_offset]
    return sum(size for (_, size), end in zip(sizes, ends, strict=True) if end <= offset)


def _older_left(partition: UnifiedLog, offset: int, before_ms: int | None) -> int:
    """Return how many records from an offset on are older than a time."""
    count = 0
    while before_ms is not None and offset < partition.last_stable_offset:
        columns = partition.fetch_columns(offset, _SCAN_BYTES, -1, "read_committed")
        if columns is None:
            break
        count += int((columns.timestamps < before_ms).sum())
        offset = columns.next_offset
    return count
