"""Precommitted reads: a record was read as committed before anyone had asked for its commit."""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.operation_kinds import FAIL, NEVER_NS, NONE, READ_COMMITTED

KIND = "precommitted read"


def precommitted_reads(evidence: Evidence) -> Found:
    """Reads of committed data that ended before the first commit of the record's transaction."""
    history, transactions = evidence.history, evidence.transactions
    ops, reads, rows = history.ops, history.reads, evidence.records.rows
    writers = rows.writer[evidence.records.of_read]
    found = np.flatnonzero((writers != NONE) & (ops.isolation[reads.op] == READ_COMMITTED))
    send_op = history.sends.op[writers[found]]
    of = ops.transaction[send_op]
    theirs = (of != NONE) & (ops.outcome[send_op] != FAIL)
    found, of = found[theirs], of[theirs]
    found = found[~transactions.refused[of]]
    early = read_too_early(evidence, found)
    _, first = np.unique(evidence.records.of_read[found[early]], return_index=True)
    wrong = found[early][np.sort(first)]

    def show(read: int) -> Anomaly:
        place = int(evidence.records.of_read[read])
        send = int(rows.writer[place])
        transaction = evidence.transaction_of_send(send)
        commit = int(transactions.commit_op[transaction])
        when = "before its commit began" if commit != NONE else "which nobody committed"
        what = f"{evidence.place(place)} of {evidence.transaction(transaction)} was read, {when}"
        return evidence.anomaly(KIND, what, [evidence.send_op(send), int(reads.op[read]), commit])

    return evidence.found(KIND, wrong, show)


def read_too_early(evidence: Evidence, read: Numbers) -> Flags:
    """For reads of records of transactions: whether nobody had asked for the commit by then.

    False where the record is of no transaction.
    """
    history, transactions = evidence.history, evidence.transactions
    ops = history.ops
    writers = evidence.records.rows.writer[evidence.records.of_read[read]]
    of = ops.transaction[history.sends.op[writers]]
    commit_op, poll = transactions.commit_op[of], history.reads.op[read]
    slack = evidence.slack(poll, np.where(commit_op == NONE, poll, commit_op))
    begun = transactions.commit_begin[of]
    early: Flags = (of != NONE) & ((begun == NEVER_NS) | (ops.end[poll] + slack < begun))
    return early
