"""A call that an event loop has another thread make, and how it ended.

Nothing here takes a lock: an interrupt (Ctrl-C) may come out of any line of the event loop's
thread, and Python's own futures and executors may leave one held then, for which the other threads
wait for ever. Each step that two threads race for is one operation of the interpreter.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar, cast

T = TypeVar("T")

_IS_MADE = "is made"


class Call(Generic[T]):
    """A call that waits for a thread. Cancelled before that, it is not made."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._fate: dict[str, bool] = {}
        self._listeners: deque[Callable[[], None]] = deque()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._is_over = False

    def run(self) -> None:
        """Make it, unless it was cancelled. For one thread, which is not interrupted."""
        if self._fate.setdefault(_IS_MADE, True):
            self._result, self._error = _ended(self._work)
            self._end()
            # An error refers to the frame it came from, and that to the frames that called it.
            del self

    def cancel(self) -> bool:
        """Have it never made; False if it was begun. Asked again it says the same."""
        return not self._fate.setdefault(_IS_MADE, False)

    def refuse(self, error: Exception) -> bool:
        """As `cancel`, and whoever waits is told the error."""
        if not self.cancel():
            return False
        self._error = error
        self._end()
        return True

    def when_over(self, listener: Callable[[], None]) -> None:
        """Call `listener()` once it has ended, in its thread, or now if it has."""
        self._listeners.append(listener)
        if self._is_over:
            self._tell()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was cancelled."""
        return self._is_over or self.is_cancelled

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, without an error."""
        return self._fate.get(_IS_MADE) is False and self._error is None

    @property
    def error(self) -> BaseException | None:
        """What it raised; once it is over."""
        return self._error

    @property
    def result(self) -> T:
        """What it returned; once it is over, without an error."""
        return cast(T, self._result)

    def _end(self) -> None:
        self._is_over = True
        self._tell()

    def _tell(self) -> None:
        # Each is taken by one thread: whoever came with it, or the call's own.
        with suppress(IndexError):
            while True:
                self._listeners.popleft()()


def _ended(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    # By itself: no frame that an error refers to may refer to the error.
    try:
        return work(), None
    except BaseException as error:
        return None, error
