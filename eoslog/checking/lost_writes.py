"""Lost writes and torn transactions: what is missing, of what was promised to be there."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import any_of, distinct
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.missing_records import MissingRecords
from eoslog.checking.operation_kinds import NONE

LOST, TORN = "lost write", "torn transaction"


def lost_writes(evidence: Evidence, missing: MissingRecords) -> Found:
    """Acknowledged records that readers passed in vain, and of whose transaction they have none."""
    of = missing.transactions
    acknowledged = np.ones(len(of), dtype=bool)
    inside = of != NONE
    acknowledged[inside] = evidence.transactions.acknowledged[of[inside]]
    acknowledged[inside] &= ~seen_in_part(evidence)[of[inside]]
    sends, ops = evidence.history.sends, evidence.history.ops

    def show(send: int) -> Anomaly:
        transaction = int(ops.transaction[sends.op[send]])
        by = "" if transaction == NONE else f" and {evidence.transaction(transaction)} committed"
        what = (
            f"{evidence.value(int(sends.value[send]))} was acknowledged{by}; readers passed its "
            f"place in {evidence.partition(int(sends.partition[send]))} and did not get it"
        )
        proof = [evidence.send_op(send)]
        if transaction != NONE:
            proof.append(int(evidence.transactions.commit_op[transaction]))
        return evidence.anomaly(LOST, what, proof)

    return evidence.found(LOST, missing.sends[acknowledged], show)


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
