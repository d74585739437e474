"""A snapshot: one offset for each partition, so that no transaction lies on both sides.

A `read_committed` reader that stops at these offsets sees of every committed transaction, and of
every staged job, all records or none. No transaction has to stand still for it:

- First all last stable offsets are read, then all log ends. A transaction of which any of the
  former has the marker was decided before the latter were read, so all its records are below these.
  Whatever lies between the two offsets of one partition is left out of all others, where their cuts
  move to its beginning; that may leave out more, until nothing is cut any more.
- What was open after the last stable offsets were read lies beyond all of them. So only decided
  transactions that overlap open ones have to be looked for below.

Where transactions overlap without an end, no instant has all of them decided, and the cuts would
stay where the chain began. So beginnings are held for a moment, until those that are open have
ended (`SharedPage.begin_hold`).

Staged jobs are no transactions in the log, and do not move during a snapshot; `staged_spans` knows
where they are. Partitions that are not asked for do not count, so more partitions may mean lower
cuts.

Invariant: the cuts of one store for the same topics never move back. They are the highest that cut
nothing, and no lower than the last: what is whole below those stays whole, and what was written
later is above. The search does not look below them, and never below a partition's start.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eoslog.bindings.shared_page import HOLD_S
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_cuts import TransactionCuts
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.staging.on_demand import StagedJobs
from eoslog.storage.engine import Engine
from eoslog.storage.topic_registry import TopicDescription
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.entries import TransactionEntries

# Whether what was open has ended is looked at so often, and waited for so long while beginnings
# cannot be held: where transactions rarely overlap, that is enough.
_LOOK_S = 0.001
_MOMENT_S = 0.005
# Choices of topics whose newest cuts are kept.
_CHOICES_MAX = 16

if TYPE_CHECKING:
    from eoslog.staging.spans import JobSpan, OffsetRange

    _Ranges = Mapping[int, OffsetRange]
_Incarnation = tuple[TopicPartition, str]  # With the topic's id.


class _Look(NamedTuple):
    """Bounds of the partitions, in their order: of decided data, and of all that may have been
    written by transactions with decided data; and the jobs of then.
    """

    stable: list[int]
    ends: list[int]
    jobs: "list[JobSpan]"


class ConsistentSnapshots:
    """Snapshots of one store."""

    def __init__(self, engine: Engine, staged: StagedJobs, entries: TransactionEntries) -> None:
        self._engine = engine
        self._staged = staged
        self._entries = entries
        self._shared = engine.session.shared
        self._lock = ThreadLock()
        # The newest cuts by the topics asked for; None: all.
        self._newest: OrderedDict[frozenset[str] | None, dict[_Incarnation, int]] = OrderedDict()
        # Transactions, by producer id and epoch, that did not end while beginnings were held.
        self._long: frozenset[tuple[int, int]] = frozenset()

    def of_topics(self, topics: Iterable[str] | None) -> dict[TopicPartition, int]:
        """See `Store.snapshot`. Topics may come and go during the call."""
        if isinstance(topics, str):
            raise TypeError("topics must be a list of names, got one name")
        names = None if topics is None else frozenset(topics)
        engine = self._engine
        while True:
            known = engine.topics()
            wanted = list(known.values()) if names is None else [*map(engine.topic, names)]
            closed: Exception | None = None
            found = {}
            try:
                partitions = [engine.partition(*where) for where in _partitions_of(wanted)]
                found = self._cuts(names, partitions)
            except (LogClosedError, UnknownTopicOrPartitionError) as error:
                engine.check_open()
                closed = error
            # A topic that is made in this time may have records of what is below the cuts.
            now = engine.topics()
            if [now.get(one.name) for one in wanted] == wanted:
                if closed is not None:
                    raise closed
                if names is not None or len(now) == len(wanted):
                    return found
            ids = {name: one.topic_id for name, one in now.items()}
            gone = [one.name for one in wanted if ids.get(one.name) != one.topic_id]
            if gone and names is not None:
                raise UnknownTopicOrPartitionError(f"topic {gone[0]!r} was deleted in the call")

    def _cuts(
        self, names: frozenset[str] | None, partitions: Sequence[UnifiedLog]
    ) -> dict[TopicPartition, int]:
        with self._lock:
            newest = self._newest.get(names, {})
        floors = [newest.get(_incarnation(one), 0) for one in partitions]
        look = self._look(partitions)
        overlap = self._overlap(partitions, look)
        if overlap is not None and not any(overlap.met(*one) for one in self._long):
            look = self._look_later(partitions, look)
            overlap = self._overlap(partitions, look)
        cuts = consistent_offsets(
            partitions, look.stable, look.ends, look.jobs, floors, overlap is not None
        )
        self._note(names, partitions, cuts)
        # Retention may have gone beyond.
        return {
            one.topic_partition: max(cut, one.log_start_offset)
            for one, cut in zip(partitions, cuts, strict=True)
        }

    def _look(self, partitions: Sequence[UnifiedLog]) -> _Look:
        def read() -> _Look:
            jobs = self._staged.commits.pending.spans()
            # In this order.
            stable = [one.last_stable_offset for one in partitions]
            ends = [one.log_end_offset for one in partitions]
            return _Look(stable, ends, jobs)

        # No staged job moves in this time, in any process.
        return self._staged.commits.read_still(read)

    def _look_later(self, partitions: Sequence[UnifiedLog], look: _Look) -> _Look:
        """Look again once what a look found open has ended, or after some time."""
        begun = self._shared.begin_hold()
        try:
            if self._await_ends(partitions, look, HOLD_S if begun else _MOMENT_S) and begun:
                self._long = _open_at(partitions)
            return self._look(partitions)
        finally:
            if begun:
                self._shared.end_hold(begun)

    def _overlap(self, partitions: Sequence[UnifiedLog], look: _Look) -> TransactionCuts | None:
        """Return the transactions beyond decided data; None if these are open ones alone, which
        have nothing below.
        """
        beyond = TransactionCuts(look.stable)
        for number, one in enumerate(partitions):
            if look.stable[number] < look.ends[number]:
                one.take_in_transactions(beyond, number, look.stable[number], look.ends[number])
        if beyond.transaction_count == 0:
            return None
        open_count = sum(beyond.met(*one) for one in self._entries.open_producers())
        return None if open_count == beyond.transaction_count else beyond

    def _await_ends(self, partitions: Sequence[UnifiedLog], look: _Look, timeout_s: float) -> bool:
        """Wait until what a look found open has ended; True if some of it has not."""
        end_s = time.monotonic() + timeout_s
        left = list(zip(partitions, look.ends, strict=True))
        while left := [(one, end) for one, end in left if one.last_stable_offset < end]:
            if time.monotonic() >= end_s:
                return True
            time.sleep(_LOOK_S)
        return False

    def _note(
        self,
        names: frozenset[str] | None,
        partitions: Sequence[UnifiedLog],
        cuts: Sequence[int],
    ) -> None:
        with self._lock:
            before = self._newest.pop(names, {})
            # Of two cuts of the same partitions the higher ones, too, cut nothing.
            self._newest[names] = {
                where: max(cut, before.get(where, 0))
                for where, cut in zip(map(_incarnation, partitions), cuts, strict=True)
            }
            if len(self._newest) > _CHOICES_MAX:
                self._newest.popitem(last=False)


def _partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    return [where for one in topics for where in one.topic_partitions()]


def _incarnation(partition: UnifiedLog) -> _Incarnation:
    return partition.topic_partition, partition.topic_id


def _open_at(partitions: Iterable[UnifiedLog]) -> frozenset[tuple[int, int]]:
    return frozenset(
        (one.producer_id, one.producer_epoch)
        for partition in partitions
        for one in partition.open_transactions()
    )


def consistent_offsets(
    partitions: Sequence[UnifiedLog],
    stable: Sequence[int],
    ends: Sequence[int],
    jobs: "Iterable[JobSpan]" = (),
    floors: Sequence[int] | None = None,
    overlap: bool = True,
) -> list[int]:
    """The highest cuts that are no higher than `stable`, and cut nothing in two; see the module.

    `floors` cut nothing either, and are no higher. Without `overlap`, `stable` cuts no transaction.
    """
    floors = [0] * len(partitions) if floors is None else floors
    undivided = [ranges for job in jobs if (ranges := _ranges_in(partitions, job, floors))]
    cuts = list(stable)
    if not _leave_out_jobs(undivided, cuts) and not overlap:
        return cuts
    search = TransactionCuts(cuts)
    for number, one in enumerate(partitions):
        one.take_in_transactions(search, number, floors[number], ends[number])
    cuts = search.settle()
    while _leave_out_jobs(undivided, cuts):
        for number, cut in enumerate(cuts):
            search.lower(number, cut)
        cuts = search.settle()
    return cuts


def _ranges_in(
    partitions: Sequence[UnifiedLog], job: "JobSpan", floors: Sequence[int]
) -> "dict[int, OffsetRange]":
    """Return the ranges of a job in these partitions, by their numbers, from the floors on: what
    several jobs that count as one have below was whole.
    """
    found = {}
    for number, partition in enumerate(partitions):
        one = job.range_in(partition)
        if one is not None and one.upper_bound > floors[number]:
            found[number] = one._replace(first_offset=max(one.first_offset, floors[number]))
    return found


def _leave_out_jobs(undivided: "Sequence[_Ranges]", cuts: list[int]) -> bool:
    """Move the cuts before each job that is not wholly below them; True if that moved any."""
    moved_any = False
    moved = True
    while moved:
        moved = False
        for ranges in undivided:
            if any(cuts[number] < one.upper_bound for number, one in ranges.items()):
                for number, one in ranges.items():
                    if cuts[number] > one.first_offset:
                        cuts[number] = one.first_offset
                        moved = moved_any = True
    return moved_any
