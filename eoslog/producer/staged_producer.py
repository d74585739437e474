"""Transactions for bulk loads: the records wait outside the log and enter it at the commit.

A transaction of `TransactionalProducer` is in the log while it is open, and holds back all readers
of "read_committed" behind it. One of this producer is in files of its own (`staged_transactions`),
may take hours, and holds back nobody. The rest is as `transaction_client` has it: one table of
states, and after an error in a transaction only its abort goes on.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Never

from eoslog.bindings.sender import PartitionBuffer
from eoslog.common.config import STAGED_PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    IllegalStateError,
    InvalidTxnStateError,
    ProducerFencedError,
    StagedCommitError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.transaction_client_state import HINTS, ClientState, Request
from eoslog.producer.transactional_producer import DEFAULT_TIMEOUT_MS, TransactionalProducer
from eoslog.staging.staged_names import directory_name
from eoslog.staging.staged_transactions import StagedTransactions
from eoslog.transactions.transaction_owner import TransactionOwner

S = ClientState
_NO_TIMEOUT_MS = 0x7FFFFFFF  # As Kafka writes that a transaction has none.


class StagedProducer(TransactionalProducer):
    """Writes bulk loads in transactions; `Store.producer(transactional_id=..., staged=True)` makes
    it. Threads may share it, and with it its one open transaction.

    It takes the calls of a transactional producer, in the same order. What differs:

    - records go to staged files of the store. They are in no partition, hold back no reader and
      have no offsets before the commit, which is one decision for all of them and the offsets of
      groups that were sent with them;
    - a transaction has no timeout, and cannot be prepared;
    - the transactional id is the name of an application, as `Store.commit_staged` has it. Each
      commit of records or offsets is one version more; `Store.application` says which was the last,
      and so does the group of that name. Staged and other transactional producers do not fence each
      other;
    - a commit costs what a staged job costs, some tens of milliseconds on a disk that is synced.

    A crash before the decision leaves nothing: the files are swept. After it, whoever opens the
    store next completes it. A commit that is decided, but that a full disk keeps from being
    completed, counts: it is completed before the next one is decided, and until then readers see
    nothing of it.
    """

    def __init__(
        self,
        parts: ProducerParts,
        transactional_id: str,
        config: Mapping[str, object] | None = None,
    ) -> None:
        settings = with_defaults(
            parse_config(config, STAGED_PRODUCER_SETTINGS, "staged producer"),
            STAGED_PRODUCER_SETTINGS,
        )
        super().__init__(parts, transactional_id, DEFAULT_TIMEOUT_MS, settings)
        self._timeout_ms = _NO_TIMEOUT_MS
        self._transactions: StagedTransactions | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._state.name.lower()
        return f"<eoslog.StagedProducer {self._transactional_id!r}, {state}>"

    # Transactions. What is not here is inherited.

    def init_transactions(self, keep_prepared: bool = False) -> None:
        """Take the transactional id over: whoever had it decides nothing from now on.

        Registers a new run of the application, durably; an earlier decision that a full disk kept
        from being completed is completed first. To be called once, before anything else; again
        only after an error that is `retriable`.

        Raises IllegalStateError if it was called before, or to keep what was prepared: nothing can
        be. StagedJobIncompleteError if an earlier decision cannot be completed just now;
        StoreFullError, StoreFailedError, LogClosedError.
        """
        with self.lock:
            self._check_usable()
            if keep_prepared:
                _refuse_to_prepare()
            if self._state is not S.INITIALIZING:
                self._move(S.INITIALIZING)
            owner = TransactionOwner.here()
            try:
                run_id = self._store_parts.staged.begin_run(self._transactional_id, owner)
                state_partition = self._store_parts.state_log.partition_of(self._application_name)
            except EoslogError as error:
                self._break(error, Request.INIT)
            self._owner = owner
            self._transactions = StagedTransactions(
                self._engine,
                self._store_parts.state_log,
                self._store_parts.group_offsets,
                self._store_parts.staged,
                self._transactional_id,
                run_id,
                self._check_gathered_for,
            )
            self._set_entry(self._transactions, owner, state_partition, self._engine.signal, -1, -1)
            self._move(S.READY)
        for other in self._store_parts.live_producers():
            if isinstance(other, StagedProducer):
                other.notice_replacement()

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is written.

        Raises what `TransactionalProducer.begin_transaction` raises.
        """
        with self.lock:
            if self._state is S.READY and self._transactions is not None:
                self._transactions.begin_anew()
                try:
                    self._transactions.check_run()
                except ProducerFencedError as error:
                    self._break(error, Request.INIT)
        super().begin_transaction()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Have a group's offsets committed by the transaction's decision.

        `offsets` has for each partition the offset of the record to be read next. They are checked
        now, and once more at the commit, which leaves out those of topics that were deleted since.

        Raises CommitFailedError if the group was rebalanced meanwhile; IllegalStateError outside of
        a transaction; UnknownTopicOrPartitionError, also for a topic that was deleted since the
        consumer was given it and made again; OffsetMetadataTooLargeError.
        """
        with self.lock:
            self._check_appendable()
            try:
                self._owner.check()
                if self._staged().add_offsets(group, offsets):
                    self._register()
            except EoslogError as error:
                self._break(error, Request.OFFSETS)

    def abort_transaction(self) -> None:
        """Abort: the transaction's files and what was gathered are gone, the log is as it was.

        Raises IllegalStateError outside of a transaction; InvalidTxnStateError where the commit was
        interrupted and had decided it: it is committed, and over. ProducerFencedError,
        LogClosedError.
        """
        super().abort_transaction()

    def prepare_transaction(self) -> PreparedTransaction:
        """Refuse to prepare a staged transaction. Raises IllegalStateError; it goes on."""
        _refuse_to_prepare()

    def complete_transaction(self, prepared: PreparedTransaction | str | None) -> bool:
        """Refuse to complete a staged transaction. Raises IllegalStateError."""
        _refuse_to_prepare()

    def close(self) -> None:
        """Abort the open transaction, then take nothing more. A second call does nothing, or what
        an interrupt (Ctrl-C) left of the first.
        """
        with suppress(InvalidTxnStateError):  # A commit that was cut short had decided it.
            super().close()
        with self.lock:
            if self._transactions is not None:
                self._transactions.close()

    # Writing. `send` is inherited; a full batch goes to its file.

    def append(  # type: ignore[override]
        self,
        topic: str,
        partition: int | None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> None:
        """Add the records of columns, as `Producer.append` takes them. They have no offsets yet.

        Raises TypeError, ValueError, UnknownTopicOrPartitionError, RecordTooLargeError,
        InvalidTimestampError, StoreFullError, StoreFailedError; IllegalStateError outside of a
        transaction, ProducerFencedError, LogClosedError.
        """
        with self.lock:
            self._check_appendable()
            try:
                self._owner.check()
                description = self._known_topic(topic)
                if partition is not None:
                    partition = self._known_partition(description, partition).partition
                self._check_gathered_for(description.name, description.topic_id)
                self._append_buffers(
                    [one for one in self._touched_buffers() if one.topic == description.name]
                )
                self._staged().append(description, partition, values, keys, timestamps, headers)
            except EoslogError as error:
                self._break(error, Request.PRODUCE)

    # How it stages and commits. The caller holds the lock.

    @property
    def _application_name(self) -> str:
        return directory_name(self._transactional_id, "transactional_id")

    def _staged(self) -> StagedTransactions:
        if self._transactions is None:
            raise IllegalStateError(HINTS[S.UNINITIALIZED])
        return self._transactions

    def _abort(self) -> None:
        self._check_usable()
        if self._state is not S.ABORTING_TRANSACTION:
            self._move(S.ABORTING_TRANSACTION)
        try:
            self._staged().abort()
        except InvalidTxnStateError:
            self._over(None)
            raise
        self._over(None)

    def _end_cut_commit(self) -> None:
        """End a commit that was cut short: remove what was not decided, complete what was."""
        if self._transactions is not None:
            self._transactions.settle()

    def _append_buffers(self, buffers: list[PartitionBuffer]) -> None:
        self._register()
        for buffer in buffers:
            if buffer.accumulator.record_count:
                where = TopicPartition(buffer.topic, buffer.partition)
                self._staged().append_gathered(buffer.accumulator, where)

    def _open_buffer(self, buffer: PartitionBuffer) -> None:
        buffer.part = TopicPartition(buffer.topic, buffer.partition)

    def _is_at_the_coordinator(self) -> bool:
        return True  # What has nothing to decide is found out by the decision.

    def _end(self, commit: bool) -> tuple[int, int]:
        self._owner.check()
        return self._staged().commit(self.producer_id, self.producer_epoch, ())

    def _is_decision_in_doubt(self) -> bool:
        return self._store_parts.state_log.partition_of(self._application_name).failed

    def _named(self, error: EoslogError) -> EoslogError:
        if isinstance(error, StagedCommitError):
            # Its files are swept as soon as somebody has taken over.
            try:
                self._owner.check()
                self._staged().check_run()
            except ProducerFencedError as fenced:
                return fenced
        return super()._named(error)

    def _forget_topic(self, topic: str) -> None:
        """The topic is being deleted: a transaction with records for it can only be aborted."""
        lost = sum(buffer.accumulator.record_count for buffer in self._buffers_of(topic))
        self._drop_topic(topic)
        staged = self._transactions is not None and self._transactions.has_staged(topic)
        if (lost or staged) and self._state is S.IN_TRANSACTION:
            self._take_in(
                UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with records of the open transaction"
                ),
                Request.PRODUCE,
            )


def _refuse_to_prepare() -> Never:
    raise IllegalStateError(
        "a staged transaction cannot be prepared: its files wait for one decision, that of its "
        "commit; use a transactional producer without staged=True"
    )
