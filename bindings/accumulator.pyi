from collections.abc import Iterable
from typing import final

@final
class RecordAccumulator:
    def __new__(cls, batch_bytes_max: int) -> RecordAccumulator: ...
    @property
    def batch_bytes_max(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def batch_bytes(self) -> int: ...
    def clear(self) -> None: ...
    def add(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] | dict[str, bytes | None] | None = None,
        timestamp_ms: int = -1,
    ) -> int: ...
