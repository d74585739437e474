"""Non-monotonic sends and polls: a client's records stand, or were handed out, in another order."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence, sent_offsets
from eoslog.checking.groups_of_rows import group_numbers, running_greatest, same_as_before
from eoslog.checking.history import Numbers
from eoslog.checking.operation_kinds import NONE, OK

SENDS, POLLS = "non-monotonic send", "non-monotonic poll"


def non_monotonic_sends(evidence: Evidence) -> Found:
    """Records of a client that stand before one that it had sent earlier.

    Two at the same offset are inconsistent offsets, whoever sent them.
    A record that was sent several times counts as sent later only if all tries of it were.
    """
    history, tries = evidence.history, evidence.tries
    ops, sends = history.ops, history.sends
    offsets = sent_offsets(history, evidence.records)
    rows = np.flatnonzero(
        (offsets != NONE) & (ops.outcome[sends.op] == OK) & (sends.partition != NONE)
    )
    rows = rows[np.lexsort((tries.turn[rows], sends.partition[rows], ops.client[sends.op[rows]]))]
    lane = group_numbers(same_as_before(sends.partition[rows], ops.client[sends.op[rows]]))
    highest = _highest_before(evidence, rows, lane, offsets[rows])
    wrong = np.flatnonzero((highest != NONE) & (offsets[rows] < highest))

    def show(at: int) -> Anomaly:
        earlier = (lane == lane[at]) & (offsets[rows] == highest[at])
        earlier &= tries.turn[rows] < tries.first_turn[rows[at]]
        one, other = int(rows[earlier][-1]), int(rows[at])
        what = (
            f"{evidence.value(int(sends.value[one]))} was sent before "
            f"{evidence.value(int(sends.value[other]))}, and stands behind it in "
            f"{evidence.partition(int(sends.partition[one]))}: "
            f"offsets {offsets[one]} and {offsets[other]}"
        )
        return evidence.anomaly(SENDS, what, [evidence.send_op(one), evidence.send_op(other)])

    return evidence.found(SENDS, wrong, show)


def _highest_before(evidence: Evidence, rows: Numbers, lane: Numbers, offsets: Numbers) -> Numbers:
    """For sends sorted by lane and turn: the greatest offset sent before all tries of each."""
    tries = evidence.tries
    before = np.arange(len(rows))  # So many rows are sent before it.
    repeated = np.flatnonzero(tries.first_turn[rows] != tries.turn[rows])
    if len(repeated):
        width = len(tries) + 1
        wanted = lane[repeated] * width + tries.first_turn[rows[repeated]] + 1
        before[repeated] = np.searchsorted(lane * width + tries.turn[rows] + 1, wanted)
    greatest = running_greatest(lane, offsets)
    highest = np.full(len(rows), NONE, dtype=np.int64)
    there = before > 0
    there[there] = lane[before[there] - 1] == lane[there]
    highest[there] = greatest[before[there] - 1]
    return highest


def non_monotonic_polls(evidence: Evidence) -> Found:
    """Polls that gave records in another order than the log's, or went back without a seek."""
    passes, reads = evidence.passed.passes, evidence.history.reads
    of_read = evidence.passed.of_read
    order = np.argsort(of_read, kind="stable")
    same = same_as_before(of_read[order])
    down = np.flatnonzero(same[1:] & (reads.offset[order[1:]] <= reads.offset[order[:-1]])) + 1
    back = np.zeros(len(passes), dtype=bool)
    back[of_read[order[down]]] = True
    stood = passes.before != NONE
    back |= stood & ((passes.first < passes.before) | (passes.after < passes.before))
    back |= passes.told < passes.after

    def show(at: int) -> Anomaly:
        rows = np.flatnonzero(of_read == at)
        got = ", ".join(map(str, reads.offset[rows][:10])) or "nothing"
        stood = int(passes.before[at])
        where = f"from {evidence.partition(int(passes.partition[at]))}"
        place = "" if stood == NONE else f" when it stood at offset {stood}"
        what = f"a poll returned {got} {where}{place}, and left it at {passes.told[at]}"
        return evidence.anomaly(POLLS, what, [int(passes.previous_op[at]), int(passes.op[at])])

    return evidence.found(POLLS, np.flatnonzero(back), show)
