"""What a group was moved over by its consumers, on their way to the offsets that it was brought to.

Whoever skips a record that cannot be processed seeks, and goes on there, or writes that very offset
before anything is polled. What the consumer was moved over is then not left out by the group. What
its polls went over is, and what a move went over that was taken back.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from eoslog.checking.consumer_path import ConsumerPath
from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets
from eoslog.checking.groups_of_rows import distinct
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.operation_kinds import NONE, OK, POLL, SEEK
from eoslog.checking.passed_offsets import starts_of

Range = tuple[int, int]


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


def moved_over(evidence: Evidence, offsets: GroupOffsets, moves: Numbers, places: Numbers) -> Flags:
    """Whether the group came over each place by a write whose consumer was moved over it.

    `moves` are the writes at one partition of a group, one per transaction.
    """
    at = evidence.records.rows.offset[places]
    found = np.zeros(len(at), dtype=bool)
    for first, upper_bound in _moved_ranges(evidence, offsets, moves):
        found |= (first <= at) & (at < upper_bound)
    return found


def _moved_ranges(evidence: Evidence, offsets: GroupOffsets, moves: Numbers) -> set[Range]:
    """Between each offset that the group was brought to and the next one below that it ever had:
    what the consumer that brought it there was moved over.
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


def _moved(
    steps: list[Step], effects: Numbers, below: Numbers, written: Numbers, slack: int
) -> set[Range]:
    """What the consumer was moved over between two offsets, when it wrote the upper one.

    The writes are sorted by when they took effect, at the earliest.
    """
    path, done = ConsumerPath(), 0
    found: set[Range] = set()
    rows = zip(effects.tolist(), below.tolist(), written.tolist(), strict=True)
    for effect, lower, upper in rows:
        while done < len(steps) and steps[done].end_ns < effect - slack:
            steps[done].go(path)
            done += 1
        found.update(path.moved_between(lower, upper))
        # What was under way at that time may have been before it, or not.
        ahead, next_one = path, done
        while next_one < len(steps) and steps[next_one].begin_ns <= effect + slack:
            ahead = deepcopy(path) if ahead is path else ahead
            steps[next_one].go(ahead)
            found.update(ahead.moved_between(lower, upper))
            next_one += 1
    return found
