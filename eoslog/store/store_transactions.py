"""Transactions of a store: what an operator asks of them, and decides about them."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from eoslog.common import clock
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.whole_number import whole_number
from eoslog.errors import InvalidRequestError
from eoslog.transactions.transaction_admin import (
    HangingTransaction,
    TransactionDescription,
    TransactionListing,
)

if TYPE_CHECKING:
    from eoslog.storage.opened_partitions import OpenedPartitions
    from eoslog.storage.topic_registry import TopicDescription
    from eoslog.store.store_files import StoreFiles


class StoreTransactions:
    """Transactions, a part of a `Store`, which is made on top of it."""

    _files: "StoreFiles"

    def transactions(
        self,
        states: Collection[str] | None = None,
        producer_ids: Collection[int] | None = None,
        pattern: str | None = None,
        duration_ms: int = -1,
    ) -> list[TransactionListing]:
        """The transactional ids of the store, sorted; those that all given filters let through.

        `states` and `producer_ids` name those wanted (empty: all), `pattern` is a regular
        expression for the whole id, and with `duration_ms` from 0 on only transactions are listed
        that have been open for longer. An id whose record is damaged is left out; describing it
        says what is wrong. Raises ValueError for an unknown state, InvalidRequestError for a
        pattern that is none.
        """
        self._check_open()
        longer_ms = whole_number(duration_ms, "a duration")
        return self._files.transaction_admin.transactions(states, producer_ids, pattern, longer_ms)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return all that is known of a transactional id.

        Raises TransactionalIdNotFoundError, InvalidRequestError (an empty id), CorruptRecordError.
        """
        self._check_open()
        return self._files.transaction_admin.describe(transactional_id)

    def abort_transaction(
        self,
        transactional_id: str | None = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        start_offset: int | None = None,
    ) -> None:
        """End a transaction: that of an id, or the one that is open at a partition since an offset.

        The id's producer is fenced, whether a transaction is open or not, and an open one, a
        prepared one too, is aborted. By partition: a transaction that an id has under way is
        aborted with the id, as a whole; one that hangs is aborted there. Raises InvalidRequestError
        (neither or both are given), TransactionalIdNotFoundError, UnknownTopicOrPartitionError,
        InvalidTxnStateError (nothing is open since that offset), StoreError.
        """
        self._check_open()
        if transactional_id is not None and (topic, partition, start_offset) == (None, None, None):
            self._files.transaction_admin.abort(transactional_id)
            self._notice_replacements()
        elif topic is not None and partition is not None and start_offset is not None:
            if transactional_id is not None:
                raise InvalidRequestError("either a transactional id, or a partition, not both")
            number = whole_number(partition, "a partition")
            offset = whole_number(start_offset, "a start offset")
            self._files.transaction_admin.abort_at(topic, number, offset)
        else:
            raise InvalidRequestError(
                "a transactional id is needed, or a topic, a partition and a start offset"
            )

    def find_hanging_transactions(
        self,
        max_transaction_timeout_ms: int = 900_000,
        topic: str | None = None,
        partition: int | None = None,
    ) -> list[HangingTransaction]:
        """The transactions that nothing will ever end, in all partitions, a topic's, or one.

        Open at a partition, last written to longer ago than `max_transaction_timeout_ms`, and not
        under way by any transactional id. `abort_transaction` with topic, partition and start
        offset ends one. Opens the partitions. Raises UnknownTopicOrPartitionError,
        InvalidRequestError (a partition without a topic), CorruptRecordError.
        """
        self._check_open()
        timeout_ms = whole_number(max_transaction_timeout_ms, "a transaction timeout")
        if partition is not None:
            partition = whole_number(partition, "a partition")
            if topic is None:
                raise InvalidRequestError("a partition is given, but no topic")
        if topic is not None and topic != CONSUMER_OFFSETS_TOPIC:
            self._topic(topic)
        found = self._partitions.with_transactions(topic, partition)
        now_ms = clock.now_ms()
        return self._files.transaction_admin.hanging(found, timeout_ms, now_ms)

    def commit_prepared(self, prepared: Iterable[PreparedTransaction]) -> None:
        """Commit prepared transactions, each by a decision of its own. Again does no harm until
        the id goes on.

        All are tried; the first error is raised, the others are its notes. Raises
        TransactionalIdNotFoundError; ProducerFencedError, InvalidProducerIdMappingError (the id has
        gone on since: no decision is made, and none is told); InvalidTxnStateError (not prepared,
        or aborted already); TransactionCoordinatorFencedError (a partition has another end of it,
        which this store did not decide: it stays prepared); StoreError.
        """
        self._check_open()
        self._files.transaction_admin.decide(prepared, commit=True)

    def abort_prepared(self, prepared: Iterable[PreparedTransaction]) -> None:
        """Abort prepared transactions; otherwise as `commit_prepared`."""
        self._check_open()
        self._files.transaction_admin.decide(prepared, commit=False)

    # What the store has.

    @property
    def _partitions(self) -> "OpenedPartitions":
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    def _topic(self, name: str) -> "TopicDescription":
        raise NotImplementedError

    def _notice_replacements(self) -> None:
        raise NotImplementedError
