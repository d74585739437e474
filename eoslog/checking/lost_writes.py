"""Lost writes and torn transactions: what is missing, of what was promised to be there."""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.evidence import Evidence, starts_of
from eoslog.checking.history import (
    ENDS,
    FAIL,
    NEVER_NS,
    NONE,
    OK,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Columns,
    Flags,
    Numbers,
    any_of,
    distinct,
    greatest,
    greatest_before,
    least,
    same_as_before,
)
from eoslog.checking.missing_records import MissingRecords, end_below
from eoslog.checking.report import Anomaly, Found

# Ends that leave no room: a partition that ended before it can hold all that is certainly in it.
#
# Records have an offset each, so a partition goes at least as far as it has records.


class _Reached(Columns):
    """Proofs that a partition went up to an offset: one row per answer, record and pass."""

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
    """Return for each partition whose end went back the first answer that reports it."""
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
    """Return the proof of the end that was known: an operation, and the record's send, or NONE."""
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
    proper = np.flatnonzero(starts_of(passes) < passes.after)
    if not len(ends):
        told, proper = told[:0], proper[:0]  # Nobody asks.
    op = np.concatenate([ends.op, sends.op[told], passes.op[proper]])
    others = [np.full(count, NONE, dtype=np.int64) for count in (len(ends), len(proper))]
    parts = [ends.partition, sends.partition[told], passes.partition[proper]]
    return _Reached(
        op=op,
        partition=np.concatenate(parts),
        offset=np.concatenate([ends.offset, sends.offset[told] + 1, passes.after[proper]]),
        by=np.concatenate([ops.end[ends.op], evidence.there_by(told), ops.end[passes.op[proper]]]),
        send=np.concatenate([others[0], told, others[1]]),
        # A send has no isolation: an open transaction may hold back its record.
        decided=ops.isolation[op] == READ_COMMITTED,
    )


def _known_before(evidence: Evidence, rows: Numbers, reached: _Reached) -> Numbers:
    """Return how far the partition of each of these ends was known to go before the end was asked
    for.
    """
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


# Ends that went back: a partition that ended before a place that was known to be in it.
#
# The end of all data is never before what was told, read or answered as an end earlier; the end
# of committed data never before what its readers passed, or were answered as such an end.


class CountedEnds(Columns):
    """First end of each partition that is lower than the number of its records."""

    row: Numbers  # Of the ends.
    count: Numbers  # So many records were there before it was asked for.
    send: Numbers  # The last of them that was done.


def counted_ends(evidence: Evidence) -> CountedEnds:
    """Ends of all data that are lower than the number of records that were there before."""
    ends, ops = evidence.history.ends, evidence.history.ops
    asked = np.flatnonzero(ops.isolation[ends.op] == READ_UNCOMMITTED)
    found: list[tuple[int, int, int]] = []
    if len(asked):
        rows, done = _there(evidence)
        partitions = evidence.history.sends.partition[rows]
        for partition in distinct(ends.partition[asked]):
            mine = asked[ends.partition[asked] == partition]
            mine = mine[np.argsort(ops.begin[ends.op[mine]], kind="stable")]
            here = np.flatnonzero(partitions == partition)
            here = here[np.argsort(done[here], kind="stable")]
            before = ops.begin[ends.op[mine]] - evidence.clock_error_ns
            counts = np.searchsorted(done[here], before)
            wrong = np.flatnonzero(counts > ends.offset[mine])
            if len(wrong):
                first = int(wrong[0])
                last = int(rows[here[counts[first] - 1]])
                found.append((int(mine[first]), int(counts[first]), last))
    columns = np.array(found, dtype=np.int64).reshape(-1, 3)
    return CountedEnds(row=columns[:, 0], count=columns[:, 1], send=columns[:, 2])


def _there(evidence: Evidence) -> tuple[Numbers, Numbers]:
    """Sends of different records that are certainly in their partition, and from when on."""
    history, transactions = evidence.history, evidence.transactions
    sends, ops, places = history.sends, history.ops, evidence.records.rows
    of = ops.transaction[sends.op]
    done = evidence.there_by(np.arange(len(sends)))
    sure = (ops.outcome[sends.op] == OK) & transactions.is_committed(of) & (done < NEVER_NS)
    sure &= sends.partition != NONE
    # Another try, or a reader, may show a value in another partition: it is counted in none.
    tried = ops.outcome[sends.op] != FAIL
    value = np.concatenate([sends.value[tried], places.value])
    partition = np.concatenate([sends.partition[tried], places.partition])
    count = len(history.names.values)
    one = least(value, partition, count) == greatest(value, partition, count, NONE)
    rows = np.flatnonzero(sure & one[sends.value])
    rows = rows[np.argsort(done[rows], kind="stable")]
    _, first = np.unique(sends.value[rows], return_index=True)
    rows = rows[np.sort(first)]
    return rows, done[rows]


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
    """Return for each transaction if a reader of committed data has any of its records."""
    rows, history = evidence.records.rows, evidence.history
    writers = _committed_writers(evidence)
    of = history.ops.transaction[history.sends.op[rows.writer[writers]]]
    count = len(history.names.transactions)
    return any_of(of[of != NONE], np.ones(int((of != NONE).sum()), dtype=bool), count)


def _committed_writers(evidence: Evidence) -> Numbers:
    rows = evidence.records.rows
    return np.flatnonzero(rows.seen_committed & (rows.writer != NONE))


def _place_of(evidence: Evidence, transaction: int) -> int:
    """Return a place that shows a record of a transaction."""
    rows, history = evidence.records.rows, evidence.history
    places = _committed_writers(evidence)
    of = history.ops.transaction[history.sends.op[rows.writer[places]]]
    return int(places[np.flatnonzero(of == transaction)[0]])
