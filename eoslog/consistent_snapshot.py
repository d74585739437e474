"""A snapshot: one offset for each partition, so that no transaction lies on both sides.

A `read_committed` reader that stops at these offsets sees of every committed transaction all
records or none. Two things could cut a transaction in two. A decision of which only some markers
are written: so it is taken while no transaction can move. And a partition that an older open
transaction holds back: a transaction that was committed behind that point is whole in the other
partitions. There the cut is moved in front of it, which may leave out more of others, until nothing
is cut any more.

Invariant: cuts only move down, and never below a partition's start, so this ends.
"""

from collections.abc import Iterable

from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition


def consistent_offsets(partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
    """The cut of each partition; the caller sees to it that no transaction moves meanwhile."""
    known = {partition.topic_partition: partition for partition in partitions}
    cuts = {where: partition.last_stable_offset for where, partition in known.items()}
    # What lies beyond the cuts and was not looked at yet.
    beyond = {where: (cuts[where], one.log_end_offset) for where, one in known.items()}
    while beyond:
        left_out: set[tuple[int, int]] = set()
        for where, (first, upper_bound) in beyond.items():
            left_out |= known[where].transactions_between(first, upper_bound)
        beyond = {}
        for where, partition in known.items():
            first = partition.first_offset_of(left_out, cuts[where]) if left_out else -1
            if first >= 0:
                beyond[where] = (first, cuts[where])
                cuts[where] = first
    return cuts
