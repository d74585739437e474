"""What the finders of anomalies look at, and how they speak of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from eoslog.checking.anomaly import Anomaly, Found, OperationReference
from eoslog.checking.history import History, Numbers
from eoslog.checking.operation_kinds import KINDS, NEVER_NS, NONE, OFFSET_MAX, OUTCOMES
from eoslog.checking.passed_offsets import Passed
from eoslog.checking.producer_identity import Identities
from eoslog.checking.record_places import RecordPlaces
from eoslog.checking.transactions import Transactions
from eoslog.checking.tries import Tries


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
        """All anomalies of a kind: one per row, the first of which are shown."""
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
        """How far the clocks of two operations may differ: not at all within a client."""
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
