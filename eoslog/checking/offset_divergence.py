"""Offset-output divergence: a group's offsets do not match the output of its transactions.

It has three forms: an offset was read that cannot be the group's at that time; a transaction's
offset is there without its records; two committed transactions of a group took an input, or none
did although the group's offset is after it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from copy import deepcopy
from typing import Final, NamedTuple

import numpy as np

from eoslog.checking.evidence import Evidence, Found, Shown, starts_of
from eoslog.checking.history import (
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OK,
    POLL,
    SEEK,
    Flags,
    Numbers,
    any_of,
    distinct,
    greatest,
    greatest_before,
    place_keys,
    rows_of,
    same_as_before,
)
from eoslog.checking.lost_writes import MissingRecords
from eoslog.checking.outcomes import GroupOffsets, OffsetReads


def offset_divergence(evidence: Evidence, offsets: GroupOffsets, missing: MissingRecords) -> Found:
    """Find all three forms."""
    shown = _impossible_reads(evidence, offsets)
    shown += _offsets_without_records(evidence, missing)
    shown += _processed_inputs(evidence, offsets, missing)

    return evidence.found("offset-output divergence", (range(len(shown)), shown.__getitem__))


def _impossible_reads(evidence: Evidence, offsets: GroupOffsets) -> list[Shown]:
    """Find offsets that were read though overwritten, not yet written, aborted or never written."""
    history, transactions = evidence.history, evidence.transactions
    reads, writes, ops = offsets.reads, offsets.writes, history.ops
    if not len(reads):
        return []
    error = evidence.clock_error_ns
    asked, answered = ops.begin[reads.op] - error, ops.end[reads.op] + error
    possible = offsets.possible(history, transactions)
    begin, end = offsets.effects(history, transactions)
    # One number per place and offset, over both tables.
    pairs = np.stack(
        [np.concatenate([writes.place, reads.place]), np.concatenate([writes.offset, reads.offset])]
    )
    _, pair = np.unique(pairs, axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    of_write, of_read = pair[: len(writes)], pair[len(writes) :]
    count = int(pair.max(initial=-1)) + 1
    able = any_of(of_write, possible, count)
    # The latest time at which a write whose effect the answer may show wrote this offset.
    latest = greatest_before(
        of_write[possible],
        begin[possible],
        ops.end[writes.op[possible]],
        of_read,
        answered + 1,
    )
    # The begin of the latest write that was in effect before the question.
    done = np.flatnonzero(end < NEVER_NS)
    written = ops.begin[writes.op[done]]
    newest = greatest_before(writes.place[done], end[done], written, reads.place, asked)
    late = (newest != NONE) & (newest > latest + error)
    not_from_before = _not_from_before(evidence, offsets, of_write, of_read)
    refused = ~able[of_read] & not_from_before
    early = able[of_read] & (latest == NONE) & not_from_before
    found = []
    for row in np.flatnonzero(refused | early | late):
        there = writes.op[np.flatnonzero(of_write == of_read[row])]
        offset = int(reads.offset[row])
        what = f"{_group_at(evidence, offsets, int(reads.place[row]))} was read as "
        what += _shown(offset)
        proof = [int(one) for one in there[:5]]
        if refused[row] and len(there):
            what += ", which only failed or aborted writes put there"
        elif refused[row]:
            before = _read_elsewhere(reads, int(row), ops.end[reads.op], int(asked[row]))
            what += f", which no client wrote, after it was found at {_shown(reads.offset[before])}"
            proof.append(int(reads.op[before]))
        elif early[row]:
            what += ", before its commit began"
        else:
            over = done[(writes.place[done] == reads.place[row]) & (written == newest[row])]
            over = int(over[np.argmin(end[over])])
            what += f", after offset {writes.offset[over]} had been committed"
            proof.append(int(writes.op[over]))
            proof.append(evidence.commit_op(writes.transaction[over]))
        found.append((what, [*proof, int(reads.op[row])]))
    return found


def _shown(offset: int) -> str:
    return "none" if offset == NONE else f"offset {offset}"


def _read_elsewhere(reads: OffsetReads, row: int, ends: Numbers, asked: int) -> int:
    """Return the last read before the question that returned another offset of its place."""
    others = np.flatnonzero(
        (reads.place == reads.place[row]) & (reads.offset != reads.offset[row]) & (ends < asked)
    )
    return int(others[np.argmax(ends[others])])


def _not_from_before(
    evidence: Evidence, offsets: GroupOffsets, of_write: Numbers, of_read: Numbers
) -> Flags:
    """Return for each read if its offset cannot be the group's from before the history.

    A client had begun to write it, or another offset had been read. `of_write` and `of_read` number
    the offsets of both tables.
    """
    reads, writes, ops = offsets.reads, offsets.writes, evidence.history.ops
    asked = ops.begin[reads.op] - evidence.clock_error_ns
    answered = ops.end[reads.op] + evidence.clock_error_ns
    begun = ops.begin[writes.op]
    tried: Flags = greatest_before(of_write, begun, begun, of_read, answered + 1) != NONE
    # NONE is the least offset. Another one was read before unless greatest and least equal it.
    up, down = reads.offset + 1, OFFSET_MAX - reads.offset
    highest, lowest = (
        greatest_before(reads.place, ops.end[reads.op], column, reads.place, asked)
        for column in (up, down)
    )
    elsewhere: Flags = (highest != NONE) & ((highest != up) | (lowest != down))
    found: Flags = tried | elsewhere
    return found


def _offsets_without_records(evidence: Evidence, missing: MissingRecords) -> list[Shown]:
    """Find transactions with missing records that only their offsets show to be committed.

    Torn ones are reported as such.
    """
    transactions, of = evidence.transactions, missing.transactions
    chosen = of[of != NONE]
    found = []
    for transaction in distinct(
        chosen[~transactions.acknowledged[chosen] & ~evidence.seen_in_part[chosen]]
    ):
        lacking = missing.sends[of == transaction]
        what = (
            f"a group has the offsets of {evidence.transaction(int(transaction))}, and readers "
            f"passed the place of its {evidence.sent(lacking[0])} in vain"
        )
        writes = evidence.history.offset_writes.op
        mine = writes[evidence.history.ops.transaction[writes] == transaction]
        proof = [*mine[:5], *map(evidence.send_op, lacking[:10])]
        found.append((what, proof))
    return found


def _group_at(evidence: Evidence, offsets: GroupOffsets, place: int) -> str:
    group, partition = divmod(place, offsets.partition_count)
    names = evidence.history.names
    return f"group {names.groups[group]!r} at {names.partitions[partition]}"


# Inputs that a group's transactions took: each record once, and none left out.
#
# Only groups are checked whose offsets move in transactions alone, all of which have their polls
# recorded. A client that sets offsets outside of transactions may repeat or skip records.


def _processed_inputs(
    evidence: Evidence, offsets: GroupOffsets, missing: MissingRecords
) -> list[Shown]:
    """Find inputs of two committed transactions of a group, and inputs of none."""
    history, transactions = evidence.history, evidence.transactions
    reads, ops, writes = history.reads, history.ops, offsets.writes
    possible = offsets.possible(history, transactions)
    passes = evidence.passed.passes
    inside = writes.transaction != NONE
    by_hand = distinct(writes.place[possible & ~inside])
    chosen = np.flatnonzero(possible & inside & ~np.isin(writes.place, by_hand))
    if not len(chosen):
        return []
    inputs = np.flatnonzero(ops.transaction[reads.op] != NONE)
    of_input = ops.transaction[reads.op[inputs]]
    inputs = inputs[np.lexsort((reads.offset[inputs], of_input, reads.partition[inputs]))]
    by_partition = reads.partition[inputs]
    width = offsets.partition_count
    shown: list[Shown] = []
    chosen = chosen[np.argsort(writes.place[chosen], kind="stable")]
    places, starts = np.unique(writes.place[chosen], return_index=True)
    for place, mine in zip(places, np.split(chosen, starts[1:]), strict=True):
        group, partition = divmod(int(place), width)
        mine = _one_per_transaction(evidence, offsets, mine)
        here = inputs[rows_of(by_partition, partition)]
        input_of = ops.transaction[reads.op[here]]
        of = writes.transaction[mine]
        left, right = np.searchsorted(input_of, of, "left"), np.searchsorted(input_of, of, "right")
        polled_for = ops.transaction[passes.op[passes.partition == partition]]
        if not np.isin(of, polled_for).all():
            continue  # The inputs of one are not recorded, not even as none.
        taken = np.concatenate([here[a:b] for a, b in zip(left, right, strict=True)])
        upper_bounds = np.repeat(writes.offset[mine], right - left)
        within = reads.offset[taken] < upper_bounds
        shown += _taken_twice(evidence, group, taken[within])
        shown += _left_out(evidence, offsets, missing, int(place), mine, here)
    return shown


def _one_per_transaction(evidence: Evidence, offsets: GroupOffsets, moves: Numbers) -> Numbers:
    """Return the write by which each transaction certainly moved the group: the least offset that
    it may have written last.
    """
    writes, ops = offsets.writes, evidence.history.ops
    of, op = writes.transaction[moves], writes.op[moves]
    ok = ops.outcome[op] == OK
    count = len(evidence.history.names.transactions)
    last = greatest(of[ok], ops.begin[op[ok]], count)[of]
    moves = moves[ops.end[op] + evidence.clock_error_ns >= last]
    moves = moves[np.lexsort((writes.offset[moves], writes.transaction[moves]))]
    return moves[~same_as_before(writes.transaction[moves])]


def _taken_twice(evidence: Evidence, group: int, taken: Numbers) -> list[Shown]:
    """Find inputs at the same offset of two committed transactions."""
    history = evidence.history
    reads, ops = history.reads, history.ops
    taken = taken[evidence.transactions.committed[ops.transaction[reads.op[taken]]]]
    of = ops.transaction[reads.op[taken]]
    order = np.lexsort((of, reads.offset[taken]))
    taken, of = taken[order], of[order]
    at = np.flatnonzero((reads.offset[taken[1:]] == reads.offset[taken[:-1]]) & (of[1:] != of[:-1]))
    found = []
    for first, second in zip(taken[at], taken[at + 1], strict=True):
        one, other = (int(ops.transaction[reads.op[read]]) for read in (first, second))
        place = int(evidence.records.of_read[first])
        what = (
            f"group {history.names.groups[group]!r} took {evidence.place(place)} in "
            f"{evidence.transaction(one)} and in {evidence.transaction(other)}, both committed"
        )
        ends = [evidence.commit_op(number) for number in (one, other)]
        found.append((what, [int(reads.op[first]), int(reads.op[second]), *ends]))
    return found


# Inputs that a group's offset passed, and that none of its transactions took.
#
# An input counts if it is certainly in the log, and was there when the group's offset was moved
# after it, even if no consumer polled it. The group begins at the least offset that one of its
# consumers got for a transaction, committed or not. Records that a consumer was moved over by a
# seek, or by beginning at the latest records, are not left out by the group.


def _left_out(
    evidence: Evidence,
    offsets: GroupOffsets,
    missing: MissingRecords,
    place: int,
    moves: Numbers,
    inputs: Numbers,
) -> list[Shown]:
    """Return the inputs that a group left out at a partition; `place` numbers the two.

    `moves` are the rows of the writes that may have taken effect, one per transaction, and `inputs`
    the reads of this partition that were made for any transaction.
    """
    history, transactions = evidence.history, evidence.transactions
    ops, reads, writes = history.ops, history.reads, offsets.writes
    group, partition = divmod(place, offsets.partition_count)
    sure = transactions.committed[writes.transaction[moves]]
    sure &= ops.outcome[writes.op[moves]] == OK
    passing = moves[sure]
    inputs = inputs[~_of_others(evidence, offsets, place, inputs)]
    if not len(passing) or _is_unclear(evidence, writes.transaction[moves]):
        return []
    of = ops.transaction[reads.op[inputs]]
    fed = np.isin(of, writes.transaction[moves])
    consumers = distinct(ops.client[reads.op[inputs[fed]]])
    own = np.isin(ops.client[reads.op[inputs]], consumers)
    if not own.any():
        return []
    first = int(reads.offset[inputs[own]].min())
    taken = inputs[transactions.possible[of]]
    furthest = int(writes.offset[passing].max())
    places = _certain_places(evidence, missing, partition, first, furthest)
    rows = evidence.records.rows
    places = places[~np.isin(rows.offset[places], reads.offset[taken])]
    places = places[_were_there(evidence, offsets, places, passing)]
    if len(places):
        places = places[~_moved_over(evidence, offsets, moves, places)]
    proof = [int(op) for op in writes.op[passing[writes.offset[passing] == furthest]][:3]]
    return [
        (
            f"group {history.names.groups[group]!r} stands at offset {furthest}, and none of its "
            f"transactions took {evidence.place(int(one))}",
            [evidence.place_op(int(one)), *proof],
        )
        for one in places
    ]


def _of_others(evidence: Evidence, offsets: GroupOffsets, place: int, inputs: Numbers) -> Flags:
    """Return reads for transactions that moved another group at this partition, not this one."""
    writes = offsets.writes
    here = writes.place % offsets.partition_count == place % offsets.partition_count
    theirs = writes.transaction[here & (writes.place != place)]
    mine = writes.transaction[writes.place == place]
    of = evidence.history.ops.transaction[evidence.history.reads.op[inputs]]
    found: Flags = np.isin(of, np.setdiff1d(theirs, mine))
    return found


def _is_unclear(evidence: Evidence, transactions: Numbers) -> bool:
    """True if one of the transactions was made from a poll whose result is not known."""
    ops = evidence.history.ops
    polls = (ops.kind == POLL) & (ops.outcome != OK) & (ops.transaction != NONE)
    return bool(np.isin(ops.transaction[polls], transactions).any())


def _certain_places(
    evidence: Evidence, missing: MissingRecords, partition: int, first: int, furthest: int
) -> Numbers:
    """Return places of records certainly in the log; lost ones are reported as such."""
    rows, sends = evidence.records.rows, evidence.history.sends
    partitions = np.full(2, partition, dtype=np.int64)
    bounds = place_keys(partitions, np.array([first, furthest], dtype=np.int64))
    left, right = np.searchsorted(rows.key, bounds)
    there = np.arange(left, right)[rows.committed[left:right]]
    return there[rows.seen[there] | ~np.isin(rows.value[there], sends.value[missing.sends])]


def _were_there(
    evidence: Evidence, offsets: GroupOffsets, places: Numbers, passing: Numbers
) -> Flags:
    """Return for each record if it may have been in the log when the group last passed it."""
    writes = offsets.writes
    passing = passing[np.argsort(writes.offset[passing], kind="stable")]
    moved_by = evidence.transactions.committed_by[writes.transaction[passing]]
    last = np.maximum.accumulate(moved_by[::-1])[::-1]
    rows = evidence.records.rows
    at = np.searchsorted(writes.offset[passing], rows.offset[places], "right")
    writer = rows.writer[places]
    begun = np.where(writer == NONE, 0, evidence.tries.first_begin[writer])
    there: Flags = begun <= last[at] + evidence.clock_error_ns
    return there


# The path of a consumer to its position in a partition: its polls and moves.
#
# A path is a staircase: for each offset up to the position, the step that carried the consumer over
# that offset last. A poll for a transaction took the records in its step. A move that follows polls
# for no such transaction goes from where these began.


MOVED, TAKEN, GIVEN_UP = range(3)
# An unknown position, after every offset.
ANYWHERE: Final = NEVER_NS


class ConsumerPath:
    """One consumer in one partition. At first its position is unknown."""

    def __init__(self) -> None:
        # Rising upper bounds of the steps, and the kind of each.
        self._upper_bounds = [ANYWHERE]
        self._steps = [MOVED]

    def move(self, to: int) -> None:
        """Note a move to an offset, NONE if it is unknown."""
        to = ANYWHERE if to == NONE else to
        self._go_down(to)
        while self._steps and self._steps[-1] == GIVEN_UP:
            self._pop()
        self._go_up(to, MOVED)

    def poll(self, start: int, after: int, *, taken: bool) -> None:
        """Note a poll from `start` to `after`; `taken`: for a transaction that may be committed."""
        if self._upper_bounds and self._upper_bounds[-1] != start:
            self.move(start)
        self._go_up(after, TAKEN if taken else GIVEN_UP)

    def moved_between(self, lower: int, upper: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges from `lower` up to `upper` that moves carried it over last."""
        step = bisect_right(self._upper_bounds, lower)
        while lower < upper and step < len(self._steps):
            reached = min(self._upper_bounds[step], upper)
            if self._steps[step] == MOVED:
                yield lower, reached
            lower = reached
            step += 1

    def _go_down(self, to: int) -> None:
        """Forget the steps above an offset."""
        step = MOVED
        cut = False
        while self._upper_bounds and self._upper_bounds[-1] > to:
            step = self._pop()
            cut = True
        if cut:
            self._go_up(to, step)

    def _go_up(self, to: int, step: int) -> None:
        if self._upper_bounds and self._upper_bounds[-1] >= to:
            return
        if self._steps and self._steps[-1] == step:
            self._upper_bounds[-1] = to
        else:
            self._upper_bounds.append(to)
            self._steps.append(step)

    def _pop(self) -> int:
        self._upper_bounds.pop()
        return self._steps.pop()


# Ranges that a group was moved over by its consumers, before they wrote its offsets.
#
# A client that skips a record which it cannot process seeks and goes on there, or writes that
# offset before it polls. The group does not leave out records that the consumer was moved over. It
# leaves out those that its polls passed, and those of a move that was taken back.


Range = tuple[int, int]


class _Step(NamedTuple):
    """A consumer's poll or move; `start` is NONE if it is unknown."""

    begin_ns: int
    op: int
    end_ns: int
    start: int
    after: int  # NONE for a move.
    taken: bool

    def go(self, path: ConsumerPath) -> None:
        if self.after == NONE:
            path.move(self.start)
        else:
            path.poll(self.start, self.after, taken=self.taken)


def _moved_over(
    evidence: Evidence, offsets: GroupOffsets, moves: Numbers, places: Numbers
) -> Flags:
    """Return for each place if the group passed it by a write whose consumer was moved over it.

    `moves` are the writes at one partition of a group, one per transaction.
    """
    at = evidence.records.rows.offset[places]
    found = np.zeros(len(at), dtype=bool)
    for first, upper_bound in _moved_ranges(evidence, offsets, moves):
        found |= (first <= at) & (at < upper_bound)
    return found


def _moved_ranges(evidence: Evidence, offsets: GroupOffsets, moves: Numbers) -> set[Range]:
    """Return the ranges that a consumer was moved over, between each offset that it wrote for the
    group and the group's next lower one.
    """
    writes, ops = offsets.writes, evidence.history.ops
    partition = int(writes.place[moves[0]]) % offsets.partition_count
    passes, of = evidence.passed.passes, writes.transaction[moves]
    polls = passes.op[passes.partition == partition]
    polled_by, polled_for = ops.client[polls], ops.transaction[polls]
    effect = np.maximum(ops.begin[writes.op[moves]], evidence.transactions.commit_begin[of])
    by_effect = np.argsort(effect, kind="stable")
    written = writes.offset[moves]
    stood = np.append(NONE, distinct(written))
    below = stood[np.searchsorted(stood, written) - 1]
    ranges: set[Range] = set()
    for client in distinct(polled_by[np.isin(polled_for, of)]).tolist():
        own = by_effect[np.isin(of[by_effect], polled_for[polled_by == client])]
        path = _steps(evidence, partition, client)
        ranges |= _moved(path, effect[own], below[own], written[own], evidence.clock_error_ns)
    return ranges


def _steps(evidence: Evidence, partition: int, client: int) -> list[_Step]:
    """Return the steps of a consumer in a partition, in the order of its calls."""
    history, passes = evidence.history, evidence.passed.passes
    ops, seeks = history.ops, history.seeks
    sought = np.flatnonzero((seeks.partition == partition) & (ops.client[seeks.op] == client))
    polled = np.flatnonzero((passes.partition == partition) & (ops.client[passes.op] == client))
    lost = (ops.outcome != OK) & ((ops.kind == POLL) | (ops.kind == SEEK)) & (ops.client == client)
    steps = [
        _Step(int(ops.begin[op]), int(op), int(ops.end[op]), int(offset), NONE, False)
        for op, offset in zip(seeks.op[sought], seeks.offset[sought], strict=True)
    ]
    # After these its position is unknown.
    steps += [
        _Step(int(ops.begin[op]), int(op), int(ops.begin[op]), NONE, NONE, False)
        for op in np.flatnonzero(lost)
    ]
    of = ops.transaction[passes.op[polled]]
    taken = (of != NONE) & evidence.transactions.is_possible(of)
    for row, start, for_group in zip(polled, starts_of(passes)[polled], taken, strict=True):
        op = int(passes.op[row])
        times = int(ops.begin[op]), op, int(ops.end[op])
        steps.append(_Step(*times, int(start), int(passes.after[row]), bool(for_group)))
    return sorted(steps)


def _moved(
    steps: list[_Step], effects: Numbers, below: Numbers, written: Numbers, slack: int
) -> set[Range]:
    """Return the ranges between two offsets that the consumer was moved over before it wrote the
    upper one.

    The writes are sorted by the earliest times of their effects.
    """
    path, done = ConsumerPath(), 0
    found: set[Range] = set()
    rows = zip(effects.tolist(), below.tolist(), written.tolist(), strict=True)
    for effect, lower, upper in rows:
        while done < len(steps) and steps[done].end_ns < effect - slack:
            steps[done].go(path)
            done += 1
        found.update(path.moved_between(lower, upper))
        # Steps in progress at that time may have been before it, or not.
        ahead, next_one = path, done
        while next_one < len(steps) and steps[next_one].begin_ns <= effect + slack:
            ahead = deepcopy(path) if ahead is path else ahead
            steps[next_one].go(ahead)
            found.update(ahead.moved_between(lower, upper))
            next_one += 1
    return found
