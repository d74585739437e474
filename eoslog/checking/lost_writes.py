"""Lost writes and torn transactions: what is missing, of what was promised to be there."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.counted_ends import CountedEnds, counted_ends
from eoslog.checking.ends_gone_back import EndsGoneBack, ends_gone_back, proof_of
from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import any_of, distinct
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.missing_records import MissingRecords, end_below
from eoslog.checking.operation_kinds import ENDS, NONE

LOST, TORN = "lost write", "torn transaction"


def lost_writes(evidence: Evidence, missing: MissingRecords) -> Found:
    """Acknowledged records that are missing, of whose transaction readers have none; lost ends."""
    of = missing.transactions
    acknowledged = np.ones(len(of), dtype=bool)
    inside = of != NONE
    acknowledged[inside] = evidence.transactions.acknowledged[of[inside]]
    acknowledged[inside] &= ~seen_in_part(evidence)[of[inside]]
    lost = np.flatnonzero(acknowledged)
    ends = evidence.history.ends
    gone_back = ends_gone_back(evidence)
    # Where records are named that are nowhere, the end says no more.
    named = evidence.history.sends.partition[missing.sends[missing.nowhere]]
    cut = np.flatnonzero(~np.isin(ends.partition[gone_back.rows], named))
    counted = counted_ends(evidence)
    said = [evidence.history.sends.partition[missing.sends], ends.partition[gone_back.rows]]
    counted = counted.where(~np.isin(ends.partition[counted.row], np.concatenate(said)))

    def show(at: int) -> Anomaly:
        if at >= len(lost) + len(cut):
            return _without_room(evidence, counted, at - len(lost) - len(cut))
        if at >= len(lost):
            return _end_gone_back(evidence, gone_back, int(cut[at - len(lost)]))
        row = int(lost[at])
        return _lost(evidence, int(missing.sends[row]), bool(missing.nowhere[row]))

    return evidence.found(LOST, range(len(lost) + len(cut) + len(counted)), show)


def _lost(evidence: Evidence, send: int, nowhere: bool) -> Anomaly:
    sends, ops = evidence.history.sends, evidence.history.ops
    transaction = int(ops.transaction[sends.op[send]])
    by = "" if transaction == NONE else f" and {evidence.transaction(transaction)} committed"
    partition = evidence.partition(int(sends.partition[send]))
    proof = [evidence.send_op(send)]
    if transaction != NONE:
        proof.append(int(evidence.transactions.commit_op[transaction]))
    why = f"readers passed its place in {partition} and did not get it"
    if nowhere:
        why = f"there is no place for it in {partition}"
        if sends.offset[send] != NONE:
            why = f"{partition} ended before its offset, {sends.offset[send]}, afterwards"
            proof.append(end_below(evidence, send))
    what = f"{evidence.value(int(sends.value[send]))} was acknowledged{by}; {why}"
    return evidence.anomaly(LOST, what, proof)


def _end_gone_back(evidence: Evidence, gone_back: EndsGoneBack, at: int) -> Anomaly:
    ends, sends, ops = evidence.history.ends, evidence.history.sends, evidence.history.ops
    row, known = int(gone_back.rows[at]), int(gone_back.known[at])
    op, send = proof_of(evidence, gone_back, at)
    proof = [op, int(ends.op[row])]
    if send != NONE:
        how = f"held {evidence.value(int(sends.value[send]))} at {known - 1}"
        transaction = evidence.transaction_of_send(send)
        if transaction != NONE:
            proof.append(int(evidence.transactions.commit_op[transaction]))
    else:
        how = f"had ended at {known}" if ops.kind[op] == ENDS else f"had been read up to {known}"
    partition = evidence.partition(int(ends.partition[row]))
    what = f"{partition} ended at offset {ends.offset[row]}, and {how} before"
    return evidence.anomaly(LOST, what, proof)


def _without_room(evidence: Evidence, counted: CountedEnds, at: int) -> Anomaly:
    ends, row, send = evidence.history.ends, int(counted.row[at]), int(counted.send[at])
    what = (
        f"{evidence.partition(int(ends.partition[row]))} ended at offset {ends.offset[row]}, and "
        f"{counted.count[at]} records had been acknowledged before, the last of them "
        f"{evidence.value(int(evidence.history.sends.value[send]))}"
    )
    return evidence.anomaly(LOST, what, [evidence.send_op(send), int(ends.op[row])])


def torn_transactions(evidence: Evidence, missing: MissingRecords) -> Found:
    """Transactions of which readers have one record, and lack another whose place they passed."""
    of, seen = missing.transactions, seen_in_part(evidence)
    inside = of != NONE
    torn = distinct(of[inside][seen[of[inside]]])
    twice = np.flatnonzero(evidence.transactions.decided_twice)
    sends = evidence.history.sends

    def show(at: int) -> Anomaly:
        if at >= len(torn):
            transaction = int(twice[at - len(torn)])
            ends = evidence.transactions.commit_op, evidence.transactions.abort_op
            what = f"{evidence.transaction(transaction)} was committed and aborted"
            return evidence.anomaly(TORN, what, [int(column[transaction]) for column in ends])
        transaction = int(torn[at])
        lacking = missing.sends[of == transaction]
        rows = evidence.records.rows
        place = _place_of(evidence, transaction)
        what = (
            f"of {evidence.transaction(transaction)} {evidence.place(place)} was read, and "
            f"{evidence.value(int(sends.value[lacking[0]]))} is not where it was sent to: "
            f"{evidence.partition(int(sends.partition[lacking[0]]))}"
        )
        ops = [evidence.send_op(int(rows.writer[place])), evidence.place_op(place)]
        ops += [evidence.send_op(int(send)) for send in lacking[:10]]
        return evidence.anomaly(
            TORN, what, [*ops, int(evidence.transactions.commit_op[transaction])]
        )

    return evidence.found(TORN, range(len(torn) + len(twice)), show)


def seen_in_part(evidence: Evidence) -> Flags:
    """Per transaction: whether a reader of committed data has any of its records."""
    rows, history = evidence.records.rows, evidence.history
    writers = _committed_writers(evidence)
    of = history.ops.transaction[history.sends.op[rows.writer[writers]]]
    count = len(history.names.transactions)
    return any_of(of[of != NONE], np.ones(int((of != NONE).sum()), dtype=bool), count)


def _committed_writers(evidence: Evidence) -> Numbers:
    rows = evidence.records.rows
    return np.flatnonzero(rows.seen_committed & (rows.writer != NONE))


def _place_of(evidence: Evidence, transaction: int) -> int:
    """A place that shows a record of a transaction."""
    rows, history = evidence.records.rows, evidence.history
    places = _committed_writers(evidence)
    of = history.ops.transaction[history.sends.op[rows.writer[places]]]
    return int(places[np.flatnonzero(of == transaction)[0]])
