from collections.abc import Iterable, Sequence
from typing import final

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.column_set import ColumnSet
from eoslog.bindings.known_transaction import KnownTransaction
from eoslog.bindings.known_transaction import PartitionLost as PartitionLost
from eoslog.bindings.known_transaction import TransactionPart as TransactionPart
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.transaction_record import STATE_NAMES as STATE_NAMES
from eoslog.bindings.transaction_record import decode_transaction_value as decode_transaction_value
from eoslog.bindings.transaction_record import encode_transaction_value as encode_transaction_value
from eoslog.bindings.transaction_record import state_name as state_name
from eoslog.bindings.transaction_record import state_number as state_number
from eoslog.bindings.transaction_record import transaction_key as transaction_key
from eoslog.bindings.transaction_record import transactional_id_of as transactional_id_of
from eoslog.bindings.transaction_record import transition_allowed as transition_allowed

class ProducerIdNeeded(Exception): ...  # noqa: N818 (no error: a question to the caller)

@final
class TransactionEntry(KnownTransaction):
    @property
    def completion_error(self) -> Exception | None: ...
    def initialize(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        last_producer_epoch: int,
        previous_producer_id: int,
        timeout_ms: int,
        now_ms: int,
        owner: bytes | None = None,
    ) -> None: ...
    def hand_over(self, owner: bytes | None) -> None: ...
    def add_partitions(
        self, producer_id: int, producer_epoch: int, parts: Iterable[TransactionPart]
    ) -> None: ...
    def flush(
        self,
        producer_id: int,
        producer_epoch: int,
        filled: Sequence[tuple[RecordAccumulator, TransactionPart]],
    ) -> None: ...
    def append_columns(
        self,
        producer_id: int,
        producer_epoch: int,
        part: TransactionPart,
        columns: ColumnSet,
    ) -> AppendResult: ...
    def append_offsets(
        self,
        producer_id: int,
        producer_epoch: int,
        part: TransactionPart,
        values: object,
        keys: object,
        *,
        timestamp_ms: int,
    ) -> AppendResult: ...
    def prepare(self, producer_id: int, producer_epoch: int) -> None: ...
    @property
    def client_identity(self) -> tuple[int, int]: ...
    def end(
        self, producer_id: int, producer_epoch: int, commit: bool, next_producer_id: int = -1
    ) -> tuple[int, int]: ...
    def commit(
        self,
        producer_id: int,
        producer_epoch: int,
        filled: Sequence[tuple[RecordAccumulator, TransactionPart]],
        next_producer_id: int = -1,
    ) -> tuple[int, int]: ...
    def fence(self, next_producer_id: int = -1) -> None: ...
    def complete(self) -> None: ...
    def revoke(self) -> None: ...
    def expire(self) -> None: ...
