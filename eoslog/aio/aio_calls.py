"""Calls that may wait for a disk or for another process, made from an event loop in other threads.

Invariant: a call that was begun is waited for, also by a task that is cancelled meanwhile: nothing
goes on behind the back of whoever cancelled it, and what became of the call is known.

An interrupt (Ctrl-C) may come out of any step of the event loop, which then goes on without the
rest of that step, with all tasks cancelled. So nobody waits for a step of the loop alone: who was
cancelled looks from time to time, and does what is left of it.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from eoslog.aio.aio_call import Call
from eoslog.aio.aio_threads import CallingThreads
from eoslog.errors import ForkedProcessError, LogClosedError, OutOfMemoryError

P = ParamSpec("P")
T = TypeVar("T")


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Close it."""


Made = TypeVar("Made", bound=Closable)

# So many commits may share a sync. Threads are made when they are needed.
THREADS_MAX = 32
NOT_BEGUN = "the call was not begun: nothing was done"
# How often who was cancelled looks whether an interrupt has cut off what would have told him.
LOOK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How a call ended: with a result or with an error."""

    result: T | None
    error: BaseException | None
    cancelled: asyncio.CancelledError | None  # The caller's task was cancelled while it ran.

    def value(self) -> T:
        """The result, or the error; a cancellation goes before both."""
        if self.cancelled is not None:
            if self.error is not None:
                self.cancelled.add_note(f"the call that was under way failed: {self.error}")
            raise self.cancelled
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


class Calls:
    """The threads of one store's event loops."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads = CallingThreads(threads_max)
        self._process_id = os.getpid()
        self._stopped = False

    def __del__(self) -> None:
        # Nobody closed the store; whoever made it may have failed before the first line above.
        threads = getattr(self, "_threads", None)
        if threads is not None:
            threads.let_go()

    def check(self) -> None:
        """Raises LogClosedError after `stop`, ForkedProcessError in a child: it has no threads."""
        if os.getpid() != self._process_id:
            raise ForkedProcessError("the store was opened before a fork: open it in the child")
        if self._stopped:
            raise LogClosedError("the store is closed")

    def submit(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Call[T]:
        """Begin a call as soon as there is a thread. Raises what `check` raises, and
        OutOfMemoryError if there is none, and may be none: the call is never made then.
        """
        call = Call(partial(function, *arguments, **named))
        self.start(call)
        return call

    def start(self, call: Call[Any]) -> None:
        """As `submit`, with a call that was made before. An interrupt leaves it made or not: that
        is found out by cancelling it.
        """
        self.check()
        try:
            self._threads.put(call)
        except OutOfMemoryError as error:
            # It is in the queue all the same, for the threads that there are.
            if not self._threads.has_any and call.cancel():
                raise OutOfMemoryError(f"{NOT_BEGUN}: {error}") from error
        if self._stopped and call.cancel():
            raise LogClosedError("the store is closed")

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What the call answers or raises.

        Raises CancelledError if the task was cancelled: at once if the call was not begun, else
        when it has ended.
        """
        return (await self.finish(function, *arguments, **named)).value()

    async def finish(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> Ended[T]:
        """How the call ended, also for a task that was cancelled meanwhile.

        Raises CancelledError only if the call was not begun.
        """
        call = self.submit(function, *arguments, **named)
        return await until_over(call, call.cancel)

    async def make(
        self, function: Callable[P, Made], *arguments: P.args, **named: P.kwargs
    ) -> Made:
        """As `run`; what was made for a task that was cancelled meanwhile is closed again."""
        ended = await self.finish(function, *arguments, **named)
        if ended.cancelled is not None and ended.result is not None:
            closed = await until_over(self.submit(ended.result.close), lambda: False)
            if closed.error is not None:
                ended.cancelled.add_note(f"closing what was made failed: {closed.error}")
        return ended.value()

    def stop(self) -> None:
        """Take no more calls; returns when those that were begun have ended."""
        self._stopped = True
        self._threads.stop()
        for call in self._threads.drain():
            call.refuse(LogClosedError("the store is closed"))


async def until_over(call: Call[T], withdraw: Callable[[], bool]) -> Ended[T]:
    """Wait for the end of a call in another thread, as `until_ended`."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[T] = loop.create_future()

    def tell() -> None:
        if call.is_over and not told.done():
            pass_on(call, told)

    def over() -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody waits for the answer.
            loop.call_soon_threadsafe(tell)

    call.when_over(over)
    return await until_ended(told, withdraw, tell)


def pass_on(call: Call[T], told: "asyncio.Future[T]") -> None:
    """Tell how a call has ended."""
    if call.is_cancelled:
        told.cancel()
    elif call.error is not None:
        told.set_exception(call.error)
    else:
        told.set_result(call.result)


async def until_ended(
    call: "asyncio.Future[T]", withdraw: Callable[[], bool], look: Callable[[], None]
) -> Ended[T]:
    """Wait for a call's end; a task that is cancelled tries to withdraw it, else waits on.

    `look()` does what an interrupt may have kept the event loop from: after it, the future of a
    call that has ended is done.
    """
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait((call,), timeout=None if cancelled is None else LOOK_AGAIN_S)
            if cancelled is not None:
                look()
        except asyncio.CancelledError as error:
            if not call.done() and withdraw():
                error.add_note(NOT_BEGUN)
                raise
            cancelled = cancelled or error
    failure = call.exception()
    return Ended(None if failure is not None else call.result(), failure, cancelled)
