"""Deleting old records, as Kafka does: by size first, then by age, whole segments from the oldest;
and below an offset (`record_deletion`).

Invariant: before records go, what only they hold is written down and synced: the producers
of their batches (in LMDB's rows and in a snapshot), the positions of named producers, where the log
begins without them, and that the log ends where it does. A crash between any two steps leaves more
than is needed, never less. How old a segment is its records say; the time of its file counts only
where no record has a timestamp.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from eoslog.bindings.segment_times import newest_timestamp
from eoslog.bindings.snapshot_files import SEGMENT_NAME
from eoslog.common.config import NO_LIMIT
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.named_producers import NamedProducers


def apply_retention(
    partition: UnifiedLog,
    names: NamedProducers,
    config: Mapping[str, int],
    now_ms: int,
) -> int:
    """Delete the segments that a topic's `retention.bytes` and `retention.ms` release; how many."""
    up_to_offset = _deletable_up_to(partition, config, now_ms)
    return delete_below(partition, names, partition.start_without(up_to_offset))


def delete_below(partition: UnifiedLog, names: NamedProducers, offset: int) -> int:
    """Have a log begin at an offset, in all processes and durably, and delete the segments below;
    how many. What only the records below hold is saved first (RT1 to RT6).

    The offset is at or below the last stable one. Raises StoreError: the log begins there already,
    and the next call deletes the rest; or it begins where it did, or at a segment between.
    """
    start = partition.log_start_offset
    if offset <= start and not partition.has_segments_below(start):
        return 0
    partition.sync_up_to(partition.log_end_offset)
    saved_up_to = partition.producer_state.save_copies_that_fit()
    names.renew(partition.topic_partition)
    deleted = 0
    if saved_up_to is not None:
        deleted = partition.delete_segments(min(offset, saved_up_to))
        # The deletion made the room.
        partition.producer_state.save_copies()
    return deleted + partition.delete_below(offset)


def _deletable_up_to(partition: UnifiedLog, config: Mapping[str, int], now_ms: int) -> int:
    """The base offset of the first segment that stays."""
    stays_at = _first_to_stay(partition, config, now_ms)
    if stays_at is None:
        # Even the newest record is too old: the active segment is sealed, and an empty one follows.
        # Another thread may have appended a younger record by now: look at the sealed segment.
        end = partition.roll()
        stays_at = _first_to_stay(partition, config, now_ms)
        stays_at = end if stays_at is None else min(stays_at, end)
    # Neither a job that is being adopted nor an open transaction may lose its beginning before its
    # end is in.
    return min(stays_at, partition.last_stable_offset)


def _first_to_stay(partition: UnifiedLog, config: Mapping[str, int], now_ms: int) -> int | None:
    """The base offset of the first segment that neither size nor age releases; None if all are."""
    segments = partition.segment_sizes()
    gone = _count_by_size([size for _, size in segments], config["retention.bytes"])
    for base_offset, size_bytes in segments[gone:]:
        if config["retention.ms"] == NO_LIMIT or size_bytes == 0:
            return base_offset
        with named_os_errors(f"looking at the segments of {partition.topic_partition}"):
            newest_ms = partition.log.largest_timestamp_ms(base_offset)
        if newest_ms is not None and now_ms - newest_ms <= config["retention.ms"]:
            return base_offset
    return None


def _count_by_size(sizes: list[int], retention_bytes: int) -> int:
    """Return how many of the oldest segments may go without the log falling below the limit."""
    if retention_bytes == NO_LIMIT:
        return 0
    excess_bytes = sum(sizes) - retention_bytes
    gone = 0
    while gone < len(sizes) - 1 and excess_bytes >= sizes[gone]:
        excess_bytes -= sizes[gone]
        gone += 1
    return gone


class OldestRecords:
    """Oldest records of partitions: which ones may hold segments to delete, found without opening
    them.

    By its age nothing of a partition is released before its oldest segment is. How new that one's
    newest record is stays true, or becomes newer: until it is too old the partition is not looked
    at. Only the process that applies retention remembers it.
    """

    def __init__(self) -> None:
        self._newest_ms: dict[TopicPartition, tuple[str, int]] = {}

    def may_be_released(
        self,
        where: TopicPartition,
        topic_id: str,
        directory: Path,
        config: Mapping[str, int],
        now_ms: int,
    ) -> bool:
        """True if a partition may hold segments to delete. Raises OSError."""
        by_size, by_age = (config[name] != NO_LIMIT for name in ("retention.bytes", "retention.ms"))
        known_id, newest_ms = self._newest_ms.get(where, ("", 0))
        is_young = known_id == topic_id and now_ms - newest_ms <= config["retention.ms"]
        if is_young and not by_size:
            return False
        segments = _segment_files(directory)
        if by_size and sum(segments.values()) > config["retention.bytes"]:
            return True
        if is_young or not by_age or not segments:
            return False
        oldest_ms = now_ms - config["retention.ms"]
        return self._is_oldest_older(where, topic_id, min(segments), oldest_ms)

    def _is_oldest_older(
        self, where: TopicPartition, topic_id: str, path: str, oldest_ms: int
    ) -> bool:
        newest_ms = newest_timestamp(path)
        if newest_ms is None:
            return False  # It is empty, or was deleted just now.
        if newest_ms >= 0:
            self._newest_ms[where] = (topic_id, newest_ms)
        else:
            newest_ms = int(Path(path).stat().st_mtime * 1000)  # As in Kafka.
        return newest_ms < oldest_ms

    def forget_all_but(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the partitions that no longer exist."""
        for where in self._newest_ms.keys() - set(partitions):
            del self._newest_ms[where]


def _segment_files(directory: Path) -> dict[str, int]:
    """The files of a partition's segments, and how long they are."""
    with os.scandir(directory) as entries:
        return {one.path: one.stat().st_size for one in entries if SEGMENT_NAME.fullmatch(one.name)}
