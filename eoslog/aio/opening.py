"""Stores, producers and consumers of event loops: opened by `await` or `async with`, closed."""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar

from eoslog.errors import EoslogError


class ClosedByBlock:
    """An `async with` block that closes at its end.

    A block that fails raises its own error; an error of the close becomes a note of it.
    """

    _kind = ""  # For messages.

    def _check_enter(self) -> None:
        """Raise an error if no block may begin."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the object; a second call does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._check_enter()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except EoslogError as second:
            error.add_note(f"closing the {self._kind} failed too: {second}")


T = TypeVar("T", bound=ClosedByBlock)


class Opening(Generic[T]):
    """Opens on `await` or `async with`, and not before. For one use."""

    def __init__(self, open_it: Callable[[], Awaitable[T]]) -> None:
        self._open_it = open_it
        self._opened: T | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(
                f"{name!r}: the object is not open yet; await it first, or use `async with`"
            )

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
