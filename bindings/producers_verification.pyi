from collections.abc import Iterable, Mapping
from typing import Any, final

@final
class ProducersCheck:
    def __init__(
        self,
        log_first_offset: int,
        decisions: Mapping[tuple[int, int], bool] | None = None,
        expiration_ms: int = 86_400_000,
    ) -> None: ...
    def check_snapshot(
        self, path: str, problems: list[dict[str, Any]], *, is_newest: bool = False
    ) -> None: ...
    def check_rows(
        self, rows: Iterable[bytes], true_at: int, walked_end: int
    ) -> list[tuple[int, str]]: ...
    def open_transactions(self) -> dict[int, tuple[int, int]] | None: ...
