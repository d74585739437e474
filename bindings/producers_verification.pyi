from collections.abc import Iterable
from typing import Any, Protocol, final, type_check_only

@type_check_only
class TransactionFollower(Protocol):
    def begin(self, log_first_offset: int) -> None: ...
    def wrote(self, producer_id: int, epoch: int, offset: int) -> None: ...
    def ended(
        self,
        producer_id: int,
        epoch: int,
        data_epoch: int,
        commit: bool,
        timestamp_ms: int,
        offset: int,
    ) -> str | None: ...
    def lose_track(self) -> None: ...

@final
class ProducersCheck:
    def __init__(
        self,
        log_first_offset: int,
        transactions: TransactionFollower | None = None,
        expiration_ms: int = 86_400_000,
        *,
        numbered: bool = True,
        log_start: int = 0,
    ) -> None: ...
    def check_snapshot(
        self, path: str, problems: list[dict[str, Any]], *, is_newest: bool = False
    ) -> None: ...
    def check_rows(
        self, rows: Iterable[bytes], true_at: int, walked_end: int
    ) -> list[tuple[int, str]]: ...
    def open_transactions(self) -> dict[int, tuple[int, int]] | None: ...
