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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

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
# What Python says where the process may have no more threads.
_NO_THREAD = "can't start new thread"


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


class Call(Generic[T]):
    """A call that waits for a thread; `ended` is its end. Cancelled before that, it is not made."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.ended: Future[T] = Future()
        self._work = work

    def run(self) -> None:
        if not self.ended.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            self.ended.set_exception(error)
            del self  # The error refers to this frame, and the frame would to the error.
        else:
            self.ended.set_result(result)


class Calls:
    """The threads of one store's event loops."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads = ThreadPoolExecutor(
            threads_max, thread_name_prefix="eoslog-aio", initializer=self._thread_began
        )
        self._have_threads = False  # They stay until the pool is stopped.
        self._process_id = os.getpid()
        self._stopped = False

    def check(self) -> None:
        """Raises LogClosedError after `stop`, ForkedProcessError in a child: it has no threads."""
        if os.getpid() != self._process_id:
            raise ForkedProcessError("the store was opened before a fork: open it in the child")
        if self._stopped:
            raise LogClosedError("the store is closed")

    def submit(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> "Future[T]":
        """Begin a call as soon as there is a thread. Raises what `check` raises, and
        OutOfMemoryError if there is none, and may be none: the call is never made then.
        """
        call = Call(partial(function, *arguments, **named))
        self.start(call)
        return call.ended

    def start(self, call: Call[Any]) -> None:
        """As `submit`, with a call that was made before. An interrupt leaves it made or not: that
        is found out by cancelling it.
        """
        self.check()
        try:
            self._threads.submit(call.run)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and _NO_THREAD not in str(error):
                raise LogClosedError("the store is closed") from error
            # The pool has put it into its queue all the same, for the threads that it has.
            if not self._have_threads and call.ended.cancel():
                raise OutOfMemoryError(f"{NOT_BEGUN}: {error}") from error

    def _thread_began(self) -> None:
        self._have_threads = True

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
        self._threads.shutdown()


async def until_over(call: "Future[T]", withdraw: Callable[[], bool]) -> Ended[T]:
    """Wait for the end of a call in another thread, as `until_ended`."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[T] = loop.create_future()

    def tell() -> None:
        if call.done() and not told.done():
            pass_on(call, told)

    def over(_: "Future[T]") -> None:
        with suppress(RuntimeError):  # The loop is closed: nobody waits for the answer.
            loop.call_soon_threadsafe(tell)

    call.add_done_callback(over)
    return await until_ended(told, withdraw, tell)


def pass_on(call: "Future[T]", told: "asyncio.Future[T]") -> None:
    """Tell how a call has ended."""
    if call.cancelled():
        told.cancel()
        return
    error = call.exception()
    if error is not None:
        told.set_exception(error)
    else:
        told.set_result(call.result())


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
