"""Transactions for bulk loads: the records wait outside the log and enter it at the commit.

An open transaction of `TransactionalProducer` is in the log, and holds back readers of
"read_committed" there. One of this producer is in files of its own (`staged_transactions`), may
take hours, and holds back no reader. States and errors are those of `transaction_states`.
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
from eoslog.producer.staged_transactions import StagedTransactions
from eoslog.producer.transaction_states import ClientState, Request, TransactionStates
from eoslog.producer.transactional_producer import TransactionalProducer
from eoslog.staging.staged_names import directory_name
from eoslog.staging.staged_writer import StagedWriter
from eoslog.storage.topic_registry import TopicDescription
from eoslog.transactions.transaction_owner import TransactionOwner


class StagedProducer(TransactionalProducer):
    """Writes bulk loads in transactions; `Store.producer(transactional_id=..., staged=True)` makes
    it. Threads may share it, and with it its one open transaction.

    It takes the calls of a transactional producer, in the same order. What differs:

    - records go to staged files of the store. They are in no partition, hold back no reader and
      have no offsets before the commit, which is one decision for all of them and the offsets of
      groups that were sent with them;
    - a transaction has no timeout, and cannot be prepared;
    - the transactional id is the name of an application of `Store.commit_staged`.
      `init_transactions` registers a new run of it, durably. Each commit of records or offsets is
      its next version; `Store.application` and the group of that name show the newest one. Staged
      and other transactional producers do not fence each other;
    - a commit costs as much as a staged job: some tens of milliseconds on a disk that is synced.

    A crash before the decision leaves nothing: the files are swept. After it, the next process that
    opens the store completes the commit. A decided commit that a full disk interrupts is committed:
    it is completed before the next one is decided, else `init_transactions` and that commit raise
    StagedJobIncompleteError; until then readers see nothing of it. `abort_transaction` raises
    InvalidTxnStateError if an interrupted commit had decided the transaction.
    """

    _transactions: "StagedTransactionManager"  # type: ignore[assignment]

    def __init__(
        self,
        parts: ProducerParts,
        transactional_id: str,
        config: Mapping[str, object] | None = None,
    ) -> None:
        settings = parse_config(config, STAGED_PRODUCER_SETTINGS, "staged producer")
        settings = with_defaults(settings, STAGED_PRODUCER_SETTINGS)
        super().__init__(parts, transactional_id, config=settings)
        self._transactions = StagedTransactionManager(self._accumulator, parts, transactional_id)
        self._written = {}

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._transactions.state.name.lower()
        return f"<eoslog.StagedProducer {self.transactional_id!r}, {state}>"

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is written.

        Raises what `TransactionalProducer.begin_transaction` raises.
        """
        with self.lock:
            self._transactions.check_run()
        super().begin_transaction()

    def append(  # type: ignore[override]
        self,
        topic: str,
        partition: int | None = None,
        values: object = None,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> None:
        """Add the records of columns, as `Producer.append` takes them; the commit assigns offsets.

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
                writer = self._transactions.writer_after_sends(description)
                writer.append(topic, partition, values, keys, timestamps, headers)
            except EoslogError as error:
                self._transactions.break_(error, Request.PRODUCE)


class StagedTransactionManager(TransactionStates):
    """Transactions of one producer in staged files, decided as versions of its application."""

    def __init__(
        self, accumulator: Accumulator, parts: ProducerParts, transactional_id: str
    ) -> None:
        super().__init__(accumulator, parts, transactional_id)
        self.staged = StagedTransactions(
            parts.engine,
            parts.state_log,
            parts.group_offsets,
            parts.staged,
            transactional_id,
            self.check_gathered_for,
        )

    def initialize(self, keep_prepared: bool) -> None:
        """Register a new run of the application."""
        self.check_usable()
        if keep_prepared:
            self.prepare()
        if self.state is not ClientState.INITIALIZING:
            self.move(ClientState.INITIALIZING)
        owner = TransactionOwner.here()
        name = directory_name(self.transactional_id, "transactional_id")
        try:
            self.staged.begin_run(owner)
            state_partition = self._store_parts.state_log.partition_of(name)
        except EoslogError as error:
            self.break_(error, Request.INIT)
        self._owner = owner
        self.set_entry(self.staged, owner, state_partition, -1, -1)
        self.move(ClientState.READY)

    def check_owner(self) -> None:
        """Raise ProducerFencedError if another producer of this process has the id by now."""
        self._owner.check()

    def check_run(self) -> None:
        """Forget the last transaction; ProducerFencedError if a later run has the id."""
        if self.state is ClientState.READY:
            self.staged.forget_last()
            try:
                self.staged.check_run()
            except ProducerFencedError as error:
                self.break_(error, Request.INIT)

    def writer_after_sends(self, topic: TopicDescription) -> StagedWriter:
        """Stage what `send` gathered for a topic; the writer that takes its columns next."""
        self.check_gathered_for(topic.name, topic.topic_id)
        touched = self.accumulator.touched_buffers()
        self.append_buffers([one for one in touched if one.topic == topic.name])
        return self.staged.writer_for(topic)

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
        """Have offsets committed by the decision, without those of topics deleted until then."""
        self.check_appendable()
        try:
            self._owner.check()
            if self.staged.add_offsets(group, offsets):
                self.register()
        except EoslogError as error:
            self.break_(error, Request.OFFSETS)

    def _is_begun(self) -> bool:
        return True  # The decision finds out if there is anything to decide.

    def _decide(self, commit: bool) -> tuple[int, int]:
        self._owner.check()
        return self.staged.commit(self.producer_id, self.producer_epoch, ())

    def abort(self) -> None:
        """Remove the files of the open transaction."""
        self.check_usable()
        if self.state is not ClientState.ABORTING_TRANSACTION:
            self.move(ClientState.ABORTING_TRANSACTION)
        try:
            self.staged.abort()
        except InvalidTxnStateError:
            self._over(None)
            raise
        self._over(None)

    def prepare(self) -> Never:
        """Raise IllegalStateError; the transaction goes on."""
        raise IllegalStateError(
            "a staged transaction cannot be prepared: use a producer without staged=True"
        )

    def complete(self, prepared: PreparedTransaction | str | None) -> bool:
        """Raise IllegalStateError, since no transaction is prepared."""
        self.prepare()

    def close(self) -> EoslogError | None:
        """Abort the open transaction, and end an interrupted commit; return the error, if any."""
        failed = super().close()
        # An interrupted commit had decided it.
        return None if isinstance(failed, InvalidTxnStateError) else failed

    def _end_cut_commit(self) -> None:
        self.staged.settle()

    def release(self) -> None:
        """Leave no empty directories."""
        with self.accumulator.lock:
            self.staged.remove_empty_directories()

    def _explained(self, error: EoslogError) -> EoslogError:
        if isinstance(error, StagedCommitError):
            # Once another run has taken over, the files are swept.
            try:
                self._owner.check()
                self.staged.check_run()
            except ProducerFencedError as fenced:
                return fenced
        return super()._explained(error)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted; with records for it only an abort is possible."""
        lost = self.accumulator.record_count_of(topic)
        self.accumulator.drop_topic(topic)
        if lost or topic in self.staged.topics:
            self._lost_with_topic(
                f"topic {topic!r} was deleted with records of the open transaction"
            )
