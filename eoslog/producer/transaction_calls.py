"""The calls of a transactional producer, as every producer has them: one without transactions says
what is missing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Never

from eoslog.errors import IllegalStateError

if TYPE_CHECKING:
    from eoslog.bindings.transactional_sender import Transaction
    from eoslog.common.prepared_transaction import PreparedTransaction
    from eoslog.common.topic_partition import TopicPartition
    from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata


class TransactionCalls:
    """Calls of `TransactionalProducer`; a plain producer refuses them: IllegalStateError."""

    def init_transactions(self, keep_prepared: bool = False) -> "PreparedTransaction | None":
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def transaction(self) -> "Transaction":
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def begin_transaction(self) -> None:
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def send_offsets_to_transaction(
        self,
        offsets: "Mapping[TopicPartition, int | OffsetAndMetadata]",
        group: "str | ConsumerGroupMetadata",
    ) -> None:
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def commit_transaction(self) -> None:
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def abort_transaction(self) -> None:
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def prepare_transaction(self) -> "PreparedTransaction":
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()

    def complete_transaction(self, prepared: "PreparedTransaction | str | None") -> bool:
        """See `TransactionalProducer`; a producer without a transactional id has none."""
        _refuse()


def _refuse() -> Never:
    raise IllegalStateError(
        "this producer has no transactions: make one with store.producer(transactional_id=...)"
    )
