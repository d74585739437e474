from typing import Any

from typing_extensions import disjoint_base

from eoslog.bindings.partition_log import AppendResult

@disjoint_base
class SequencedLog:
    position: int
    in_doubt: bool
    _next_sequence: int
    _appended: bool
    def __init__(
        self,
        partition: Any,
        producer_id: int,
        producer_epoch: int,
        position: int,
        is_plain: bool,
    ) -> None: ...
    def stands_at(self, last_sequence: int, position: int) -> None: ...
    def _took(self, result: AppendResult) -> None: ...
    @property
    def partition(self) -> Any: ...
    @property
    def is_plain(self) -> bool: ...
    @property
    def _producer_id(self) -> int: ...
    @property
    def _producer_epoch(self) -> int: ...
    @property
    def _idempotent(self) -> bool: ...
