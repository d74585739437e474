from collections.abc import Callable
from types import TracebackType
from typing import Self, final

@final
class JoinedThreads:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def start(self, work: Callable[[], object]) -> None: ...
    def join(self) -> None: ...
