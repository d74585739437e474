"""Inputs that a group's offset passed, and that none of its transactions took.

An input counts if it is certainly in the log, and was there when the group was moved behind it: it
is not needed that anybody polled it. The group's own first position is the least offset that one of
its consumers was given for a transaction, whatever became of that. What a consumer was moved over
is not left out by the group: someone sought, or it began at the latest records.
"""

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets
from eoslog.checking.groups_of_rows import distinct, place_keys
from eoslog.checking.history import Flags, Numbers
from eoslog.checking.missing_records import MissingRecords
from eoslog.checking.moved_groups import moved_over
from eoslog.checking.operation_kinds import NONE, OK, POLL

Shown = tuple[str, list[int]]


def inputs_left_out(
    evidence: Evidence,
    offsets: GroupOffsets,
    missing: MissingRecords,
    place: int,
    moves: Numbers,
    inputs: Numbers,
) -> list[Shown]:
    """Those of a group at a partition, which `place` numbers.

    `moves` are the rows of the writes that may have taken effect, one per transaction, and `inputs`
    the reads of this partition that were made for any transaction.
    """
    history, transactions = evidence.history, evidence.transactions
    ops, reads, writes = history.ops, history.reads, offsets.writes
    group, partition = divmod(place, offsets.partition_count)
    sure = transactions.committed[writes.transaction[moves]]
    sure &= ops.outcome[writes.op[moves]] == OK
    passing = moves[sure]
    inputs = inputs[~_of_others(evidence, offsets, place, inputs)]
    if not len(passing) or _is_unclear(evidence, writes.transaction[moves]):
        return []
    of = ops.transaction[reads.op[inputs]]
    fed = np.isin(of, writes.transaction[moves])
    consumers = distinct(ops.client[reads.op[inputs[fed]]])
    own = np.isin(ops.client[reads.op[inputs]], consumers)
    if not own.any():
        return []
    first = int(reads.offset[inputs[own]].min())
    taken = inputs[transactions.possible[of]]
    furthest = int(writes.offset[passing].max())
    places = _certain_places(evidence, missing, partition, first, furthest)
    rows = evidence.records.rows
    places = places[~np.isin(rows.offset[places], reads.offset[taken])]
    places = places[_were_there(evidence, offsets, places, passing)]
    if len(places):
        places = places[~moved_over(evidence, offsets, moves, places)]
    proof = [int(op) for op in writes.op[passing[writes.offset[passing] == furthest]][:3]]
    return [
        (
            f"group {history.names.groups[group]!r} stands at offset {furthest}, and none of its "
            f"transactions took {evidence.place(int(one))}",
            [evidence.place_op(int(one)), *proof],
        )
        for one in places
    ]


def _of_others(evidence: Evidence, offsets: GroupOffsets, place: int, inputs: Numbers) -> Flags:
    """Reads for transactions that moved another group at this partition, and not this one."""
    writes = offsets.writes
    here = writes.place % offsets.partition_count == place % offsets.partition_count
    theirs = writes.transaction[here & (writes.place != place)]
    mine = writes.transaction[writes.place == place]
    of = evidence.history.ops.transaction[evidence.history.reads.op[inputs]]
    found: Flags = np.isin(of, np.setdiff1d(theirs, mine))
    return found


def _is_unclear(evidence: Evidence, transactions: Numbers) -> bool:
    """Whether one of them was made from a poll of which nobody knows what it returned."""
    ops = evidence.history.ops
    polls = (ops.kind == POLL) & (ops.outcome != OK) & (ops.transaction != NONE)
    return bool(np.isin(ops.transaction[polls], transactions).any())


def _certain_places(
    evidence: Evidence, missing: MissingRecords, partition: int, first: int, furthest: int
) -> Numbers:
    """Places of records that are certainly in the log; what is lost is named as that."""
    rows, sends = evidence.records.rows, evidence.history.sends
    partitions = np.full(2, partition, dtype=np.int64)
    bounds = place_keys(partitions, np.array([first, furthest], dtype=np.int64))
    left, right = np.searchsorted(rows.key, bounds)
    there = np.arange(left, right)[rows.committed[left:right]]
    return there[rows.seen[there] | ~np.isin(rows.value[there], sends.value[missing.sends])]


def _were_there(
    evidence: Evidence, offsets: GroupOffsets, places: Numbers, passing: Numbers
) -> Flags:
    """Whether each record may have been in the log when the group was last moved behind it."""
    writes = offsets.writes
    passing = passing[np.argsort(writes.offset[passing], kind="stable")]
    moved_by = evidence.transactions.committed_by[writes.transaction[passing]]
    last = np.maximum.accumulate(moved_by[::-1])[::-1]
    rows = evidence.records.rows
    at = np.searchsorted(writes.offset[passing], rows.offset[places], "right")
    writer = rows.writer[places]
    begun = np.where(writer == NONE, 0, evidence.tries.first_begin[writer])
    there: Flags = begun <= last[at] + evidence.clock_error_ns
    return there
