"""Writing in transactions: all that one sends, and its offsets, becomes visible, or nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from eoslog.bindings.column_set import ColumnSet
from eoslog.bindings.partition_log import AppendResult
from eoslog.common.arguments import whole_number
from eoslog.common.config import TRANSACTIONAL_PRODUCER_SETTINGS, parse_config, with_defaults
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InvalidConfigError
from eoslog.producer.parts import ProducerParts
from eoslog.producer.producer import Producer, closed_error
from eoslog.producer.transaction_manager import OpenedPart, TransactionManager
from eoslog.transactions.entries import check_transactional_id

DEFAULT_TIMEOUT_MS = 60_000


class TransactionalProducer(Producer):
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
    - StoreFailedError of a commit: the next opening of the store finds out if it is decided;
    - ConcurrentAccessError: called from within a call of this producer, by the same thread;
      the call did nothing, and the append it came into goes on;
    - LogClosedError, ForkedProcessError: the store is not open any more;
    - any other, in a transaction: call `abort_transaction` and begin again. The transaction's other
      calls raise TransactionAbortableError until then. `transaction()` does so by itself.
    """

    _transactions: TransactionManager

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
        super().__init__(parts, None, {"batch.size": settings["batch.size"]})
        self._transactions = TransactionManager(
            self._accumulator, parts, transactional_id, timeout_ms
        )
        self._written = self._transactions.opened

    @property
    def transactional_id(self) -> str:
        """The id that makes one producer the successor of another, over restarts too."""
        return self._transactions.transactional_id

    def __repr__(self) -> str:
        is_closed = self._accumulator.refusal is closed_error
        state = "closed" if is_closed else self._transactions.state.name.lower()
        return (
            f"<eoslog.TransactionalProducer {self.transactional_id!r}, {state}, "
            f"producer id {self.producer_id}, epoch {self.producer_epoch}>"
        )

    # How it appends columns.

    def _opened(self, where: TopicPartition) -> OpenedPart:
        self._check_appendable()  # What was gathered may have gone with its topic.
        return self._transactions.opened_at(where)

    def _append_columns(self, ready: OpenedPart, columns: ColumnSet) -> AppendResult:
        return self._transactions.append(ready, columns)


@contextmanager
def end_refused(producer: TransactionalProducer, reason: str) -> Iterator[None]:
    """Refuse calls that end the open transaction, within the block. A close still aborts it."""
    manager = producer._transactions
    manager.end_refusal = reason
    try:
        yield
    finally:
        manager.end_refusal = None
