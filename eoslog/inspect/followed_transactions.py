"""Transactions in one partition's log, compared with the decisions of their coordinators.

A copy whose files are of different moments is found by this. A partition is ahead of
`__transaction_state` if it has what no coordinator knows. It is behind if the end of a committed
transaction is missing. What only deleted records could show is no problem.

The store may be in use. A coordinator writes its record before anything is written to a partition:
so what looks ahead is judged by records that are read after the partition, and what looks behind by
those that were read before.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from eoslog.bindings.partition_log import OpenTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.inspect.decided_transactions import CommittedTransaction, DecidedTransactions, Marker

AHEAD = "ahead of __transaction_state: "
BEHIND = "behind __transaction_state: "
TORN = ". These files are not of one moment"
_SHOWN_MAX = 10
# By so much the clocks of a cluster's brokers may differ.
_CLOCK_SKEW_MS = 60_000


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
        """The log is followed from here on; what was before it was deleted meanwhile."""
        self._first_offset = log_first_offset
        self._is_whole = True
        self._first_marker_ms = None
        self._epochs.clear()
        self._marked.clear()
        self._doubtful.clear()

    def wrote(self, producer_id: int, epoch: int, offset: int) -> None:
        """A producer's first batch of an epoch, or of a transaction."""
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
        """A marker; what is wrong with it."""
        decided = self.decided
        marker = Marker(self.where, producer_id, epoch, data_epoch, commit, offset)
        if self._first_marker_ms is None or timestamp_ms < self._first_marker_ms:
            self._first_marker_ms = timestamp_ms
        if self._note_epoch(producer_id, epoch) == epoch:
            self._marked.add(producer_id)
        self._doubt(producer_id, lambda: decided.is_undecided_marker(marker))
        return decided.contradiction(marker)

    def lose_track(self) -> None:
        """Batches are missing, or cannot be read: what is not here may have been among them."""
        self._is_whole = False

    def _note_epoch(self, producer_id: int, epoch: int) -> int | None:
        """Note it, if a committed transaction of the producer is to be found; with which epoch."""
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
        """The committed transactions whose end the log does not have."""
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


def behind(of_topic: list[FollowedTransactions]) -> list[tuple[TopicPartition, str]]:
    """Find where the end of a committed transaction is missing, in all partitions of one topic."""
    found = []
    for followed in of_topic:
        missing = [one for one in followed.missing() if followed.must_have(one, of_topic)]
        if missing:
            first = min(missing, key=lambda one: one.decided_ms)
            more = f", and that of {len(missing) - 1} more" if len(missing) > 1 else ""
            reason = f"{BEHIND}{first}; its end is missing here{more}{TORN}"
            found.append((followed.where, reason))
    return found
