"""Offsets of consumer groups: each one that was written, and each one that was read.

The offset of a group at a partition is one value: of all writes that took effect it is the one that
was written last. A write in a transaction is written while its own call is under way, and takes
effect with the commit, in front of whatever was written after it; one outside of transactions does
both at once. An unknown one does so at any time, or never.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.groups_of_rows import least
from eoslog.checking.history import FAIL, NEVER_NS, NONE, OK, Columns, Flags, History, Numbers
from eoslog.checking.transactions import Transactions


class OffsetWrites(Columns):
    """One row per offset that an operation was to write."""

    op: Numbers
    place: Numbers  # A number for the group and the partition.
    offset: Numbers
    transaction: Numbers


class OffsetReads(Columns):
    """One row per offset that a read was answered with; NONE where the group had none."""

    op: Numbers
    place: Numbers
    offset: Numbers


@dataclass
class GroupOffsets:
    """Offsets of all groups; `partition_count` splits a place into its group and partition."""

    writes: OffsetWrites
    reads: OffsetReads
    partition_count: int

    @property
    def place_count(self) -> int:
        return 1 + int(max(self.writes.place.max(initial=-1), self.reads.place.max(initial=-1)))

    def possible(self, history: History, transactions: Transactions) -> Flags:
        """Per write: whether it may have taken effect."""
        happened = history.ops.outcome[self.writes.op] != FAIL
        able: Flags = happened & transactions.is_possible(self.writes.transaction)
        return able

    def effects(self, history: History, transactions: Transactions) -> tuple[Numbers, Numbers]:
        """Per write: the earliest and the latest time of its effect; NEVER_NS for no such time."""
        writes, ops = self.writes, history.ops
        begin, end = ops.begin[writes.op].copy(), ops.end[writes.op].copy()
        inside = writes.transaction != NONE
        of = writes.transaction[inside]
        begin[inside] = np.maximum(begin[inside], transactions.commit_begin[of])
        end[inside] = np.maximum(end[inside], transactions.committed_by[of])
        sure = ops.outcome[writes.op] == OK
        sure[inside] &= transactions.committed[of]
        return begin, np.where(sure, end, NEVER_NS)


def group_offsets(history: History) -> GroupOffsets:
    """The offsets of all groups that the history names."""
    ops, width = history.ops, max(1, len(history.names.partitions))
    given, answered = history.offset_writes, history.offset_reads
    writes = OffsetWrites(
        op=given.op,
        place=ops.group[given.op] * width + given.partition,
        offset=given.offset,
        transaction=ops.transaction[given.op],
    )
    reads = OffsetReads(
        op=answered.op,
        place=ops.group[answered.op] * width + answered.partition,
        offset=answered.offset,
    )
    return GroupOffsets(writes, reads, width)


def note_commits(
    history: History, transactions: Transactions, offsets: GroupOffsets, clock_error_ns: int
) -> None:
    """A transaction is committed if a group stands where nothing else can have put it.

    That is so if the group is known to have stood elsewhere before the commit began, and no other
    write of the history puts it there: where it stood before all of that nobody knows.
    """
    writes, reads, ops = offsets.writes, offsets.reads, history.ops
    possible = offsets.possible(history, transactions)
    open_ones = np.zeros(len(writes), dtype=bool)
    inside = writes.transaction != NONE
    of = writes.transaction[inside]
    open_ones[inside] = transactions.possible[of] & ~transactions.committed[of]
    begin, end = offsets.effects(history, transactions)
    answers = set(zip(reads.place.tolist(), reads.offset.tolist(), strict=True))
    for row in np.flatnonzero(open_ones & possible).tolist():
        place, offset, transaction = (
            int(column[row]) for column in (writes.place, writes.offset, writes.transaction)
        )
        if (place, offset) not in answers:
            continue
        here = writes.place == place
        others = here & possible & (writes.offset == offset) & (writes.transaction != transaction)
        if others.any():
            continue
        elsewhere = (reads.place == place) & (reads.offset != offset)
        stood = least(
            np.zeros(int(elsewhere.sum()), dtype=np.int64), ops.end[reads.op[elsewhere]], 1
        )[0]
        other_ends = end[here & possible & (writes.offset != offset)]
        elsewhere_by = min(int(stood), int(other_ends.min(initial=NEVER_NS))) + clock_error_ns
        shown = (reads.place == place) & (reads.offset == offset)
        shown &= ops.begin[reads.op] > elsewhere_by
        if elsewhere_by < begin[row] and shown.any():
            seen_by = ops.end[reads.op[shown]].min(keepdims=True)
            transactions.commit(np.array([transaction]), seen_by)
