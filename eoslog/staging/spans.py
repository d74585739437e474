"""Spans of staged jobs in the partitions: a snapshot has each of them whole, or leaves it out.

One record of the state log, of type RECENT_JOBS, has the jobs of all applications that a snapshot
may still have to leave out. It is written under the lock of staged jobs, before a job counts as
complete. `docs/staged-commit.md` explains which jobs those are, and why a few spans cover so many.

Invariant: every job is in the record from before it is complete until nothing can hold back a
snapshot before its end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eoslog.common.config import INT64_MAX
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError
from eoslog.staging.adoption import FindPartition, HeldPartitions
from eoslog.staging.job import StagedJob
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import RECENT_JOBS

# Beyond it even new jobs are taken together: the record is written with each job.
SPANS_BYTES_MAX = 128 << 10
_RANGE_BYTES = 40  # Of one range in the record, roughly.


class OffsetRange(NamedTuple):
    """Offsets in [first_offset, upper_bound)."""

    first_offset: int
    upper_bound: int


@dataclass(frozen=True, slots=True)
class JobSpan:
    """One job, or several in a row, which a snapshot treats as one.

    `ranges` has, for each partition, the offsets that enclose their records; others' may lie
    between. `topic_ids` has the ids of their topics: a later topic of the same name has another.
    """

    jobs: int
    topic_ids: Mapping[str, str]
    ranges: Mapping[TopicPartition, OffsetRange]

    def range_in(self, partition: UnifiedLog) -> OffsetRange | None:
        """Return the range of the jobs' records in a partition; None if it no longer has any."""
        found = self.ranges.get(partition.topic_partition)
        if found is None or self.topic_ids[partition.topic] != partition.topic_id:
            return None
        start = partition.log_start_offset
        if found.upper_bound <= start:
            return None
        return OffsetRange(max(found.first_offset, start), found.upper_bound)

    def with_newer(self, newer: "JobSpan") -> "JobSpan":
        """Return one span for both."""
        ranges = dict(newer.ranges)
        for where, older in self.ranges.items():
            if (
                newer.topic_ids.get(where.topic, self.topic_ids[where.topic])
                != (self.topic_ids[where.topic])
            ):
                continue  # The older topic was deleted.
            known = ranges.get(where, older)
            ranges[where] = OffsetRange(
                min(older.first_offset, known.first_offset),
                max(older.upper_bound, known.upper_bound),
            )
        topic_ids = {**self.topic_ids, **newer.topic_ids}
        return JobSpan(self.jobs + newer.jobs, topic_ids, ranges)

    def described(self) -> Mapping[str, Any]:
        """Return the span as the record has it."""
        topics: dict[str, Any] = {}
        for where, one in self.ranges.items():
            topic_id = self.topic_ids[where.topic]
            of_topic = topics.setdefault(where.topic, {"topic_id": topic_id, "ranges": {}})
            of_topic["ranges"][str(where.partition)] = list(one)
        return {"jobs": self.jobs, "topics": topics}

    @classmethod
    def of_record(cls, described: Mapping[str, Any]) -> "JobSpan":
        """Return the span that `described` returned."""
        topics = described["topics"]
        ranges = {
            TopicPartition(topic, int(number)): OffsetRange(*one)
            for topic, entry in topics.items()
            for number, one in entry["ranges"].items()
        }
        topic_ids = {topic: entry["topic_id"] for topic, entry in topics.items()}
        return cls(described["jobs"], topic_ids, ranges)


def span_of_bounds(topic_ids: Mapping[str, str], bounds: Mapping[TopicPartition, int]) -> JobSpan:
    """Return the span of a job that is not all in the log: no reader sees any of it."""
    ranges = {where: OffsetRange(bound, INT64_MAX) for where, bound in bounds.items()}
    return JobSpan(1, topic_ids, ranges)


def span_of_job(job: StagedJob, held: HeldPartitions) -> JobSpan:
    """Return the span of a job that is all in the log, while the partitions know its producer ids.

    Raises EoslogError if a partition cannot be read.
    """
    ranges = {}
    for where, producer_ids in job.producer_ids.items():
        partition = held.find(where)
        if partition is not None:
            states = [partition.producer(producer_id) for producer_id in producer_ids]
            ends = [state.last_offset + 1 for state in states if state is not None]
            # The bound may be far below the job's first record; it is never above it.
            upper_bound = max(ends, default=partition.log_end_offset)
            ranges[where] = OffsetRange(job.bounds[where], upper_bound)
    return JobSpan(1, job.topic_ids, ranges)


def thinned(spans: Sequence[JobSpan]) -> list[JobSpan]:
    """Return the spans, oldest first, with neighbours merged: of `n` jobs at most 2 log2(n) + 2.

    Two become one as soon as there are as many newer jobs as they have together. So the newest jobs
    are single, and a snapshot leaves out at most about twice as many jobs as it has to.
    """
    kept: list[JobSpan] = []  # Newest first.
    newer = 0
    for span in reversed(spans):
        if kept and kept[-1].jobs + span.jobs <= newer - kept[-1].jobs:
            kept[-1] = span.with_newer(kept[-1])
        else:
            kept.append(span)
        newer += span.jobs
    while len(kept) > 1 and _RANGE_BYTES * sum(len(one.ranges) for one in kept) > SPANS_BYTES_MAX:
        oldest = kept.pop()
        kept[-1] = oldest.with_newer(kept[-1])
    return kept[::-1]


class RecentJobs:
    """Recent jobs of one store. The caller has the lock of staged jobs."""

    def __init__(
        self, state_log: CompactedLog, find: FindPartition, none_is_open: Callable[[], bool]
    ) -> None:
        """`none_is_open()` is True only if no transaction of any process is undecided."""
        self._state_log = state_log
        self._find = find
        self._none_is_open = none_is_open

    def spans(self) -> list[JobSpan]:
        """Return the jobs that a snapshot may have to leave out."""
        state = self._state_log.get(RECENT_JOBS, "")
        return [] if state is None else [JobSpan.of_record(one) for one in state["spans"]]

    def note(self, span: JobSpan, *, others_are_held: bool) -> None:
        """Note a job that is all in the log, before it is complete; durable on return.

        `others_are_held`: other jobs are not complete. Raises EoslogError.
        """
        before = self.spans()
        if span in before:
            return  # It was noted before, and could not be completed then.
        stable: list[JobSpan] = []
        held_back: list[JobSpan] = []
        for one in (*before, span):
            (stable if self._is_stable(one) else held_back).append(one)
        if not held_back and not others_are_held and self._none_is_open():
            if before:
                # If it is lost, a snapshot leaves out more than it has to.
                self._state_log.append(RECENT_JOBS, "", {"spans": []}, sync=False)
            return
        # Stable and held-back jobs are never merged: a snapshot would leave out both.
        kept = [one.described() for one in (*thinned(stable), *thinned(held_back))]
        self._state_log.append(RECENT_JOBS, "", {"spans": kept})

    def _is_stable(self, span: JobSpan) -> bool:
        """True if everything up to a span's end is decided."""
        try:
            for where in span.ranges:
                partition = self._find(where)
                found = None if partition is None else span.range_in(partition)
                if partition is None or found is None:
                    continue
                if partition.last_stable_offset < found.upper_bound:
                    return False
        except EoslogError:
            return False
        return True
