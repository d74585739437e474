"""What a group's transactions took as input: each record once, and none left out.

Only groups whose offsets move in transactions alone are looked at, all of which say what they
polled: somebody who sets the offsets by hand may well want records again, or leave some out.
"""

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets
from eoslog.checking.groups_of_rows import distinct, place_keys
from eoslog.checking.history import Numbers
from eoslog.checking.operation_kinds import NONE

Shown = tuple[str, list[int]]


def processed_inputs(evidence: Evidence, offsets: GroupOffsets) -> list[Shown]:
    """Inputs of two committed transactions of a group, and inputs of none."""
    history, transactions = evidence.history, evidence.transactions
    reads, ops, writes = history.reads, history.ops, offsets.writes
    possible = offsets.possible(history, transactions)
    inside = writes.transaction != NONE
    by_hand = distinct(writes.place[possible & ~inside])
    chosen = np.flatnonzero(possible & inside & ~np.isin(writes.place, by_hand))
    if not len(chosen):
        return []
    inputs = np.flatnonzero(ops.transaction[reads.op] != NONE)
    of_input = ops.transaction[reads.op[inputs]]
    order = np.lexsort((reads.offset[inputs], reads.partition[inputs], of_input))
    inputs, of_input = inputs[order], of_input[order]
    width = offsets.partition_count
    input_at = of_input * width + reads.partition[inputs]
    shown: list[Shown] = []
    chosen = chosen[np.argsort(writes.place[chosen], kind="stable")]
    places, starts = np.unique(writes.place[chosen], return_index=True)
    for place, mine in zip(places, np.split(chosen, starts[1:]), strict=True):
        group, partition = divmod(int(place), width)
        # The furthest that each transaction moved the group at this partition.
        mine = mine[np.lexsort((writes.offset[mine], writes.transaction[mine]))]
        mine = mine[np.append(writes.transaction[mine][1:] != writes.transaction[mine][:-1], True)]
        of = writes.transaction[mine] * width + partition
        left, right = np.searchsorted(input_at, of, "left"), np.searchsorted(input_at, of, "right")
        if (left == right).any():
            continue  # One does not say what it took.
        taken = np.concatenate([inputs[a:b] for a, b in zip(left, right, strict=True)])
        upper_bounds = np.repeat(writes.offset[mine], right - left)
        within = reads.offset[taken] < upper_bounds
        shown += _taken_twice(evidence, group, taken[within])
        sure = transactions.committed[writes.transaction[mine]]
        if sure.any():
            furthest = int(writes.offset[mine[sure]].max())
            shown += _left_out(evidence, group, partition, taken, furthest)
    return shown


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


def _left_out(
    evidence: Evidence, group: int, partition: int, taken: Numbers, furthest: int
) -> list[Shown]:
    """Records between the group's first input and its offset that no transaction took."""
    history, rows = evidence.history, evidence.records.rows
    reads = history.reads
    first = int(reads.offset[taken].min())
    partitions = np.full(2, partition, dtype=np.int64)
    bounds = place_keys(partitions, np.array([first, furthest], dtype=np.int64))
    left, right = np.searchsorted(rows.key, bounds)
    there = np.arange(left, right)[(rows.committed & rows.seen)[left:right]]
    skipped = there[~np.isin(rows.offset[there], reads.offset[taken])]
    writes = history.offset_writes
    at = (writes.offset == furthest) & (writes.partition == partition)
    at &= history.ops.group[writes.op] == group
    proof = [int(op) for op in writes.op[at][:3]]
    return [
        (
            f"group {history.names.groups[group]!r} stands at offset {furthest}, and none of its "
            f"transactions took {evidence.place(int(place))}",
            [evidence.place_op(int(place)), *proof],
        )
        for place in skipped
    ]
