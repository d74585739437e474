"""What an `async with` block closes at its end: stores, producers and consumers of event loops."""

from types import TracebackType
from typing import Self

from eoslog.errors import EoslogError


class ClosedByBlock:
    """A block that failed fails with its own error; what closing then met is a note to it."""

    _kind = ""  # What it is, for people.

    def _check_enter(self) -> None:
        """Raise where no block may begin."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close it; a second call does nothing."""
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
