"""Ends that went back: a partition that ended before a place that was known to be in it.

The end of all data is never before what was told, read or answered as an end earlier; the end of
committed data never before what its readers passed, or were answered as such an end.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import greatest_before, same_as_before
from eoslog.checking.history import Columns, Flags, Numbers
from eoslog.checking.operation_kinds import NONE, READ_COMMITTED, READ_UNCOMMITTED
from eoslog.checking.passed_offsets import starts_of


class _Reached(Columns):
    """What shows that a partition went up to an offset: one row per answer, record and pass."""

    op: Numbers
    partition: Numbers
    offset: Numbers  # An upper bound: the place before it was there.
    by: Numbers  # From when on that is known.
    send: Numbers  # The record's row of the sends; NONE for others.
    decided: Flags  # All before it was, for readers of committed data.


@dataclass
class EndsGoneBack:
    """Rows of the ends, the first wrong one of each partition, and the end that was known then."""

    rows: Numbers
    known: Numbers
    reached: _Reached


def ends_gone_back(evidence: Evidence) -> EndsGoneBack:
    """For each partition whose end went back: the first answer that says so."""
    ends, ops = evidence.history.ends, evidence.history.ops
    reached = _reached(evidence)
    known = np.full(len(ends), NONE, dtype=np.int64)
    levels = ((READ_UNCOMMITTED, reached), (READ_COMMITTED, reached.where(reached.decided)))
    for level, of_level in levels:
        rows = np.flatnonzero(ops.isolation[ends.op] == level)
        known[rows] = _known_before(evidence, rows, of_level)
    wrong = np.flatnonzero(known > ends.offset)
    wrong = wrong[np.lexsort((ops.begin[ends.op[wrong]], ends.partition[wrong]))]
    wrong = wrong[~same_as_before(ends.partition[wrong])]
    return EndsGoneBack(rows=wrong, known=known[wrong], reached=reached)


def proof_of(evidence: Evidence, gone_back: EndsGoneBack, at: int) -> tuple[int, int]:
    """What had shown the end that was known: an operation, and the record's send, or NONE."""
    ends, ops, reached = evidence.history.ends, evidence.history.ops, gone_back.reached
    row = gone_back.rows[at]
    op = ends.op[row]
    rows = np.flatnonzero(
        (reached.partition == ends.partition[row]) & (reached.offset == gone_back.known[at])
    )
    slack = evidence.slack(reached.op[rows], np.full(len(rows), op))
    rows = rows[reached.by[rows] + slack < ops.begin[op]]
    if ops.isolation[op] == READ_COMMITTED:
        rows = rows[reached.decided[rows]]
    return int(reached.op[rows[0]]), int(reached.send[rows[0]])


def _reached(evidence: Evidence) -> _Reached:
    history, passes = evidence.history, evidence.passed.passes
    ends, sends, ops = history.ends, history.sends, history.ops
    of = ops.transaction[sends.op]
    # What is not committed may be gone, with its transaction, after a power cut.
    told = np.flatnonzero((sends.offset != NONE) & evidence.transactions.is_committed(of))
    told_by = ops.end[sends.op[told]]
    inside = of[told] != NONE
    told_by[inside] = np.maximum(
        told_by[inside], evidence.transactions.committed_by[of[told][inside]]
    )
    proper = np.flatnonzero(starts_of(passes) < passes.after)
    if not len(ends):
        told, told_by, proper = told[:0], told_by[:0], proper[:0]  # Nobody asks.
    op = np.concatenate([ends.op, sends.op[told], passes.op[proper]])
    others = [np.full(count, NONE, dtype=np.int64) for count in (len(ends), len(proper))]
    parts = [ends.partition, sends.partition[told], passes.partition[proper]]
    return _Reached(
        op=op,
        partition=np.concatenate(parts),
        offset=np.concatenate([ends.offset, sends.offset[told] + 1, passes.after[proper]]),
        by=np.concatenate([ops.end[ends.op], told_by, ops.end[passes.op[proper]]]),
        send=np.concatenate([others[0], told, others[1]]),
        # A send has no isolation: an open transaction may hold back its record.
        decided=ops.isolation[op] == READ_COMMITTED,
    )


def _known_before(evidence: Evidence, rows: Numbers, reached: _Reached) -> Numbers:
    """How far the partition of each of these ends was known to go before it was asked for."""
    history = evidence.history
    ends, ops = history.ends, history.ops
    op, partition = ends.op[rows], ends.partition[rows]
    width = len(history.names.clients)
    found = greatest_before(
        reached.partition,
        reached.by + evidence.clock_error_ns,
        reached.offset,
        partition,
        ops.begin[op],
    )
    if evidence.clock_error_ns:
        by_itself = greatest_before(
            reached.partition * width + ops.client[reached.op],
            reached.by,
            reached.offset,
            partition * width + ops.client[op],
            ops.begin[op],
        )
        found = np.maximum(found, by_itself)
    return found
