"""What takes a moment to open: awaited, or entered as a block that closes it."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Closable(Protocol):
    """What an opening gives."""

    async def close(self) -> None:
        """Close it."""

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it after a block."""


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """`await` it, or `async with` it; nothing is done before. To be used once."""

    def __init__(self, open_it: Callable[[], Awaitable[T]]) -> None:
        self._open_it = open_it
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open_it().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open_it()
        return self._opened

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = self._opened
        if opened is not None:
            await opened.__aexit__(error_type, error, traceback)
