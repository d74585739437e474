"""A transactional producer's talk with its coordinator: registrations, appends, offsets, the end.

Invariants: nothing is sent twice under the same numbers. The order of locks: the producer's, then
its coordinator's entry, then a partition's.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from eoslog.bindings.accumulator import Accumulator, PartitionBuffer
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.status import ProducerNotCached
from eoslog.bindings.transaction_entry import PartitionLost, TransactionEntry, TransactionPart
from eoslog.common import clock
from eoslog.common.prepared_transaction import PreparedTransaction, parse_token
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentTransactionsError,
    EoslogError,
    FellBehindError,
    IllegalStateError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StoreFailedError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.transaction_states import (
    CURABLE,
    HINTS,
    ClientState,
    Request,
    TransactionStates,
)
from eoslog.storage.partition import Partition
from eoslog.transactions.transaction_owner import TransactionOwner, timed_out

T = TypeVar("T")
S = ClientState
# A prepared transaction, and one whose commit or abort was interrupted.
_COMPLETABLE = frozenset({S.PREPARED_TRANSACTION, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION})


class TransactionManager(TransactionStates):
    """Transactions of one producer in the log, decided by the coordinator's entry of its id."""

    def __init__(
        self, accumulator: Accumulator, parts: ProducerParts, transactional_id: str, timeout_ms: int
    ) -> None:
        super().__init__(accumulator, parts, transactional_id)
        self.timeout_ms = timeout_ms
        self.entry: TransactionEntry | None = None
        # By partition: what the coordinator's entry knows it by.
        self.opened: dict[TopicPartition, tuple[Partition, TransactionPart]] = {}
        # Topics that were deleted under a transaction, and the id and epoch of that.
        self._deleted: dict[str, tuple[int, int]] = {}
        self._coordinator = parts.coordinator

    def initialize(self, keep_prepared: bool) -> PreparedTransaction | None:
        """Take the transactional id over; the prepared transaction that stays, or None."""
        self.check_usable()
        if self.state is not S.INITIALIZING:
            self.move(S.INITIALIZING)
        owner = TransactionOwner.here()
        try:
            found = self._coordinator.init(
                self.transactional_id, self.timeout_ms, owner=owner, keep_prepared=keep_prepared
            )
            state_partition = self._store_parts.state_log.partition_of(self.transactional_id)
        except EoslogError as error:
            self.break_(error, Request.INIT)
        self._owner = owner
        self.entry = found.entry
        self.set_entry(
            found.entry,
            owner,
            state_partition,
            found.producer_id,
            found.producer_epoch,
        )
        if found.prepared is None:
            self.move(S.READY)
        else:
            self.register()
            self.is_prepared = True
            self.move(S.PREPARED_TRANSACTION)
        return found.prepared

    # The coordinator's entry.

    def _on_entry(self, call: Callable[[TransactionEntry], T]) -> T:
        """Call the entry; what stands in the way and can be put right is."""
        entry = self._known_entry()
        looked = False
        while True:
            try:
                with entry.lock:
                    self._owner.check()
                    return call(entry)
            except CURABLE as error:
                self._cure(entry, error)
            except InvalidTxnStateError:
                # A power cut took the record of a transaction of this id, not its batches, and
                # recovery could not end it when the partition was opened: others were at work.
                if looked:
                    raise
                looked = True
                self._coordinator.end_unknown()

    def _cure(self, entry: TransactionEntry, error: Exception) -> None:
        """Put right what keeps the entry from a call; raises what cannot be."""
        if isinstance(error, (ProducerNotCached, FellBehindError)):
            self._coordinator.before_repeat(error)
        elif isinstance(error, PartitionLost):
            self._engine.check_open()
            if self._engine.find_partition(TopicPartition(error.topic, error.partition)):
                raise StoreFailedError(f"{error}: open the store anew") from error
            with entry.lock:
                entry.drop_partition(error.topic, error.partition)
        elif not (
            # The transaction before this one is decided, and could not be completed then.
            isinstance(error, ConcurrentTransactionsError) and self._coordinator.complete(entry)
        ):
            raise error

    def _known_entry(self) -> TransactionEntry:
        if self.entry is None:
            raise IllegalStateError(HINTS[S.UNINITIALIZED])
        return self.entry

    def look_again(self) -> None:
        """Raise ProducerFencedError if another process has the id by now."""
        if self.entry is not None:
            try:
                with self.entry.lock:
                    self._owner.check()
            except EoslogError as error:
                self.break_(error, Request.END)

    def release(self) -> None:
        """Let go of the transactional id: the producer is closed."""
        if self.entry is not None:
            self._coordinator.release(self.entry, self._owner)

    # Writing.

    def append(
        self,
        opened: tuple[Partition, TransactionPart],
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult:
        """Append columns to a partition, which is registered before."""
        self.check_in_time()
        partition, part = opened
        moment_ms = clock.now_ms()

        def append(entry: TransactionEntry) -> AppendResult:
            self.register(partition)
            return entry.append_columns(
                self.producer_id,
                self.producer_epoch,
                part,
                values,
                keys,
                timestamps,
                headers,
                timestamp_ms=moment_ms,
            )

        try:
            result = self._on_entry(append)
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)
        partition.note_append()
        return result

    def append_buffers(self, buffers: list[PartitionBuffer]) -> None:
        """Append these batches, after all partitions touched so far were registered at once."""
        self.check_in_time()
        parts = self.unregistered_parts()
        pairs = [self.pair_of(buffer) for buffer in buffers]

        def append(entry: TransactionEntry) -> None:
            self.register()
            if parts:
                entry.add_partitions(self.producer_id, self.producer_epoch, parts)
            # Where a producer's row had to be loaded, some of them may be in already.
            entry.flush(self.producer_id, self.producer_epoch, pairs)

        self._on_entry(append)
        for buffer in buffers:
            if isinstance(buffer.owner, Partition):
                buffer.owner.note_append()

    def open_buffer(self, buffer: PartitionBuffer) -> None:
        """Set what an entry writes to, and the partition."""
        partition, part = self._opened(TopicPartition(buffer.topic, buffer.partition))
        self.check_gathered_for(buffer.topic, partition.topic_id)
        buffer.owner, buffer.part = partition, part

    def opened_at(self, where: TopicPartition) -> tuple[Partition, TransactionPart]:
        """Return a partition, and what the coordinator's entry knows it by, for an append."""
        try:
            return self._opened(where)
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)

    def _opened(self, where: TopicPartition) -> tuple[Partition, TransactionPart]:
        opened = self.opened.get(where)
        if opened is None:
            partition = self._coordinator.partition_of(*where)
            opened = self.opened[where] = (partition, self._coordinator.part_of(*where))
        return opened

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Append a group's offsets to its partition, in the transaction."""
        self.check_appendable()
        self.check_in_time()
        offsets_of_groups = self._store_parts.group_offsets
        try:
            number, keys, values, topic_ids = offsets_of_groups.prepare_commit(group, offsets)
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)
        if not keys:
            return
        try:
            partition, part = self._opened(TopicPartition(CONSUMER_OFFSETS_TOPIC, number))
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)
        moment_ms = clock.now_ms()

        def append(entry: TransactionEntry) -> AppendResult:
            self.register(partition)
            # Until it is in, no other member of the group is given the partitions, and no deletion
            # of a topic goes by.
            with offsets_of_groups.committing(number, group, topic_ids):
                return entry.append_offsets(
                    self.producer_id,
                    self.producer_epoch,
                    part,
                    values,
                    keys,
                    timestamp_ms=moment_ms,
                )

        try:
            self._on_entry(append)
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)

    # Its ends.

    def _is_begun(self) -> bool:
        """True if the coordinator has the open transaction, or had it and ended it."""
        if not self.is_registered:
            return False

        def look(entry: TransactionEntry) -> bool:
            own = (self.producer_id, self.producer_epoch)
            return entry.state == "Ongoing" or entry.client_identity != own

        return self._on_entry(look)

    def _decide(self, commit: bool) -> tuple[int, int]:
        """End the transaction; the coordinator's wrapper gets a new id where one is needed."""
        return self._on_entry(
            lambda entry: self._coordinator.end(
                entry, self.producer_id, self.producer_epoch, commit
            )
        )

    def check_in_time(self) -> None:
        """Abort the open transaction, and raise ProducerFencedError, if it is older than its
        timeout. What is prepared or decided stays so.
        """
        age_ms = self.late_age_ms
        if age_ms < 0 or self.is_prepared:
            return
        now_ms = clock.now_ms()
        start_ms, timeout_ms = now_ms - age_ms, self.timeout_ms
        reason = timed_out(self.transactional_id, start_ms, timeout_ms, now_ms)
        own = (self.producer_id, self.producer_epoch)
        try:
            if self._is_begun() and not self._on_entry(
                lambda entry: self._coordinator.abort_late(entry, *own, reason)
            ):
                return
        except EoslogError as error:
            self.break_(error, Request.END)
        self.was_late = True
        self._owner.fence(reason)
        self.break_(ProducerFencedError(reason), Request.END)

    def complete_entry(self) -> None:
        """Write a marker that a partition refused, after the decision."""
        # What it cannot do now is tried again when the next transaction begins to write.
        entry = self._known_entry()
        self._coordinator.complete(entry)
        self._coordinator.check_not_refused(entry)

    def abort(self) -> None:
        """Abort the open transaction."""
        self.check_usable()
        if self.state is not S.ABORTING_TRANSACTION:
            self.move(S.ABORTING_TRANSACTION)
        try:
            self._over(self._decide(commit=False) if self._is_begun() else None)
        except EoslogError as error:
            self.break_(error, Request.END)
        self._forget_replaced()

    def _end_cut_commit(self) -> None:
        if not self._is_begun() or self._on_entry(lambda entry: entry.prepared):
            return
        try:
            self._decide(commit=False)
        except InvalidTxnStateError:
            self._decide(commit=True)  # Decided, or carried out: this does what is left of it.

    def prepare(self) -> PreparedTransaction:
        """Append and sync all of the transaction, and leave its decision open."""
        self.check_appendable()
        self.check_in_time()
        try:
            self._append_all()
            empty = not self._is_begun()
            if not empty:
                self._on_entry(lambda entry: entry.prepare(self.producer_id, self.producer_epoch))
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)  # Nothing is decided by it.
        if empty:
            raise IllegalStateError("the transaction is empty: there is nothing to prepare")
        self.is_prepared = True
        self.move(S.PREPARED_TRANSACTION)
        return PreparedTransaction(self.transactional_id, self.producer_id, self.producer_epoch)

    def complete(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it; if committed."""
        self.check_usable()
        if isinstance(prepared, PreparedTransaction):
            given: tuple[object, ...] | None = (
                prepared.transactional_id,
                prepared.producer_id,
                prepared.producer_epoch,
            )
        elif prepared is None or prepared == "":
            given = None
        else:
            given = (self.transactional_id, *parse_token(prepared))
        if not self.is_prepared or self.state not in _COMPLETABLE:
            if self.state is S.READY:
                raise InvalidTxnStateError(
                    f"transactional id {self.transactional_id!r}: no transaction is prepared, "
                    "and none is open"
                )
            raise IllegalStateError(f"no transaction is prepared; {HINTS[self.state]}")
        own = (self.transactional_id, self.producer_id, self.producer_epoch)
        commit = given == own
        entry = self._known_entry()
        with entry.lock:
            if own[1:] == (entry.producer_id, entry.producer_epoch):
                self._coordinator.check_prepared(entry, commit)
        if commit:
            self.commit()
        else:
            self.abort()
        return commit

    # Topics that come and go.

    def _forget_replaced(self) -> None:
        """Look partitions up anew that are closed here: a topic of the name may have been made."""
        for where, (partition, _) in list(self.opened.items()):
            if self._engine.partitions.if_open(where) is not partition:
                self.accumulator.drop_topic(where.topic)
                del self.opened[where]

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted: what was gathered for it is lost."""
        lost = self.accumulator.record_count_of(topic)
        own = (self.producer_id, self.producer_epoch)
        self._deleted = {name: of for name, of in self._deleted.items() if of == own}
        self._deleted[topic] = own
        self.accumulator.drop_topic(topic)
        self.drop_others(topic)
        for where in [where for where in self.opened if where.topic == topic]:
            del self.opened[where]
        if lost:
            self._lost_with_topic(
                f"topic {topic!r} was deleted with {lost} records that were gathered for it"
            )

    def _explained(self, error: EoslogError) -> EoslogError:
        """Return the error with its cause, also that a new topic of a deleted one's name does not
        know the sequences that went on.
        """
        if isinstance(error, OutOfOrderSequenceError):
            own = (self.producer_id, self.producer_epoch)
            for topic, of in self._deleted.items():
                if of == own and str(error).startswith(f"{topic}-"):
                    return UnknownTopicOrPartitionError(
                        f"topic {topic!r} was deleted in the transaction, with records of it, and "
                        f"made again: {error}"
                    )
        return super()._explained(error)
