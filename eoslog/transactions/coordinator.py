"""The transaction coordinator: who may write under a transactional id, and how its work ends.

Each id has an entry, which writes its own records to `__transaction_state`, registers partitions,
decides and completes (`bindings.transaction_entry`). The coordinator takes an id over from an older
producer, gives ids to new ones, and completes what was decided. `docs/crash-points.md` has the
protocol in numbered steps.

Every process of a store runs one, and they share the lock of an entry. What a process leaves undone
when it dies, `recover_dead_peers` of the others does.

Invariants: when `init` returns, the older producer can write nothing more, on any partition, in any
process; what was decided is completed before the id's next transaction begins.

Order of locks: an entry's, then that of the entries together, then the state log's, then the one
under which partitions are opened, then a partition's.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeVar

from eoslog.bindings.counter_page import CounterPage
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.transaction_entry import (
    PartitionLost,
    ProducerIdNeeded,
    TransactionEntry,
    TransactionPart,
)
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.repeated_warnings import RepeatedWarnings
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentTransactionsError,
    EoslogError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    StoreFailedError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
)
from eoslog.session.process_slots import ProcessSlots
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.entries import (
    ONGOING,
    PREPARE_STATES,
    NewestRecord,
    TransactionEntries,
    check_transactional_id,
)
from eoslog.transactions.owner import TransactionOwner, taken_over
from eoslog.transactions.producer_ids import ProducerIds, check_expected, next_identity

_log = logging.getLogger(__name__)

Touched = Iterable[tuple[str, int]]
FenceCause = Literal["timeout", "dead_process", "new_producer", "admin"]
_Result = TypeVar("_Result")


class InitializedTransactions(NamedTuple):
    """Result of `init`: under which id and epoch to write, or what must be decided first."""

    entry: TransactionEntry
    producer_id: int
    producer_epoch: int
    prepared: PreparedTransaction | None = None


class TransactionCoordinator:
    """The coordinator of one store, for all its transactional ids."""

    def __init__(
        self,
        state_log: CompactedLog,
        producer_ids: ProducerIds,
        partitions: OpenedPartitions,
        *,
        durable: bool,
        timeout_max_ms: int,
        shared: SharedPage,
        slots: ProcessSlots,
        counters: CounterPage,
    ) -> None:
        # Of what is tried again.
        self.warnings = RepeatedWarnings(_log)
        self.entries = TransactionEntries(state_log, durable=durable, shared=shared, slots=slots)
        self._slots = slots
        self._counters = counters
        self.had_others = False  # True once another process is known to have had the store open.
        # What else is to be settled of a dead process before its slot goes; each returns True once
        # it is.
        self.settle_hooks: list[Callable[[bytes], bool]] = []
        # Ends what a partition has open and no coordinator knows; set by recovery.
        self.end_unknown: Callable[[], None] = lambda: None
        self._producer_ids = producer_ids
        self._partitions = partitions
        self._timeout_max_ms = timeout_max_ms
        # Ids that took a new producer id in this life of the store; None if none needs to.
        self._renewed: set[str] | None = None
        # Producer ids that were rotated out, and where their last transactions were.
        self._rotated: deque[tuple[int, list[TopicPartition]]] = deque()

    # For producers.

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        *,
        owner: TransactionOwner,
        expected: tuple[int, int] | None = None,
        keep_prepared: bool = False,
    ) -> InitializedTransactions:
        """Take the id over: fence its older producer, and abort its open transaction.

        `expected` is the producer id and epoch that the caller has now, if it wants to go on as the
        same producer. `keep_prepared` leaves a prepared transaction as it is and returns its id and
        epoch; `end` with these decides it. The result is as durable as the store's durability.

        Raises InvalidRequestError, InvalidTransactionTimeoutError, ProducerFencedError (`expected`
        is not the newest), ConcurrentTransactionsError (the last transaction is decided and cannot
        be completed; see the cause), CorruptRecordError, StoreError, or StoreInUseError (another
        process is at work on the id, and hangs). The id is then unchanged, but its open transaction
        may be aborted.
        """
        check_transactional_id(transactional_id)
        timeout_ms = whole_number(timeout_ms, "a transaction timeout")
        if not 0 < timeout_ms <= self._timeout_max_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms={timeout_ms}: above 0, and at most "
                f"transaction.max.timeout.ms={self._timeout_max_ms}"
            )
        if expected is not None and (expected[0] < 0 or expected[1] < 0):
            raise InvalidRequestError(f"expected producer id and epoch {expected}: one is missing")
        with self.entries.locked(transactional_id, create=True) as entry:
            self._finish(entry)
            if expected is not None:
                check_expected(entry, expected, entry.state == ONGOING)
            older = self.entries.owner_of(transactional_id)
            replaces_live = self._has_live_owner(entry, older, owner)
            prepared = None
            if entry.state == ONGOING and entry.prepared and keep_prepared:
                prepared = PreparedTransaction(
                    transactional_id=transactional_id,
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                )
                if entry.owner != self.entries.own_slot:
                    # So that the process that prepared it is fenced too.
                    entry.hand_over(self.entries.own_slot)
                    self.entries.note_append(entry)
            elif entry.state == ONGOING:
                reason = taken_over(transactional_id, entry.producer_epoch + 1, owner)
                self.fence(entry, reason, "new_producer")
                self._finish(entry)
                self._move_on(entry, None, timeout_ms, None if expected is None else expected[1])
            else:
                self._move_on(entry, None if expected is None else expected[1], timeout_ms)
            self.entries.hand_over(transactional_id, owner)
            self._counters.add("producers_fenced", replaces_live)
            _log.info(
                "transactional id %r: producer id %d, epoch %d, is that of %s; older ones are "
                "fenced",
                *(transactional_id, entry.producer_id, entry.producer_epoch, owner),
            )
            if older is not None and older is not owner:
                reason = taken_over(transactional_id, entry.producer_epoch, owner)
                older.fence(reason)
                # Where its transaction was aborted first, its reason has the abort's epoch.
                older.fenced_because = reason
            return InitializedTransactions(entry, entry.producer_id, entry.producer_epoch, prepared)

    def _has_live_owner(
        self, entry: TransactionEntry, older: TransactionOwner | None, newer: TransactionOwner
    ) -> bool:
        """True if another producer that lives has the id until now."""
        if older is not None:
            return older is not newer
        slot = entry.owner
        return slot not in (None, self.entries.own_slot) and self._slots.alive(slot)

    def end(
        self, entry: TransactionEntry, producer_id: int, producer_epoch: int, commit: bool
    ) -> tuple[int, int]:
        """Decide the transaction.

        Returns the producer id and epoch for the next one. The decision is made on return. Markers
        that could not be written are tried again by the id's next transaction, in the background,
        and when the store is opened. Raises TransactionCoordinatorFencedError if a partition
        refuses its marker.
        """
        with entry.lock:
            before, touched = entry.producer_id, entry.partitions
            try:
                answer = self._until_done(
                    entry, lambda next_id: entry.end(producer_id, producer_epoch, commit, next_id)
                )
            except BaseException:
                self.appended(touched)
                raise
            _log_end(entry, (producer_id, producer_epoch), touched, commit)
            self._after_decision(entry, touched, before)
            self.check_not_refused(entry)
            return answer

    def check_not_refused(self, entry: TransactionEntry) -> None:
        """Raise TransactionCoordinatorFencedError if the transaction is decided, and a partition
        refuses its marker for good: another coordinator has ended it there.
        """
        refusal = entry.completion_error
        if entry.state in PREPARE_STATES and isinstance(refusal, InvalidProducerEpochError):
            error = TransactionCoordinatorFencedError(
                f"transactional id {entry.transactional_id!r}: the transaction is decided "
                f"({entry.state}), but a partition refuses its marker: it has that of another "
                f"coordinator, a commit or an abort: {refusal}"
            )
            error.outcome = "unknown"
            raise error from refusal

    def check_prepared(self, entry: TransactionEntry, commit: bool) -> None:
        """Raise TransactionCoordinatorFencedError if a partition has another end of a prepared
        transaction already, as in a copy whose files are of different times. Nothing is decided
        then.
        """
        producer_id, epoch = entry.producer_id, entry.producer_epoch
        for where in entry.partitions if entry.prepared else ():
            found = self._partitions.find_for_transaction(TopicPartition(*where))
            known = None if found is None else found.producer(producer_id)
            if found is None or known is None or known.producer_epoch <= epoch:
                continue
            first = found.first_offset_of({(producer_id, epoch)}, found.log_end_offset)
            aborted = found.aborted_transactions(first, first) if first >= 0 else []
            if first < 0 or any(one.producer_id == producer_id for one in aborted) != commit:
                continue
            done, wanted = ("aborted", "commit") if commit else ("committed", "abort")
            raise TransactionCoordinatorFencedError(
                f"transactional id {entry.transactional_id!r}: its transaction is prepared, and in "
                f"{found.topic_partition} it is {done} already, without a decision of this store. "
                f"To {wanted} it elsewhere would split it: nothing was decided, and it stays "
                "prepared. See what verify() says; abort_transaction() of the id aborts the rest"
            )

    def prepare(self, entry: TransactionEntry, producer_id: int, producer_epoch: int) -> None:
        """Leave the decision of the open transaction to another process; see the entry's call."""
        with entry.lock:
            self._until_done(entry, lambda _: entry.prepare(producer_id, producer_epoch))
            _log_end(entry, (producer_id, producer_epoch), entry.partitions, None)

    def complete(self, entry: TransactionEntry) -> bool:
        """Complete a decided transaction; True if it is complete now."""
        with entry.lock:
            return self._after_decision(entry, entry.partitions, entry.producer_id) is None

    def part_of(self, topic: str, partition: int) -> TransactionPart:
        """A partition as an entry writes it. Raises UnknownTopicOrPartitionError."""
        return TransactionPart(topic, partition, self.partition_of(topic, partition).log)

    def partition_of(self, topic: str, partition: int) -> UnifiedLog:
        """The partition, opened. Raises UnknownTopicOrPartitionError."""
        found = self._partitions.find_for_transaction(TopicPartition(topic, partition))
        if found is None:
            raise UnknownTopicOrPartitionError(f"no partition {partition} of topic {topic!r}")
        return found

    def appended(self, partitions: Touched) -> None:
        """Report to the checkpointer that an entry appended to these partitions."""
        for where in partitions:
            found = self._partitions.if_open(TopicPartition(*where))
            if found is not None:
                found.note_append()

    def release(self, entry: TransactionEntry, owner: TransactionOwner) -> None:
        """Note that the owner is closed. What it left undecided stays as it is."""
        self.entries.release(entry.transactional_id, owner)

    def live_producer_ids(self) -> frozenset[int]:
        """The producer ids under which transactions may be written now."""
        return frozenset(entry.producer_id for entry in self.entries.known())

    # For the other processes.

    def recover_dead_peers(self) -> int:
        """End what dead processes have left undone. Returns the count of transactions.

        An open transaction is aborted, since its producer is gone, a decided one is completed, a
        prepared one waits on. What cannot be ended now is tried again by the next call. The caller
        holds no lock. Raises StoreError if the slots cannot be read.
        """
        dead = {one.slot for one in self._slots.dead()}
        if not dead:
            return 0
        self.had_others = True
        settled, left = self._settle()
        if not left:
            for slot in dead:
                if all(settle(slot) for settle in self.settle_hooks):
                    self._slots.settle(slot)
        return settled

    def _settle(self) -> tuple[int, int]:
        """Return how many transactions of dead processes were ended, and how many are left."""
        settled = left = 0
        # All that the dead ever wrote is in the log by now.
        for one in self.entries.undecided():
            # Any process may have made a decision, for the owner: it may be the one that died.
            if not one.is_decided and not self._is_left_open(one):
                continue
            try:
                with self.entries.locked(one.transactional_id) as entry:
                    settled += self._settle_one(entry)
            except TransactionalIdNotFoundError:
                continue  # Forgotten since.
            except EoslogError as error:
                self.warnings.warning("%s: it cannot be ended now: %s", one.transactional_id, error)
                left += 1
        return settled, left

    def _is_left_open(self, one: TransactionEntry | NewestRecord) -> bool:
        """True if a transaction is open, not prepared, and its process is dead."""
        if one.state != ONGOING or one.prepared or one.owner is None:
            return False
        return not self._slots.alive(one.owner)

    def _settle_one(self, entry: TransactionEntry) -> bool:
        """End an id's transaction if it was left undone; True if it was."""
        if entry.state not in PREPARE_STATES:
            owner = entry.owner
            if owner is None or not self._is_left_open(entry):
                return False
            process = self._slots.describe(owner)
            reason = f"transactional id {entry.transactional_id!r}: {process} is gone"
            self.fence(entry, reason, "dead_process")
        self._finish(entry)
        return True

    def renew_producer_ids(self) -> None:
        """Have the first initialization of each id take a new producer id.

        After a power cut, partitions may have seen epochs whose records an unsynced state log lost:
        they would refuse a producer that is given these epochs again.
        """
        self._renewed = set()

    # The work on one entry, whose lock is held.

    def fence(self, entry: TransactionEntry, reason: str, cause: FenceCause) -> None:
        """Abort the open transaction with a higher epoch, and fence its owner for this reason.

        The abort is decided on return, and completed if that is possible now. Raises StoreError if
        the decision could not be written, and nothing has changed then; or if it was, and the disk
        refused it. It then holds for all who read the log, and is completed once it is on the disk.
        """
        before, touched = entry.producer_id, entry.partitions
        epoch = entry.producer_epoch
        self._until_done(entry, entry.fence)
        self._counters.add(f"aborted_{cause}")
        _log.info(
            "transactional id %r: the transaction of producer id %d, epoch %d, over %d partitions "
            "is aborted: %s",
            *(entry.transactional_id, before, epoch, len(touched), reason),
        )
        self.entries.take_from_owner(entry.transactional_id, reason)
        self._after_decision(entry, touched, before)

    def abort_late(
        self, entry: TransactionEntry, producer_id: int, producer_epoch: int, reason: str
    ) -> bool:
        """Abort a client's transaction that is older than its timeout; False if it is not open."""
        with entry.lock:
            own = (entry.producer_id, entry.producer_epoch)
            if own != (producer_id, producer_epoch) or entry.state != ONGOING or entry.prepared:
                return False
            self.fence(entry, reason, "timeout")
            return True

    def terminate(self, entry: TransactionEntry, reason: str) -> None:
        """Fence the producer that has the id, with or without a transaction open."""
        self._finish(entry)
        if entry.state == ONGOING:
            self.fence(entry, reason, "admin")
            self._finish(entry)
        self._move_on(entry, None, entry.timeout_ms, owned=False)
        self._counters.add("producers_fenced")
        self.entries.take_from_owner(entry.transactional_id, reason)

    def _move_on(
        self,
        entry: TransactionEntry,
        expected_epoch: int | None,
        timeout_ms: int,
        asked_with: int | None = None,
        *,
        owned: bool = True,
    ) -> None:
        """Write the record with the next epoch; a producer with the epoch `asked_with` may ask for
        the answer again. If `owned`, a producer of this process has the id from then on, else none.
        """
        renewed = self._renewed
        renews = renewed is not None and entry.transactional_id not in renewed
        following = next_identity(entry, expected_epoch, self._producer_ids.take, renews)
        if asked_with is not None:
            following = following._replace(last_producer_epoch=asked_with)

        entry.initialize(
            producer_id=following.producer_id,
            producer_epoch=following.producer_epoch,
            last_producer_epoch=following.last_producer_epoch,
            previous_producer_id=following.previous_producer_id,
            timeout_ms=timeout_ms,
            now_ms=clock.now_ms(),
            owner=self.entries.own_slot if owned else None,
        )
        if renewed is not None:
            renewed.add(entry.transactional_id)
        self.entries.note_append(entry)

    def _finish(self, entry: TransactionEntry) -> None:
        """Complete a decided transaction; raise ConcurrentTransactionsError if that fails."""
        error = self._after_decision(entry, entry.partitions, entry.producer_id)
        if error is not None:
            raise ConcurrentTransactionsError(
                f"transactional id {entry.transactional_id!r}: the transaction before is decided "
                f"({entry.state}), but cannot be completed now: {error}"
            ) from error

    def _until_done(self, entry: TransactionEntry, step: Callable[[int], _Result]) -> _Result:
        """Do a step of the entry again until it has what it asks for: a new producer id, which it
        is called with (else -1), and the logs of the partitions. Raises what the step raises then.
        """
        next_producer_id = -1
        looked_up: set[TopicPartition] = set()
        while True:
            try:
                return step(next_producer_id)
            except ProducerIdNeeded:
                if next_producer_id >= 0:
                    raise
                next_producer_id = self._producer_ids.take()
            except PartitionLost as lost:
                where = TopicPartition(lost.topic, lost.partition)
                if where in looked_up:
                    raise StoreFailedError(f"{lost}: close the store and open it again") from lost
                looked_up.add(where)
                self._look_up(entry, where)

    def _look_up(self, entry: TransactionEntry, where: TopicPartition) -> None:
        """Attach the log of a partition that a process before decided about, or drop the partition
        if its topic was deleted.
        """
        found = self._partitions.find_for_transaction(where)
        if found is None or entry.state not in PREPARE_STATES:
            # Its log was open, and is closed, and the store is not: what the transaction wrote
            # there is gone, and a topic made again has nothing of it.
            entry.drop_partition(*where)
        else:
            entry.attach([TransactionPart(*where, found.log)])

    def _after_decision(
        self, entry: TransactionEntry, touched: Touched, producer_id: int
    ) -> EoslogError | None:
        """Complete what is decided, and report the appends. Returns the error if that fails.

        `producer_id` is what the entry had before.
        """
        error: EoslogError | None = None
        if entry.state in PREPARE_STATES:
            error = self._complete(entry)
        if entry.producer_id != producer_id:
            self._rotated.append((producer_id, [TopicPartition(*where) for where in touched]))
        self.entries.note_append(entry)
        self.appended(touched)
        return error

    def _complete(self, entry: TransactionEntry) -> EoslogError | None:
        try:
            self._until_done(entry, lambda _: entry.complete())
        except EoslogError as error:
            self.warnings.warning(
                "transactional id %r is decided (%s), and will be completed later: %s",
                entry.transactional_id,
                entry.state,
                error,
            )
            return error
        return None

    # Producer ids that were rotated out.

    def take_rotated(self) -> list[tuple[int, list[TopicPartition]]]:
        """The producer ids whose last transaction is complete, with its partitions.

        Once its markers are synced, the partitions may forget the id.
        """
        return [self._rotated.popleft() for _ in range(len(self._rotated))]

    def give_back_rotated(self, rotated: list[tuple[int, list[TopicPartition]]]) -> None:
        """Give back those whose markers could not be synced: the next call takes them again."""
        self._rotated.extend(rotated)


def _log_end(
    entry: TransactionEntry, of: tuple[int, int], touched: Touched, commit: bool | None
) -> None:
    """Log what a producer asked for: a commit, an abort, or (None) that another one decides."""
    if _log.isEnabledFor(logging.DEBUG):
        ends = {True: "committed", False: "aborted", None: "prepared"}
        _log.debug(
            "transactional id %r: the transaction of producer id %d, epoch %d, over %s is %s, as "
            "its producer asked",
            *(entry.transactional_id, *of),
            ", ".join(f"{topic}-{partition}" for topic, partition in touched),
            ends[commit],
        )
