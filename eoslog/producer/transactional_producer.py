"""Producer of transactions: their records and offsets become visible together, or not at all."""

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
    """Producer of transactions; `Store.producer(transactional_id=...)` makes it. Threads may share
    it and its one open transaction. It has the calls of `Producer` too.

    Call `init_transactions()` first; then, for each transaction, `with producer.transaction():`
    with `send`, `append` and `send_offsets_to_transaction` in it. When the commit returns, the
    transaction is decided, as durable as the store's durability says, and visible to
    "read_committed" readers. A crash before the decision leaves nothing of it.

    There is no linger: a full batch is appended at once, the rest at `flush` or at the commit,
    which also syncs.

    After an error:

    - IllegalStateError, TypeError, ValueError: the call did nothing;
    - ProducerFencedError: the transactional id was taken over, or the transaction took longer than
      its timeout; the message names the successor and the time. Nothing more is written; close it;
    - StoreFailedError of a commit: the next opening of the store finds out if it is decided;
    - ConcurrentAccessError: called from within a call of this producer, by the same thread; the
      call did nothing, and the interrupted call goes on;
    - LogClosedError, ForkedProcessError: the store is not open any more;
    - any other, in a transaction: call `abort_transaction` and begin again. The transaction's other
      calls raise TransactionAbortableError until then. `transaction()` aborts by itself.

    Parameters
    ----------
    parts : ProducerParts
        Parts of the open store.
    transactional_id : str
        1 to 480 bytes of UTF-8. A later producer of the id fences this one.
    transaction_timeout_ms : int
        Milliseconds from a transaction's first record after which it is aborted.
    config : mapping of str to object, optional
        Settings of a transactional producer; "transaction.timeout.ms" wins over the argument.

    Raises
    ------
    InvalidConfigError, TypeError, ValueError
        An argument is wrong.
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
        """Id that makes one producer the successor of another, over restarts too."""
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
