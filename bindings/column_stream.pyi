from collections.abc import Callable
from types import TracebackType
from typing import Self, final

from eoslog.bindings.column_set import ColumnSet

@final
class ColumnStream:
    def next_columns(self) -> ColumnSet | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def open_column_stream(values: object, now_ms: Callable[[], int]) -> ColumnStream | None: ...
