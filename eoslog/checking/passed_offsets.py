"""Offsets that each poll passed: from where the consumer stood before it, up to where it left it.

A consumer stands where its last poll or seek left it. What it passed it has seen: a record between
these offsets was returned by this poll, or is not there for its isolation level.
"""

from dataclasses import dataclass

import numpy as np

from eoslog.checking.groups_of_rows import distinct, place_keys, same_as_before
from eoslog.checking.history import (
    NEVER_NS,
    NONE,
    OK,
    POLL,
    READ_COMMITTED,
    SEEK,
    Columns,
    Flags,
    History,
    Numbers,
)


class Passes(Columns):
    """One row per poll and partition, in the order of each consumer's own calls."""

    op: Numbers
    partition: Numbers
    before: Numbers  # Where the consumer stood; NONE if that is not known.
    after: Numbers  # Where it stands now: the offset that is read next.
    told: Numbers  # The same by its own account, which may lie before what it returned.
    first: Numbers  # The least offset returned; NEVER_NS if nothing was.
    records: Numbers  # How many were.
    previous_op: Numbers  # The poll or seek that left it at `before`.


@dataclass
class Passed:
    """The passes, and all offsets that were passed, as ranges that do not touch."""

    passes: Passes
    committed: "OffsetRanges"  # By readers of committed data.
    uncommitted: "OffsetRanges"  # By readers of all data.
    of_read: Numbers  # The pass of each record that was returned.


@dataclass
class OffsetRanges:
    """Ranges of keys (partition and offset), sorted, upper bounds excluded."""

    first: Numbers
    upper_bound: Numbers

    def hold(self, first: Numbers, upper_bound: Numbers) -> Flags:
        """Return for each range [first, upper_bound) of keys if it lies in one of these."""
        at = np.searchsorted(self.first, first, "right") - 1
        inside = at >= 0
        found = np.zeros(len(first), dtype=bool)
        found[inside] = upper_bound[inside] <= self.upper_bound[at[inside]]
        return found

    def ends_around(self, keys: Numbers) -> Numbers:
        """Return for each key that one of these holds where that one ends; else the key itself."""
        if not len(self.first):
            return keys
        at = np.maximum(np.searchsorted(self.first, keys, "right") - 1, 0)
        held = (self.first[at] <= keys) & (keys < self.upper_bound[at])
        return np.where(held, self.upper_bound[at], keys)


def passed_offsets(history: History) -> Passed:
    """Return all passes of the history."""
    ops, reads, moved, seeks = history.ops, history.reads, history.next, history.seeks
    # One event per operation and partition: keyed by both.
    width = max(1, len(history.names.partitions))
    read_event, moved_event = reads.op * width + reads.partition, moved.op * width + moved.partition
    events = distinct(np.concatenate([read_event, moved_event]))
    of_read = np.searchsorted(events, read_event)
    count = len(events)
    first = np.full(count, NEVER_NS, dtype=np.int64)
    np.minimum.at(first, of_read, reads.offset)
    after = np.full(count, NONE, dtype=np.int64)
    np.maximum.at(after, of_read, reads.offset + 1)
    told = after.copy()
    told[np.searchsorted(events, moved_event)] = moved.offset
    after = np.maximum(after, told)
    seek_ops, poll_ops = seeks.op, events // width
    op = np.concatenate([poll_ops, seek_ops])
    partition = np.concatenate([events % width, seeks.partition])
    position = np.concatenate([after, seeks.offset])
    order, same = _chains(history, op, partition)
    before = np.full(len(op), NONE, dtype=np.int64)
    previous = np.full(len(op), NONE, dtype=np.int64)
    chained = np.flatnonzero(same)
    before[order[chained]] = position[order[chained - 1]]
    previous[order[chained]] = op[order[chained - 1]]
    passes = Passes(
        op=poll_ops,
        partition=events % width,
        before=before[:count],
        after=after,
        told=told,
        first=first,
        records=np.bincount(of_read, minlength=count),
        previous_op=previous[:count],
    )
    committed = ops.isolation[passes.op] == READ_COMMITTED
    return Passed(passes, _ranges(passes, committed), _ranges(passes, ~committed), of_read)


def starts_of(passes: Passes) -> Numbers:
    """Return where each pass begins: at the position before, else at its first record."""
    return np.where(passes.before != NONE, passes.before, np.minimum(passes.first, passes.after))


def _chains(history: History, op: Numbers, partition: Numbers) -> tuple[Numbers, Flags]:
    """The events of each consumer and partition in order, and which follow on the one before.

    After a poll that failed nobody knows where a consumer stands: what follows begins anew.
    """
    ops = history.ops
    turns = np.lexsort((np.arange(len(ops)), ops.begin, ops.client))
    turn_of = np.empty(len(ops), dtype=np.int64)
    turn_of[turns] = np.arange(len(ops))
    lost = (ops.outcome != OK) & ((ops.kind == POLL) | (ops.kind == SEEK))
    era_of = np.empty(len(ops), dtype=np.int64)
    era_of[turns] = np.cumsum(lost[turns])
    client, era = ops.client[op], era_of[op]
    order = np.lexsort((turn_of[op], era, partition, client))
    return order, same_as_before(client[order], partition[order], era[order])


def _ranges(passes: Passes, chosen: Flags) -> OffsetRanges:
    """The union of the chosen passes."""
    start = starts_of(passes)
    chosen = chosen & (start < passes.after)
    first = place_keys(passes.partition[chosen], start[chosen])
    end = place_keys(passes.partition[chosen], passes.after[chosen])
    order = np.argsort(first, kind="stable")
    first, end = first[order], np.maximum.accumulate(end[order]) if len(order) else end
    opens = np.ones(len(first), dtype=bool)
    opens[1:] = first[1:] > end[:-1]
    return OffsetRanges(first[opens], end[np.append(opens[1:], True)] if len(first) else end)
