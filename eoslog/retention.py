"""Deleting old segments, as Kafka does: by size first, then by age, whole segments from the oldest.

Invariant: before a segment goes, what only it could tell is written down and synced: the producers
of its batches (in LMDB's rows and in a snapshot), the positions of named producers, where the log
begins without it, and that the log ends where it does. A crash between any two steps leaves more
than is needed, never less.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from eoslog.config import NO_LIMIT
from eoslog.named_producers import NamedProducers
from eoslog.partition import Partition

# How old is what was written at a time of the day.
AgeMs = Callable[[int], int]


def apply_retention(
    partition: Partition,
    names: NamedProducers,
    config: Mapping[str, int],
    cached_max: int,
    age_ms: AgeMs,
) -> int:
    """Delete the segments that a topic's `retention.bytes` and `retention.ms` release; how many."""
    up_to_offset = _deletable_up_to(partition, config, age_ms)
    if up_to_offset <= partition.first_base_offset:
        return 0
    partition.flush()
    told_up_to = partition.write_down_what_fits(cached_max)
    names.renew(partition.topic_partition)
    if told_up_to is None:
        return partition.delete_segments(up_to_offset)
    deleted = partition.delete_segments(min(up_to_offset, told_up_to))
    # What went made the room.
    partition.write_down_producers(cached_max)
    return deleted


def _deletable_up_to(partition: Partition, config: Mapping[str, int], age_ms: AgeMs) -> int:
    """The base offset of the first segment that stays."""
    segments = partition.segments()
    sizes = [int(str(segment["size_bytes"])) for segment in segments]
    gone = _count_by_size(sizes, config["retention.bytes"])
    retention_ms = config["retention.ms"]
    while retention_ms != NO_LIMIT and gone < len(segments):
        newest_ms = int(str(segments[gone]["largest_timestamp_ms"]))
        if age_ms(newest_ms) <= retention_ms or sizes[gone] == 0:
            break
        gone += 1
    if gone == len(segments):
        # Even the newest record is too old: the active segment is sealed, and an empty one follows.
        return min(partition.roll(), partition.last_stable_offset)
    bases = [int(str(segment["base_offset"])) for segment in segments]
    # Neither a job that is being adopted nor an open transaction may lose its beginning before its
    # end is in.
    return min(bases[gone], partition.last_stable_offset)


def _count_by_size(sizes: list[int], retention_bytes: int) -> int:
    """How many of the oldest segments may go without the log falling below the limit."""
    if retention_bytes == NO_LIMIT:
        return 0
    excess_bytes = sum(sizes) - retention_bytes
    gone = 0
    while gone < len(sizes) - 1 and excess_bytes >= sizes[gone]:
        excess_bytes -= sizes[gone]
        gone += 1
    return gone


def may_be_released(directory: Path, config: Mapping[str, int], age_ms: AgeMs) -> bool:
    """Whether a partition that is not open may hold segments to delete; a look at file names."""
    oldest_age_ms, size_bytes = 0, 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                status = entry.stat()
                size_bytes += status.st_size
                if status.st_size:
                    oldest_age_ms = max(oldest_age_ms, age_ms(int(status.st_mtime * 1000)))
    by_size = config["retention.bytes"] != NO_LIMIT and size_bytes > config["retention.bytes"]
    by_age = config["retention.ms"] != NO_LIMIT and oldest_age_ms > config["retention.ms"]
    return by_size or by_age
