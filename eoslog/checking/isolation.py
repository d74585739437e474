"""Reads that break isolation: aborted (G1a), precommitted, and circular flow (G1c)."""

from collections.abc import Iterator

import numpy as np

from eoslog.checking.evidence import Evidence
from eoslog.checking.history import FAIL, NEVER_NS, NONE, READ_COMMITTED, Flags, Numbers, distinct
from eoslog.checking.report import Anomaly, Found

# Aborted reads (G1a): a record that must not be there was read.


ABORTED = "aborted read"


def aborted_reads(evidence: Evidence) -> Found:
    """Records of sends that failed, read by anyone; of aborted transactions, read as committed."""
    history, rows = evidence.history, evidence.records.rows
    known = np.flatnonzero((rows.writer != NONE) & rows.seen)
    op = history.sends.op[rows.writer[known]]
    of = history.ops.transaction[op]
    aborted = np.zeros(len(known), dtype=bool)
    aborted[of != NONE] = evidence.transactions.refused[of[of != NONE]]
    wrong = (history.ops.outcome[op] == FAIL) | (aborted & rows.seen_committed[known])

    def show(place: int) -> Anomaly:
        send = int(rows.writer[place])
        transaction = evidence.transaction_of_send(send)
        ops = [evidence.send_op(send), evidence.place_op(place)]
        if history.ops.outcome[ops[0]] == FAIL:
            what = f"{evidence.place(place)} was read; its send failed"
        else:
            what = f"{evidence.place(place)} was read; {evidence.transaction(transaction)} aborted"
            of_end = evidence.transactions.abort_op, evidence.transactions.commit_op
            ops[1:1] = [int(column[transaction]) for column in of_end]
        return evidence.anomaly(ABORTED, what, ops)

    return evidence.found(ABORTED, known[wrong], show)


# Precommitted reads: a record was read as committed before anyone had asked for its commit.


PRECOMMITTED = "precommitted read"


def precommitted_reads(evidence: Evidence) -> Found:
    """Reads of committed data that ended before the first commit of the record's transaction."""
    history, transactions = evidence.history, evidence.transactions
    ops, reads, rows = history.ops, history.reads, evidence.records.rows
    writers = rows.writer[evidence.records.of_read]
    found = np.flatnonzero((writers != NONE) & (ops.isolation[reads.op] == READ_COMMITTED))
    send_op = history.sends.op[writers[found]]
    of = ops.transaction[send_op]
    theirs = (of != NONE) & (ops.outcome[send_op] != FAIL)
    found, of = found[theirs], of[theirs]
    found = found[~transactions.refused[of]]
    early = read_too_early(evidence, found)
    _, first = np.unique(evidence.records.of_read[found[early]], return_index=True)
    wrong = found[early][np.sort(first)]

    def show(read: int) -> Anomaly:
        place = int(evidence.records.of_read[read])
        send = int(rows.writer[place])
        transaction = evidence.transaction_of_send(send)
        commit = int(transactions.commit_op[transaction])
        when = "before its commit began" if commit != NONE else "which nobody committed"
        what = f"{evidence.place(place)} of {evidence.transaction(transaction)} was read, {when}"
        ops_of = [evidence.send_op(send), int(reads.op[read]), commit]
        return evidence.anomaly(PRECOMMITTED, what, ops_of)

    return evidence.found(PRECOMMITTED, wrong, show)


def read_too_early(evidence: Evidence, read: Numbers) -> Flags:
    """Return for reads of records of transactions if no client had asked for the commit by then.

    False where the record is of no transaction.
    """
    history, transactions = evidence.history, evidence.transactions
    ops = history.ops
    writers = evidence.records.rows.writer[evidence.records.of_read[read]]
    of = ops.transaction[history.sends.op[writers]]
    commit_op, poll = transactions.commit_op[of], history.reads.op[read]
    slack = evidence.slack(poll, np.where(commit_op == NONE, poll, commit_op))
    begun = transactions.commit_begin[of]
    early: Flags = (of != NONE) & ((begun == NEVER_NS) | (ops.end[poll] + slack < begun))
    return early


# Circular information flow (G1c): transactions that were each fed by the other.
#
# A transaction feeds another that polled one of its records as its own input. Only reads make
# edges: the records of several transactions interleave in a partition, in any order, without any
# fault.


CIRCULAR = "circular information flow"


def circular_information_flow(evidence: Evidence) -> Found:
    """Cycles of transactions over what they read of each other; one per set that is linked so.

    One that read itself is a cycle too, unless it is a precommitted read.
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
    feeder = ops.transaction[history.sends.op[writers[found]]]
    proper = feeder != NONE
    proper &= (feeder != fed) | (
        ~read_too_early(evidence, found) & evidence.tries.single[writers[found]]
    )
    proper[proper] &= ~evidence.transactions.refused[feeder[proper]]
    found, feeder, fed = found[proper], feeder[proper], fed[proper]
    if not _may_cycle(evidence, feeder, fed):
        return Found(CIRCULAR, 0, [])
    cycles = list(_linked(feeder, fed, len(history.names.transactions)))
    known = set().union(*cycles)
    cycles += [{one} for one in distinct(feeder[feeder == fed]).tolist() if one not in known]

    def show(at: int) -> Anomaly:
        links = _cycle(feeder, fed, cycles[at])
        names = [evidence.transaction(int(feeder[link])) for link in links]
        what = " fed ".join([*names, names[0]])
        ops_of = [
            op
            for link in links
            for op in (evidence.send_op(int(writers[found[link]])), int(reads.op[found[link]]))
        ]
        return evidence.anomaly(CIRCULAR, what, ops_of)

    return evidence.found(CIRCULAR, range(len(cycles)), show)


def _may_cycle(evidence: Evidence, feeder: Numbers, fed: Numbers) -> bool:
    """True if any edge goes back in time: without one there is no cycle."""
    begun = evidence.transactions.commit_begin
    return bool(len(feeder)) and not bool((begun[feeder] < begun[fed]).all())


def _linked(feeder: Numbers, fed: Numbers, count: int) -> Iterator[set[int]]:
    """Sets of two or more transactions that all reach each other (Tarjan, without recursion)."""
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
    """Edges of one cycle among the members, the shortest through the first of them.

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
