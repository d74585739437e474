"""Administration of transactions: an operator lists, describes and ends them, as Kafka's tools do.

Invariant: a transaction is ended as a whole. One that hangs at a partition, open there and known to
no transactional id, is ended there alone.
"""

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from eoslog.bindings.log_transactions import OpenTransaction
from eoslog.bindings.transaction_entry import (
    STATE_NAMES,
    TransactionEntry,
    decode_transaction_value,
)
from eoslog.common import clock
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.producer_id_range import is_of_staged_job
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.coordinator import TransactionCoordinator
from eoslog.transactions.entries import (
    ONGOING,
    PREPARE_STATES,
    UNDECIDED_STATES,
    NewestRecord,
    check_transactional_id,
)
from eoslog.transactions.owner import TransactionOwner, terminated
from eoslog.transactions.unresolved_transactions import find_decision

_log = logging.getLogger(__name__)

# Dead is never shown: an id that is being forgotten does not exist.
LISTED_STATES = frozenset(STATE_NAMES) - {"Dead"}
_COORDINATOR_ID = 0  # The store's node id.
_MS_PER_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id, as `Store.transactions` lists it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    transaction_state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """Description of one transactional id.

    Attributes
    ----------
    current_transaction_start_time_ms, transaction_duration_ms : int or None
        None unless a transaction is open or being completed.
    topic_partitions
        Partitions that the transaction wrote to; once it is decided, those without its marker yet.
    prepared : bool
        True if the transaction waits for an external decision.
    owner : str or None
        The producer of this process, or the other process, that has the id.
    """

    coordinator_id: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_state: str
    transaction_timeout_ms: int
    current_transaction_start_time_ms: int | None
    transaction_duration_ms: int | None
    topic_partitions: Sequence[TopicPartition]
    prepared: bool
    owner: str | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """Transaction that is open at a partition and that no coordinator will end there.

    Readers of committed data wait at `start_offset`. `transactional_id` is the one that has the
    producer id now, or None.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    duration_minutes: int
    transactional_id: str | None


class TransactionAdmin:
    """The operator's calls of one store."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        state_log: CompactedLog,
        partitions: OpenedPartitions,
    ) -> None:
        self._coordinator = coordinator
        self._partitions = partitions
        self._entries = coordinator.entries
        self._state_log = state_log

    def transactions(
        self,
        states: Collection[str] | None = None,
        producer_ids: Collection[int] | None = None,
        pattern: str | None = None,
        duration_ms: int = -1,
    ) -> list[TransactionListing]:
        """See `Store.transactions`."""
        if states is not None:
            unknown = sorted(set(states) - LISTED_STATES)
            if unknown:
                raise ValueError(
                    f"no transaction state is named {', '.join(unknown)}; there are "
                    f"{', '.join(sorted(LISTED_STATES))}"
                )
        try:
            wanted = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise InvalidRequestError(f"{pattern!r} is no regular expression: {error}") from error
        now_ms = clock.now_ms()
        found = []
        for one in self._all():
            if states and one.state not in states:
                continue
            if producer_ids and one.producer_id not in producer_ids:
                continue
            if wanted is not None and wanted.fullmatch(one.transactional_id) is None:
                continue
            is_open = one.state in UNDECIDED_STATES
            if duration_ms >= 0 and (not is_open or now_ms - one.start_ms <= duration_ms):
                continue
            listed = (one.transactional_id, _COORDINATOR_ID, one.producer_id, one.state)
            found.append(TransactionListing(*listed))
        return found

    def _all(self) -> Iterable[NewestRecord]:
        """The newest record of each id, sorted by id."""
        known = {entry.transactional_id for entry in self._entries.known()}
        ids = known | {one for one, _ in self._state_log.transactions()}
        for transactional_id in sorted(ids):
            # Unreadable (`describe` raises the place), or forgotten since.
            with suppress(CorruptRecordError, TransactionalIdNotFoundError):
                yield self._newest(transactional_id)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """See `Store.describe_transaction`."""
        check_transactional_id(transactional_id)
        one = self._newest(transactional_id)
        partitions = [TopicPartition(*where) for where in sorted(one.partitions)]
        if one.is_decided:
            partitions = [where for where in partitions if self._waits(where, one)]
        is_open = one.state in UNDECIDED_STATES
        return TransactionDescription(
            coordinator_id=_COORDINATOR_ID,
            transactional_id=transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            transaction_state=one.state,
            transaction_timeout_ms=one.timeout_ms,
            current_transaction_start_time_ms=one.start_ms if is_open else None,
            transaction_duration_ms=clock.now_ms() - one.start_ms if is_open else None,
            topic_partitions=tuple(partitions),
            prepared=one.prepared,
            owner=self._entries.described_owner(transactional_id, one.owner),
        )

    def _waits(self, where: TopicPartition, decided: NewestRecord) -> bool:
        """True if a decided transaction has no marker at a partition yet."""
        try:
            partition = self._coordinator.partition_of(*where)
            known = partition.producer(decided.producer_id)
        except UnknownTopicOrPartitionError:
            return False  # It was deleted: there is nothing to wait for.
        except EoslogError:
            return True  # What cannot be read cannot be written to either.
        if known is None or known.producer_epoch != decided.producer_epoch:
            return known is None or known.producer_epoch < decided.producer_epoch
        open_ones = partition.open_transactions()
        return any(one.producer_id == decided.producer_id for one in open_ones)

    def _newest(self, transactional_id: str) -> NewestRecord:
        """The newest record of an id; makes no entry for one that is not in use."""
        known = self._entries.newest(transactional_id)
        if known is not None:
            return known
        # If the record cannot be read, the entry's error has its place.
        with self._entries.locked(transactional_id) as entry:
            fields = decode_transaction_value(entry.value())
            return NewestRecord(transactional_id, entry.record_offset, fields)

    # Ending.

    def abort(self, transactional_id: str) -> None:
        """See `Store.abort_transaction`."""
        check_transactional_id(transactional_id)
        with self._entries.locked(transactional_id) as entry:
            self._terminate(entry)

    def abort_at(self, topic: str, partition: int, start_offset: int) -> None:
        """See `Store.abort_transaction`."""
        where = TopicPartition(topic, partition)
        found = self._coordinator.partition_of(topic, partition)
        open_ones = found.open_transactions()
        hanging = next((one for one in open_ones if one.first_offset == start_offset), None)
        if hanging is None:
            known = ", ".join(str(one.first_offset) for one in open_ones) or "none"
            raise InvalidTxnStateError(
                f"{where}: no transaction is open since offset {start_offset}; there are {known}"
            )
        if is_of_staged_job(where, hanging.producer_id):
            raise InvalidTxnStateError(
                f"{where}: the transaction that is open since offset {start_offset} has offsets of "
                "a staged job that is decided: it is committed when the job is completed"
            )
        transactional_id = self._id_that_ends(where, hanging.producer_id)
        if transactional_id is not None:
            with self._entries.locked(transactional_id) as entry:
                # Its end may have come since, and the next one's beginning.
                if _still_open(found, hanging):
                    self._terminate(entry)
                    return
        elif _still_open(found, hanging) and self._ended_alone(found, hanging):
            return
        raise InvalidTxnStateError(
            f"{where}: the transaction that was open since offset {start_offset} has ended"
        )

    def _terminate(self, entry: TransactionEntry) -> None:
        reason = terminated(entry.transactional_id, TransactionOwner.here())
        self._coordinator.terminate(entry, reason)

    def _ended_alone(self, partition: UnifiedLog, hanging: OpenTransaction) -> bool:
        """End what no coordinator will: as it was decided, if its marker is lost; else abort it.
        False if it has ended.
        """
        producer_id, epoch = hanging.producer_id, hanging.producer_epoch
        marker_epoch, commit, newer_epoch = epoch, False, False
        where = partition.topic_partition
        decision = find_decision(self._partitions, where, producer_id, epoch)
        if decision is not None:
            marker_epoch, newer_epoch = decision.marker_epoch, True
            commit = bool(decision.commit)
            _log.warning(
                "%s: the transaction of producer id %d, epoch %d, open since offset %d, was "
                "decided: it is %s, as in its other partitions",
                where,
                producer_id,
                epoch,
                hanging.first_offset,
                "committed" if commit else "aborted",
            )
        try:
            partition.append_marker(
                producer_id, marker_epoch, None, commit, newer_epoch=newer_epoch
            )
        except InvalidProducerEpochError:
            if _still_open(partition, hanging):
                raise
            return False
        return True

    def undecided(self, where: TopicPartition, producer_id: int) -> NewestRecord | None:
        """Return the open or decided transaction of a producer at a partition, of any process; None
        if no transactional id has it.
        """
        for one in self._entries.undecided():
            if one.producer_id == producer_id and where in one.partitions:
                return one
        return None

    def _id_that_ends(self, where: TopicPartition, producer_id: int) -> str | None:
        """The transactional id whose open or decided transaction has the partition."""
        found = self.undecided(where, producer_id)
        return None if found is None else found.transactional_id

    def hanging(
        self, partitions: Iterable[UnifiedLog], max_timeout_ms: int, now_ms: int
    ) -> list[HangingTransaction]:
        """See `Store.find_hanging_transactions`."""
        found = []
        ids: dict[int, str] | None = None
        for partition in partitions:
            where = partition.topic_partition
            for one in partition.open_transactions():
                duration_ms = now_ms - one.last_timestamp_ms
                if duration_ms <= max_timeout_ms or is_of_staged_job(where, one.producer_id):
                    continue
                if self._id_that_ends(where, one.producer_id):
                    continue
                if ids is None:
                    ids = {each.producer_id: each.transactional_id for each in self._all()}
                found.append(
                    HangingTransaction(
                        where.topic,
                        where.partition,
                        one.producer_id,
                        one.producer_epoch,
                        one.coordinator_epoch,
                        one.first_offset,
                        one.last_timestamp_ms,
                        duration_ms // _MS_PER_MINUTE,
                        ids.get(one.producer_id),
                    )
                )
        return found

    # Prepared transactions.

    def decide(self, prepared: Iterable[PreparedTransaction], commit: bool) -> None:
        """See `Store.commit_prepared` and `Store.abort_prepared`."""
        found = list(prepared)
        for one in found:
            if not isinstance(one, PreparedTransaction):
                raise TypeError(f"expected a PreparedTransaction, got {type(one).__name__}")
        errors: list[EoslogError] = []
        for one in found:
            try:
                self._decide(one, commit)
            except EoslogError as error:
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]

    def _decide(self, prepared: PreparedTransaction, commit: bool) -> None:
        with self._entries.locked(prepared.transactional_id) as entry:
            if entry.state in PREPARE_STATES:
                self._coordinator.complete(entry)
            current = (entry.producer_id, entry.producer_epoch)
            asked = (prepared.producer_id, prepared.producer_epoch)
            if entry.state == ONGOING and current == asked and not entry.prepared:
                raise InvalidTxnStateError(
                    f"transactional id {prepared.transactional_id!r}: the transaction of producer "
                    f"id {asked[0]}, epoch {asked[1]}, is open, but not prepared"
                )
            if entry.state != ONGOING and current == asked:
                raise InvalidTxnStateError(
                    f"transactional id {prepared.transactional_id!r}: no transaction of producer "
                    f"id {asked[0]}, epoch {asked[1]}, is prepared"
                )
            if current == asked:
                self._coordinator.check_prepared(entry, commit)
            self._coordinator.end(entry, *asked, commit)


def _still_open(partition: UnifiedLog, transaction: OpenTransaction) -> bool:
    """True if a transaction that was open in a partition is so now."""
    return any(
        (one.first_offset, one.producer_id) == (transaction.first_offset, transaction.producer_id)
        for one in partition.open_transactions()
    )
