"""A snapshot: one offset for each partition, so that no transaction lies on both sides.

A `read_committed` reader that stops at these offsets sees of every committed transaction, and of
every staged job, all records or none. Two things could cut a transaction in two:

- A decision of which only some markers are written. So the snapshot is taken while no transaction
  can move.
- A partition whose last stable offset an older open transaction holds back. A transaction that was
  committed after that point is whole in the other partitions. There the cut is moved before it,
  which may leave out parts of others, until nothing is cut any more.

Staged jobs are no transactions in the log; `staged_spans` knows where they are. Partitions that are
not asked for do not count, so more partitions may mean lower cuts.

Invariant: cuts only move down, and never below a partition's start, so this ends. They are the
highest that cut nothing, so they mostly rise from one snapshot to the next: what is whole below
them stays whole, and later records are above. But jobs that count as one by then may be left out
together.
"""

from collections.abc import Iterable, Mapping, Sequence

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.staging.staged_commit import StagedCommits
from eoslog.staging.staged_spans import JobSpan, OffsetRange
from eoslog.storage.engine import Engine
from eoslog.storage.partition import Partition
from eoslog.storage.topic_registry import TopicDescription
from eoslog.transactions.transaction_entries import TransactionEntries

_Ranges = Mapping[TopicPartition, OffsetRange]


def snapshot_of_topics(
    engine: Engine,
    staged: StagedCommits,
    entries: TransactionEntries,
    topics: Iterable[str] | None,
) -> dict[TopicPartition, int]:
    """See `Store.snapshot`. Topics may come and go meanwhile."""
    if isinstance(topics, str):
        raise TypeError("topics: a list of names, not one name")
    names = None if topics is None else list(topics)
    while True:
        known = engine.topics()
        wanted = list(known.values()) if names is None else [*map(engine.topic, names)]
        try:
            partitions = [engine.partition(*where) for where in _partitions_of(wanted)]
            # No transaction and no staged job moves meanwhile, in any process.
            with staged.standing_still():
                jobs = staged.pending.spans()
                with entries.standing_still():
                    return consistent_offsets(partitions, jobs)
        except (LogClosedError, UnknownTopicOrPartitionError):
            engine.check_open()
            now = engine.topics()
            gone = [one.name for one in wanted if now.get(one.name) != one]
            if not gone:
                raise
            if names is not None:
                raise UnknownTopicOrPartitionError(
                    f"topic {gone[0]!r} was deleted meanwhile"
                ) from None


def _partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    return [where for one in topics for where in one.topic_partitions()]


def consistent_offsets(
    partitions: Iterable[Partition], jobs: Iterable[JobSpan] = ()
) -> dict[TopicPartition, int]:
    """The cut of each partition; the caller sees to it that no transaction, and no job, moves
    meanwhile.
    """
    known = {partition.topic_partition: partition for partition in partitions}
    cuts = {where: partition.last_stable_offset for where, partition in known.items()}
    undivided = [ranges for job in jobs if (ranges := _ranges_in(known, job))]
    # What lies beyond the cuts and was not looked at yet.
    beyond = {where: (cuts[where], one.log_end_offset) for where, one in known.items()}
    while beyond:
        left_out: set[tuple[int, int]] = set()
        for where, (first, upper_bound) in beyond.items():
            left_out |= known[where].transactions_between(first, upper_bound)
        before = dict(cuts)
        if left_out:
            for where, partition in known.items():
                first = partition.first_offset_of(left_out, cuts[where])
                if first >= 0:
                    cuts[where] = first
        _leave_out_jobs(undivided, cuts)
        beyond = {
            where: (cuts[where], upper_bound)
            for where, upper_bound in before.items()
            if cuts[where] < upper_bound
        }
    return cuts


def _ranges_in(known: Mapping[TopicPartition, Partition], job: JobSpan) -> _Ranges:
    """Return the ranges of a job in these partitions."""
    found = {}
    for where in job.ranges.keys() & known.keys():
        one = job.range_in(known[where])
        if one is not None:
            found[where] = one
    return found


def _leave_out_jobs(undivided: Sequence[_Ranges], cuts: dict[TopicPartition, int]) -> None:
    """Move the cuts before each job that is not wholly below them."""
    moved = True
    while moved:
        moved = False
        for ranges in undivided:
            if any(cuts[where] < one.upper_bound for where, one in ranges.items()):
                for where, one in ranges.items():
                    if cuts[where] > one.first_offset:
                        cuts[where] = one.first_offset
                        moved = True
