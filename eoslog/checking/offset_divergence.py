"""Offset-output divergence: what a group's offsets say, and what its transactions did, differ.

Three things show it: an offset that is read and cannot be the group's at that time; a transaction
whose offset is there without its records; and an input that two committed transactions of a group
took, or none did although the group stands behind it.
"""

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets, OffsetReads
from eoslog.checking.groups_of_rows import any_of, distinct, greatest_before
from eoslog.checking.history import NEVER_NS, NONE, OFFSET_MAX, Flags, Numbers
from eoslog.checking.missing_records import MissingRecords
from eoslog.checking.processed_inputs import processed_inputs
from eoslog.checking.report import Anomaly, Found

KIND = "offset-output divergence"


def offset_divergence(
    evidence: Evidence, offsets: GroupOffsets, missing: MissingRecords, torn: Numbers
) -> Found:
    """Find all three forms; `torn` are transactions whose missing records are reported already."""
    shown = _impossible_reads(evidence, offsets)
    shown += _offsets_without_records(evidence, missing, torn)
    shown += processed_inputs(evidence, offsets, missing)

    def show(at: int) -> Anomaly:
        what, ops = shown[at]
        return evidence.anomaly(KIND, what, ops)

    return evidence.found(KIND, range(len(shown)), show)


def _impossible_reads(evidence: Evidence, offsets: GroupOffsets) -> list[tuple[str, list[int]]]:
    """Offsets that were read though overwritten before, not yet written, of an aborted write, or
    of none.
    """
    history, transactions = evidence.history, evidence.transactions
    reads, writes, ops = offsets.reads, offsets.writes, history.ops
    if not len(reads):
        return []
    error = evidence.clock_error_ns
    asked, answered = ops.begin[reads.op] - error, ops.end[reads.op] + error
    possible = offsets.possible(history, transactions)
    begin, end = offsets.effects(history, transactions)
    # One number per place and offset, over both tables.
    pairs = np.stack(
        [np.concatenate([writes.place, reads.place]), np.concatenate([writes.offset, reads.offset])]
    )
    _, pair = np.unique(pairs, axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    of_write, of_read = pair[: len(writes)], pair[len(writes) :]
    count = int(pair.max(initial=-1)) + 1
    able = any_of(of_write, possible, count)
    # When this offset was written, at the latest, by a write whose effect the answer may show.
    latest = greatest_before(
        of_write[possible],
        begin[possible],
        ops.end[writes.op[possible]],
        of_read,
        answered + 1,
    )
    # When an offset was written, at the earliest, that was in effect before the question.
    done = np.flatnonzero(end < NEVER_NS)
    written = ops.begin[writes.op[done]]
    newest = greatest_before(writes.place[done], end[done], written, reads.place, asked)
    late = (newest != NONE) & (newest > latest + error)
    not_from_before = _not_from_before(evidence, offsets, of_write, of_read)
    refused = ~able[of_read] & not_from_before
    early = able[of_read] & (latest == NONE) & not_from_before
    found = []
    for row in np.flatnonzero(refused | early | late):
        there = writes.op[np.flatnonzero(of_write == of_read[row])]
        offset = int(reads.offset[row])
        what = f"{_group_at(evidence, offsets, int(reads.place[row]))} was read as "
        what += _shown(offset)
        proof = [int(one) for one in there[:5]]
        if refused[row] and len(there):
            what += ", which only failed or aborted writes put there"
        elif refused[row]:
            before = _read_elsewhere(reads, int(row), ops.end[reads.op], int(asked[row]))
            what += f", which nobody wrote, after it was found at {_shown(reads.offset[before])}"
            proof.append(int(reads.op[before]))
        elif early[row]:
            what += ", before its commit began"
        else:
            over = done[(writes.place[done] == reads.place[row]) & (written == newest[row])]
            over = int(over[np.argmin(end[over])])
            what += f", after offset {writes.offset[over]} had been committed"
            proof.append(int(writes.op[over]))
            proof.append(_commit_of(evidence, int(writes.transaction[over])))
        found.append((what, [*proof, int(reads.op[row])]))
    return found


def _shown(offset: int) -> str:
    return "none" if offset == NONE else f"offset {offset}"


def _read_elsewhere(reads: OffsetReads, row: int, ends: Numbers, asked: int) -> int:
    """The last read before a question that was answered with another offset of its place."""
    others = np.flatnonzero(
        (reads.place == reads.place[row]) & (reads.offset != reads.offset[row]) & (ends < asked)
    )
    return int(others[np.argmax(ends[others])])


def _not_from_before(
    evidence: Evidence, offsets: GroupOffsets, of_write: Numbers, of_read: Numbers
) -> Flags:
    """Per read: whether its offset cannot be where the group stood when the history began.

    Somebody had begun to write it, or the group had been found elsewhere. `of_write` and `of_read`
    number the offsets of both tables.
    """
    reads, writes, ops = offsets.reads, offsets.writes, evidence.history.ops
    asked = ops.begin[reads.op] - evidence.clock_error_ns
    answered = ops.end[reads.op] + evidence.clock_error_ns
    begun = ops.begin[writes.op]
    tried: Flags = greatest_before(of_write, begun, begun, of_read, answered + 1) != NONE
    # None is the least offset; the greatest and the least of what was found before are the same.
    up, down = reads.offset + 1, OFFSET_MAX - reads.offset
    highest, lowest = (
        greatest_before(reads.place, ops.end[reads.op], column, reads.place, asked)
        for column in (up, down)
    )
    elsewhere: Flags = (highest != NONE) & ((highest != up) | (lowest != down))
    found: Flags = tried | elsewhere
    return found


def _offsets_without_records(
    evidence: Evidence, missing: MissingRecords, torn: Numbers
) -> list[tuple[str, list[int]]]:
    """Transactions that only their offsets show to be committed, and whose records are missing."""
    transactions, sends = evidence.transactions, evidence.history.sends
    of = missing.transactions
    chosen = of != NONE
    chosen[chosen] = ~transactions.acknowledged[of[chosen]] & ~np.isin(of[chosen], torn)
    found = []
    for transaction in distinct(of[chosen]):
        lacking = missing.sends[of == transaction]
        what = (
            f"a group has the offsets of {evidence.transaction(int(transaction))}, and readers "
            f"passed the place of its {evidence.value(int(sends.value[lacking[0]]))} in vain"
        )
        writes = evidence.history.offset_writes.op
        mine = writes[evidence.history.ops.transaction[writes] == transaction]
        proof = [*map(int, mine[:5]), *(evidence.send_op(int(one)) for one in lacking[:10])]
        found.append((what, proof))
    return found


def _group_at(evidence: Evidence, offsets: GroupOffsets, place: int) -> str:
    group, partition = divmod(place, offsets.partition_count)
    names = evidence.history.names
    return f"group {names.groups[group]!r} at {names.partitions[partition]}"


def _commit_of(evidence: Evidence, transaction: int) -> int:
    return NONE if transaction == NONE else int(evidence.transactions.commit_op[transaction])
