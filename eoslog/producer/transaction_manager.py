"""A transactional producer's transactions: its state, its talk with its coordinator, the end.

Invariants: nothing is sent twice under the same numbers. The order of locks: the producer's, then
its coordinator's entry, then a partition's.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Never, TypeVar

from eoslog.bindings.accumulator import Accumulator, PartitionBuffer
from eoslog.bindings.client_transaction import ClientTransaction
from eoslog.bindings.column_set import ColumnSet
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.transaction_entry import TransactionEntry, TransactionPart
from eoslog.common import clock
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    ConcurrentTransactionsError,
    EoslogError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogClosedError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StoreFailedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.groups.records import encode_plain_values
from eoslog.producer.known_targets import KnownTargets
from eoslog.producer.parts import ProducerParts
from eoslog.producer.transaction_states import (
    CURABLE,
    ENDED,
    HINTS,
    OPEN,
    SOURCES,
    ClientState,
    Reaction,
    Request,
    as_the_client_sees,
    may_move,
    reaction,
)
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.owner import TransactionOwner, timed_out

_log = logging.getLogger(__name__)

T = TypeVar("T")
S = ClientState
# A prepared transaction, and one whose commit or abort was interrupted.
_COMPLETABLE = frozenset({S.PREPARED_TRANSACTION, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION})
# By number: looked up with every append.
_STATES = tuple(ClientState)


class OpenedPart(NamedTuple):
    """A partition, and what the coordinator's entry knows it by."""

    partition: UnifiedLog
    part: TransactionPart


class TransactionManager(ClientTransaction):
    """Transactions of one producer, in the log, decided by the coordinator's entry of its id.

    The caller holds the producer's lock, which comes before that of the entry.
    """

    def __init__(
        self, accumulator: Accumulator, parts: ProducerParts, transactional_id: str, timeout_ms: int
    ) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.is_prepared = False  # The open transaction: only its answer ends it.
        self._is_cut_short = False  # Its commit: an interrupt or a foreign error came into it.
        self.was_late = False  # It was aborted here, being older than its timeout.
        self.entry: TransactionEntry | None = None
        self.opened: dict[TopicPartition, OpenedPart] = {}
        self._store_parts = parts
        self._engine = parts.engine
        self._coordinator = parts.coordinator
        self.owner = TransactionOwner.here()
        self._cause: EoslogError | None = None
        self._is_cut_off = False  # A close found it open, and aborts it or has done so.
        self._targets = KnownTargets()
        # Topics that were deleted under a transaction, and the id and epoch of that.
        self._deleted: dict[str, tuple[int, int]] = {}
        self.set_moves(
            SOURCES, S.UNINITIALIZED, S.READY, S.IN_TRANSACTION, S.COMMITTING_TRANSACTION
        )

    # State.

    @property
    def state(self) -> ClientState:
        """State now."""
        return _STATES[self.state_number]

    def check_usable(self) -> None:
        """Raise the error of a producer or a store that is closed or fenced."""
        self.accumulator.check_refusal()
        self._engine.check_open()

    def check_appendable(self) -> None:
        """Check that records are taken now."""
        self.check_usable()
        if self.state_number != S.IN_TRANSACTION:
            self.no_move(S.IN_TRANSACTION)

    def check_begin(self) -> None:
        """Raise the error of a transaction that may not begin."""
        self.check_usable()
        self.look_again()

    def no_move(self, target: int) -> Never:
        """Raise the error for a call that does not fit the state."""
        state = self.state
        if state is S.ABORTABLE_ERROR:
            cause = self._cause or "an error before"
            raise TransactionAbortableError(f"{HINTS[state]}: {cause}") from self._cause
        hint = HINTS[state]
        if target == S.INITIALIZING and state in (S.READY, S.IN_TRANSACTION):
            hint = "init_transactions() was called already"
        raise IllegalStateError(
            f"transactional id {self.transactional_id!r}, state {state.name}: {hint}"
        )

    @property
    def may_be_decided(self) -> bool:
        """True if the open transaction may be decided without this producer's knowledge."""
        return self.is_prepared or self._is_cut_short

    @property
    def is_ended(self) -> bool:
        """True if the transaction of a block was ended there; what a close aborted was not."""
        return self.state in ENDED and not self._is_cut_off

    # Errors.

    def record_refused(self, error: Exception) -> None:
        """Take in that a record was refused: the transaction must not be committed without it."""
        if self.state is S.IN_TRANSACTION and self.accumulator.refusal is None:
            self._take_in(error, Request.PRODUCE)

    def break_(self, error: Exception, request: Request) -> Never:
        """Raise the error as the caller is to see it; what it means for this producer is done."""
        seen = self._take_in(error, request)
        if seen is not error:
            raise seen from error
        raise error

    def _take_in(self, error: Exception, request: Request) -> Exception:
        """Do what an error means for this producer; the error as the caller is to see it."""
        if not isinstance(error, EoslogError) or isinstance(error, ConcurrentAccessError):
            if self.state is S.COMMITTING_TRANSACTION:
                self._is_cut_short = True
                self.move(S.PREPARED_TRANSACTION if self.is_prepared else S.ABORTABLE_ERROR)
            return error
        seen = as_the_client_sees(self._explained(error), request)
        found = reaction(seen, request)
        if found is Reaction.FATAL:
            self.move(S.FATAL_ERROR)
            again = copy.copy(seen)  # Without its traceback, which keeps records alive.
            self.accumulator.refuse(lambda: copy.copy(again))
        elif self.is_prepared and self.state is S.COMMITTING_TRANSACTION:
            self.move(S.PREPARED_TRANSACTION)
        elif found is Reaction.ABORTABLE and may_move(self.state, S.ABORTABLE_ERROR):
            self._cause = seen
            self.move(S.ABORTABLE_ERROR)
        return seen

    def _explained(self, error: EoslogError) -> EoslogError:
        """Return the error with its cause: who took the id over, or the topic that was deleted,
        also where a new one of its name does not know the sequences that went on.
        """
        if isinstance(error, OutOfOrderSequenceError):
            own = (self.producer_id, self.producer_epoch)
            for topic, of in self._deleted.items():
                if of == own and str(error).startswith(f"{topic}-"):
                    return UnknownTopicOrPartitionError(
                        f"topic {topic!r} was deleted in the transaction, with records of it, and "
                        f"made again: {error}"
                    )
        if isinstance(error, (ProducerFencedError, InvalidProducerEpochError)):
            return self.owner.explain(error)
        if isinstance(error, LogClosedError) and not self._engine.is_closed():
            deleted = f"a topic of the transaction was deleted: {error}"
            return self._engine.failure or UnknownTopicOrPartitionError(deleted)
        return error

    def notice_replacement(self) -> None:
        """Refuse records from now on if the transactional id was taken over.

        Takes no lock: the caller holds the entry's. It only lets the user know sooner; what keeps a
        fenced producer from writing is the entry.
        """
        owner = self.owner
        if owner.fenced_because is not None and self.accumulator.refusal is None:
            self.accumulator.refuse(lambda: ProducerFencedError(owner.fenced_because))

    # The coordinator's entry.

    def initialize(self, keep_prepared: bool) -> PreparedTransaction | None:
        """Take the transactional id over; the prepared transaction that stays, or None."""
        self.check_usable()
        if self.state is not S.INITIALIZING:
            self.move(S.INITIALIZING)
        # From now on: what fences an owner that an interrupt left is this call.
        older, owner = self.owner, TransactionOwner.here(self.notice_replacement)
        self.owner = owner
        self.logs = _log.isEnabledFor(logging.DEBUG)  # It is not asked for each transaction.
        try:
            found = self._coordinator.init(
                self.transactional_id, self.timeout_ms, owner=owner, keep_prepared=keep_prepared
            )
            state_partition = self._store_parts.state_log.partition_of(self.transactional_id)
        except EoslogError as error:
            self.owner = older
            self.break_(error, Request.INIT)
        self.entry = found.entry
        self.set_entry(found.entry, owner, state_partition, found.producer_id, found.producer_epoch)
        if found.prepared is None:
            self.move(S.READY)
        else:
            self.register()
            self.is_prepared = True
            self.move(S.PREPARED_TRANSACTION)
        return found.prepared

    def _on_entry(self, call: Callable[[TransactionEntry], T]) -> T:
        """Call the entry; a transaction that is in the way is ended if it can be."""
        entry = self._known_entry()
        self.wait_to_begin()
        looked = False
        while True:
            try:
                with entry.lock:
                    self.owner.check()
                    return call(entry)
            except ConcurrentTransactionsError:
                # The transaction before this one is decided, and could not be completed then.
                if not self._coordinator.complete(entry):
                    raise
            except InvalidTxnStateError:
                # A power cut took the record of a transaction of this id, not its batches, and
                # recovery could not end it when the partition was opened: others were at work.
                if looked:
                    raise
                looked = True
                self._coordinator.end_unknown()

    def _known_entry(self) -> TransactionEntry:
        if self.entry is None:
            raise IllegalStateError(HINTS[S.UNINITIALIZED])
        return self.entry

    def look_again(self) -> None:
        """Raise ProducerFencedError if another process has the id by now."""
        if self.entry is not None:
            try:
                with self.entry.lock:
                    self.owner.check()
            except EoslogError as error:
                self.break_(error, Request.END)

    def release(self) -> None:
        """Let go of the transactional id: the producer is closed."""
        if self.entry is not None:
            self._coordinator.release(self.entry, self.owner)

    # Writing.

    def append(self, opened: OpenedPart, columns: ColumnSet) -> AppendResult:
        """Append columns to a partition, which is registered before."""
        self.check_in_time()
        partition, part = opened

        def append(entry: TransactionEntry) -> AppendResult:
            self.register(partition)
            return entry.append_columns(self.producer_id, self.producer_epoch, part, columns)

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
            entry.flush(self.producer_id, self.producer_epoch, pairs)

        self._on_entry(append)
        for buffer in buffers:
            if isinstance(buffer.owner, UnifiedLog):
                buffer.owner.note_append()

    def open_buffer(self, buffer: PartitionBuffer) -> None:
        """Set what an entry writes to, and the partition."""
        partition, part = self._opened(TopicPartition(buffer.topic, buffer.partition))
        self.check_gathered_for(buffer.topic, partition.topic_id)
        buffer.owner, buffer.part = partition, part

    def opened_at(self, where: TopicPartition) -> OpenedPart:
        """Return a partition for an append of columns."""
        try:
            return self._opened(where)
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)

    def _opened(self, where: TopicPartition) -> OpenedPart:
        opened = self.opened.get(where)
        if opened is None:
            partition = self._coordinator.partition_of(*where)
            opened = OpenedPart(partition, self._coordinator.part_of(*where))
            self.opened[where] = opened
        return opened

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Append a group's offsets to its partition, in the transaction."""
        try:
            if known := self._targets.find(group, offsets):
                moment_ms = clock.now_ms()
                values_now = encode_plain_values(offsets.values(), moment_ms)
                if values_now is not None and self.append_offsets(known, values_now, moment_ms):
                    return
        except CURABLE:
            pass
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)
        self.check_appendable()
        self.check_in_time()
        offsets_of_groups = self._store_parts.group_offsets
        topics_count = offsets_of_groups.log.topics_count()
        try:
            prepared = offsets_of_groups.prepare_commit(group, offsets)
            number, keys, values, topic_ids = prepared
            if not keys:
                return
            partition, part = self._opened(TopicPartition(CONSUMER_OFFSETS_TOPIC, number))
            # One record of the coordinator for all partitions.
            parts = [*self.unregistered_parts(), part]
            moment_ms = clock.now_ms()

            def append(entry: TransactionEntry) -> None:
                self.register(partition)
                if len(parts) > 1:
                    entry.add_partitions(self.producer_id, self.producer_epoch, parts)
                # Until it is in, no other member of the group is given the partitions, and no
                # deletion of a topic goes by.
                with offsets_of_groups.writing(number):
                    offsets_of_groups.check_prepared(number, group, topic_ids)
                    entry.append_offsets(
                        self.producer_id,
                        self.producer_epoch,
                        part,
                        values,
                        keys,
                        timestamp_ms=moment_ms,
                    )

            self._on_entry(append)
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)
        target = offsets_of_groups.target_of(group, prepared, part, topics_count)
        if target is not None:
            self._targets.keep(group, topic_ids, target)

    # What it logs.

    def log_begin(self) -> None:
        _log.debug(
            "transactional id %r: a transaction of producer id %d, epoch %d, begins",
            *(self.transactional_id, self.producer_id, self.producer_epoch),
        )

    def log_commit(self, parts: list[TransactionPart | UnifiedLog]) -> None:
        _log.debug(
            "transactional id %r: the transaction of producer id %d, epoch %d, over %s is "
            "committed",
            *(self.transactional_id, self.producer_id, self.producer_epoch),
            ", ".join(f"{one.topic}-{one.partition}" for one in parts),
        )

    # Its ends.

    def drain(self, buffer: PartitionBuffer) -> None:
        """Append a batch that is full, or that columns for its partition follow."""
        try:
            self.append_buffers([buffer])
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)

    def flush(self) -> None:
        """Append what the open transaction gathered."""
        self.check_usable()
        if self.state is S.ABORTABLE_ERROR:
            self.no_move(S.IN_TRANSACTION)
        if self.state is not S.IN_TRANSACTION:
            return
        try:
            self._append_all()
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)

    def _append_all(self) -> None:
        touched = self.accumulator.touched_buffers()
        filled = [one for one in touched if one.accumulator.record_count]
        if filled:
            self.append_buffers(filled)

    def commit_otherwise(self) -> None:
        """Commit in another state than an open transaction that takes records, or raise."""
        self.check_usable()
        if self.state is S.COMMITTING_TRANSACTION:
            self._is_cut_short = True
        else:
            self.move(S.COMMITTING_TRANSACTION)
        self.check_in_time()
        self._over(self._commit_on())

    def commit_failed(self, error: Exception) -> tuple[int, int]:
        """Go on with a commit that failed, where that can be; the numbers of the next one."""
        if not isinstance(error, CURABLE):
            self._break_commit(error)
        return self._commit_on()

    def _commit_on(self) -> tuple[int, int]:
        """Do the rest of a commit: append what is still gathered, then the decision."""
        try:
            self._append_all()
            if not self._is_begun():
                # An interrupt came before the first append had reached it: there is nothing.
                return self.producer_id, self.producer_epoch
            return self._decide(commit=True)
        except Exception as error:
            self._break_commit(error)

    def _break_commit(self, error: Exception) -> Never:
        request = Request.END
        if isinstance(error, StoreFailedError) and not self._is_decision_in_doubt():
            request = Request.PRODUCE  # A partition failed, before there was anything to decide.
        self.break_(error, request)

    def _is_decision_in_doubt(self) -> bool:
        """True if the log that would have the decision failed."""
        return bool(self.state_partition.failed)

    def _over(self, answer: tuple[int, int] | None) -> None:
        """The transaction is over; None: the coordinator never heard of it."""
        self._cause = None
        self.is_prepared = self._is_cut_short = False
        if answer is None:
            self.ended_without()
        else:
            self.ended(answer)

    def leave_block(self) -> None:
        """Commit at the end of a block what the block did not end; takes the lock."""
        with self.accumulator.lock:
            if self.is_ended:
                return
            try:
                self.commit()
            except BaseException as error:
                self._abort_after(error)
                raise

    def abort_after(self, error: BaseException) -> None:
        """Abort the open transaction; a failure becomes a note of the error. Takes the lock."""
        with self.accumulator.lock:
            self._abort_after(error)

    def _abort_after(self, error: BaseException) -> None:
        if self.accumulator.refusal is not None or self.state not in OPEN:
            return
        try:
            self.abort()
        except EoslogError as second:
            error.add_note(f"aborting the transaction failed too: {second}")

    def close(self) -> EoslogError | None:
        """Abort the open transaction, and end a commit that was cut short; what failed."""
        if self.accumulator.refusal is not None:
            return None
        try:
            if self.state in (*OPEN, S.ABORTING_TRANSACTION):
                self._is_cut_off = True
                self.abort()
            elif self.state is S.COMMITTING_TRANSACTION:
                self._is_cut_short = True
                self._end_cut_commit()
        except EoslogError as error:
            return error
        return None

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
        self.owner.fence(reason)
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
                own = (self.producer_id, self.producer_epoch)
                self._on_entry(lambda entry: self._coordinator.prepare(entry, *own))
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
        if prepared is not None and not isinstance(prepared, PreparedTransaction):
            prepared = PreparedTransaction.parse(self.transactional_id, prepared)
        if not self.is_prepared or self.state not in _COMPLETABLE:
            raise InvalidTxnStateError(
                f"transactional id {self.transactional_id!r}: no transaction is prepared; "
                f"{HINTS[self.state]}"
            )
        own = (self.producer_id, self.producer_epoch)
        commit = prepared == PreparedTransaction(self.transactional_id, *own)
        entry = self._known_entry()
        with entry.lock:
            if own == (entry.producer_id, entry.producer_epoch):
                self._coordinator.check_prepared(entry, commit)
        if commit:
            self.commit()
        else:
            self.abort()
        return commit

    # Topics that come and go.

    def check_gathered_for(self, topic: str, topic_id: str | None) -> None:
        """Refuse if another process has re-created the topic since records were gathered for it."""
        buffers = self.accumulator.buffers_of(topic)
        if buffers and buffers[0].topic_id != topic_id:
            lost = self.accumulator.record_count_of(topic)
            self.forget_topic(topic)
            if lost:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with records that were gathered for it"
                )

    def _lost_with_topic(self, text: str) -> None:
        """Have only an abort go on: records of the transaction went with their topic."""
        if self.state is S.IN_TRANSACTION:
            self._take_in(UnknownTopicOrPartitionError(text), Request.PRODUCE)

    def _forget_replaced(self) -> None:
        """Look partitions up again that are closed here: a topic of the name may have been made."""
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
