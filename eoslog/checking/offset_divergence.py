"""Offset-output divergence: what a group's offsets say, and what its transactions did, differ.

Three things show it: an offset that is read and cannot be the group's at that time; a transaction
whose offset is there without its records; and an input that two committed transactions of a group
took, or none did although the group stands behind it.
"""

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found
from eoslog.checking.evidence import Evidence
from eoslog.checking.group_offsets import GroupOffsets
from eoslog.checking.groups_of_rows import any_of, distinct
from eoslog.checking.history import Numbers
from eoslog.checking.missing_records import MissingRecords
from eoslog.checking.operation_kinds import NEVER_NS, NONE
from eoslog.checking.processed_inputs import processed_inputs

KIND = "offset-output divergence"


def offset_divergence(
    evidence: Evidence, offsets: GroupOffsets, missing: MissingRecords, torn: Numbers
) -> Found:
    """All three; `torn` are transactions whose missing records are reported already."""
    shown = _impossible_reads(evidence, offsets)
    shown += _offsets_without_records(evidence, missing, torn)
    shown += processed_inputs(evidence, offsets)

    def show(at: int) -> Anomaly:
        what, ops = shown[at]
        return evidence.anomaly(KIND, what, ops)

    return evidence.found(KIND, range(len(shown)), show)


def _impossible_reads(evidence: Evidence, offsets: GroupOffsets) -> list[tuple[str, list[int]]]:
    """Offsets that were read though overwritten before, not yet written, or of an aborted write."""
    history, transactions = evidence.history, evidence.transactions
    reads, writes, ops = offsets.reads, offsets.writes, history.ops
    if not len(reads):
        return []
    error = evidence.clock_error_ns
    possible = offsets.possible(history, transactions)
    begin, end = offsets.times(history, transactions)
    # One number per place and offset, over both tables.
    pairs = np.stack(
        [np.concatenate([writes.place, reads.place]), np.concatenate([writes.offset, reads.offset])]
    )
    _, pair = np.unique(pairs, axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    of_write, of_read = pair[: len(writes)], pair[len(writes) :]
    count = int(pair.max(initial=-1)) + 1
    tried = any_of(of_write, np.ones(len(writes), dtype=bool), count)
    able = any_of(of_write, possible, count)
    earliest = np.full(count, NEVER_NS, dtype=np.int64)
    np.minimum.at(earliest, of_write[possible], begin[possible])
    latest = np.full(count, NONE, dtype=np.int64)
    np.maximum.at(latest, of_write[possible], end[possible])
    newest, newest_row = _newest_before(offsets, begin, end, ops.begin[reads.op] - error)
    late = (newest != NONE) & (newest > latest[of_read] + error)
    refused = tried[of_read] & ~able[of_read]
    early = able[of_read] & (earliest[of_read] > ops.end[reads.op] + error)
    found = []
    for row in np.flatnonzero(refused | early | late):
        there = writes.op[np.flatnonzero(of_write == of_read[row])]
        offset = int(reads.offset[row])
        what = f"{_group_at(evidence, offsets, int(reads.place[row]))} was read as "
        what += "none" if offset == NONE else f"offset {offset}"
        proof = [int(one) for one in there[:5]]
        if refused[row]:
            what += ", which only failed or aborted writes put there"
        elif early[row]:
            what += ", before its commit began"
        else:
            over = int(newest_row[row])
            what += f", after offset {writes.offset[over]} had been committed"
            proof.append(int(writes.op[over]))
            proof.append(_commit_of(evidence, int(writes.transaction[over])))
        found.append((what, [*proof, int(reads.op[row])]))
    return found


def _newest_before(
    offsets: GroupOffsets, begin: Numbers, end: Numbers, moments: Numbers
) -> tuple[Numbers, Numbers]:
    """Per read: of the writes that were done before, the latest beginning, and its row."""
    writes, places = offsets.writes, offsets.reads.place
    done = np.flatnonzero(end < NEVER_NS)
    done = done[np.lexsort((end[done], writes.place[done]))]
    newest = np.full(len(places), NONE, dtype=np.int64)
    rows = np.full(len(places), NONE, dtype=np.int64)
    starts = np.searchsorted(writes.place[done], np.arange(offsets.place_count + 1))
    order = np.argsort(places, kind="stable")
    for place in distinct(places):
        mine = done[starts[place] : starts[place + 1]]
        left, right = np.searchsorted(places[order], [place, place + 1])
        asked = order[left:right]
        before = np.searchsorted(end[mine], moments[asked]) - 1
        if not len(mine):
            continue
        best = np.maximum.accumulate(begin[mine])
        is_best = np.maximum.accumulate(np.where(begin[mine] == best, np.arange(len(mine)), 0))
        there = before >= 0
        newest[asked[there]] = best[before[there]]
        rows[asked[there]] = mine[is_best[before[there]]]
    return newest, rows


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
