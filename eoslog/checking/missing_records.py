"""Records that are to be in the log, and that no reader has, though readers passed their places.

Where an unanswered record must be follows from the records that its client sent before and after
it, and from the ends of partitions that were asked for before the send and after it was done. Those
after it show as well that an answered record is in the log no more.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.evidence import Evidence, sent_offsets
from eoslog.checking.history import (
    FAIL,
    INIT,
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OK,
    READ_UNCOMMITTED,
    Columns,
    Flags,
    Numbers,
    distinct,
    greatest_before,
    group_numbers,
    place_keys,
    same_as_before,
)
from eoslog.checking.outcomes import RecordPlaces
from eoslog.checking.report import Anomaly, Found


@dataclass
class MissingRecords:
    """Rows of the sends whose records are missing, and each one's transaction, or NONE."""

    sends: Numbers
    transactions: Numbers
    nowhere: Flags  # There is no place that it can have, whoever read what.


def missing_records(evidence: Evidence) -> MissingRecords:
    """Sends that are ok, of no transaction or a committed one, whose places were passed in vain."""
    history, records = evidence.history, evidence.records
    sends, ops = history.sends, history.ops
    of = ops.transaction[sends.op]
    there = (ops.outcome[sends.op] == OK) & evidence.transactions.is_committed(of)
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
    # What stands in its place instead is another anomaly.
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
    """Return for rows of the sends the least offset that each record can have, and the upper bound.

    Both are the same for a record that can be nowhere.
    """
    sends = evidence.history.sends
    lowest, highest = _between_its_clients(evidence, rows)
    told = sends.offset[rows] != NONE
    lowest[told], highest[told] = sends.offset[rows[told]], sends.offset[rows[told]] + 1
    for partition in distinct(sends.partition[rows]):
        if partition != NONE:
            at = np.flatnonzero(sends.partition[rows] == partition)
            begin, end = _ends_around(evidence, rows[at], int(partition))
            lowest[at] = np.maximum(lowest[at], np.where(told[at], 0, begin))
            end = np.where(told[at], np.maximum(end, lowest[at]), end)
            highest[at] = np.minimum(highest[at], end)
    return lowest, highest


def _between_its_clients(evidence: Evidence, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return the brackets that follow from what its client sent before the first try of a record,
    and after this one.
    """
    history, tries = evidence.history, evidence.tries
    sends, ops = history.sends, history.ops
    offsets = sent_offsets(history, evidence.records)
    known = np.flatnonzero(
        (offsets != NONE) & (ops.outcome[sends.op] == OK) & (sends.partition != NONE)
    )
    width = max(1, len(history.names.partitions))
    of_known = ops.client[sends.op[known]] * width + sends.partition[known]
    asked = ops.client[sends.op[rows]] * width + sends.partition[rows]
    before = greatest_before(
        of_known, tries.turn[known], offsets[known], asked, tries.first_turn[rows]
    )
    # The least offset behind it is the greatest distance from the end of all.
    far = OFFSET_MAX + 1 - offsets[known]
    after = greatest_before(of_known, -tries.first_turn[known], far, asked, -tries.turn[rows])
    lowest = np.where(sends.partition[rows] == NONE, 0, before + 1)
    highest = np.where(after == NONE, OFFSET_MAX + 1, OFFSET_MAX + 1 - after)
    return lowest, np.where(sends.partition[rows] == NONE, OFFSET_MAX + 1, highest)


def _ends_around(evidence: Evidence, rows: Numbers, partition: int) -> tuple[Numbers, Numbers]:
    """Return the partition's end as asked for before each send began and after it was done."""
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
    """Return the first `ends` after a record was there with an end that leaves it out; or NONE."""
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
    """Return for each record if its readers passed all places that it can have."""
    bounded = (highest <= OFFSET_MAX) & (lowest <= highest)
    first = place_keys(partitions, np.minimum(lowest, OFFSET_MAX))
    end = place_keys(partitions, np.minimum(highest, OFFSET_MAX))
    by_committed = evidence.passed.committed.hold(first, end)
    by_all = evidence.passed.uncommitted.hold(first, end)
    unseen = ~evidence.records.value_seen_at_all[evidence.history.sends.value[rows]]
    # Without room between its neighbours a record is nowhere.
    found: Flags = bounded & ((lowest == highest) | by_committed | (by_all & unseen))
    return found


def _passed_anywhere(evidence: Evidence, rows: Numbers) -> Flags:
    """Return for sends to an unknown partition if readers passed them in every partition of the
    topic.
    """
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


# Invisible records: committed, and a reader that stands before them is given nothing.
#
# A reader waits in front of a record while its polls return nothing and its position stays. If it
# does so for longer than records may take to be seen, and nothing that was open can hold the
# record back, the record stays invisible. Readers of all data are not held back by open
# transactions; but of what may be held back from others nothing is concluded for them either.


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
    done = evidence.there_by(rows)
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
    """Find where readers waited: polls in a row that returned nothing at all."""
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
    """Return when a later init of its transactional id had ended each transaction."""
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
