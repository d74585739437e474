"""Outcomes of clients' writes: of transactions, of records, and of the offsets of groups.

A commit that is ok committed a transaction; an abort that is ok, or commits that all failed,
aborted it; with no commit that may have taken effect it was never committed. A commit of unknown
outcome leaves it open until a reader of committed data is seen with one of its records, or one of
its offsets.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.history import (
    ABORT,
    COMMIT,
    FAIL,
    NEVER_NS,
    NONE,
    OFFSET_BITS,
    OFFSET_MAX,
    OK,
    READ_COMMITTED,
    Columns,
    Flags,
    History,
    Numbers,
    any_of,
    greatest,
    group_numbers,
    least,
    least_row,
    place_keys,
    same_as_before,
)


@dataclass
class Transactions:
    """One row per transaction."""

    committed: Flags  # A commit is ok, or a reader has a record or offset.
    acknowledged: Flags  # A commit is ok.
    refused: Flags  # An abort is ok or a commit failed, and none is ok or may have taken effect.
    decided_twice: Flags  # A commit and an abort are ok.
    possible: Flags  # It is committed, or may be.
    commit_begin: Numbers  # The first commit that may have taken effect; NEVER_NS without one.
    committed_by: Numbers  # It was committed by then, at the latest.
    commit_op: Numbers  # An operation to show for its end; NONE without one.
    abort_op: Numbers

    def is_committed(self, transactions: Numbers) -> Flags:
        """Return for numbers of transactions if each is committed; True where there is none."""
        return np.append(self.committed, True)[transactions]  # NONE finds the last one.

    def is_possible(self, transactions: Numbers) -> Flags:
        """Return for numbers of transactions if each may be committed; True where there is none."""
        return np.append(self.possible, True)[transactions]

    def commit(self, transactions: Numbers, seen_at: Numbers) -> None:
        """Note that readers saw these as committed; a time before the commit began is no time."""
        able = self.possible[transactions]
        transactions, seen_at = transactions[able], seen_at[able]
        self.committed[transactions] = True
        seen_at = np.maximum(seen_at, self.commit_begin[transactions])
        np.minimum.at(self.committed_by, transactions, seen_at)


def transactions_of(history: History) -> Transactions:
    """Return all transactions that the history names."""
    ops, count = history.ops, len(history.names.transactions)
    ends = ops.where(ops.transaction != NONE)
    rows = np.flatnonzero(ops.transaction != NONE)
    commits, aborts = ends.kind == COMMIT, ends.kind == ABORT
    ok, of = ends.outcome == OK, ends.transaction
    tried = commits & (ends.outcome != FAIL)
    committed = any_of(of, commits & ok, count)
    aborted = any_of(of, aborts & ok, count)
    may_commit = any_of(of, tried, count)
    commit_failed = any_of(of, commits & (ends.outcome == FAIL), count)
    acknowledged_by = least(of[commits & ok], ends.end[commits & ok], count)
    good = least_row(of[commits & ok], rows[commits & ok], count)
    return Transactions(
        committed=committed.copy(),
        acknowledged=committed,
        refused=~committed & (aborted | (commit_failed & ~may_commit)),
        decided_twice=committed & aborted,
        possible=committed | (may_commit & ~aborted),
        commit_begin=least(of[tried], ends.begin[tried], count),
        committed_by=acknowledged_by,
        commit_op=np.where(good != NONE, good, least_row(of[commits], rows[commits], count)),
        abort_op=least_row(of[aborts], rows[aborts], count),
    )


# Sends that may have written a record: two sends of one value are two tries to write it once.
#
# A send that is repeated may be answered with what an earlier try of it wrote. So a record may be
# there since the first of its tries began, unless the others certainly wrote nothing.


class Tries(Columns):
    """One row per record sent, as the sends have them."""

    turn: Numbers  # Its place among all sends, those of a client in the client's order.
    first_turn: Numbers  # Of the earliest try; NONE if one is of another client.
    first_begin: Numbers  # When the earliest try began.
    single: Flags  # No other send can have written the record.


def tries_of(history: History, transactions: Transactions) -> Tries:
    """Return the tries of each record sent."""
    sends, ops = history.sends, history.ops
    client, begin = ops.client[sends.op], ops.begin[sends.op]
    rows = np.arange(len(sends))
    turn = np.empty(len(sends), dtype=np.int64)
    turn[np.lexsort((rows, sends.op, begin, client))] = rows
    possible = (ops.outcome[sends.op] != FAIL) & transactions.is_possible(ops.transaction[sends.op])
    value_count = len(history.names.values)
    count = np.bincount(sends.value[possible], minlength=value_count)
    single = count[sends.value] <= possible
    several = np.flatnonzero(~single)
    if not len(several):
        return Tries(turn=turn, first_turn=turn, first_begin=begin, single=single)
    first_turn, first_begin = turn.copy(), begin.copy()
    able = possible & ~single
    of, value = sends.value[able], sends.value[several]
    first_turn[several] = np.minimum(turn[several], least(of, turn[able], value_count)[value])
    first_begin[several] = np.minimum(begin[several], least(of, begin[able], value_count)[value])
    lowest = least(of, client[able], value_count)[value]
    highest = greatest(of, client[able], value_count)[value]
    strange = (lowest != client[several]) | (highest != client[several])
    first_turn[several[strange]] = NONE
    return Tries(turn=turn, first_turn=first_turn, first_begin=first_begin, single=single)


# Places where each record was seen: one row per value at an offset of a partition.
#
# A place is known from a poll that returned it, or from a send that was answered with the offset.
# Its writer is the send that put the record there, as far as that is certain: the send that was
# answered with this place, else the only try of the value, else the only try that may have taken
# effect.


class Places(Columns):
    """One row per place, in the order of partitions and offsets."""

    key: Numbers
    value: Numbers
    writer: Numbers  # Row of the sends; NONE where it is not certain.
    answered: Numbers  # The send that was answered with this place; NONE without one.
    seen_committed: Flags  # By a poll under read_committed.
    seen: Flags  # By any poll.
    committed: Flags  # Certainly not of an aborted transaction.
    first_read: Numbers  # A row of the reads: the first, if any, under read_committed.

    @property
    def partition(self) -> Numbers:
        return self.key >> OFFSET_BITS

    @property
    def offset(self) -> Numbers:
        return self.key & OFFSET_MAX


@dataclass
class RecordPlaces:
    """Places of records, and the place of each record of a poll and each answered send."""

    rows: Places
    of_read: Numbers
    of_send: Numbers  # NONE for a send that was not answered with an offset.
    value_seen: Flags  # Per value: a reader that shows that it is in the log has it.
    value_seen_at_all: Flags  # Per value: any reader has it.


def record_places(history: History, transactions: Transactions) -> RecordPlaces:
    """Find all places; note in `transactions` which ones they prove to be committed."""
    sends, reads, ops = history.sends, history.reads, history.ops
    answered = np.flatnonzero((sends.offset != NONE) & (ops.outcome[sends.op] == OK))
    keys = np.concatenate(
        [
            place_keys(reads.partition, reads.offset),
            place_keys(sends.partition[answered], sends.offset[answered]),
        ]
    )
    values = np.concatenate([reads.value, sends.value[answered]])
    order = np.lexsort((values, keys))
    same = same_as_before(keys[order], values[order])
    of_row = np.empty(len(order), dtype=np.int64)
    of_row[order] = group_numbers(same)
    first = order[~same]
    count = len(first)
    of_read, of_answered = of_row[: len(reads)], of_row[len(reads) :]
    of_send = np.full(len(sends), NONE, dtype=np.int64)
    of_send[answered] = of_answered
    committed_read = ops.isolation[reads.op] == READ_COMMITTED
    answer = least_row(of_answered, answered, count)
    first_read = least_row(of_read, np.arange(len(reads)), count)
    committed_rows = np.flatnonzero(committed_read)
    first_committed = least_row(of_read[committed_rows], committed_rows, count)
    places = Places(
        key=keys[first],
        value=values[first],
        writer=answer.copy(),
        answered=answer,
        seen_committed=first_committed != NONE,
        seen=first_read != NONE,
        committed=np.zeros(count, dtype=bool),
        first_read=np.where(first_committed != NONE, first_committed, first_read),
    )
    _find_writers(history, transactions, places)
    _note_commits_by_reads(history, transactions, places, of_read, committed_read)
    places.committed = _certainly_committed(history, transactions, places)
    plain = np.ones(len(history.names.values), dtype=bool)
    plain[sends.value[ops.transaction[sends.op] != NONE]] = False
    value_count = len(history.names.values)
    seen_at_all = any_of(places.value, places.seen, value_count)
    value_seen = any_of(places.value, places.seen_committed, value_count) | (seen_at_all & plain)
    return RecordPlaces(places, of_read, of_send, value_seen, seen_at_all)


def _find_writers(history: History, transactions: Transactions, places: Places) -> None:
    """Find the writers of places that no send was answered with."""
    sends, ops = history.sends, history.ops
    value_count = len(history.names.values)
    tries = np.bincount(sends.value, minlength=value_count)
    only = least(sends.value, np.arange(len(sends)), value_count)
    open_places = places.writer == NONE
    single = open_places & (tries[places.value] == 1)
    places.writer[single] = only[places.value[single]]
    several = np.flatnonzero(open_places & (tries[places.value] > 1))
    if not len(several):
        return
    order = np.argsort(sends.value, kind="stable")
    starts = np.concatenate([[0], np.cumsum(tries)])
    happened = ops.outcome[sends.op] != FAIL
    possible = happened & transactions.is_possible(ops.transaction[sends.op])
    for place in several:
        value = places.value[place]
        rows = order[starts[value] : starts[value + 1]]
        able = (possible if places.seen_committed[place] else happened)[rows]
        here = rows[able & (sends.offset[rows] == NONE)]
        if len(here) == 1:
            places.writer[place] = here[0]
        elif not able.any():
            # No try can have written it: then any of them shows that it must not be here.
            places.writer[place] = rows[-1]


def _note_commits_by_reads(
    history: History,
    transactions: Transactions,
    places: Places,
    of_read: Numbers,
    committed_read: Flags,
) -> None:
    """Note the transactions that readers of committed data have a record of: they are committed."""
    writers = places.writer[of_read]
    shown = np.flatnonzero(committed_read & (writers != NONE))
    of = history.ops.transaction[history.sends.op[writers[shown]]]
    shown, of = shown[of != NONE], of[of != NONE]
    transactions.commit(of, history.ops.end[history.reads.op[shown]])


def _certainly_committed(history: History, transactions: Transactions, places: Places) -> Flags:
    sends, ops = history.sends, history.ops
    certain = places.seen_committed.copy()
    known = np.flatnonzero(places.writer != NONE)
    writers = places.writer[known]
    of = ops.transaction[sends.op[writers]]
    answered = places.answered[known] != NONE
    happened = ops.outcome[sends.op[writers]] != FAIL
    certain[known] |= answered & transactions.is_committed(of)
    certain[known] |= places.seen[known] & (of == NONE) & happened
    return certain


# Offsets of consumer groups: each one that was written, and each one that was read.
#
# The offset of a group at a partition is one value: of all writes that took effect it is the one
# that was written last. A write in a transaction is written during its own call, and takes effect
# with the commit, before every later write; one outside of transactions does both at once. One of
# unknown outcome does so at any time, or never.


class OffsetWrites(Columns):
    """One row per offset of an operation that writes them."""

    op: Numbers
    place: Numbers  # A number for the group and the partition.
    offset: Numbers
    transaction: Numbers


class OffsetReads(Columns):
    """One row per offset that a read returned; NONE if the group had none."""

    op: Numbers
    place: Numbers
    offset: Numbers


@dataclass
class GroupOffsets:
    """Offsets of all groups; `partition_count` splits a place into its group and partition."""

    writes: OffsetWrites
    reads: OffsetReads
    partition_count: int

    def possible(self, history: History, transactions: Transactions) -> Flags:
        """Return for each write if it may have taken effect."""
        happened = history.ops.outcome[self.writes.op] != FAIL
        able: Flags = happened & transactions.is_possible(self.writes.transaction)
        return able

    def effects(self, history: History, transactions: Transactions) -> tuple[Numbers, Numbers]:
        """Return the earliest and the latest time of each write's effect; NEVER_NS for none."""
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
    """Return the offsets of all groups that the history names."""
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


def note_commits_by_offsets(
    history: History, transactions: Transactions, offsets: GroupOffsets, clock_error_ns: int
) -> None:
    """Note the transactions that are committed because only they can have set a group's offset.

    That is proven if the group had another offset before the commit began, and no other write of
    the history has this one; without the former, the group may have had it before the history.
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
        stood = ops.end[reads.op[elsewhere]].min(initial=NEVER_NS)
        other_ends = end[here & possible & (writes.offset != offset)]
        elsewhere_by = int(other_ends.min(initial=stood)) + clock_error_ns
        shown = (reads.place == place) & (reads.offset == offset)
        shown &= ops.begin[reads.op] > elsewhere_by
        if elsewhere_by < begin[row] and shown.any():
            seen_by = ops.end[reads.op[shown]].min(keepdims=True)
            transactions.commit(np.array([transaction]), seen_by)
