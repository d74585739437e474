"""Where a group stands since a consumer was moved there, and the offsets before that place.

A transaction may write the very offset that its consumer was moved to, before anything is polled
there: whoever skips a record that cannot be processed does so. What the consumer was moved over is
then not left out by the group. What its polls went over for the group's transactions is.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from eoslog.checking.consumer_path import ConsumerPath
from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets
from eoslog.checking.groups_of_rows import distinct
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.operation_kinds import NEVER_NS, NONE, OK, POLL, SEEK
from eoslog.checking.passed_offsets import starts_of


class Step(NamedTuple):
    """A consumer's poll, or what moved it; `start` is NONE where nobody knows the place."""

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


def moved_over(
    evidence: Evidence, offsets: GroupOffsets, moves: Numbers, inputs: Numbers, places: Numbers
) -> Flags:
    """Whether each place is between a sought offset that was written and where the move began.

    `moves` are the writes at one partition of a group, one per transaction, `inputs` the reads of
    the partition for any transaction.
    """
    at = evidence.records.rows.offset[places]
    found = np.zeros(len(at), dtype=bool)
    for first, upper_bound in _moved_ranges(evidence, offsets, moves, inputs):
        found |= (first <= at) & (at < upper_bound)
    return found


def _moved_ranges(
    evidence: Evidence, offsets: GroupOffsets, moves: Numbers, inputs: Numbers
) -> list[tuple[int, int]]:
    """For each offset that the group has by moves alone: from where it was moved, up to it."""
    writes, ops = offsets.writes, evidence.history.ops
    partition = int(writes.place[moves[0]]) % offsets.partition_count
    read_by, of = ops.client[evidence.history.reads.op[inputs]], writes.transaction[moves]
    read_for = ops.transaction[evidence.history.reads.op[inputs]]
    effect = np.maximum(ops.begin[writes.op[moves]], evidence.transactions.commit_begin[of])
    began = np.full(len(moves), NEVER_NS, dtype=np.int64)
    by_effect = np.argsort(effect, kind="stable")
    for client in distinct(read_by[np.isin(read_for, of)]).tolist():
        own = by_effect[np.isin(of[by_effect], read_for[read_by == client])]
        path = _steps(evidence, partition, client)
        begins = _begins(path, effect[own], writes.offset[moves[own]], evidence.clock_error_ns)
        began[own] = np.minimum(began[own], begins)
    written = writes.offset[moves]
    stood = np.append(NONE, distinct(written))
    otherwise = set(written[began == NEVER_NS].tolist())
    ranges: dict[int, int] = {}
    for offset, begin in zip(written.tolist(), began.tolist(), strict=True):
        if offset not in otherwise:
            below = int(stood[np.searchsorted(stood, offset) - 1])
            ranges[offset] = min(max(begin, below), ranges.get(offset, NEVER_NS))
    return [(first, upper_bound) for upper_bound, first in ranges.items()]


def _steps(evidence: Evidence, partition: int, client: int) -> list[Step]:
    """What a consumer did in a partition, in the order of its calls."""
    history, passes = evidence.history, evidence.passed.passes
    ops, seeks = history.ops, history.seeks
    sought = np.flatnonzero((seeks.partition == partition) & (ops.client[seeks.op] == client))
    polled = np.flatnonzero((passes.partition == partition) & (ops.client[passes.op] == client))
    lost = (ops.outcome != OK) & ((ops.kind == POLL) | (ops.kind == SEEK)) & (ops.client == client)
    steps = [
        Step(int(ops.begin[op]), int(op), int(ops.end[op]), int(offset), NONE, False)
        for op, offset in zip(seeks.op[sought], seeks.offset[sought], strict=True)
    ]
    # Where it stands after these nobody knows.
    steps += [
        Step(int(ops.begin[op]), int(op), int(ops.begin[op]), NONE, NONE, False)
        for op in np.flatnonzero(lost)
    ]
    of = ops.transaction[passes.op[polled]]
    taken = (of != NONE) & evidence.transactions.is_possible(of)
    for row, start, for_group in zip(polled, starts_of(passes)[polled], taken, strict=True):
        op = int(passes.op[row])
        times = int(ops.begin[op]), op, int(ops.end[op])
        steps.append(Step(*times, int(start), int(passes.after[row]), bool(for_group)))
    return sorted(steps)


def _begins(steps: list[Step], effects: Numbers, offsets: Numbers, slack: int) -> Numbers:
    """Where the move began that carried the consumer to each offset; NEVER_NS if none did.

    The offsets are sorted by when they took effect, at the earliest.
    """
    path, done = ConsumerPath(), 0
    found = np.full(len(offsets), NEVER_NS, dtype=np.int64)
    for row, (effect, offset) in enumerate(zip(effects.tolist(), offsets.tolist(), strict=True)):
        while done < len(steps) and steps[done].end_ns < effect - slack:
            steps[done].go(path)
            done += 1
        begins = [path.moved_from(offset)]
        # What was under way at that time may have been before it, or not.
        ahead, next_one = path, done
        while next_one < len(steps) and steps[next_one].begin_ns <= effect + slack:
            ahead = deepcopy(path) if ahead is path else ahead
            steps[next_one].go(ahead)
            begins.append(ahead.moved_from(offset))
            next_one += 1
        found[row] = min((one for one in begins if one is not None), default=NEVER_NS)
    return found
