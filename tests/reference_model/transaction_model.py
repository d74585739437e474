"""What transactions promise to those who read: a store without files, offsets or epochs.

A record is its value. A partition is the list of what was appended to it, in order; a transaction
is open, prepared, committed or aborted, and readers of decided data see a partition up to the first
record of one that is not decided.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

OPEN, PREPARED, COMMITTED, ABORTED = "open", "prepared", "committed", "aborted"
UNDECIDED = (OPEN, PREPARED)

Place = tuple[str, int]
GroupPlace = tuple[str, Place]


@dataclass(eq=False)
class TransactionModel:
    """One transaction: its state, and the offsets that it commits for groups."""

    transactional_id: str
    state: str = OPEN
    offsets: dict[GroupPlace, tuple[int, int]] = field(default_factory=dict)
    record_count: int = 0

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    @property
    def is_undecided(self) -> bool:
        return self.state in UNDECIDED


@dataclass(frozen=True)
class Appended:
    """A record of a partition, and whose it is."""

    value: bytes
    transaction: TransactionModel | None


@dataclass(eq=False)
class WriterModel:
    """A transactional producer: what it has gathered, and the transaction that it is in."""

    transactional_id: str
    transaction: TransactionModel | None = None
    gathered: list[tuple[Place, bytes]] = field(default_factory=list)
    in_transaction: bool = False
    is_fenced: bool = False


class StoreModel:
    """Partitions, groups and transactions."""

    def __init__(self, places: list[Place]) -> None:
        self.partitions: dict[Place, list[Appended]] = {place: [] for place in places}
        self.offsets: dict[GroupPlace, tuple[int, int]] = {}
        self.transactions: list[TransactionModel] = []
        self._write_count = 0

    # -- writing -----------------------------------------------------------------------------------

    def append(self, place: Place, values: list[bytes]) -> None:
        """A plain producer's records."""
        self.partitions[place] += [Appended(value, None) for value in values]

    def load(self, records: dict[Place, list[bytes]]) -> None:
        """A staged job: it is decided when its first record enters the log."""
        job = TransactionModel("load", COMMITTED)
        for place, values in records.items():
            job.record_count += len(values)
            self.partitions[place] += [Appended(value, job) for value in values]

    def send(self, writer: WriterModel, place: Place, value: bytes) -> None:
        writer.gathered.append((place, value))

    def append_in_transaction(self, writer: WriterModel, place: Place, values: list[bytes]) -> None:
        """At once, and behind what was gathered for the partition before."""
        earlier = [one for one in writer.gathered if one[0] == place]
        writer.gathered = [one for one in writer.gathered if one[0] != place]
        self._append_all(writer, [*earlier, *((place, value) for value in values)])

    def flush(self, writer: WriterModel) -> None:
        self._append_all(writer, writer.gathered)
        writer.gathered = []

    def _append_all(self, writer: WriterModel, records: list[tuple[Place, bytes]]) -> None:
        if records:
            transaction = self._transaction_of(writer)
            transaction.record_count += len(records)
            for place, value in records:
                self.partitions[place].append(Appended(value, transaction))

    def _transaction_of(self, writer: WriterModel) -> TransactionModel:
        if writer.transaction is None:
            writer.transaction = TransactionModel(writer.transactional_id)
            self.transactions.append(writer.transaction)
        return writer.transaction

    def send_offsets(self, writer: WriterModel, group: str, place: Place, offset: int) -> None:
        self._write_count += 1
        transaction = self._transaction_of(writer)
        transaction.offsets[group, place] = (offset, self._write_count)

    def commit_offset(self, group: str, place: Place, offset: int) -> None:
        """Outside of any transaction."""
        self._write_count += 1
        self.offsets[group, place] = (offset, self._write_count)

    # -- ends --------------------------------------------------------------------------------------

    def decide(self, transaction: TransactionModel, state: str) -> None:
        """Commit or abort; of two offsets the one that was written later counts."""
        assert transaction.is_undecided
        transaction.state = state
        if state == COMMITTED:
            for where, found in transaction.offsets.items():
                if found[1] > self.offsets.get(where, (0, 0))[1]:
                    self.offsets[where] = found

    def end(self, writer: WriterModel, *, commit: bool) -> None:
        if commit:
            self.flush(writer)
        self._leave(writer, COMMITTED if commit else ABORTED)

    def prepare(self, writer: WriterModel) -> TransactionModel:
        """It stands for whoever decides; the writer may still, and may do nothing else."""
        self.flush(writer)
        assert writer.transaction is not None
        writer.transaction.state = PREPARED
        return writer.transaction

    def _leave(self, writer: WriterModel, state: str) -> None:
        if writer.transaction is not None and writer.transaction.is_undecided:
            self.decide(writer.transaction, state)
        writer.transaction = None
        writer.gathered = []
        writer.in_transaction = False

    def fence(self, writer: WriterModel, *, keep_prepared: bool) -> None:
        """Somebody took the transactional id over: what is open is aborted.

        The writer may not have heard of it: it can still believe that it is in a transaction.
        """
        believes = writer.in_transaction
        kept = keep_prepared and writer.transaction is not None
        if kept and writer.transaction is not None and writer.transaction.state == PREPARED:
            writer.transaction = None
        self._leave(writer, ABORTED)
        writer.in_transaction = believes
        writer.is_fenced = True

    def lose_the_process(self) -> None:
        """Only what is prepared outlives its writer."""
        for transaction in self.transactions:
            if transaction.state == OPEN:
                self.decide(transaction, ABORTED)

    def prepared_of(self, transactional_id: str) -> TransactionModel | None:
        for transaction in self.transactions:
            same = transaction.transactional_id == transactional_id
            if same and transaction.state == PREPARED:
                return transaction
        return None

    # -- reading -----------------------------------------------------------------------------------

    def all_values(self, place: Place) -> list[bytes]:
        return [one.value for one in self.partitions[place]]

    def committed_values(self, place: Place) -> list[bytes]:
        """Up to the first record that is not decided, without what was aborted."""
        return [
            one.value
            for one in self.partitions[place][: self.decided_count(place)]
            if one.transaction is None or one.transaction.state == COMMITTED
        ]

    def decided_count(self, place: Place) -> int:
        """How many records stand before the first that is not decided."""
        for index, one in enumerate(self.partitions[place]):
            if one.transaction is not None and one.transaction.is_undecided:
                return index
        return len(self.partitions[place])

    def offset_of(self, group: str, place: Place) -> int | None:
        found = self.offsets.get((group, place))
        return None if found is None else found[0]

    def has_pending_offset(self, group: str, place: Place) -> bool:
        return any(one.is_undecided and (group, place) in one.offsets for one in self.transactions)

    def committed_transactions(self) -> list[TransactionModel]:
        return [one for one in self.transactions if one.state == COMMITTED]

    def copy(self) -> StoreModel:
        return copy.deepcopy(self)
