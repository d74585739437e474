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
    # Of each partition, the offsets that are beyond its cut and were not looked at yet.
    beyond = {
        where: partition.log_end_offset
        for where, partition in known.items()
        if cuts[where] < partition.log_end_offset
    }
    while beyond:
        where, upper_bound = beyond.popitem()
        for transaction in known[where].transactions_between(cuts[where], upper_bound):
            for other, partition in known.items():
                if other == where:
                    continue
                first = _first_offset(partition, transaction, cuts[other])
                if first >= 0:
                    beyond[other] = max(cuts[other], beyond.get(other, -1))
                    cuts[other] = first
    return cuts


def _first_offset(partition: Partition, transaction: tuple[int, int], upper_bound: int) -> int:
    """Where a transaction begins in a partition, if that is below an offset; else -1."""
    producer_id, producer_epoch = transaction
    state = partition.producer(producer_id)
    if state is None or state.producer_epoch < producer_epoch:
        return -1
    return partition.first_offset_of(producer_id, producer_epoch, upper_bound)
