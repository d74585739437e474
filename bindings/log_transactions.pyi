from typing import final

from eoslog.bindings.log_producers import LogProducers
from eoslog.bindings.transaction_cuts import TransactionCuts

@final
class OpenTransaction:
    @property
    def producer_id(self) -> int:
        """Its producer."""
    @property
    def producer_epoch(self) -> int:
        """Its producer's epoch."""
    @property
    def first_offset(self) -> int:
        """Where it begins in the partition."""
    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp that its producer was last seen with, in milliseconds since 1970."""
    @property
    def coordinator_epoch(self) -> int:
        """That of the producer's last marker; -1 if there was none."""

@final
class AbortedTransaction:
    @property
    def producer_id(self) -> int:
        """Its producer."""
    @property
    def first_offset(self) -> int:
        """Offset of its first record."""
    @property
    def last_offset(self) -> int:
        """Offset of its marker."""
    @property
    def last_stable_offset(self) -> int:
        """The last stable offset once the marker was in."""

class LogTransactions(LogProducers):
    def open_transactions(self) -> list[OpenTransaction]: ...
    @property
    def open_transaction_count(self) -> int: ...
    @property
    def aborted_transaction_count(self) -> int: ...
    def aborted_transactions(self, first: int, upper_bound: int) -> list[AbortedTransaction]: ...
    def take_in_transactions(
        self, cuts: TransactionCuts, number: int, first: int, upper_bound: int
    ) -> None: ...
    def first_offset_of(
        self, transactions: set[tuple[int, int]], first: int, upper_bound: int
    ) -> int: ...
