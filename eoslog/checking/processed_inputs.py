"""What a group's transactions took as input: each record once, and none left out.

Only groups whose offsets move in transactions alone are looked at, all of which say what they
polled: somebody who sets the offsets by hand may well want records again, or leave some out.
"""

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets
from eoslog.checking.groups_of_rows import distinct, greatest, rows_of, same_as_before
from eoslog.checking.history import Numbers
from eoslog.checking.inputs_left_out import Shown, inputs_left_out
from eoslog.checking.missing_records import MissingRecords
from eoslog.checking.operation_kinds import NONE, OK


def processed_inputs(
    evidence: Evidence, offsets: GroupOffsets, missing: MissingRecords
) -> list[Shown]:
    """Inputs of two committed transactions of a group, and inputs of none."""
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
            continue  # One does not say what it took, be it nothing.
        taken = np.concatenate([here[a:b] for a, b in zip(left, right, strict=True)])
        upper_bounds = np.repeat(writes.offset[mine], right - left)
        within = reads.offset[taken] < upper_bounds
        shown += _taken_twice(evidence, group, taken[within])
        shown += inputs_left_out(evidence, offsets, missing, int(place), mine, here)
    return shown


def _one_per_transaction(evidence: Evidence, offsets: GroupOffsets, moves: Numbers) -> Numbers:
    """How far each transaction certainly moved the group: of what it may have written last."""
    writes, ops = offsets.writes, evidence.history.ops
    of, op = writes.transaction[moves], writes.op[moves]
    ok = ops.outcome[op] == OK
    count = len(evidence.history.names.transactions)
    last = greatest(of[ok], ops.begin[op[ok]], count, NONE)[of]
    moves = moves[ops.end[op] + evidence.clock_error_ns >= last]
    moves = moves[np.lexsort((writes.offset[moves], writes.transaction[moves]))]
    return moves[~same_as_before(writes.transaction[moves])]


def _taken_twice(evidence: Evidence, group: int, taken: Numbers) -> list[Shown]:
    """Inputs at the same offset of two committed transactions."""
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
        ends = [int(evidence.transactions.commit_op[number]) for number in (one, other)]
        found.append((what, [int(reads.op[first]), int(reads.op[second]), *ends]))
    return found
