"""Transactions as `__transaction_state` has them, as far as it still has the records.

It is held against what partitions have (`followed_transactions`). The two are of one moment if each
marker that commits was decided, and each transaction that is complete has its markers.

Invariants: a producer id's `epoch` is the highest one that its coordinator gave out or decided
with; each decision with an epoch above `decided_above` is known. What is known only grows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eoslog.common.topic_partition import TopicPartition
from eoslog.storage.producer_id_range import FIRST_PRODUCER_ID, STAGED_PRODUCER_ID_MIN
from eoslog.transactions.transaction_entries import PREPARE_STATES, UNDECIDED_STATES

# Each transaction's end raises the epoch from this version of the protocol on. Before, many
# transactions have one epoch, and their markers have it too.
_EPOCH_BUMPING_VERSION = 2
_COMMIT, _ABORT = 1, 2
# The same of transactions that share an epoch.
_SHARED_COMMIT, _SHARED_ABORT = _COMMIT << 2, _ABORT << 2
_SHARED = _SHARED_COMMIT | _SHARED_ABORT


@dataclass(slots=True)
class KnownProducer:
    """A producer id as its coordinator knows it; `described` names whose it is."""

    described: str
    epoch: int
    decided_above: int
    is_undecided: bool = False
    open_in: frozenset[TopicPartition] = frozenset()  # Of its transaction that is not decided.


class _Decisions(NamedTuple):
    """Decisions that were made with one epoch, and the partitions they were made for."""

    kinds: int
    partitions: frozenset[tuple[str, int]]


_NONE = _Decisions(0, frozenset())


class CommittedTransaction(NamedTuple):
    """A transaction that was committed, and whose markers are all written."""

    described: str
    producer_id: int
    epoch: int
    decided_ms: int

    def __str__(self) -> str:
        return (
            f"a transaction of {self.described}, producer {self.producer_id}, epoch {self.epoch}, "
            "is committed"
        )


class Marker(NamedTuple):
    """The end of a transaction in a partition; `data_epoch` is -1 if nothing of it is known."""

    where: TopicPartition
    producer_id: int
    epoch: int
    data_epoch: int
    commit: bool
    offset: int


@dataclass
class DecidedTransactions:
    """Decisions by producer id; by partition, the transactions that it must have the end of.

    Of these only the newest of each producer id is kept. Those that were aborted are not among
    them: after a power cut a partition may have neither their batches nor their marker.
    """

    producers: dict[int, KnownProducer] = field(default_factory=dict)
    next_producer_id: int = FIRST_PRODUCER_ID  # Those from here on were never given out.
    has_all: bool = True  # No record of any partition of the state log is gone.
    staged_producer_ids: set[int] = field(default_factory=set)  # Of jobs that were decided.
    has_all_jobs: bool = True  # The files of each decided job are known.
    committed: dict[TopicPartition, dict[int, CommittedTransaction]] = field(default_factory=dict)
    _decisions: dict[tuple[int, int], _Decisions] = field(default_factory=dict)
    # Most transactions of a producer have the same partitions.
    _partitions: dict[frozenset[tuple[str, int]], frozenset[tuple[str, int]]] = field(
        default_factory=dict
    )
    _complete_epochs: dict[int, int] = field(default_factory=dict)

    # The records.

    def follow(
        self,
        described: str,
        state: Mapping[str, Any],
        older: Mapping[str, Any] | None,
        *,
        has_all: bool,
    ) -> str | None:
        """Take in the next record of a transactional id; what contradicts an earlier decision.

        `older` is the record before; `has_all` says that no record of the log is gone.
        """
        producer_id, epoch = state["producer_id"], state["producer_epoch"]
        is_decision = state["state"] in PREPARE_STATES
        known = self.producers.get(producer_id)
        if known is None:
            above = -1 if has_all else epoch - is_decision
            known = KnownProducer(described, epoch, above)
            self.producers[producer_id] = known
        known.epoch = max(known.epoch, epoch)
        known.is_undecided = state["state"] in UNDECIDED_STATES
        is_open = known.is_undecided and not is_decision
        known.open_in = frozenset(
            TopicPartition(*place) for place in (state["partitions"] or ()) if is_open
        )
        if older is not None and older["state"] in PREPARE_STATES:
            self._note_end(described, older, state)
        if state["state"].startswith("Complete"):
            self._note_complete(producer_id, epoch)
        return self._note_decision(described, state) if is_decision else None

    def _note_decision(self, described: str, state: Mapping[str, Any]) -> str | None:
        key = state["producer_id"], state["producer_epoch"]
        decision = _COMMIT if state["state"] == "PrepareCommit" else _ABORT
        if not _bumps_epoch(state):
            decision <<= 2
        older = self._decisions.get(key, _NONE)
        partitions = older.partitions.union(state["partitions"] or ())
        partitions = self._partitions.setdefault(partitions, partitions)
        kinds = older.kinds | decision
        self._decisions[key] = _Decisions(kinds, partitions)
        if kinds & ~_SHARED != _COMMIT | _ABORT:
            return None
        return (
            f"{described}, producer {key[0]}, epoch {key[1]} is decided a second time, and "
            "otherwise"
        )

    def _note_end(
        self, described: str, decided: Mapping[str, Any], state: Mapping[str, Any]
    ) -> None:
        """A later record of the id says that a decision was carried out."""
        producer_id, epoch = decided["producer_id"], decided["producer_epoch"]
        if state["state"] in PREPARE_STATES and (
            (state["producer_id"], state["producer_epoch"]) == (producer_id, epoch)
        ):
            return  # The same record once more.
        if state["producer_id"] != producer_id:
            older = self.producers[producer_id]
            older.is_undecided, older.open_in = False, frozenset()
        self._note_complete(producer_id, epoch)
        if decided["state"] != "PrepareCommit":
            return
        one = CommittedTransaction(described, producer_id, epoch, decided["last_update_ms"])
        for place in decided["partitions"] or ():
            self.committed.setdefault(TopicPartition(*place), {})[producer_id] = one

    def _note_complete(self, producer_id: int, epoch: int) -> None:
        known = self._complete_epochs.get(producer_id, -1)
        self._complete_epochs[producer_id] = max(known, epoch)

    def follow_named(self, described: str, producer_id: int, epoch: int) -> None:
        """Take in the next record of a named producer, which has no transactions."""
        known = self.producers.setdefault(
            producer_id, KnownProducer(described, epoch, decided_above=epoch)
        )
        known.epoch = max(known.epoch, epoch)

    def note_gone(self, producer_ids: Iterable[int]) -> None:
        """Records are missing among those of these: decisions of theirs may be among them."""
        self.has_all = False
        for producer_id in producer_ids:
            known = self.producers[producer_id]
            known.decided_above = known.epoch

    # What a partition has.

    def is_complete(self, producer_id: int, epoch: int) -> bool:
        """True if a transaction with batches of this epoch is over, everywhere."""
        return epoch < self._complete_epochs.get(producer_id, -1)

    def contradiction(self, marker: Marker) -> str | None:
        """Return what is wrong with a marker if the decision is known, and is another one."""
        kinds = self._decisions_of(marker).kinds
        # One with the epoch of its batches ends a transaction that shares it, or a hanging one.
        if marker.epoch == marker.data_epoch or kinds & _SHARED:
            return None
        if not kinds or kinds & (_COMMIT if marker.commit else _ABORT):
            return None
        there, wanted = ("commits", "abort") if marker.commit else ("aborts", "commit")
        return (
            f"a marker {there} the transaction of producer {marker.producer_id}, epoch "
            f"{marker.epoch}; its coordinator decided to {wanted} it"
        )

    def is_undecided_marker(self, marker: Marker) -> str | None:
        """Return why no coordinator of this store can have decided on a marker; None if one may
        have.

        An abort may be written without a decision, with the epoch above that of the batches: it
        ends a transaction that the coordinator lost.
        """
        known = self.producers.get(marker.producer_id)
        if known is None:
            if not marker.commit or not self._is_no_id(marker.producer_id):
                return None
            return (
                f"a marker at offset {marker.offset} commits a transaction of producer "
                f"{marker.producer_id}, and no transactional id has had that producer id"
            )
        if not marker.commit:
            if self._decisions_of(marker).kinds or (
                marker.epoch <= known.epoch + 1 and not self._ends_what_is_open(marker, known)
            ):
                return None
        elif marker.data_epoch < 0 or marker.epoch <= known.decided_above or self._commits(marker):
            return None  # One that ends nothing commits nothing.
        verb = "commits" if marker.commit else "aborts"
        return (
            f"a marker at offset {marker.offset} {verb} a transaction of {known.described}, "
            f"producer {marker.producer_id}, epoch {marker.epoch}, that was never decided for this "
            f"partition; the newest epoch of that producer is {known.epoch}"
        )

    @staticmethod
    def _ends_what_is_open(marker: Marker, known: KnownProducer) -> bool:
        """True for the end of a transaction that its coordinator has, and has not decided.

        An operator ends one that hangs with the epoch of its batches; the producer may go on there.
        """
        return (
            marker.where in known.open_in
            and marker.epoch != marker.data_epoch
            and marker.data_epoch == known.epoch
            and marker.epoch > known.decided_above
        )

    def _is_no_id(self, producer_id: int) -> bool:
        """True if an id without a record was never that of a transactional id here."""
        if not FIRST_PRODUCER_ID <= producer_id < STAGED_PRODUCER_ID_MIN:
            return False  # A broker's, or of a staged file.
        return self.has_all or producer_id >= self.next_producer_id

    def _commits(self, marker: Marker) -> bool:
        decisions = self._decisions_of(marker)
        if marker.where not in decisions.partitions:
            return False
        if marker.epoch == marker.data_epoch:
            return bool(decisions.kinds & _SHARED_COMMIT)
        # One that was decided otherwise is a contradiction.
        return bool(decisions.kinds & ~_SHARED_ABORT)

    def _decisions_of(self, marker: Marker) -> _Decisions:
        found = self._decisions.get((marker.producer_id, marker.epoch), _NONE)
        if not found.kinds and 0 <= marker.data_epoch < marker.epoch - 1:
            # Another coordinator's marker took the place of that with the epoch after the batches'.
            found = self._decisions.get((marker.producer_id, marker.data_epoch + 1), _NONE)
        return found

    def is_unknown_epoch(self, producer_id: int, epoch: int, offset: int) -> str | None:
        """Return why a batch cannot be there: no producer was given its epoch, or no job was
        decided that has its producer; None if it may be there.
        """
        if producer_id >= STAGED_PRODUCER_ID_MIN:
            return self._is_undecided_job(producer_id, offset)
        known = self.producers.get(producer_id)
        if known is None or epoch <= known.epoch:
            return None
        return (
            f"the batch at offset {offset} is of {known.described}, producer {producer_id}, with "
            f"epoch {epoch}; the newest that this producer was given is {known.epoch}"
        )

    def _is_undecided_job(self, producer_id: int, offset: int) -> str | None:
        if producer_id in self.staged_producer_ids or not (self.has_all and self.has_all_jobs):
            return None
        return (
            f"the batch at offset {offset} is of a staged file, producer {producer_id}, and no "
            "application has decided a job with that file"
        )

    def is_unknown_transaction(self, producer_id: int, epoch: int, offset: int) -> str | None:
        """Return why no transaction can be open there: its coordinator has none; None if it may
        have.
        """
        known = self.producers.get(producer_id)
        if known is None:
            if not self._is_no_id(producer_id):
                return None
        elif epoch != known.epoch or known.is_undecided:
            return None
        whose = "a producer" if known is None else known.described
        return (
            f"a transaction of {whose}, producer {producer_id}, epoch {epoch}, is open "
            f"since offset {offset}, and its coordinator has none"
        )


def _bumps_epoch(state: Mapping[str, Any]) -> bool:
    version: int = state["client_transaction_version"]
    return version >= _EPOCH_BUMPING_VERSION
