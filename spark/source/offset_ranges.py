"""Ranges of offsets, and how they are shared out: over tasks, and over micro-batches.

The rules are those of Spark's Kafka source, so that `minPartitions`, `maxRecordsPerPartition` and
`maxOffsetsPerTrigger` give the numbers that its users know. What is added: a range of many bytes is
split even if not asked, by `maxBytesPerPartition`, or else into as many pieces as there are
processors for: a task costs what reading some 50 MB does, whatever it reads.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from eoslog import Partition, TopicPartition

# As large a piece of files as Spark gives a task (spark.sql.files.maxPartitionBytes).
BYTES_PER_TASK = 128 << 20
# So that no processor is long idle at the end.
TASKS_PER_PROCESSOR = 2


@dataclass(frozen=True)
class OffsetRange:
    """The offsets [first, upper_bound) of a partition."""

    where: TopicPartition
    first: int
    upper_bound: int

    @property
    def size(self) -> int:
        """Count of the offsets; markers and aborted records take some of them."""
        return self.upper_bound - self.first

    def divided(self, count: int) -> "list[OffsetRange]":
        """Divide it into at most `count` ranges of about the same size, in order; none is empty."""
        count = min(count, self.size)
        edges = [self.first + self.size * number // count for number in range(count)]
        return [
            OffsetRange(self.where, first, upper_bound)
            for first, upper_bound in pairwise([*edges, self.upper_bound])
        ]


def ranges_between(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """The range of each partition that has offsets between its start and its end, sorted."""
    return [
        OffsetRange(where, starts[where], ends[where])
        for where in sorted(ends)
        if starts[where] < ends[where]
    ]


@dataclass(frozen=True)
class SplitRule:
    """Rule by which ranges become those of single tasks.

    Without `max_bytes` a piece has some 128 MB, or more where two tasks for each processor do: all
    tasks that read run on the store's host.
    """

    # 0: no such wish.
    min_partitions: int = 0
    max_records: int = 0
    max_bytes: int = 0

    def split(
        self, ranges: Iterable[OffsetRange], bytes_of: Callable[[OffsetRange], int]
    ) -> list[OffsetRange]:
        """The ranges, divided where they are too large, then until there are enough of them."""
        pieces: list[OffsetRange] = []
        sizes = {one: bytes_of(one) for one in ranges}
        tasks = TASKS_PER_PROCESSOR * len(os.sched_getaffinity(0))
        wanted_bytes = max(BYTES_PER_TASK, sum(sizes.values()) / tasks)
        for one, size in sizes.items():
            if self.max_bytes:
                count = math.ceil(size / self.max_bytes)
            else:
                count = round(size / wanted_bytes)
            if self.max_records:
                count = max(count, math.ceil(one.size / self.max_records))
            pieces += one.divided(max(count, 1))
        return self._enough(pieces)

    def _enough(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        if len(ranges) >= self.min_partitions:
            return ranges
        # Small ranges stay whole, and the large ones share what is wanted among them.
        total = sum(one.size for one in ranges)
        small = {one for one in ranges if _part_count(one.size, total, self.min_partitions) == 1}
        wanted = max(self.min_partitions - len(small), 1)
        total -= sum(one.size for one in small)
        return [
            piece
            for one in ranges
            for piece in one.divided(1 if one in small else _part_count(one.size, total, wanted))
        ]


def _part_count(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def bytes_in(partition: Partition, first: int, upper_bound: int) -> int:
    """About how many bytes of log lie between two offsets, each segment taken as even."""
    segments = partition.segments()
    bases = [_whole(segment["base_offset"]) for segment in segments]
    ends = [*bases[1:], partition.log_end_offset]
    found = 0.0
    for segment, base, end in zip(segments, bases, ends, strict=True):
        inside = min(end, upper_bound) - max(base, first)
        if inside > 0:
            found += _whole(segment["size_bytes"]) * inside / (end - base)
    return math.ceil(found)


def _whole(number: object) -> int:
    if not isinstance(number, int):
        raise TypeError(f"an offset must be an int, got {type(number).__name__}")
    return number


def within_limit(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Ends that are about `limit` offsets beyond the starts, shared in proportion to what is there.

    Each partition that has any gets one at least, so that none waits for ever.
    """
    sizes = {where: max(0, end - starts[where]) for where, end in ends.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    limited = dict(ends)
    for where, size in sizes.items():
        if size:
            share = limit * size / total
            step = math.ceil(share) if share < 1 else math.floor(share)
            limited[where] = min(ends[where], starts[where] + step)
    return limited
