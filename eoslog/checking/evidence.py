"""Evidence that the finders of anomalies look at, and the words in which they report it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
    OUTCOMES,
    SEND,
    Columns,
    Flags,
    History,
    Numbers,
)
from eoslog.checking.passed_offsets import Passed
from eoslog.checking.record_places import RecordPlaces, Tries
from eoslog.checking.report import Anomaly, Found, OperationReference
from eoslog.checking.transactions import Transactions

# Under which ids operations wrote that do not say so: those of their client's own last `init`.
#
# A client is one producer, so what it was given by an `init` is what it writes under until the
# next. After one of unknown outcome only the name that it asked for is known. An epoch may have
# risen since then, with each transaction: of that one only a lower bound is known, which is
# enough to be fenced.


_WRITES = (SEND, COMMIT, ABORT, OFFSETS)


class Identities(Columns):
    """One row per operation: what it says of its producer, else what its client's `init` said."""

    transactional_id: Numbers
    producer_id: Numbers
    epoch: Numbers  # It is this one, or a greater one if the operation does not say it.


def identities_of(history: History) -> Identities:
    """Return the identity that each operation wrote under. One that contradicts the `init` is left
    as it was recorded.
    """
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


@dataclass
class Evidence:
    """A history with all that was derived from it."""

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
        self, kind: str, rows: Sequence[int] | Numbers, show: Callable[[int], Anomaly]
    ) -> Found:
        """Return all anomalies of a kind: one per row, the first of which are shown."""
        return Found(kind, len(rows), [show(int(row)) for row in rows[: self.examples_max]])

    def anomaly(self, kind: str, what: str, ops: Iterable[int]) -> Anomaly:
        """An anomaly that these operations prove; each is named once, NONE is left out."""
        named = dict.fromkeys(int(op) for op in ops if op != NONE)
        return Anomaly(kind, what, tuple(self.operation(op) for op in named))

    def operation(self, op: int) -> OperationReference:
        """An operation by its row."""
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
        """An operation that shows that a record is at its place."""
        rows = self.records.rows
        if rows.first_read[place] != NONE:
            return int(self.history.reads.op[rows.first_read[place]])
        return self.send_op(int(rows.answered[place]))

    def send_op(self, send: int) -> int:
        """The operation of a row of the sends; NONE for none."""
        return NONE if send == NONE else int(self.history.sends.op[send])

    def transaction_of_send(self, send: int) -> int:
        """The transaction of a row of the sends, or NONE."""
        return int(self.history.ops.transaction[self.history.sends.op[send]])

    def transaction(self, number: int) -> str:
        """A transaction's name."""
        return f"transaction {self.history.names.transactions[number]!r}"

    def value(self, number: int) -> str:
        """A record's identity, cut to what a line can hold."""
        return f"record {self.history.names.values[number]!r:.80}"

    def key(self, key: int) -> str:
        """A partition and an offset."""
        partition = self.history.names.partitions[key >> (OFFSET_MAX.bit_length())]
        return f"{partition} offset {key & OFFSET_MAX}"

    def place(self, place: int) -> str:
        """A record and where it is."""
        rows = self.records.rows
        return f"{self.value(int(rows.value[place]))} at {self.key(int(rows.key[place]))}"

    def partition(self, number: int) -> str:
        """A partition's name; where it is not known, that it is not."""
        return "some partition" if number == NONE else self.history.names.partitions[number]

    def slack(self, one: Numbers, other: Numbers) -> Numbers:
        """Return how far the clocks of two operations may differ: not at all within a client."""
        client = self.history.ops.client
        return np.where(client[one] == client[other], 0, self.clock_error_ns)


def sent_offsets(history: History, records: RecordPlaces) -> Numbers:
    """Per record sent: its offset, as far as it is known and is one; else NONE."""
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
