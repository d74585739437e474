"""Outcomes of transactions, as the answers to their clients tell them.

A commit that is ok committed it; an abort that is ok, or commits that all failed, aborted it; with
no commit that may have taken effect it was never committed. A commit of unknown outcome leaves it
open until a reader of committed data is seen with one of its records, or one of its offsets.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.groups_of_rows import any_of, least
from eoslog.checking.history import ABORT, COMMIT, FAIL, NEVER_NS, NONE, OK, Flags, History, Numbers


@dataclass
class Transactions:
    """One row per transaction."""

    committed: Flags  # A commit is ok, or a reader's evidence says so.
    acknowledged: Flags  # A commit is ok.
    refused: Flags  # An abort is ok or a commit failed, and none is ok or may have taken effect.
    decided_twice: Flags  # A commit and an abort are ok.
    possible: Flags  # It is committed, or may be.
    commit_begin: Numbers  # The first commit that may have taken effect; NEVER_NS without one.
    committed_by: Numbers  # It was committed by then, at the latest.
    commit_op: Numbers  # An operation to show for its end; NONE without one.
    abort_op: Numbers

    def is_committed(self, transactions: Numbers) -> Flags:
        """Return for numbers of transactions if each is committed; True where there is none."""
        return _looked_up(self.committed, transactions, True)

    def is_possible(self, transactions: Numbers) -> Flags:
        """Return for numbers of transactions if each may be committed; True where there is none."""
        return _looked_up(self.possible, transactions, True)

    def commit(self, transactions: Numbers, seen_at: Numbers) -> None:
        """Readers saw these, at these times, as committed; before the commit that is no time."""
        able = self.possible[transactions]
        transactions, seen_at = transactions[able], seen_at[able]
        self.committed[transactions] = True
        seen_at = np.maximum(seen_at, self.commit_begin[transactions])
        np.minimum.at(self.committed_by, transactions, seen_at)


def transactions_of(history: History) -> Transactions:
    """Return all transactions that the history names."""
    ops, count = history.ops, len(history.names.transactions)
    ends = ops.where(ops.transaction != NONE)
    rows = np.flatnonzero(ops.transaction != NONE)
    commits, aborts = ends.kind == COMMIT, ends.kind == ABORT
    ok, of = ends.outcome == OK, ends.transaction
    tried = commits & (ends.outcome != FAIL)
    committed = any_of(of, commits & ok, count)
    aborted = any_of(of, aborts & ok, count)
    may_commit = any_of(of, tried, count)
    commit_failed = any_of(of, commits & (ends.outcome == FAIL), count)
    acknowledged_by = least(of[commits & ok], ends.end[commits & ok], count)
    commit_op = least(of[commits], rows[commits], count, NEVER_NS)
    good = least(of[commits & ok], rows[commits & ok], count, NEVER_NS)
    commit_op = np.where(good != NEVER_NS, good, commit_op)
    abort_op = least(of[aborts], rows[aborts], count, NEVER_NS)
    return Transactions(
        committed=committed.copy(),
        acknowledged=committed,
        refused=~committed & (aborted | (commit_failed & ~may_commit)),
        decided_twice=committed & aborted,
        possible=committed | (may_commit & ~aborted),
        commit_begin=least(of[tried], ends.begin[tried], count),
        committed_by=acknowledged_by,
        commit_op=np.where(commit_op == NEVER_NS, NONE, commit_op),
        abort_op=np.where(abort_op == NEVER_NS, NONE, abort_op),
    )


def _looked_up(flags: Flags, transactions: Numbers, without: bool) -> Flags:
    found = np.full(len(transactions), without, dtype=bool)
    there = transactions != NONE
    found[there] = flags[transactions[there]]
    return found
