"""Broken isolation: aborted (G1a) and precommitted reads, circular flow (G1c), zombie writes."""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from eoslog.checking.evidence import Evidence, Found, Shown
from eoslog.checking.history import (
    COMMIT,
    FAIL,
    INIT,
    NEVER_NS,
    NONE,
    OK,
    READ_COMMITTED,
    SEND,
    Columns,
    Flags,
    Numbers,
    distinct,
    group_numbers,
    rows_of,
    running_greatest,
    same_as_before,
)

# Aborted reads (G1a): a record that must not be in the log was read.


def aborted_reads(evidence: Evidence) -> Found:
    """Find reads of records of failed sends, and committed reads of aborted records."""
    rows = evidence.records.rows
    known = np.flatnonzero((rows.writer != NONE) & rows.seen)
    of = evidence.send_transaction[rows.writer[known]]
    aborted = np.zeros(len(known), dtype=bool)
    aborted[of != NONE] = evidence.transactions.refused[of[of != NONE]]
    failed = evidence.send_outcome[rows.writer[known]] == FAIL
    wrong = failed | (aborted & rows.seen_committed[known])

    def show(place: int) -> Shown:
        send = rows.writer[place]
        ops = [evidence.send_op(send), evidence.place_op(place)]
        if evidence.send_outcome[send] == FAIL:
            return f"{evidence.place(place)} was read; its send failed", ops
        transaction = evidence.send_transaction[send]
        ops[1:1] = [evidence.transactions.abort_op[transaction], evidence.commit_op(transaction)]
        return f"{evidence.place(place)} was read; {evidence.transaction(transaction)} aborted", ops

    return evidence.found("aborted read", (known[wrong], show))


# Precommitted reads: a record was read as committed before any client asked for its commit.


def precommitted_reads(evidence: Evidence) -> Found:
    """Find reads of committed data that ended before the first commit of their transaction."""
    history, transactions = evidence.history, evidence.transactions
    ops, reads, rows = history.ops, history.reads, evidence.records.rows
    writers = rows.writer[evidence.records.of_read]
    found = np.flatnonzero((writers != NONE) & (ops.isolation[reads.op] == READ_COMMITTED))
    of = evidence.send_transaction[writers[found]]
    theirs = (of != NONE) & (evidence.send_outcome[writers[found]] != FAIL)
    found, of = found[theirs], of[theirs]
    found = found[~transactions.refused[of]]
    early = read_too_early(evidence, found)
    _, first = np.unique(evidence.records.of_read[found[early]], return_index=True)
    wrong = found[early][np.sort(first)]

    def show(read: int) -> Shown:
        place = evidence.records.of_read[read]
        send = rows.writer[place]
        transaction = evidence.send_transaction[send]
        commit = evidence.commit_op(transaction)
        when = "before its commit began" if commit != NONE else "which no client committed"
        what = f"{evidence.place(place)} of {evidence.transaction(transaction)} was read, {when}"
        return what, [evidence.send_op(send), reads.op[read], commit]

    return evidence.found("precommitted read", (wrong, show))


def read_too_early(evidence: Evidence, read: Numbers) -> Flags:
    """Return for each read if no client had asked for the commit of its transaction by then.

    False for a record of no transaction.
    """
    history, transactions = evidence.history, evidence.transactions
    ops = history.ops
    writers = evidence.records.rows.writer[evidence.records.of_read[read]]
    of = evidence.send_transaction[writers]
    commit_op, poll = transactions.commit_op[of], history.reads.op[read]
    slack = evidence.slack(poll, np.where(commit_op == NONE, poll, commit_op))
    begun = transactions.commit_begin[of]
    early: Flags = (of != NONE) & ((begun == NEVER_NS) | (ops.end[poll] + slack < begun))
    return early


# Circular information flow (G1c): transactions that were each fed by the other.
#
# A transaction feeds another that polled one of its records as its own input. Only reads are edges:
# records of several transactions may interleave in a partition in any order.


def circular_information_flow(evidence: Evidence) -> Found:
    """Find cycles of transactions that read each other; one for each strongly connected set.

    A transaction that read itself is a cycle too, unless that is a precommitted read.
    """
    history, rows = evidence.history, evidence.records.rows
    ops, reads = history.ops, history.reads
    writers = rows.writer[evidence.records.of_read]
    found = np.flatnonzero(
        (writers != NONE)
        & (ops.transaction[reads.op] != NONE)
        & (ops.isolation[reads.op] == READ_COMMITTED)
    )
    fed = ops.transaction[reads.op[found]]
    feeder = evidence.send_transaction[writers[found]]
    proper = feeder != NONE
    proper &= (feeder != fed) | (
        ~read_too_early(evidence, found) & evidence.tries.single[writers[found]]
    )
    proper[proper] &= ~evidence.transactions.refused[feeder[proper]]
    found, feeder, fed = found[proper], feeder[proper], fed[proper]
    if not _may_cycle(evidence, feeder, fed):
        return evidence.found("circular information flow")
    cycles = list(_linked(feeder, fed, len(history.names.transactions)))
    known = set().union(*cycles)
    cycles += [{one} for one in distinct(feeder[feeder == fed]).tolist() if one not in known]

    def show(at: int) -> Shown:
        links = _cycle(feeder, fed, cycles[at])
        names = [evidence.transaction(feeder[link]) for link in links]
        pairs = ((evidence.send_op(writers[read]), reads.op[read]) for read in found[links])
        return " fed ".join([*names, names[0]]), list(chain.from_iterable(pairs))

    return evidence.found("circular information flow", (range(len(cycles)), show))


def _may_cycle(evidence: Evidence, feeder: Numbers, fed: Numbers) -> bool:
    """True if an edge goes back in time: without one there is no cycle."""
    begun = evidence.transactions.commit_begin
    return bool(len(feeder)) and not bool((begun[feeder] < begun[fed]).all())


def _linked(feeder: Numbers, fed: Numbers, count: int) -> Iterator[set[int]]:
    """Yield sets of transactions that all reach each other (Tarjan, without recursion)."""
    order = np.argsort(feeder, kind="stable")
    starts = np.searchsorted(feeder[order], np.arange(count + 1)).tolist()
    nexts = fed[order].tolist()
    index = [NONE] * count
    low = [0] * count
    on_stack = [False] * count
    stack: list[int] = []
    met = 0
    for root in distinct(feeder).tolist():
        work = [(root, starts[root])] if index[root] == NONE else []
        while work:
            node, at = work.pop()
            if index[node] == NONE:
                index[node] = low[node] = met
                met += 1
                stack.append(node)
                on_stack[node] = True
            for edge in range(at, starts[node + 1]):
                other = nexts[edge]
                if index[other] == NONE:
                    work += [(node, edge), (other, starts[other])]
                    break
                if on_stack[other]:
                    low[node] = min(low[node], low[other])
            else:
                if low[node] == index[node]:
                    members: set[int] = set()
                    while node not in members:
                        last = stack.pop()
                        on_stack[last] = False
                        members.add(last)
                    if len(members) > 1:
                        yield members


def _cycle(feeder: Numbers, fed: Numbers, members: set[int]) -> list[int]:
    """Return the edges of the shortest cycle through the first of the members.

    The edge of a member to itself is the shortest of all.
    """
    start = min(members)
    inside = np.isin(feeder, list(members)) & np.isin(fed, list(members))
    edges: dict[int, list[int]] = {}
    for edge in np.flatnonzero(inside).tolist():
        edges.setdefault(int(feeder[edge]), []).append(edge)
    came: dict[int, int] = {}
    waiting = [start]
    while start not in came:
        node = waiting.pop(0)
        for edge in edges[node]:
            if int(fed[edge]) not in came:
                came[int(fed[edge])] = edge
                waiting.append(int(fed[edge]))
    path = [came[start]]
    while int(feeder[path[-1]]) != start:
        path.append(came[int(feeder[path[-1]])])
    return path[::-1]


# Zombie writes: a producer wrote or committed after its successor had taken over.
#
# A producer that takes over a transactional id, or opens a producer id under a newer epoch, fences
# the one before from the moment its `init` returned. In the log itself the records of an older
# epoch never come after those of a newer one, however wrong clocks are.


class _Fences(Columns):
    """One row per operation: since when its producer was fenced, and by which `init`."""

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
    """Find sends and commits of fenced producers that took effect."""
    history = evidence.history
    ops = history.ops
    fences = _fences(evidence)
    late = ops.begin > np.where(fences.by == NONE, NEVER_NS, fences.since + evidence.clock_error_ns)
    wrote = (ops.kind == COMMIT) & (ops.outcome == OK)
    wrote[_ops_that_appended(evidence)] = True
    zombies = np.flatnonzero(late & wrote)
    ranks = _by_epoch(evidence)
    misplaced = _after_newer(evidence, ranks, zombies)

    def show_late(op: int) -> Shown:
        did = "committed" if ops.kind[op] == COMMIT else "wrote"
        by = fences.by[op]
        client, other = (history.names.clients[ops.client[one]] for one in (op, by))
        what = f"{client!r} {did} after the init of its successor {other!r} had returned"
        return what, [by, op]

    def show_misplaced(row: int) -> Shown:
        rows, places = evidence.records.rows, [_newer(ranks, row), ranks.place[row]]
        newer, older = map(evidence.place, places)
        what = f"{older} is of an older epoch than {newer}, and stands after it"
        sent = [evidence.send_op(rows.writer[one]) for one in places]
        return what, [*sent, evidence.place_op(places[1])]

    return evidence.found("zombie write", (zombies, show_late), (misplaced, show_misplaced))


def _ops_that_appended(evidence: Evidence) -> Numbers:
    """Return the sends of which a record is certainly in the log, and of no other try."""
    rows, sends = evidence.records.rows, evidence.history.sends
    writers = rows.writer[rows.writer != NONE]
    return distinct(sends.op[writers[evidence.tries.single[writers]]])


def _fences(evidence: Evidence) -> _Fences:
    ops = evidence.history.ops
    since = np.full(len(ops), NEVER_NS, dtype=np.int64)
    by = np.full(len(ops), NONE, dtype=np.int64)
    fences = _Fences(since=since, by=by)
    # One of unknown outcome has no end: it fences no other, but may give its client the id again.
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
    # Inits by client, then time; a write comes after all of its client's that began before it.
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
    """Set a fence for these writes, and the init that ended then, unless an earlier one is set."""
    earlier = since < fences.since[writes]
    writes, since = writes[earlier], since[earlier]
    ended = ops.__dict__["end"][inits]
    order = np.argsort(ended, kind="stable")
    fences.since[writes] = since
    fences.by[writes] = inits[order[np.searchsorted(ended[order], since)]]


def _by_epoch(evidence: Evidence) -> _Ranks:
    """Return the places whose writers' producer ids and epochs are known."""
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


def _after_newer(evidence: Evidence, ranks: _Ranks, zombies: Numbers) -> Numbers:
    """Return rows of an older epoch after one of a newer, whose sends are not zombies by time."""
    known = np.zeros(len(evidence.history.ops), dtype=bool)
    known[zombies] = True
    return np.flatnonzero((ranks.epoch < ranks.newest) & ~known[ranks.op])


def _newer(ranks: _Ranks, row: int) -> int:
    """Return the last place before a row that is of the newest epoch there."""
    before = np.flatnonzero(
        (ranks.group[:row] == ranks.group[row]) & (ranks.epoch[:row] == ranks.newest[row])
    )
    return int(ranks.place[before[-1]])
