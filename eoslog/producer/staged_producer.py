"""Transactions for bulk loads: the records wait outside the log and enter it at the commit.

A transaction of `TransactionalProducer` is in the log while it is open, and holds back all readers
of "read_committed" behind it. One of this producer is in files of its own (`staged_transactions`),
may take hours, and holds back nobody. States and errors are those of `transaction_states`.
"""

from collections.abc import Mapping
from typing import Never

from eoslog.bindings.accumulator import Accumulator, PartitionBuffer
from eoslog.common.config import STAGED_PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    IllegalStateError,
    InvalidTxnStateError,
    ProducerFencedError,
    StagedCommitError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.transaction_states import HINTS, ClientState, Request, TransactionStates
from eoslog.producer.transactional_producer import DEFAULT_TIMEOUT_MS, TransactionalProducer
from eoslog.staging.staged_names import directory_name
from eoslog.staging.staged_transactions import StagedTransactions
from eoslog.storage.topic_registry import TopicDescription
from eoslog.transactions.transaction_owner import TransactionOwner

S = ClientState


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

    _transactions: "StagedTransactionManager"  # type: ignore[assignment]

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
        self._transactions = StagedTransactionManager(self._accumulator, parts, transactional_id)
        self._written = {}

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._transactions.state.name.lower()
        return f"<eoslog.StagedProducer {self.transactional_id!r}, {state}>"

    # What is not here is as in a transactional producer.

    def init_transactions(self, keep_prepared: bool = False) -> None:
        """Take the transactional id over: whoever had it decides nothing from now on.

        Registers a new run of the application, durably; an earlier decision that a full disk kept
        from being completed is completed first. To be called once, before anything else; again
        only after an error that is `retriable`.

        Raises IllegalStateError if it was called before, or to keep what was prepared: nothing can
        be. StagedJobIncompleteError if an earlier decision cannot be completed just now;
        StoreFullError, StoreFailedError, LogClosedError.
        """
        super().init_transactions(keep_prepared)

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is written.

        Raises what `TransactionalProducer.begin_transaction` raises.
        """
        with self.lock:
            self._transactions.check_run()
        super().begin_transaction()

    def abort_transaction(self) -> None:
        """Abort: the transaction's files and what was gathered are gone, the log is as it was.

        Raises IllegalStateError outside of a transaction; InvalidTxnStateError where the commit was
        interrupted and had decided it: it is committed, and over. ProducerFencedError,
        LogClosedError.
        """
        super().abort_transaction()

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
                self._transactions.check_owner()
                description = self._known_topic(topic)
                if partition is not None:
                    partition = self._known_partition(description, partition).partition
                self._transactions.append(description, partition, values, keys, timestamps, headers)
            except EoslogError as error:
                self._transactions.break_(error, Request.PRODUCE)


class StagedTransactionManager(TransactionStates):
    """Transactions of one producer in staged files, decided as versions of its application."""

    def __init__(
        self, accumulator: Accumulator, parts: ProducerParts, transactional_id: str
    ) -> None:
        super().__init__(accumulator, parts, transactional_id)
        self._staged: StagedTransactions | None = None

    def initialize(self, keep_prepared: bool) -> None:
        """Register a new run of the application."""
        self.check_usable()
        if keep_prepared:
            self.prepare()
        if self.state is not S.INITIALIZING:
            self.move(S.INITIALIZING)
        owner = TransactionOwner.here()
        parts = self._store_parts
        try:
            run_id = parts.staged.begin_run(self.transactional_id, owner)
            state_partition = parts.state_log.partition_of(
                directory_name(self.transactional_id, "transactional_id")
            )
        except EoslogError as error:
            self.break_(error, Request.INIT)
        self._owner = owner
        self._staged = StagedTransactions(
            self._engine,
            parts.state_log,
            parts.group_offsets,
            parts.staged,
            self.transactional_id,
            run_id,
            self.check_gathered_for,
        )
        self.set_entry(self._staged, owner, state_partition, self._engine.signal, -1, -1)
        self.move(S.READY)

    @property
    def staged(self) -> StagedTransactions:
        """Files of the open transaction. Raises IllegalStateError before the initialization."""
        if self._staged is None:
            raise IllegalStateError(HINTS[S.UNINITIALIZED])
        return self._staged

    def check_owner(self) -> None:
        """Raise ProducerFencedError if another producer of this process has the id by now."""
        self._owner.check()

    def check_run(self) -> None:
        """Forget the last transaction; ProducerFencedError if a later run has the id."""
        if self.state is S.READY and self._staged is not None:
            self._staged.begin_anew()
            try:
                self._staged.check_run()
            except ProducerFencedError as error:
                self.break_(error, Request.INIT)

    # Writing.

    def append(
        self,
        topic: TopicDescription,
        partition: int | None,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> None:
        """Stage columns, behind what `send` gathered for their topic."""
        self.check_gathered_for(topic.name, topic.topic_id)
        touched = self.accumulator.touched_buffers()
        self.append_buffers([one for one in touched if one.topic == topic.name])
        self.staged.append(topic, partition, values, keys, timestamps, headers)

    def append_buffers(self, buffers: list[PartitionBuffer]) -> None:
        """Stage these batches."""
        self.register()
        for buffer in buffers:
            if buffer.accumulator.record_count:
                where = TopicPartition(buffer.topic, buffer.partition)
                self.staged.append_gathered(buffer.accumulator, where)

    def open_buffer(self, buffer: PartitionBuffer) -> None:
        """Set where the decision stages the batch to."""
        buffer.part = TopicPartition(buffer.topic, buffer.partition)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Have offsets committed by the decision. They are checked now, and once more at the
        commit, which leaves out those of topics that were deleted since.
        """
        self.check_appendable()
        try:
            self._owner.check()
            if self.staged.add_offsets(group, offsets):
                self.register()
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)

    # Its ends.

    def _is_begun(self) -> bool:
        return True  # What has nothing to decide is found out by the decision.

    def _decide(self, commit: bool) -> tuple[int, int]:
        self._owner.check()
        return self.staged.commit(self.producer_id, self.producer_epoch, ())

    def abort(self) -> None:
        """Remove the files of the open transaction."""
        self.check_usable()
        if self.state is not S.ABORTING_TRANSACTION:
            self.move(S.ABORTING_TRANSACTION)
        try:
            self.staged.abort()
        except InvalidTxnStateError:
            self._over(None)
            raise
        self._over(None)

    def prepare(self) -> Never:
        """Refuse to prepare: IllegalStateError, and the transaction goes on."""
        raise IllegalStateError(
            "a staged transaction cannot be prepared: its files wait for one decision, that of its "
            "commit; use a transactional producer without staged=True"
        )

    def complete(self, prepared: PreparedTransaction | str | None) -> bool:
        """Refuse to complete what cannot be prepared."""
        self.prepare()

    def close(self) -> EoslogError | None:
        """Abort the open transaction, and end a commit that was cut short; what failed."""
        failed = super().close()
        # A commit that was cut short had decided it.
        return None if isinstance(failed, InvalidTxnStateError) else failed

    def _end_cut_commit(self) -> None:
        if self._staged is not None:
            self._staged.settle()

    def release(self) -> None:
        """Leave no empty directories."""
        if self._staged is not None:
            with self.accumulator.lock:
                self._staged.close()

    def _explained(self, error: EoslogError) -> EoslogError:
        if isinstance(error, StagedCommitError):
            # Its files are swept as soon as somebody has taken over.
            try:
                self._owner.check()
                self.staged.check_run()
            except ProducerFencedError as fenced:
                return fenced
        return super()._explained(error)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted; with records for it only an abort goes on."""
        lost = self.accumulator.record_count_of(topic)
        self.accumulator.drop_topic(topic)
        if lost or (self._staged is not None and self._staged.has_staged(topic)):
            self._lost_with_topic(
                f"topic {topic!r} was deleted with records of the open transaction"
            )
