"""Transactions in partitions, compared with the decisions in `__transaction_state`.

A copy whose files are of different moments is found by this. A partition is ahead of
`__transaction_state` if it has what no coordinator knows. It is older if the end of a committed
transaction is missing. The two are of one moment if each marker that commits was decided, and each
transaction that is complete has its markers. What only deleted records could show is no problem.

The store may be in use. A coordinator writes its record before anything is written to a partition:
so what looks ahead is judged by records that are read after the partition, and what looks older by
those that were read before.

Invariants of what is decided: a producer id's `epoch` is the highest one that its coordinator gave
out or decided with; each decision with an epoch above `decided_above` is known. What is known only
grows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from eoslog.bindings.partition_log import OpenTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.storage.producer_id_range import FIRST_PRODUCER_ID, STAGED_PRODUCER_ID_MIN
from eoslog.transactions.entries import (
    EPOCH_BUMPING_VERSION,
    PREPARE_STATES,
    UNDECIDED_STATES,
)
from eoslog.transactions.producer_ids import EPOCH_MAX

AHEAD = "ahead of __transaction_state: "
OLDER = "older than __transaction_state: "
TORN = ". These files are not of one moment"
_SHOWN_MAX = 10
# By so much the clocks of a cluster's brokers may differ.
_CLOCK_SKEW_MS = 60_000
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
    has_gap: bool = False  # Its next record was not read yet, and others before it are gone.
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
    # Those from here on were never given out; None: not known.
    next_producer_id: int | None = FIRST_PRODUCER_ID
    # No record of any partition of the state log is gone, and none was written elsewhere.
    has_all: bool = True
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
        """Take in the next record of a transactional id; return what contradicts an earlier one.

        `older` is the record before; with `has_all`, no record of the log is gone.
        """
        producer_id, epoch = state["producer_id"], state["producer_epoch"]
        is_decision = state["state"] in PREPARE_STATES
        known = self.producers.get(producer_id)
        if known is None:
            above = -1 if has_all else epoch - is_decision
            known = KnownProducer(described, epoch, above)
            self.producers[producer_id] = known
        if known.has_gap:
            known.decided_above, known.has_gap = epoch - is_decision, False
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
        return self._note_decision(described, state, older) if is_decision else None

    def _note_decision(
        self, described: str, state: Mapping[str, Any], before: Mapping[str, Any] | None
    ) -> str | None:
        key = state["producer_id"], state["producer_epoch"]
        decision = _COMMIT if state["state"] == "PrepareCommit" else _ABORT
        if state["client_transaction_version"] < EPOCH_BUMPING_VERSION:
            decision <<= 2
        older = self._decisions.get(key, _NONE)
        partitions = older.partitions.union(state["partitions"] or ())
        partitions = self._partitions.setdefault(partitions, partitions)
        # A recovery made an abort of a commit whose data did not reach the disk.
        is_revoked = (
            decision == _ABORT
            and before is not None
            and before["ends"] is not None
            and (before["producer_id"], before["producer_epoch"]) == key
        )
        kinds = decision if is_revoked else older.kinds | decision
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
        """Take in that, by a later record of the id, a decision was carried out."""
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
        """Note that records of these are missing: decisions of theirs may be among them, with any
        epoch up to that of the next record.
        """
        self.has_all = False
        for producer_id in producer_ids:
            known = self.producers[producer_id]
            known.decided_above, known.has_gap = EPOCH_MAX, True

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
        first_unused = self.next_producer_id
        return self.has_all or (first_unused is not None and producer_id >= first_unused)

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


@dataclass
class FollowedTransactions:
    """Transactions of the partition `where`; the engine calls it while it verifies the log."""

    where: TopicPartition
    decided: DecidedTransactions
    # The topic was created before this time; None where that is not known.
    created_ms: int | None = None
    # As it was known before the log was read: what is committed later may have no end here yet.
    _committed: dict[int, CommittedTransaction] = field(init=False)
    _first_offset: int = 0
    _is_whole: bool = True
    _first_marker_ms: int | None = None
    # Of producers with a committed transaction here: their newest epoch, and whether the marker of
    # that very transaction is there.
    _epochs: dict[int, int] = field(default_factory=dict)
    _marked: set[int] = field(default_factory=set)
    # The first of each producer that no decision is known for.
    _doubtful: dict[int, Callable[[], str | None]] = field(default_factory=dict)
    _open: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._committed = dict(self.decided.committed.get(self.where, {}))

    # For the engine.

    def begin(self, log_first_offset: int) -> None:
        """Follow the log from here on; what was before it was deleted."""
        self._first_offset = log_first_offset
        self._is_whole = True
        self._first_marker_ms = None
        self._epochs.clear()
        self._marked.clear()
        self._doubtful.clear()

    def wrote(self, producer_id: int, epoch: int, offset: int) -> None:
        """Take in a producer's first batch of an epoch, or of a transaction."""
        self._note_epoch(producer_id, epoch)
        decided = self.decided
        self._doubt(producer_id, lambda: decided.is_unknown_epoch(producer_id, epoch, offset))

    def ended(
        self,
        producer_id: int,
        epoch: int,
        data_epoch: int,
        commit: bool,
        timestamp_ms: int,
        offset: int,
    ) -> str | None:
        """Take in a marker; return what is wrong with it, or None."""
        decided = self.decided
        marker = Marker(self.where, producer_id, epoch, data_epoch, commit, offset)
        if self._first_marker_ms is None or timestamp_ms < self._first_marker_ms:
            self._first_marker_ms = timestamp_ms
        if self._note_epoch(producer_id, epoch) == epoch:
            self._marked.add(producer_id)
        self._doubt(producer_id, lambda: decided.is_undecided_marker(marker))
        return decided.contradiction(marker)

    def lose_track(self) -> None:
        """Note that batches are missing or unreadable: what is absent may have been among them."""
        self._is_whole = False

    def _note_epoch(self, producer_id: int, epoch: int) -> int | None:
        """Note an epoch of a producer of which a committed transaction is to be found; return the
        epoch of that transaction.
        """
        wanted = self._committed.get(producer_id)
        if wanted is None:
            return None
        self._epochs[producer_id] = max(epoch, self._epochs.get(producer_id, -1))
        return wanted.epoch

    def _doubt(self, producer_id: int, why: Callable[[], str | None]) -> None:
        if producer_id not in self._doubtful and why() is not None:
            self._doubtful[producer_id] = why

    # What is wrong.

    def ahead(
        self, open_transactions: Iterable[OpenTransaction], read_on: Callable[[], None]
    ) -> list[str]:
        """Report what the partition has and no coordinator knows.

        `open_transactions` are read after the log was followed; `read_on` reads what coordinators
        have written since.
        """
        decided = self.decided
        found: list[str] = []
        doubts = list(self._doubtful.values())
        for one in open_transactions:
            place = one.producer_id, one.producer_epoch, one.first_offset
            if decided.is_complete(*place[:2]):
                self._open |= {one.producer_id}
                found.append(
                    f"the transaction of producer {place[0]}, epoch {place[1]}, is complete at its "
                    f"coordinator, and open here since offset {place[2]}"
                )
            elif decided.is_unknown_transaction(*place) is not None:
                doubts.append(partial(decided.is_unknown_transaction, *place))
        if doubts:
            read_on()
        reasons = [why for doubt in doubts if (why := doubt()) is not None]
        found += [f"{AHEAD}{why}{TORN}" for why in reasons[:_SHOWN_MAX]]
        if len(reasons) > _SHOWN_MAX:
            found.append(f"{AHEAD}{len(reasons) - _SHOWN_MAX} more producers are so{TORN}")
        return found

    def missing(self) -> list[CommittedTransaction]:
        """Return the committed transactions whose end the log does not have."""
        wanted = self._committed if self._is_whole else {}
        return [
            one
            for producer_id, one in wanted.items()
            if self._epochs.get(producer_id, -1) < one.epoch and producer_id not in self._open
        ]

    def had_begun(self, one: CommittedTransaction) -> bool:
        """True if its topic was there when that was decided, and was no later one of the name."""
        mine = self._committed.get(one.producer_id)
        if mine is not None and mine.epoch == one.epoch and one.producer_id in self._marked:
            return True
        if self.created_ms is not None and self.created_ms < one.decided_ms:
            return True
        return self._first_marker_ms is not None and self._first_marker_ms < one.decided_ms

    def must_have(self, one: CommittedTransaction, of_topic: "list[FollowedTransactions]") -> bool:
        """True if the end of a transaction can neither have been deleted nor belong to a topic of
        the same name that was there before.
        """
        if one.producer_id in self._epochs:
            return True  # Of an epoch before it.
        if self._first_offset == 0:
            return any(other.had_begun(one) for other in of_topic)
        first = self._first_marker_ms
        return first is not None and first + _CLOCK_SKEW_MS < one.decided_ms


def missing_ends(of_topic: list[FollowedTransactions]) -> list[tuple[TopicPartition, str]]:
    """Find where the end of a committed transaction is missing, in all partitions of one topic."""
    found = []
    for followed in of_topic:
        missing = [one for one in followed.missing() if followed.must_have(one, of_topic)]
        if missing:
            first = min(missing, key=lambda one: one.decided_ms)
            more = f", and that of {len(missing) - 1} more" if len(missing) > 1 else ""
            reason = f"{OLDER}{first}; its end is missing here{more}{TORN}"
            found.append((followed.where, reason))
    return found
