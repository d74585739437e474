"""Chunks of a stream that one append has in the log, and the meaning of its error."""

from eoslog.bindings.partition_log import AppendResult, joined_results
from eoslog.errors import EoslogError, IllegalStateError, TransactionAbortableError
from eoslog.producer.transaction_manager import TransactionManager

Appended = AppendResult | dict[int, AppendResult]


class StreamedAppend:
    """Chunks of one call that are in the log.

    Invariant: in a transaction all chunks are in the one that the call began in.
    """

    def __init__(self, partition: int | None) -> None:
        self._partition = partition
        self._results: dict[int, AppendResult] = {}
        self._chunk_count = 0
        self._transaction: tuple[int, int] | None = None
        self.record_count = 0

    def add(self, appended: Appended) -> None:
        """Take in where a chunk went."""
        if isinstance(appended, AppendResult):
            appended = {0 if self._partition is None else self._partition: appended}
        for number, one in appended.items():
            before = self._results.get(number)
            self._results[number] = one if before is None else joined_results(before, one)
            self.record_count += one.record_count
        self._chunk_count += 1

    @property
    def result(self) -> Appended:
        """First and last offset of all chunks: of the partition, or by partition."""
        if self._partition is None:
            return dict(sorted(self._results.items()))
        return self._results[self._partition]

    # Transactions: another thread may end that of the call between two chunks.

    def note_transaction(self, transactions: TransactionManager | None) -> None:
        """Note the transaction that a chunk is in."""
        if transactions is not None:
            self._transaction = (transactions.producer_id, transactions.producer_epoch)

    def is_in(self, transactions: TransactionManager | None) -> bool:
        """Return True if the call's transaction is the one that is open now."""
        if transactions is None or self._transaction is None:
            return True
        return self._transaction == (transactions.producer_id, transactions.producer_epoch)

    def check_transaction(self, transactions: TransactionManager | None) -> None:
        """Raise IllegalStateError if the transaction of the call was ended."""
        if not self.is_in(transactions):
            raise IllegalStateError(
                f"the transaction was ended in another thread after {self.record_count} records of "
                "the stream"
            )

    # Errors.

    def explain(self, error: Exception) -> None:
        """Have an error say how many records are in, and which chunk it is of."""
        if self.record_count:
            error.add_note(
                f"in chunk {self._chunk_count} of the stream, from record {self.record_count} on"
            )
        in_chunk = getattr(error, "appended_record_count", 0)
        error.appended_record_count = (  # type: ignore[attr-defined]
            self.record_count + in_chunk
        )

    def as_refusal(self, error: Exception) -> Exception:
        """Return what an error means for the transaction: a part of a call is not committed."""
        if self.record_count and not isinstance(error, EoslogError):
            return TransactionAbortableError(
                f"{self.record_count} records of a stream are in, and its next chunk was refused: "
                f"{error}"
            )
        return error
