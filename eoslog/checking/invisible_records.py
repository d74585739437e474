"""Invisible records: committed, and a reader that stands before them is given nothing.

A reader waits in front of a record while its polls return nothing and its position stays. If it
does so for longer than records may take to be seen, and nothing that was open can hold the record
back, the record stays invisible. Readers of all data are not held back by open transactions; but of
what may be held back from others nothing is concluded for them either.
"""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.groups_of_rows import distinct, place_keys, same_as_before
from eoslog.checking.history import Columns, Flags, Numbers
from eoslog.checking.missing_records import MissingRecords, offset_brackets
from eoslog.checking.operation_kinds import (
    FAIL,
    INIT,
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OK,
    READ_UNCOMMITTED,
)

KIND = "invisible record"


class _Waits(Columns):
    """One row per reader and partition where it waited in vain: its polls from first to last."""

    partition: Numbers
    position: Numbers
    begin: Numbers
    last_begin: Numbers
    end: Numbers
    first_op: Numbers
    last_op: Numbers
    to_all: Flags  # The reader is given all data, not only what is committed.


class _Hidden(Columns):
    """One row per committed record that nobody read."""

    send: Numbers
    partition: Numbers
    lowest: Numbers  # The least offset that it can have.
    since: Numbers  # From then on nothing holds it back; NEVER_NS if something may for ever.
    unseen: Flags  # Nobody has it of the readers of all data either.


def invisible_records(evidence: Evidence, missing: MissingRecords) -> Found:
    """Records that nobody read, though readers waited at their place when nothing held them back.

    What readers passed in vain is `missing`, and no matter of this.
    """
    waits, hidden = _waits(evidence), _hidden_records(evidence, missing)
    sends = evidence.history.sends
    found: dict[int, int] = {}
    for partition in np.intersect1d(waits.partition, hidden.partition):
        mine: _Hidden = hidden.where(hidden.partition == partition)
        for wait in np.flatnonzero(waits.partition == partition).tolist():
            waited = waits.end[wait] - np.maximum(mine.since, waits.begin[wait])
            shown = (
                (mine.lowest >= waits.position[wait])
                & (mine.since < waits.last_begin[wait])
                & (waited >= evidence.visible_within_ns)
                & (mine.unseen | ~waits.to_all[wait])
            )
            for send in mine.send[shown].tolist():
                found.setdefault(send, wait)

    def show(send: int) -> Anomaly:
        wait = found[send]
        what = (
            f"{evidence.value(int(sends.value[send]))} was committed, and a reader at offset "
            f"{waits.position[wait]} of {evidence.partition(int(sends.partition[send]))} got "
            "nothing afterwards"
        )
        transaction = evidence.transaction_of_send(send)
        commit = NONE if transaction == NONE else int(evidence.transactions.commit_op[transaction])
        polls = [int(waits.first_op[wait]), int(waits.last_op[wait])]
        return evidence.anomaly(KIND, what, [evidence.send_op(send), commit, *polls])

    return evidence.found(KIND, sorted(found), show)


def _hidden_records(evidence: Evidence, missing: MissingRecords) -> _Hidden:
    history, records = evidence.history, evidence.records
    sends, ops = history.sends, history.ops
    of = ops.transaction[sends.op]
    rows = np.flatnonzero(
        (ops.outcome[sends.op] == OK)
        & (sends.partition != NONE)
        & evidence.transactions.is_committed(of)
        & ~records.value_seen[sends.value]
    )
    rows = np.setdiff1d(rows, missing.sends, assume_unique=True)
    done = ops.end[sends.op[rows]].copy()
    inside = of[rows] != NONE
    done[inside] = evidence.transactions.committed_by[of[rows][inside]]
    partitions = sends.partition[rows]
    lowest, _ = offset_brackets(evidence, rows)
    # It is in nothing that readers passed: they would have it.
    keys = place_keys(partitions, np.minimum(lowest, OFFSET_MAX))
    behind = evidence.passed.committed.ends_around(keys) & OFFSET_MAX
    lowest = np.where(sends.offset[rows] == NONE, np.maximum(lowest, behind), lowest)
    since = done.copy()
    held = _held(evidence)
    for partition in distinct(partitions):
        chosen = partitions == partition
        mine = held.where((held.partition == partition) | (held.partition == NONE))
        order = np.argsort(mine.begin, kind="stable")
        longest = np.append(0, np.maximum.accumulate(mine.until[order]))
        # Whoever began before the record was committed may stand before it.
        begun = np.searchsorted(mine.begin[order], done[chosen] + evidence.clock_error_ns, "right")
        since[chosen] = np.maximum(done[chosen], longest[begun])
    since = np.where(since == NEVER_NS, NEVER_NS, since + evidence.clock_error_ns)
    unseen = ~records.value_seen_at_all[sends.value[rows]]
    return _Hidden(send=rows, partition=partitions, lowest=lowest, since=since, unseen=unseen)


def _waits(evidence: Evidence) -> _Waits:
    """Where readers waited: polls in a row that returned nothing at all."""
    history, passes = evidence.history, evidence.passed.passes
    ops = history.ops
    got = np.zeros(len(ops), dtype=bool)
    got[history.reads.op] = True
    empty = np.flatnonzero(~got[passes.op])
    op, partition = passes.op[empty], passes.partition[empty]
    order = np.lexsort((op, ops.begin[op], partition, ops.client[op]))
    empty, op, partition = empty[order], op[order], partition[order]
    position = passes.after[empty]
    # The same wait goes on while the poll before is the one that left the consumer here.
    goes_on = same_as_before(ops.client[op], partition, position, ops.isolation[op])
    goes_on[1:] &= passes.previous_op[empty[1:]] == op[:-1]
    first = np.flatnonzero(~goes_on)
    last = np.append(first[1:], len(op)) - 1 if len(op) else first
    return _Waits(
        partition=partition[first],
        position=position[first],
        begin=ops.begin[op[first]],
        last_begin=ops.begin[op[last]],
        end=ops.end[op[last]],
        first_op=op[first],
        last_op=op[last],
        to_all=ops.isolation[op[first]] == READ_UNCOMMITTED,
    )


class _Held(Columns):
    """One row per transaction and partition: from when to when it may hold readers back."""

    partition: Numbers
    begin: Numbers
    until: Numbers


def _held(evidence: Evidence) -> _Held:
    history = evidence.history
    ops, sends = history.ops, history.sends
    count = len(history.names.transactions)
    rows = np.flatnonzero((ops.transaction[sends.op] != NONE) & (ops.outcome[sends.op] != FAIL))
    of = ops.transaction[sends.op[rows]]
    ended = evidence.transactions.committed_by.copy()
    aborted = evidence.transactions.abort_op
    ok = aborted != NONE
    ok[ok] = ops.outcome[aborted[ok]] == OK
    ended[ok] = np.minimum(ended[ok], ops.end[aborted[ok]])
    ended = np.minimum(ended, _taken_over(evidence, count))
    return _Held(partition=sends.partition[rows], begin=ops.begin[sends.op[rows]], until=ended[of])


def _taken_over(evidence: Evidence, count: int) -> Numbers:
    """Per transaction: when a later init of its transactional id had ended it."""
    ops, ids = evidence.history.ops, evidence.identities.transactional_id
    found = np.full(count, NEVER_NS, dtype=np.int64)
    inits = np.flatnonzero((ops.kind == INIT) & (ops.outcome == OK) & (ids != NONE))
    named = np.flatnonzero((ops.transaction != NONE) & (ids != NONE))
    last = np.full(count, NONE, dtype=np.int64)
    np.maximum.at(last, ops.transaction[named], ops.begin[named])
    id_of = np.full(count, NONE, dtype=np.int64)
    id_of[ops.transaction[named]] = ids[named]
    for transactional_id in distinct(ids[inits]):
        mine = inits[ids[inits] == transactional_id]
        mine = mine[np.argsort(ops.begin[mine], kind="stable")]
        theirs = np.flatnonzero(id_of == transactional_id)
        soonest = np.append(np.minimum.accumulate(ops.end[mine][::-1])[::-1], NEVER_NS)
        at = np.searchsorted(ops.begin[mine], last[theirs] + evidence.clock_error_ns, "right")
        found[theirs] = soonest[at]
    return found
