"""Calls that may wait for a disk or for another process, made from an event loop by a thread pool.

Invariant: a call that was begun is waited for, also by a task that is cancelled: the call
does not go on after the task has ended, and its result is known.

Ctrl-C may come out of any step of the event loop. The loop then goes on without the rest of that
step, with all tasks cancelled. So a cancelled task checks from time to time, and does what is left
of the step.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from eoslog.errors import ForkedProcessError, LogClosedError, OutOfMemoryError

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class Closable(Protocol):
    """An object with a close method."""

    def close(self) -> None:
        """Close it."""


Made = TypeVar("Made", bound=Closable)

# So many commits may share a sync. The pool starts threads when they are needed.
THREADS_MAX = 32
NOT_BEGUN = "the call was not begun: nothing was done"
# How often a cancelled task checks if Ctrl-C has cut off the step that would have woken it.
LOOK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Ended(Generic[T]):
    """End of a call: a result or an error."""

    result: T | None
    error: BaseException | None
    cancelled: asyncio.CancelledError | None  # The caller's task was cancelled while it ran.

    def value(self, note: Callable[[T], str] | None = None) -> T:
        """The result, or the error; a cancellation goes before both, with a note of them."""
        if self.cancelled is not None:
            if self.error is not None:
                self.cancelled.add_note(f"the call that was under way failed: {self.error}")
            elif note is not None:
                self.cancelled.add_note(note(cast(T, self.result)))
            raise self.cancelled
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


class Calls:
    """The thread pool of one store's event loops."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads_max, "eoslog-aio")
        self._has_threads = False
        self._process_id = os.getpid()
        self._stopped = False

    @property
    def is_forked(self) -> bool:
        """True in a forked child: the threads are the parent's."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise ForkedProcessError in a forked child."""
        if self.is_forked:
            raise ForkedProcessError("the store was opened before a fork: open it in the child")

    def check(self) -> None:
        """Raise LogClosedError after `stop`, ForkedProcessError in a forked child."""
        self.check_process()
        if self._stopped:
            raise LogClosedError("the store is closed")

    def submit(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> "Future[T]":
        """Begin a call as soon as there is a thread.

        Raises what `check` raises. Raises OutOfMemoryError if the pool has no thread and the limits
        of the process refuse one: the call is never made then.
        """
        call: Future[T] = Future()
        self.start(call, partial(function, *arguments, **named))
        return call

    def start(self, call: "Future[T]", work: Callable[[], T]) -> None:
        """Submit a call like `submit`, for a future made before: after Ctrl-C in here,
        `call.cancel()` shows if the call is begun.
        """
        self.check()
        try:
            self._pool.submit(make_call, call, work)
            self._has_threads = True
        except (RuntimeError, MemoryError) as error:
            # A pool that gets no further thread keeps the call for those that it has.
            is_shut = self._stopped or not threading.main_thread().is_alive()
            if self._has_threads and not is_shut:
                return
            if call.cancel():
                self.check()
                raise OutOfMemoryError(f"{NOT_BEGUN}: {error}") from error

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make a call; return its result or raise its error.

        A cancelled task raises CancelledError: at once if the call was not begun, else after it.
        """
        return (await self.finish(function, *arguments, **named)).value()

    async def finish(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> Ended[T]:
        """Make a call and return how it ended, also to a cancelled task.

        Raises CancelledError only if the call was not begun.
        """
        call = self.submit(function, *arguments, **named)
        return await until_over(call)

    async def make(
        self, function: Callable[P, Made], *arguments: P.args, **named: P.kwargs
    ) -> Made:
        """Run a function like `run`, but close the result again if the task was cancelled."""
        ended = await self.finish(function, *arguments, **named)
        if ended.cancelled is not None and ended.result is not None:
            closed = await until_over(self.submit(ended.result.close), surely=True)
            if closed.error is not None:
                ended.cancelled.add_note(f"closing what was made failed: {closed.error}")
        return ended.value()

    def stop(self) -> None:
        """Take no more calls; return when those taken before have ended."""
        self._stopped = True
        if not self.is_forked:
            self._pool.shutdown()


def awaited(
    method: Callable[Concatenate[S, P], T], by: str = "_call"
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method of a synchronous object, for the class that has it as `_synchronous`.

    Its method `by` makes the call.
    """

    @wraps(method)
    async def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        function = getattr(self._synchronous, method.__name__)
        return cast(T, await getattr(self, by)(function, *arguments, **named))

    return call


def make_call(call: "Future[T]", work: Callable[[], T]) -> None:
    """Call `work()` unless the future was cancelled; set its result or its error."""
    if not call.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        call.set_exception(error)
        del call  # The error's traceback refers to this frame.
    else:
        call.set_result(result)


async def until_over(
    call: "Future[T]", *, surely: bool = False, look: Callable[[], None] | None = None
) -> Ended[T]:
    """Wait for the end of a call in another thread, as `until_done`.

    A cancelled task cancels a call that was not begun, unless it is to be made `surely`.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def tell() -> None:
        if not over.done():
            over.set_result(None)

    def tell_loop(_: "Future[T]") -> None:
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(tell)

    call.add_done_callback(tell_loop)
    return await until_done(call, over, look, lambda: not surely and call.cancel())


async def until_done(
    call: "Future[T] | asyncio.Future[T]",
    over: "asyncio.Future[Any]",
    look: Callable[[], None] | None,
    withdraw: Callable[[], bool],
) -> Ended[T]:
    """Wait for `over`, which the end of the call sets. A cancelled task withdraws the call, or else
    waits on.

    `look()` does the rest of a step that Ctrl-C has cut off; a cancelled task also asks the call.
    """
    cancelled: asyncio.CancelledError | None = None
    while not over.done() and (cancelled is None or not call.done()):
        try:
            await asyncio.wait((over,), timeout=None if cancelled is None else LOOK_AGAIN_S)
            if cancelled is not None and look is not None:
                look()
        except asyncio.CancelledError as error:
            if withdraw():
                error.add_note(NOT_BEGUN)
                raise
            cancelled = cancelled or error
    failure = call.exception()
    return Ended(None if failure is not None else call.result(), failure, cancelled)
