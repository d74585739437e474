"""Records that are to be in the log, and that no reader has, though readers passed their places.

Where an unanswered record must be follows from the records that its client sent before and after
it, and from the ends of partitions that were asked for before the send and after it was done. Those
after it show as well that an answered record is in the log no more.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.evidence import Evidence, sent_offsets
from eoslog.checking.groups_of_rows import (
    distinct,
    greatest_before,
    group_numbers,
    place_keys,
    same_as_before,
)
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.operation_kinds import NONE, OFFSET_MAX, OK, READ_UNCOMMITTED
from eoslog.checking.record_places import RecordPlaces


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
    """Per place: whether another value was seen there."""
    rows = records.rows
    of_key = group_numbers(same_as_before(rows.key))
    seen = np.bincount(of_key, weights=rows.seen).astype(np.int64)
    others: Flags = seen[of_key] > rows.seen
    return others


def offset_brackets(evidence: Evidence, rows: Numbers) -> tuple[Numbers, Numbers]:
    """For rows of the sends: the least offset that each record can have, and the upper bound.

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
    """The same, by what its client sent before the first try of a record, and after this one."""
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
    """The partition's end as it was asked for before each send began and after it was done."""
    history = evidence.history
    ends, ops, sends = history.ends, history.ops, history.sends
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
    done = ops.end[sends.op[rows]]
    of = ops.transaction[sends.op[rows]]
    done[of != NONE] = evidence.transactions.committed_by[of[of != NONE]]
    after = np.searchsorted(ops.begin[op], done + evidence.clock_error_ns, "right")
    later = np.minimum.accumulate(offset[::-1])[::-1]
    return lowest, np.concatenate([later, [OFFSET_MAX + 1]])[after]


def end_below(evidence: Evidence, send: int) -> int:
    """The first that was told, after a record was there, of an end that leaves it out; or NONE."""
    history = evidence.history
    ends, ops, sends = history.ends, history.ops, history.sends
    transaction = int(ops.transaction[sends.op[send]])
    done = int(ops.end[sends.op[send]])
    if transaction != NONE:
        done = max(done, int(evidence.transactions.committed_by[transaction]))
    asked = ends.op[(ends.partition == sends.partition[send]) & (ends.offset <= sends.offset[send])]
    asked = asked[ops.isolation[asked] == READ_UNCOMMITTED]
    asked = asked[ops.begin[asked] > done + evidence.clock_error_ns]
    return int(asked[np.argmin(ops.begin[asked])]) if len(asked) else NONE


def _passed(
    evidence: Evidence, rows: Numbers, partitions: Numbers, lowest: Numbers, highest: Numbers
) -> Flags:
    """Whether readers who would have been given each record passed all places it can have."""
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
    """The same for sends to an unknown partition: in every partition of the topic."""
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
