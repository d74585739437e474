"""Evidence of a history, and the anomalies that their finders report from it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from eoslog.checking.history import (
    ABORT,
    COMMIT,
    FAIL,
    INIT,
    KINDS,
    NEVER_NS,
    NONE,
    OFFSET_MAX,
    OFFSETS,
    OK,
    OUTCOMES,
    POLL,
    READ_COMMITTED,
    SEEK,
    SEND,
    Columns,
    Flags,
    History,
    Numbers,
    distinct,
    greatest,
    least,
    place_keys,
    same_as_before,
)
from eoslog.checking.outcomes import RecordPlaces, Transactions, Tries

# Passes: the offsets between a consumer's positions before and after each poll.
#
# A consumer's position is where its last poll or seek left it. A record between the two offsets was
# returned by this poll, or is not there for its isolation level.


class Passes(Columns):
    """One row per poll and partition, in the order of each consumer's own calls."""

    op: Numbers
    partition: Numbers
    before: Numbers  # The position before the poll; NONE if it is not known.
    after: Numbers  # The position after it: the offset that is read next.
    reported: Numbers  # The position that it gave, which may be before returned records.
    first: Numbers  # The least offset returned; NEVER_NS if nothing was.
    records: Numbers  # The number of records returned.
    previous_op: Numbers  # The poll or seek that left it at `before`.


@dataclass
class Passed:
    """Passes, and the union of their offsets, as ranges that do not touch."""

    passes: Passes
    committed: "OffsetRanges"  # By readers of committed data.
    uncommitted: "OffsetRanges"  # By readers of all data.
    of_read: Numbers  # The pass of each record that was returned.


@dataclass
class OffsetRanges:
    """Ranges of keys (partition and offset), sorted; upper bounds are exclusive."""

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
        """Return for each key the upper bound of the range that holds it; else the key itself."""
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
    first = least(of_read, reads.offset, count)
    after = greatest(of_read, reads.offset + 1, count)
    reported = after.copy()
    reported[np.searchsorted(events, moved_event)] = moved.offset
    after = np.maximum(after, reported)
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
        reported=reported,
        first=first,
        records=np.bincount(of_read, minlength=count),
        previous_op=previous[:count],
    )
    committed = ops.isolation[passes.op] == READ_COMMITTED
    return Passed(passes, _ranges(passes, committed), _ranges(passes, ~committed), of_read)


def starts_of(passes: Passes) -> Numbers:
    """Return where each pass begins: at the position before it, else at its first record."""
    return np.where(passes.before != NONE, passes.before, np.minimum(passes.first, passes.after))


def _chains(history: History, op: Numbers, partition: Numbers) -> tuple[Numbers, Flags]:
    """Return the events of each consumer and partition in order, and which continue the one before.

    After a failed poll the position is unknown: the next event continues none.
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
    """Return the union of the chosen passes."""
    start = starts_of(passes)
    chosen = chosen & (start < passes.after)
    first = place_keys(passes.partition[chosen], start[chosen])
    end = place_keys(passes.partition[chosen], passes.after[chosen])
    order = np.argsort(first, kind="stable")
    first, end = first[order], np.maximum.accumulate(end[order]) if len(order) else end
    opens = np.ones(len(first), dtype=bool)
    opens[1:] = first[1:] > end[:-1]
    return OffsetRanges(first[opens], end[np.append(opens[1:], True)] if len(first) else end)


# Identities of operations that do not name them: those of the last `init` of their client.
#
# A client is one producer, so it writes under the identity of an `init` until the next. After one
# of unknown outcome only the transactional id is known. The epoch may rise with each transaction:
# then only a lower bound is known, which is enough to be fenced.


_WRITES = (SEND, COMMIT, ABORT, OFFSETS)


class Identities(Columns):
    """One row per operation: its own identity, else that of its client's last `init`."""

    transactional_id: Numbers
    producer_id: Numbers
    epoch: Numbers  # A lower bound if the operation does not name it.


def identities_of(history: History) -> Identities:
    """Return the identity of each operation. One that contradicts its `init` stays as recorded."""
    ops = history.ops
    inits = (ops.kind == INIT) & (ops.outcome != FAIL)
    if not inits.any():
        return Identities(
            transactional_id=ops.transactional_id, producer_id=ops.producer_id, epoch=ops.epoch
        )
    last = _last_of_client(history, inits)
    rows = np.flatnonzero(np.isin(ops.kind, _WRITES) & (last != NONE))
    init = last[rows]
    fits = _agree(ops.transactional_id[rows], ops.transactional_id[init])
    fits &= _agree(ops.producer_id[rows], ops.producer_id[init])
    fits &= (ops.epoch[rows] == NONE) | (ops.epoch[rows] >= ops.epoch[init])
    rows, init = rows[fits], init[fits]

    def filled(column: Numbers) -> Numbers:
        found = column.copy()
        found[rows] = np.where(column[rows] == NONE, column[init], column[rows])
        return found

    return Identities(
        transactional_id=filled(ops.transactional_id),
        producer_id=filled(ops.producer_id),
        epoch=filled(ops.epoch),
    )


def _agree(one: Numbers, other: Numbers) -> Flags:
    agreed: Flags = (one == other) | (one == NONE) | (other == NONE)
    return agreed


def _last_of_client(history: History, chosen: Flags) -> Numbers:
    """Return for each operation the last chosen one of its client before it, or NONE."""
    ops = history.ops
    order = np.lexsort((np.arange(len(ops)), ops.begin, ops.client))
    at = np.maximum.accumulate(np.where(chosen[order], np.arange(len(order)), NONE))
    found = np.full(len(ops), NONE, dtype=np.int64)
    there = np.flatnonzero(at != NONE)
    same = ops.client[order[at[there]]] == ops.client[order[there]]
    found[order[there[same]]] = order[at[there[same]]]
    return found


# Text of an anomaly, and the operations that prove it.
Shown = tuple[str, list[int]]


@dataclass(frozen=True)
class OperationReference:
    """An operation of the history, and where its line is."""

    file: str
    line: int
    client: str
    kind: str
    outcome: str
    begin_ns: int
    end_ns: int | None

    def __str__(self) -> str:
        ended = "" if self.outcome == "ok" else f" ({self.outcome})"
        return f"{self.file}:{self.line} {self.client} {self.kind}{ended}"


@dataclass(frozen=True)
class Anomaly:
    """One anomaly: its kind, what was seen, and the operations that prove it."""

    kind: str
    what: str
    operations: tuple[OperationReference, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the anomaly as values of JSON."""
        return asdict(self) | {"operations": [asdict(one) for one in self.operations]}


@dataclass(frozen=True)
class Found:
    """All anomalies of one kind: how many there are, and the first of them."""

    kind: str
    count: int
    examples: list[Anomaly]


@dataclass
class Evidence:
    """A history and the tables derived from it."""

    history: History
    transactions: Transactions
    records: RecordPlaces
    identities: Identities
    tries: Tries
    passed: Passed
    clock_error_ns: int
    visible_within_ns: int
    examples_max: int

    def found(
        self, kind: str, *parts: tuple[Sequence[int] | Numbers, Callable[[int], Shown]]
    ) -> Found:
        """Return all anomalies of a kind: one for each row of each part, the first with proof."""
        shown = (show(int(row)) for rows, show in parts for row in rows[: self.examples_max])
        examples = [self._anomaly(kind, *one) for one in islice(shown, self.examples_max)]
        return Found(kind, sum(len(rows) for rows, _ in parts), examples)

    def _anomaly(self, kind: str, what: str, ops: Iterable[int]) -> Anomaly:
        """Return an anomaly with its operations: each is named once, NONE is left out."""
        named = dict.fromkeys(int(op) for op in ops if op != NONE)
        return Anomaly(kind, what, tuple(self.operation(op) for op in named))

    def operation(self, op: int) -> OperationReference:
        """Return a reference to an operation."""
        ops, names = self.history.ops, self.history.names
        end = int(ops.end[op])
        return OperationReference(
            file=names.files[ops.file[op]],
            line=int(ops.line[op]),
            client=names.clients[ops.client[op]],
            kind=KINDS[ops.kind[op]],
            outcome=OUTCOMES[ops.outcome[op]],
            begin_ns=int(ops.begin[op]),
            end_ns=None if end == NEVER_NS else end,
        )

    def place_op(self, place: int) -> int:
        """Return an operation that shows that a record is at its place."""
        rows = self.records.rows
        if rows.first_read[place] != NONE:
            return int(self.history.reads.op[rows.first_read[place]])
        return self.send_op(int(rows.answered[place]))

    def send_op(self, send: int) -> int:
        """Return the operation of a row of the sends; NONE for NONE."""
        return NONE if send == NONE else int(self.history.sends.op[send])

    @cached_property
    def send_transaction(self) -> Numbers:
        """The transaction of each row of the sends, or NONE."""
        return self.history.ops.transaction[self.history.sends.op]

    @cached_property
    def send_outcome(self) -> Numbers:
        """The outcome of each row of the sends."""
        return self.history.ops.outcome[self.history.sends.op]

    @cached_property
    def seen_in_part(self) -> Flags:
        """True for each transaction of which a reader of committed data has a record."""
        rows = self.records.rows
        seen = rows.writer[rows.seen_committed & (rows.writer != NONE)]
        found = np.zeros(len(self.history.names.transactions) + 1, dtype=bool)
        found[self.send_transaction[seen]] = True
        return found[:-1]  # The last one is that of NONE.

    def commit_op(self, transaction: int) -> int:
        """Return an operation to show for a transaction's end; NONE for NONE."""
        return NONE if transaction == NONE else int(self.transactions.commit_op[transaction])

    def transaction(self, number: int) -> str:
        """Return the text for a transaction."""
        return f"transaction {self.history.names.transactions[number]!r}"

    def value(self, number: int) -> str:
        """Return the text for a record, cut to 80 characters."""
        return f"record {self.history.names.values[number]!r:.80}"

    def sent(self, send: int) -> str:
        """Return the text for the record of a row of the sends."""
        return self.value(self.history.sends.value[send])

    def key(self, key: int) -> str:
        """Return the text for a partition and an offset."""
        partition = self.history.names.partitions[key >> (OFFSET_MAX.bit_length())]
        return f"{partition} offset {key & OFFSET_MAX}"

    def place(self, place: int) -> str:
        """Return the text for a record and its place."""
        rows = self.records.rows
        return f"{self.value(rows.value[place])} at {self.key(rows.key[place])}"

    def partition(self, number: int) -> str:
        """Return the text for a partition, which may be unknown."""
        return "some partition" if number == NONE else self.history.names.partitions[number]

    def there_by(self, sends: Numbers) -> Numbers:
        """Return for rows of the sends the time by which each record, if it stays, was there."""
        ops, op = self.history.ops, self.history.sends.op[sends]
        found, of = ops.end[op], self.send_transaction[sends]
        inside = of != NONE
        found[inside] = np.maximum(found[inside], self.transactions.committed_by[of[inside]])
        return found

    def slack(self, one: Numbers, other: Numbers) -> Numbers:
        """Return how far the clocks of two operations may differ: 0 within a client."""
        client = self.history.ops.client
        return np.where(client[one] == client[other], 0, self.clock_error_ns)


def sent_offsets(history: History, records: RecordPlaces) -> Numbers:
    """Return the offset of each record sent, NONE if it is unknown or there are several."""
    sends, rows = history.sends, records.rows
    found = sends.offset.copy()
    known = np.flatnonzero((rows.writer != NONE) & (rows.answered == NONE))
    writers = rows.writer[known]
    copies = np.bincount(writers, minlength=len(sends))
    right = (copies[writers] == 1) & (found[writers] == NONE)
    right &= (sends.partition[writers] == NONE) | (
        sends.partition[writers] == rows.partition[known]
    )
    found[writers[right]] = rows.offset[known][right]
    return found
