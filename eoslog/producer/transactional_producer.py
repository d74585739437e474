"""Writing in transactions: all that was sent in one, and its offsets, becomes visible, or nothing.

What holds of its states, its errors and its locks is in `transaction_client`.
"""

from collections.abc import Iterable, Mapping
from typing import overload

from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.sender import PartitionBuffer
from eoslog.bindings.transaction_entry import TransactionEntry, TransactionPart
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.config import TRANSACTIONAL_PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.prepared_transaction import PreparedTransaction, parse_token
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    IllegalStateError,
    InvalidConfigError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.gathering import closed_error
from eoslog.producer.producer import RECORDS_PER_CALL_MAX, length_of
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.transaction_client import TransactionClient
from eoslog.producer.transaction_client_state import ENDED, HINTS, ClientState, Request
from eoslog.storage.partition import Partition
from eoslog.transactions.transaction_entries import check_transactional_id
from eoslog.transactions.transaction_owner import TransactionOwner

S = ClientState
DEFAULT_TIMEOUT_MS = 60_000
# A prepared transaction, and one whose commit or abort was interrupted.
_COMPLETABLE = frozenset({S.PREPARED_TRANSACTION, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION})


class TransactionalProducer(TransactionClient):
    """Writes in transactions; `Store.producer(transactional_id=...)` makes it. Threads may share
    it, and with it its one open transaction.

    First `init_transactions()`; then, again and again, `with producer.transaction():` with `send`,
    `append` and `send_offsets_to_transaction` in it. On return of a commit all of it is decided,
    as durable as the store's durability says, and readers of "read_committed" see it; a crash
    before that leaves nothing of it, one after that takes nothing away.

    There is no linger: a full batch is appended at once, the rest at `flush` or at the commit, and
    syncs are left to the commit. Records are visible only after it anyway.

    After an error:

    - IllegalStateError, TypeError, ValueError: the call did nothing, all is as it was;
    - ProducerFencedError: the transactional id was taken over, or the transaction took longer than
      its timeout; the message says who did it and when. Nothing more is written; close it;
    - StoreFailedError of a commit: whether it is decided, only opening the store anew can say;
    - ConcurrentAccessError: called from within a call of this producer, by the same thread;
      the call did nothing, and the append it came into goes on;
    - LogClosedError, ForkedProcessError: the store is not open any more;
    - any other, in a transaction: call `abort_transaction` and begin anew. The transaction's other
      calls raise TransactionAbortableError until then. `transaction()` does so by itself.
    """

    def __init__(
        self,
        parts: ProducerParts,
        transactional_id: str,
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        config: Mapping[str, object] | None = None,
    ) -> None:
        check_transactional_id(transactional_id)
        timeout_ms = whole_number(transaction_timeout_ms, "a transaction timeout")
        settings = parse_config(config, TRANSACTIONAL_PRODUCER_SETTINGS, "transactional producer")
        timeout_ms = int(settings.get("transaction.timeout.ms", timeout_ms))
        settings = with_defaults(settings, TRANSACTIONAL_PRODUCER_SETTINGS)
        if not settings["enable.idempotence"]:
            raise InvalidConfigError("enable.idempotence=false: transactions need idempotence")
        super().__init__(parts, transactional_id, int(settings["batch.size"]))
        self._timeout_ms = timeout_ms
        self._parts: dict[TopicPartition, tuple[Partition, TransactionPart]] = {}
        # Topics that were deleted under a transaction, and the id and epoch of that.
        self._deleted: dict[str, tuple[int, int]] = {}

    @property
    def transactional_id(self) -> str:
        """The id that makes one producer the successor of another, over restarts too."""
        return self._transactional_id

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._state.name.lower()
        return (
            f"<eoslog.TransactionalProducer {self._transactional_id!r}, {state}, "
            f"producer id {self.producer_id}, epoch {self.producer_epoch}>"
        )

    # Transactions. `transaction`, `begin_transaction` and `commit_transaction` are inherited.

    def init_transactions(self, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Take the transactional id over: whoever had it can write nothing from now on.

        What the predecessor left open is aborted, what it had decided is completed. To be called
        once, before anything else; again only after an error that is `retriable`, and after an
        interrupt: an IllegalStateError then says that it was through (a new producer gives the
        answer of `keep_prepared` again).

        With `keep_prepared` a prepared transaction of the id stays, and is the answer: it can then
        be committed or aborted, and nothing else. Else it is aborted with the rest, and the answer
        is None.

        Raises IllegalStateError if it was called before; ConcurrentTransactionsError if a decided
        transaction cannot be completed just now (a full disk); InvalidTransactionTimeoutError;
        StoreFullError, StoreFailedError, LogClosedError.
        """
        with self.lock:
            self._check_usable()
            if self._state is not S.INITIALIZING:
                self._move(S.INITIALIZING)
            owner = TransactionOwner.here()
            try:
                found = self._coordinator.init(
                    self._transactional_id,
                    self._timeout_ms,
                    owner=owner,
                    keep_prepared=keep_prepared,
                )
                state_partition = self._store_parts.state_log.partition_of(self._transactional_id)
            except EoslogError as error:
                self._break(error, Request.INIT)
            self._owner = owner
            self._taken_over = found.entry
            self._set_entry(
                found.entry,
                owner,
                state_partition,
                self._engine.signal,
                found.producer_id,
                found.producer_epoch,
            )
            if found.prepared is None:
                self._move(S.READY)
            else:
                self._register()
                self._is_prepared = True
                self._move(S.PREPARED_TRANSACTION)
        notice_replacements(self._store_parts.live_producers())
        return found.prepared

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Have a group's offsets committed with the transaction: they become visible together.

        `offsets` has for each partition the offset of the record to be read next: that of the last
        record processed, plus one. Pass a consumer's `group_metadata()`, or a group's name.

        Raises CommitFailedError if the group was rebalanced meanwhile;
        UnknownTopicOrPartitionError for a topic that was deleted since the consumer was given it,
        though there may be a new one of its name; IllegalStateError outside of a transaction;
        OffsetMetadataTooLargeError, and whatever `append` raises.
        """
        with self.lock:
            self._check_appendable()
            self._check_in_time()
            offsets_of_groups = self._store_parts.group_offsets
            try:
                number, keys, values, topic_ids = offsets_of_groups.prepare_transactional_commit(
                    group, offsets
                )
            except EoslogError as error:
                self._break(error, Request.OFFSETS)
            if not keys:
                return
            try:
                partition, part = self._opened(TopicPartition(CONSUMER_OFFSETS_TOPIC, number))
                moment_ms = clock.now_ms()

                def append(entry: TransactionEntry, after: AppendResult | None) -> AppendResult:
                    self._register(partition)
                    # Until it is in, no other member of the group is given the partitions, and
                    # no deletion of a topic goes by.
                    with offsets_of_groups.committing(number, group, topic_ids):
                        return entry.append_offsets(
                            self.producer_id,
                            self.producer_epoch,
                            part,
                            values,
                            keys,
                            timestamp_ms=moment_ms,
                            after=after,
                        )

                self._append_on_entry(append)
            except EoslogError as error:
                self._break(error, Request.OFFSETS)

    def abort_transaction(self) -> None:
        """Abort: what the transaction sent is never read as committed; what was gathered is gone.

        On return the producer can begin the next transaction. An error of the disk leaves the abort
        to be called again.

        Raises IllegalStateError outside of a transaction; ProducerFencedError, StoreFullError,
        StoreFailedError, LogClosedError.
        """
        with self.lock:
            self._check_usable()
            self._abort()

    def prepare_transaction(self) -> PreparedTransaction:
        """Append and sync all of the transaction, and leave its decision to whoever has the answer.

        A prepared transaction has no timeout and outlives this producer, its process and a power
        cut. This producer may commit or abort it; so may anybody, at any time, with
        `store.commit_prepared` or `store.abort_prepared`. An `init_transactions()` of its id aborts
        it unless told to keep it.

        Raises IllegalStateError outside of a transaction and for one that wrote nothing; what
        `flush` raises.
        """
        with self.lock:
            self._check_appendable()
            self._check_in_time()
            try:
                self._append_all()
                empty = not self._is_at_the_coordinator()
                if not empty:
                    self._on_entry(
                        lambda entry: entry.prepare(self.producer_id, self.producer_epoch)
                    )
            except EoslogError as error:
                self._break(error, Request.PRODUCE)  # Nothing is decided by it.
            if empty:
                raise IllegalStateError("the transaction is empty: there is nothing to prepare")
            self._is_prepared = True
            self._move(S.PREPARED_TRANSACTION)
            return PreparedTransaction(
                self._transactional_id, self.producer_id, self.producer_epoch
            )

    def complete_transaction(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it; whether committed.

        `prepared` is what `prepare_transaction` answered, or its text, as an external database kept
        it with its own commit; None or "" if that has none.

        To be called again, with the same, after an interrupt or an error: until it is decided the
        transaction stays prepared, also if this producer is closed.

        Raises InvalidTxnStateError if no transaction is prepared, or open; IllegalStateError if one
        is open that is not prepared; TransactionCoordinatorFencedError if a partition has another
        end of it already (it stays prepared then); what commit and abort raise.
        """
        with self.lock:
            self._check_usable()
            if isinstance(prepared, PreparedTransaction):
                given: tuple[object, ...] | None = (
                    prepared.transactional_id,
                    prepared.producer_id,
                    prepared.producer_epoch,
                )
            elif prepared is None or prepared == "":
                given = None
            else:
                given = (self._transactional_id, *parse_token(prepared))
            if not self._is_prepared or self._state not in _COMPLETABLE:
                if self._state is S.READY:
                    raise InvalidTxnStateError(
                        f"transactional id {self._transactional_id!r}: no transaction is prepared, "
                        "and none is open"
                    )
                raise IllegalStateError(f"no transaction is prepared; {HINTS[self._state]}")
            own = (self._transactional_id, self.producer_id, self.producer_epoch)
            commit = given == own
            entry = self._known_entry()
            with entry.lock:
                if own[1:] == (entry.producer_id, entry.producer_epoch):
                    self._coordinator.check_prepared(entry, commit)
            if commit:
                self._commit_held()
            else:
                self._abort()
            return commit

    # Writing. `send` is inherited.

    @overload
    def append(
        self,
        topic: str,
        partition: int,
        values: object,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> AppendResult: ...

    @overload
    def append(
        self,
        topic: str,
        partition: None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> dict[int, AppendResult]: ...

    def append(
        self,
        topic: str,
        partition: int | None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> AppendResult | dict[int, AppendResult]:
        """Append like `Producer.append`, in the open transaction: it is registered before, and
        synced with the commit. Raises IllegalStateError outside of a transaction, too.
        """
        # The short way, to a partition that this producer has written to. The records before have
        # emptied the processor's caches, and every call in Python is slow then.
        opened = None
        if type(topic) is str and type(partition) is int:
            opened = self._parts.get((topic, partition))  # type: ignore[call-overload]
        if opened is None:
            return super().append(topic, partition, values, keys, timestamps, headers)
        with self.lock:
            if (
                self._state_number == S.IN_TRANSACTION
                and self._refusal is None
                and not self._touched_buffers()
                and length_of(values if values is not None else keys) <= RECORDS_PER_CALL_MAX
            ):
                try:
                    return self._append_opened(opened, values, keys, timestamps, headers)
                except EoslogError as error:
                    self._failed(error)
                    raise
        return super().append(topic, partition, values, keys, timestamps, headers)

    def flush(self) -> None:
        """Append what the open transaction gathered. Nothing is synced: the commit does that.

        Raises TransactionAbortableError if something failed before; what `append` raises.
        """
        with self.lock:
            self._check_usable()
            if self._state is S.ABORTABLE_ERROR:
                self._no_move(S.IN_TRANSACTION)
            if self._state is not S.IN_TRANSACTION:
                return
            try:
                self._append_all()
            except EoslogError as error:
                self._break(error, Request.PRODUCE)

    def next_sequence(self, topic: str, partition: int) -> int:
        """Refuse to return a sequence: sequences begin again with each transaction. Raises
        ValueError.
        """
        raise ValueError("a transactional producer's sequences begin anew with every transaction")

    def discard_gathered(self) -> int:
        """Refuse to discard: no part of a transaction is committed. Raises IllegalStateError."""
        raise IllegalStateError("a part of a transaction cannot be taken back: abort it")

    def close(self) -> None:
        """Abort the open transaction, then take nothing more. A second call does nothing, or what
        an interrupt (Ctrl-C) left of the first. So is one whose commit was interrupted before its
        decision; behind that the commit is completed.

        A prepared transaction stays prepared. If the abort fails the producer is closed all the
        same, and the error raised: the transaction is aborted when its timeout has passed.
        """
        if self._is_parents:
            return
        failed: EoslogError | None = None
        with self.lock:
            self._closed = True
            open_states = (S.IN_TRANSACTION, S.ABORTABLE_ERROR, S.ABORTING_TRANSACTION)
            try:
                if self._refusal is None and self._state in open_states:
                    self._is_cut_off = True
                    self._abort()
                elif self._refusal is None and self._state is S.COMMITTING_TRANSACTION:
                    self._end_cut_commit()
            except EoslogError as error:
                failed = error
            self._discard()
            # Before another thread can find it ready for the next transaction.
            self._refuse_from_now_on(closed_error)
        if self._taken_over is not None:
            self._coordinator.release(self._taken_over, self._owner)
        if failed is not None:
            raise failed

    def _abort(self) -> None:
        self._check_usable()
        if self._state is not S.ABORTING_TRANSACTION:
            self._move(S.ABORTING_TRANSACTION)
        try:
            if self._is_at_the_coordinator():
                self._over(self._end(commit=False))
            else:
                self._over(None)
        except EoslogError as error:
            self._break(error, Request.END)
        self._forget_replaced()

    def _end_cut_commit(self) -> None:
        """Abort what an interrupt left of a commit, if that had not decided it; else complete it.

        A prepared transaction stays so: it may have been committed outside.
        """
        if not self._is_at_the_coordinator() or self._on_entry(lambda entry: entry.prepared):
            return
        try:
            self._end(commit=False)
        except InvalidTxnStateError:
            self._end(commit=True)  # Decided, or carried out: this does what is left of it.

    # How it appends. The caller holds the lock.

    def _drain(self, buffer: PartitionBuffer) -> None:
        """A batch is full, or columns for its partition follow: it is appended now."""
        try:
            self._append_buffers([buffer])
        except EoslogError as error:
            self._break(error, Request.PRODUCE)

    def _append_columns(
        self,
        where: TopicPartition,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult:
        self._append_earlier(where)
        self._check_appendable()  # What was gathered may have gone with its topic.
        count = length_of(values if values is not None else keys)
        if count > RECORDS_PER_CALL_MAX:
            raise ValueError(f"{count} records in one call; at most {RECORDS_PER_CALL_MAX}")
        try:
            opened = self._opened(where)
        except EoslogError as error:
            self._break(error, Request.PRODUCE)
        return self._append_opened(opened, values, keys, timestamps, headers)

    def _append_opened(
        self,
        opened: tuple[Partition, TransactionPart],
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> AppendResult:
        self._check_in_time()
        partition, part = opened
        moment_ms = clock.now_ms()

        def append(entry: TransactionEntry, after: AppendResult | None) -> AppendResult:
            self._register(partition)
            return entry.append_columns(
                self.producer_id,
                self.producer_epoch,
                part,
                values,
                keys,
                timestamps,
                headers,
                timestamp_ms=moment_ms,
                after=after,
            )

        try:
            result = self._append_on_entry(append)
        except EoslogError as error:
            self._break(error, Request.PRODUCE)
        partition.note_append()
        self._engine.signal.appended()
        return result

    def _append_all(self) -> None:
        """Append all that is gathered."""
        filled = [one for one in self._touched_buffers() if one.accumulator.record_count]
        if filled:
            self._append_buffers(filled)

    def _append_buffers(self, buffers: list[PartitionBuffer]) -> None:
        """Append these batches, after all partitions touched so far were registered at once."""
        self._check_in_time()
        parts = self._unregistered_parts()
        pairs = [self._pair_of(buffer) for buffer in buffers]

        def append(entry: TransactionEntry) -> None:
            self._register()
            if parts:
                entry.add_partitions(self.producer_id, self.producer_epoch, parts)
            # Where a producer's row had to be looked up, some of them may be in already.
            entry.flush(self.producer_id, self.producer_epoch, pairs)

        self._on_entry(append)
        self._tell(buffer.owner for buffer in buffers)

    def _open_buffer(self, buffer: PartitionBuffer) -> None:
        where = TopicPartition(buffer.topic, buffer.partition)
        partition, part = self._opened(where)
        self._check_gathered_for(buffer.topic, partition.topic_id)
        buffer.owner, buffer.part = partition, part

    def _check_gathered_for(self, topic: str, topic_id: str | None) -> None:
        """Refuse if another process has made the topic anew since records were gathered for it."""
        buffers = self._buffers_of(topic)
        if buffers and buffers[0].topic_id != topic_id:
            lost = any(buffer.accumulator.record_count for buffer in buffers)
            self._forget_topic(topic)
            if lost:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with records that were gathered for it"
                )

    def _opened(self, where: TopicPartition) -> tuple[Partition, TransactionPart]:
        """A partition, and what the coordinator's entry knows it by; looked up once."""
        opened = self._parts.get(where)
        if opened is None:
            partition = self._coordinator.partition_of(*where)
            opened = self._parts[where] = (partition, self._coordinator.part_of(*where))
        return opened

    def _tell(self, partitions: Iterable[object]) -> None:
        """Readers and the checkpointer hear of an append."""
        for partition in partitions:
            if isinstance(partition, Partition):
                partition.note_append()
        self._engine.signal.appended()

    def _abort_after(self, error: BaseException) -> None:
        with self.lock:
            self._abort_after_held(error)

    def _abort_after_held(self, error: BaseException) -> None:
        if self._refusal is not None or self._state not in (S.IN_TRANSACTION, S.ABORTABLE_ERROR):
            return
        try:
            self._abort()
        except EoslogError as second:
            error.add_note(f"aborting the transaction failed too: {second}")

    def _leave_block(self) -> None:
        with self.lock:
            if self._is_ended():
                return
            try:
                self._commit_held()
            except BaseException as error:
                self._abort_after_held(error)
                raise

    def _is_ended(self) -> bool:
        """True if the transaction of a block was ended there; what a close aborted was not."""
        return self._state in ENDED and not self._is_cut_off

    def _forget_replaced(self) -> None:
        """Look partitions up anew that are closed here: a topic of the name may have been made."""
        for where, (partition, _) in list(self._parts.items()):
            if self._engine.partitions.if_open(where) is not partition:
                self._drop_topic(where.topic)
                del self._parts[where]

    def _forget_topic(self, topic: str) -> None:
        """The topic is being deleted: what was gathered for it is lost, its partitions are gone."""
        lost = sum(buffer.accumulator.record_count for buffer in self._buffers_of(topic))
        own = (self.producer_id, self.producer_epoch)
        self._deleted = {name: of for name, of in self._deleted.items() if of == own}
        self._deleted[topic] = own
        self._drop_topic(topic)
        self._drop_others(topic)
        self._parts = {where: one for where, one in self._parts.items() if where.topic != topic}
        if lost and self._state is S.IN_TRANSACTION:
            self._take_in(
                UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with {lost} records that were gathered for it"
                ),
                Request.PRODUCE,
            )

    def _named(self, error: EoslogError) -> EoslogError:
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
        return super()._named(error)

    def _start_lingering(self) -> None:
        """Do nothing: no record waits for a time."""


def notice_replacements(producers: Iterable[object]) -> None:
    """Have the producers whose transactional id was taken from them refuse records from now on."""
    for producer in producers:
        if isinstance(producer, TransactionalProducer):
            producer.notice_replacement()
