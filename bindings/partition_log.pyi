from collections.abc import Callable, Iterable
from typing import Any, final

from typing_extensions import Buffer

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.log_reader import Columns as Columns
from eoslog.bindings.log_transactions import AbortedTransaction as AbortedTransaction
from eoslog.bindings.log_transactions import LogTransactions
from eoslog.bindings.log_transactions import OpenTransaction as OpenTransaction
from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES as PRODUCER_ROW_BYTES
from eoslog.bindings.producer_state import ProducerState as ProducerState
from eoslog.bindings.producer_state import empty_row as empty_row
from eoslog.bindings.producer_state import row_state as row_state
from eoslog.bindings.producers_verification import TransactionFollower

def count_deleted() -> int: ...

@final
class AppendResult:
    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
    @property
    def record_count(self) -> int:
        """How many records."""
    @property
    def timestamp_ms(self) -> int:
        """Largest timestamp of the last batch, in milliseconds since 1970."""
    @property
    def duplicate(self) -> bool:
        """True if all were in the log already: these are the first write's offsets."""

def joined_results(first: AppendResult, last: AppendResult) -> AppendResult: ...

@final
class PartitionLog(LogTransactions):
    def append_columns(
        self,
        values: object,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
        *,
        timestamp_ms: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        batch_records_max: int = 0,
        batch_bytes_max: int = 0,
        transactional: bool = False,
    ) -> AppendResult: ...
    def append_batch(self, batch: Buffer, verified: bool = False) -> AppendResult: ...
    def append_accumulated(
        self,
        accumulator: RecordAccumulator,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        transactional: bool = False,
    ) -> AppendResult: ...
    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int | None,
        commit: bool,
        *,
        timestamp_ms: int,
        newer_epoch: bool = True,
    ) -> AppendResult: ...
    def sync_up_to(self, offset: int, in_pieces: bool = ...) -> None: ...
    def make_durable(self, offset: int) -> None: ...
    @property
    def durable_offset(self) -> int: ...
    def journaled_end(self, half: int) -> int: ...
    def adopt(self, data: Buffer, producer_id: int) -> tuple[int, int]: ...
    def adopt_file(
        self, path: str, file_bytes: int, producer_id: int, *, checked: bool
    ) -> tuple[int, int] | None: ...
    def flush(self, with_indexes: bool = True) -> int: ...
    def store_indexes(self) -> None: ...
    def roll(self) -> int: ...
    def first_to_stay(self, up_to_offset: int) -> int: ...
    def delete_segments(self, up_to_offset: int) -> int: ...
    def repair(self) -> None: ...
    def free_deleted(self) -> int: ...
    def advance_log_start(self, offset: int) -> int: ...
    def truncate(self, offset: int) -> None: ...
    def prepare_spare(self, count: int = 1) -> int: ...
    def detach(self) -> None: ...
    def close(self, clean: bool = True) -> None: ...
    def verify(
        self,
        *,
        transactions: TransactionFollower | None = None,
        rows: Callable[[], tuple[str, Iterable[bytes], int] | None] | None = None,
        expiration_ms: int = 86_400_000,
        counted: Callable[[int], object] | None = None,
    ) -> list[dict[str, Any]]: ...
