"""Lost writes and torn transactions: records that must be in the log, and are not."""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.evidence import Evidence, Found, Shown, sent_offsets, starts_of
from eoslog.checking.history import (
    ENDS,
    FAIL,
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OK,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Columns,
    Flags,
    Numbers,
    distinct,
    greatest,
    greatest_before,
    group_numbers,
    least,
    place_keys,
    same_as_before,
)
from eoslog.checking.outcomes import RecordPlaces

# Missing records: no reader has them, though readers passed their places.
#
# The records that its client sent before and after an unanswered record bound its place, and so do
# the ends of partitions that were asked for before the send and after it was done. The latter show
# as well that an answered record is no longer in the log.


@dataclass
class MissingRecords:
    """Rows of the sends whose records are missing, and each one's transaction, or NONE."""

    sends: Numbers
    transactions: Numbers
    nowhere: Flags  # No place is possible, even without reads.


def missing_records(evidence: Evidence) -> MissingRecords:
    """Find acknowledged sends of no open or aborted transaction whose places readers passed."""
    history, records = evidence.history, evidence.records
    sends, of = history.sends, evidence.send_transaction
    there = (evidence.send_outcome == OK) & evidence.transactions.is_committed(of)
    rows = np.flatnonzero(there & ~records.value_seen[sends.value])
    if not len(rows):
        return MissingRecords(rows, rows, rows != NONE)
    _, first = np.unique(sends.value[rows], return_index=True)
    rows = rows[np.sort(first)]
    lowest, highest = offset_brackets(evidence, rows)
    known = sends.partition[rows] != NONE
    passed = np.zeros(len(rows), dtype=bool)
    passed[known] = _passed(
        evidence, rows[known], sends.partition[rows[known]], lowest[known], highest[known]
    )
    passed[~known] = _passed_anywhere(evidence, rows[~known])
    # Another record in its place is another anomaly.
    answered = np.flatnonzero(sends.offset[rows] != NONE)
    passed[answered] &= ~_taken(records)[records.of_send[rows[answered]]]
    nowhere = known & (lowest == highest)
    return MissingRecords(rows[passed], of[rows[passed]], nowhere[passed])


def _taken(records: RecordPlaces) -> Flags:
    """Return for each place if another value was seen there."""
    rows = records.rows
    of_key = group_numbers(same_as_before(rows.key))
    seen = np.bincount(of_key, weights=rows.seen).astype(np.int64)
    others: Flags = seen[of_key] > rows.seen
    return others


def offset_brackets(evidence: Evidence, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return for rows of the sends the least possible offset of each record, and the upper bound.

    Both are equal if no place is possible.
    """
    sends = evidence.history.sends
    lowest, highest = _between_its_clients(evidence, rows)
    known = sends.offset[rows] != NONE
    lowest[known], highest[known] = sends.offset[rows[known]], sends.offset[rows[known]] + 1
    for partition in distinct(sends.partition[rows]):
        if partition != NONE:
            at = np.flatnonzero(sends.partition[rows] == partition)
            begin, end = _ends_around(evidence, rows[at], int(partition))
            lowest[at] = np.maximum(lowest[at], np.where(known[at], 0, begin))
            end = np.where(known[at], np.maximum(end, lowest[at]), end)
            highest[at] = np.minimum(highest[at], end)
    return lowest, highest


def _between_its_clients(evidence: Evidence, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return the bounds by what its client sent before the first try, and after this one."""
    history, tries = evidence.history, evidence.tries
    sends, ops = history.sends, history.ops
    offsets = sent_offsets(history, evidence.records)
    known = np.flatnonzero(
        (offsets != NONE) & (evidence.send_outcome == OK) & (sends.partition != NONE)
    )
    width = max(1, len(history.names.partitions))
    of_known = ops.client[sends.op[known]] * width + sends.partition[known]
    asked = ops.client[sends.op[rows]] * width + sends.partition[rows]
    before = greatest_before(
        of_known, tries.turn[known], offsets[known], asked, tries.first_turn[rows]
    )
    # The least offset after it is the greatest distance from OFFSET_MAX.
    far = OFFSET_MAX + 1 - offsets[known]
    after = greatest_before(of_known, -tries.first_turn[known], far, asked, -tries.turn[rows])
    lowest = np.where(sends.partition[rows] == NONE, 0, before + 1)
    highest = np.where(after == NONE, OFFSET_MAX + 1, OFFSET_MAX + 1 - after)
    return lowest, np.where(sends.partition[rows] == NONE, OFFSET_MAX + 1, highest)


def _ends_around(evidence: Evidence, rows: Numbers, partition: int) -> tuple[Numbers, Numbers]:
    """Return the partition's end as reported before each send began and after it was done."""
    history = evidence.history
    ends, ops = history.ends, history.ops
    asked = np.flatnonzero(ends.partition == partition)
    asked = asked[np.argsort(ops.end[ends.op[asked]], kind="stable")]
    op, offset = ends.op[asked], ends.offset[asked]
    before = np.searchsorted(
        ops.end[op] + evidence.clock_error_ns, evidence.tries.first_begin[rows]
    )
    lowest = np.concatenate([[0], np.maximum.accumulate(offset)])[before]
    # An end that leaves out open transactions may be below a record that is there.
    whole = ops.isolation[op] == READ_UNCOMMITTED
    op, offset = op[whole], offset[whole]
    order = np.argsort(ops.begin[op], kind="stable")
    op, offset = op[order], offset[order]
    done = evidence.there_by(rows)
    after = np.searchsorted(ops.begin[op], done + evidence.clock_error_ns, "right")
    later = np.minimum.accumulate(offset[::-1])[::-1]
    return lowest, np.concatenate([later, [OFFSET_MAX + 1]])[after]


def end_below(evidence: Evidence, send: int) -> int:
    """Return the first `ends` that leaves a record out after it was there, or NONE."""
    history = evidence.history
    ends, ops, sends = history.ends, history.ops, history.sends
    done = int(evidence.there_by(np.array([send]))[0])
    asked = ends.op[(ends.partition == sends.partition[send]) & (ends.offset <= sends.offset[send])]
    asked = asked[ops.isolation[asked] == READ_UNCOMMITTED]
    asked = asked[ops.begin[asked] > done + evidence.clock_error_ns]
    return int(asked[np.argmin(ops.begin[asked])]) if len(asked) else NONE


def _passed(
    evidence: Evidence, rows: Numbers, partitions: Numbers, lowest: Numbers, highest: Numbers
) -> Flags:
    """Return for each record if readers passed all its possible places."""
    bounded = (highest <= OFFSET_MAX) & (lowest <= highest)
    first = place_keys(partitions, np.minimum(lowest, OFFSET_MAX))
    end = place_keys(partitions, np.minimum(highest, OFFSET_MAX))
    by_committed = evidence.passed.committed.hold(first, end)
    by_all = evidence.passed.uncommitted.hold(first, end)
    unseen = ~evidence.records.value_seen_at_all[evidence.history.sends.value[rows]]
    # Without an offset between its neighbours a record is nowhere.
    found: Flags = bounded & ((lowest == highest) | by_committed | (by_all & unseen))
    return found


def _passed_anywhere(evidence: Evidence, rows: Numbers) -> Flags:
    """Return for sends to an unknown partition if readers passed all partitions of the topic."""
    history = evidence.history
    topics = np.array(history.names.partition_topics, dtype=np.int64)
    passed = np.zeros(len(rows), dtype=bool)
    asked = distinct(history.ends.partition)
    for topic in distinct(history.sends.topic[rows]):
        mine = np.flatnonzero(history.sends.topic[rows] == topic)
        partitions = asked[topics[asked] == topic] if len(asked) else asked
        passed[mine] = len(partitions) > 0
        for partition in partitions:
            lowest, highest = _ends_around(evidence, rows[mine], int(partition))
            everywhere = np.full(len(mine), partition)
            passed[mine] &= _passed(evidence, rows[mine], everywhere, lowest, highest)
    return passed


# Ends that went back: a partition that ended before a place that was known to be in it.
#
# The end of all data is never before an offset that was answered, read or reported as an end
# earlier; the end of committed data never before an offset that its readers passed, or that was
# reported as such an end.


class _Reached(Columns):
    """Proofs that a partition went up to an offset: one row per answer, record and pass."""

    op: Numbers
    partition: Numbers
    offset: Numbers  # An upper bound: there was a place before it.
    by: Numbers  # The time by which that was known.
    send: Numbers  # The record's row of the sends; NONE for others.
    decided: Flags  # Everything before it was decided.


@dataclass
class EndsGoneBack:
    """First wrong row of the ends of each partition, and the end that was known then."""

    rows: Numbers
    known: Numbers
    reached: _Reached


def ends_gone_back(evidence: Evidence) -> EndsGoneBack:
    """Return for each partition whose end went back the first report of it."""
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
    of = evidence.send_transaction
    # A record that is not committed may be lost with its transaction in a power cut.
    acked = np.flatnonzero((sends.offset != NONE) & evidence.transactions.is_committed(of))
    proper = np.flatnonzero(starts_of(passes) < passes.after)
    if not len(ends):
        acked, proper = acked[:0], proper[:0]  # They are not needed.
    op = np.concatenate([ends.op, sends.op[acked], passes.op[proper]])
    others = [np.full(count, NONE, dtype=np.int64) for count in (len(ends), len(proper))]
    parts = [ends.partition, sends.partition[acked], passes.partition[proper]]
    return _Reached(
        op=op,
        partition=np.concatenate(parts),
        offset=np.concatenate([ends.offset, sends.offset[acked] + 1, passes.after[proper]]),
        by=np.concatenate([ops.end[ends.op], evidence.there_by(acked), ops.end[passes.op[proper]]]),
        send=np.concatenate([others[0], acked, others[1]]),
        # A send has no isolation: an open transaction may hold back its record.
        decided=ops.isolation[op] == READ_COMMITTED,
    )


def _known_before(evidence: Evidence, rows: Numbers, reached: _Reached) -> Numbers:
    """Return the end of the partition that was known before each of these ends was asked for."""
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


# Ends that leave no room: a partition whose end is lower than the number of its certain records.
#
# Each record has an offset of its own, so the end is at least their number.


class CountedEnds(Columns):
    """First end of each partition that is lower than the number of its records."""

    row: Numbers  # Of the ends.
    count: Numbers  # The number of records that were there before it was asked for.
    send: Numbers  # The last send of them that ended.


def counted_ends(evidence: Evidence) -> CountedEnds:
    """Find ends of all data that are lower than the number of records that were there before."""
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
    """Return sends of different records certainly in their partition, and the time by which."""
    history, transactions = evidence.history, evidence.transactions
    sends, places = history.sends, evidence.records.rows
    of = evidence.send_transaction
    done = evidence.there_by(np.arange(len(sends)))
    sure = (evidence.send_outcome == OK) & transactions.is_committed(of) & (done < NEVER_NS)
    sure &= sends.partition != NONE
    # If another try, or a reader, has a value in another partition, it is counted in none.
    tried = evidence.send_outcome != FAIL
    value = np.concatenate([sends.value[tried], places.value])
    partition = np.concatenate([sends.partition[tried], places.partition])
    count = len(history.names.values)
    one = least(value, partition, count) == greatest(value, partition, count)
    rows = np.flatnonzero(sure & one[sends.value])
    rows = rows[np.argsort(done[rows], kind="stable")]
    _, first = np.unique(sends.value[rows], return_index=True)
    rows = rows[np.sort(first)]
    return rows, done[rows]


def lost_writes(evidence: Evidence, missing: MissingRecords) -> Found:
    """Find missing acknowledged records of whose transaction readers have none, and lost ends."""
    of = missing.transactions
    acknowledged = np.ones(len(of), dtype=bool)
    inside = of != NONE
    acknowledged[inside] = evidence.transactions.acknowledged[of[inside]]
    acknowledged[inside] &= ~evidence.seen_in_part[of[inside]]
    lost = np.flatnonzero(acknowledged)
    ends = evidence.history.ends
    gone_back = ends_gone_back(evidence)
    # If records of a partition are reported as nowhere, its end proves no more.
    named = evidence.history.sends.partition[missing.sends[missing.nowhere]]
    cut = np.flatnonzero(~np.isin(ends.partition[gone_back.rows], named))
    counted = counted_ends(evidence)
    reported = [evidence.history.sends.partition[missing.sends], ends.partition[gone_back.rows]]
    counted = counted.where(~np.isin(ends.partition[counted.row], np.concatenate(reported)))

    return evidence.found(
        "lost write",
        (lost, lambda row: _lost(evidence, missing.sends[row], bool(missing.nowhere[row]))),
        (cut, lambda at: _end_gone_back(evidence, gone_back, at)),
        (range(len(counted)), lambda at: _without_room(evidence, counted, at)),
    )


def _lost(evidence: Evidence, send: int, nowhere: bool) -> Shown:
    sends = evidence.history.sends
    transaction = int(evidence.send_transaction[send])
    by = "" if transaction == NONE else f" and {evidence.transaction(transaction)} committed"
    partition = evidence.partition(sends.partition[send])
    proof = [evidence.send_op(send), evidence.commit_op(transaction)]
    why = f"readers passed its place in {partition} and did not get it"
    if nowhere:
        why = f"there is no place for it in {partition}"
        if sends.offset[send] != NONE:
            why = f"{partition} ended before its offset, {sends.offset[send]}, afterwards"
            proof.append(end_below(evidence, send))
    return f"{evidence.sent(send)} was acknowledged{by}; {why}", proof


def _end_gone_back(evidence: Evidence, gone_back: EndsGoneBack, at: int) -> Shown:
    ends, ops = evidence.history.ends, evidence.history.ops
    row, known = int(gone_back.rows[at]), int(gone_back.known[at])
    op, send = proof_of(evidence, gone_back, at)
    proof = [op, ends.op[row]]
    if send != NONE:
        how = f"held {evidence.sent(send)} at {known - 1}"
        proof.append(evidence.commit_op(evidence.send_transaction[send]))
    else:
        how = f"had ended at {known}" if ops.kind[op] == ENDS else f"had been read up to {known}"
    partition = evidence.partition(ends.partition[row])
    return f"{partition} ended at offset {ends.offset[row]}, and {how} before", proof


def _without_room(evidence: Evidence, counted: CountedEnds, at: int) -> Shown:
    ends, row, send = evidence.history.ends, counted.row[at], counted.send[at]
    what = (
        f"{evidence.partition(ends.partition[row])} ended at offset {ends.offset[row]}, and "
        f"{counted.count[at]} records had been acknowledged before, the last of them "
        f"{evidence.sent(send)}"
    )
    return what, [evidence.send_op(send), ends.op[row]]


def torn_transactions(evidence: Evidence, missing: MissingRecords) -> Found:
    """Find transactions of which readers have a record, and not another whose place they passed."""
    transactions, of = evidence.transactions, missing.transactions
    inside = of[of != NONE]
    torn = distinct(inside[evidence.seen_in_part[inside]])
    twice = np.flatnonzero(transactions.decided_twice)

    def show_torn(transaction: int) -> Shown:
        sends, rows = evidence.history.sends, evidence.records.rows
        lacking = missing.sends[of == transaction]
        seen = np.flatnonzero(rows.seen_committed & (rows.writer != NONE))
        place = seen[evidence.send_transaction[rows.writer[seen]] == transaction][0]
        what = (
            f"of {evidence.transaction(transaction)} {evidence.place(place)} was read, and "
            f"{evidence.sent(lacking[0])} is not where it was sent to: "
            f"{evidence.partition(sends.partition[lacking[0]])}"
        )
        ops = [evidence.send_op(rows.writer[place]), evidence.place_op(place)]
        ops += map(evidence.send_op, lacking[:10])
        return what, [*ops, evidence.commit_op(transaction)]

    def show_twice(transaction: int) -> Shown:
        what = f"{evidence.transaction(transaction)} was committed and aborted"
        return what, [transactions.commit_op[transaction], transactions.abort_op[transaction]]

    return evidence.found("torn transaction", (torn, show_torn), (twice, show_twice))
