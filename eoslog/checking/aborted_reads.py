"""Aborted reads (G1a): a record that must not be there was read."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.operation_kinds import FAIL, NONE

KIND = "aborted read"


def aborted_reads(evidence: Evidence) -> Found:
    """Records of sends that failed, read by anyone; of aborted transactions, read as committed."""
    history, rows = evidence.history, evidence.records.rows
    known = np.flatnonzero((rows.writer != NONE) & rows.seen)
    op = history.sends.op[rows.writer[known]]
    of = history.ops.transaction[op]
    aborted = np.zeros(len(known), dtype=bool)
    aborted[of != NONE] = evidence.transactions.refused[of[of != NONE]]
    wrong = (history.ops.outcome[op] == FAIL) | (aborted & rows.seen_committed[known])

    def show(place: int) -> Anomaly:
        send = int(rows.writer[place])
        transaction = evidence.transaction_of_send(send)
        ops = [evidence.send_op(send), evidence.place_op(place)]
        if history.ops.outcome[ops[0]] == FAIL:
            what = f"{evidence.place(place)} was read; its send failed"
        else:
            what = f"{evidence.place(place)} was read; {evidence.transaction(transaction)} aborted"
            of_end = evidence.transactions.abort_op, evidence.transactions.commit_op
            ops[1:1] = [int(column[transaction]) for column in of_end]
        return evidence.anomaly(KIND, what, ops)

    return evidence.found(KIND, known[wrong], show)
