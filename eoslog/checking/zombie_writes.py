"""Zombie writes: a producer wrote or committed after its successor had taken over.

Whoever takes over a transactional id, or opens a producer id under a newer epoch, fences the one
before from the moment its `init` returned. In the log itself the records of an older epoch never
stand behind those of a newer one, whatever clocks say.
"""

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.history import (
    COMMIT,
    FAIL,
    INIT,
    NEVER_NS,
    NONE,
    OK,
    SEND,
    Columns,
    Numbers,
    distinct,
    group_numbers,
    rows_of,
    running_greatest,
    same_as_before,
)
from eoslog.checking.report import Anomaly, Found

KIND = "zombie write"


class _Fences(Columns):
    """Per operation: from when on its producer was fenced, and by which `init`."""

    since: Numbers
    by: Numbers


class _Ranks(Columns):
    """Places by producer id and partition, in the order of offsets, each with its epoch."""

    place: Numbers
    op: Numbers
    group: Numbers
    epoch: Numbers
    newest: Numbers  # The greatest epoch of the group up to here.


def zombie_writes(evidence: Evidence) -> Found:
    """Sends and commits of producers that were fenced, and that took effect."""
    history = evidence.history
    ops = history.ops
    fences = _fences(evidence)
    late = ops.begin > np.where(fences.by == NONE, NEVER_NS, fences.since + evidence.clock_error_ns)
    wrote = (ops.kind == COMMIT) & (ops.outcome == OK)
    wrote[_ops_that_appended(evidence)] = True
    zombies = np.flatnonzero(late & wrote)
    ranks = _by_epoch(evidence)
    behind = _behind_newer(evidence, ranks, zombies)

    def show(at: int) -> Anomaly:
        if at >= len(zombies):
            row = int(behind[at - len(zombies)])
            place, newer = int(ranks.place[row]), _newer(ranks, row)
            rows = evidence.records.rows
            what = (
                f"{evidence.place(place)} is of an older epoch than {evidence.place(newer)}, "
                "behind which it stands"
            )
            sent = [evidence.send_op(int(rows.writer[one])) for one in (newer, place)]
            return evidence.anomaly(KIND, what, [*sent, evidence.place_op(place)])
        op = int(zombies[at])
        did = "committed" if ops.kind[op] == COMMIT else "wrote"
        by = int(fences.by[op])
        client, other = (history.names.clients[ops.client[one]] for one in (op, by))
        what = f"{client!r} {did} after the init of its successor {other!r} had returned"
        return evidence.anomaly(KIND, what, [by, op])

    return evidence.found(KIND, range(len(zombies) + len(behind)), show)


def _ops_that_appended(evidence: Evidence) -> Numbers:
    """Sends of which a record is certainly in the log, and of no other try."""
    rows, sends = evidence.records.rows, evidence.history.sends
    writers = rows.writer[rows.writer != NONE]
    return distinct(sends.op[writers[evidence.tries.single[writers]]])


def _fences(evidence: Evidence) -> _Fences:
    ops = evidence.history.ops
    since = np.full(len(ops), NEVER_NS, dtype=np.int64)
    by = np.full(len(ops), NONE, dtype=np.int64)
    fences = _Fences(since=since, by=by)
    # One of unknown outcome has no end: it fences nobody, but its own client may own the id anew.
    inits = np.flatnonzero((ops.kind == INIT) & (ops.outcome != FAIL))
    writes = np.flatnonzero((ops.kind == SEND) | (ops.kind == COMMIT))
    for column, fence in (
        (evidence.identities.transactional_id, _fence_by_id),
        (evidence.identities.producer_id, _fence_by_epoch),
    ):
        mine, theirs = inits[column[inits] != NONE], writes[column[writes] != NONE]
        mine = mine[np.argsort(column[mine], kind="stable")]
        theirs = theirs[np.argsort(column[theirs], kind="stable")]
        starts = np.flatnonzero(~same_as_before(column[mine]))
        for first, end in zip(starts, np.append(starts, len(mine))[1:], strict=True):
            name = column[mine[first]]
            same = theirs[rows_of(column[theirs], name)]
            if len(same):
                fence(evidence, mine[first:end], same, fences)
    return fences


def _fence_by_id(evidence: Evidence, inits: Numbers, writes: Numbers, fences: _Fences) -> None:
    """Fence the writes of one transactional id: each is of its client's last init before it."""
    ops = evidence.history.ops
    if len(inits) < 2:
        return
    inits = inits[np.argsort(ops.begin[inits], kind="stable")]
    # For each init, the first end among those that began after it had returned.
    ends = ops.end[inits]
    soonest = np.minimum.accumulate(ends[::-1])[::-1]
    last = np.searchsorted(ops.begin[inits], ends + evidence.clock_error_ns, "right")
    # Inits by client, then time; a write comes behind all of its client's that began before it.
    turns, width = np.arange(len(inits)) + 1, len(inits) + 1
    keys = ops.client[inits] * width + turns
    own = np.argsort(keys)
    begun = np.searchsorted(ops.begin[inits], ops.begin[writes], "right")
    found = np.searchsorted(keys[own], ops.client[writes] * width + begun, "right") - 1
    at = own[np.maximum(found, 0)]
    fenced = (found >= 0) & (ops.client[inits[at]] == ops.client[writes]) & (last[at] < len(inits))
    _fence(fences, ops, writes[fenced], soonest[last[at[fenced]]], inits)


def _fence_by_epoch(evidence: Evidence, inits: Numbers, writes: Numbers, fences: _Fences) -> None:
    """Fence the writes of one producer id: each by the inits of greater epochs."""
    ops, epoch = evidence.history.ops, evidence.identities.epoch
    inits = inits[np.argsort(epoch[inits], kind="stable")]
    soonest = np.minimum.accumulate(ops.end[inits][::-1])[::-1]
    at = np.searchsorted(epoch[inits], epoch[writes], "right")
    writes, at = writes[at < len(inits)], at[at < len(inits)]
    _fence(fences, ops, writes, soonest[at], inits)


def _fence(fences: _Fences, ops: Columns, writes: Numbers, since: Numbers, inits: Numbers) -> None:
    """Note a fence for these writes, and the init that ended then, unless an earlier one is."""
    earlier = since < fences.since[writes]
    writes, since = writes[earlier], since[earlier]
    ended = ops.__dict__["end"][inits]
    order = np.argsort(ended, kind="stable")
    fences.since[writes] = since
    fences.by[writes] = inits[order[np.searchsorted(ended[order], since)]]


def _by_epoch(evidence: Evidence) -> _Ranks:
    """The places whose writers' producer ids and epochs are known."""
    rows, history = evidence.records.rows, evidence.history
    ops = history.ops
    places = np.flatnonzero(rows.writer != NONE)
    copies = np.bincount(rows.writer[places], minlength=len(history.sends))
    places = places[copies[rows.writer[places]] == 1]  # Copies are duplicates.
    places = places[evidence.tries.single[rows.writer[places]]]
    op = history.sends.op[rows.writer[places]]
    named = ops.producer_id[op] != NONE
    places, op = places[named], op[named]
    order = np.lexsort((places, rows.partition[places], ops.producer_id[op]))
    places, op = places[order], op[order]
    groups = group_numbers(same_as_before(rows.partition[places], ops.producer_id[op]))
    epochs = ops.epoch[op]
    newest = running_greatest(groups, epochs)
    return _Ranks(place=places, op=op, group=groups, epoch=epochs, newest=newest)


def _behind_newer(evidence: Evidence, ranks: _Ranks, zombies: Numbers) -> Numbers:
    """Rows of an older epoch behind one of a newer, whose sends are not zombies by time."""
    known = np.zeros(len(evidence.history.ops), dtype=bool)
    known[zombies] = True
    return np.flatnonzero((ranks.epoch < ranks.newest) & ~known[ranks.op])


def _newer(ranks: _Ranks, row: int) -> int:
    """The last place before a row that is of the newest epoch there."""
    before = np.flatnonzero(
        (ranks.group[:row] == ranks.group[row]) & (ranks.epoch[:row] == ranks.newest[row])
    )
    return int(ranks.place[before[-1]])
