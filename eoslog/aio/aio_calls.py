"""Calls that may wait for a disk or for another process, made from an event loop by a thread pool.

`Calls` makes them at once; a `Lane` makes those of one object one after another, in the order of
the requests. The lane has no task of its own, so a program that cancels all tasks does not cancel
the calls of others.

Invariant: a call that was begun is waited for, also by a task that is cancelled meanwhile: the call
does not go on after the task has ended, and its result is known.

Ctrl-C may come out of any step of the event loop. The loop then goes on without the rest of that
step, with all tasks cancelled. So a cancelled task checks from time to time, and does what is left
of the step.
"""

import asyncio
import os
import threading
from collections import deque
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
    """An object with a close method."""

    def close(self) -> None:
        """Close it."""


Made = TypeVar("Made", bound=Closable)
Work = Callable[[], Any]

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
    """The thread pool of one store's event loops."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads_max, "eoslog-aio")
        self._has_threads = False
        self._process_id = os.getpid()
        self._stopped = False

    def check(self) -> None:
        """Raise LogClosedError after `stop`, ForkedProcessError in a child: it has no threads."""
        if os.getpid() != self._process_id:
            raise ForkedProcessError("the store was opened before a fork: open it in the child")
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
        return await until_over(call, call.cancel)

    async def make(
        self, function: Callable[P, Made], *arguments: P.args, **named: P.kwargs
    ) -> Made:
        """Run a function like `run`, but close the result again if the task was cancelled."""
        ended = await self.finish(function, *arguments, **named)
        if ended.cancelled is not None and ended.result is not None:
            closed = await until_over(self.submit(ended.result.close), lambda: False)
            if closed.error is not None:
                ended.cancelled.add_note(f"closing what was made failed: {closed.error}")
        return ended.value()

    def stop(self) -> None:
        """Take no more calls; return when those taken before have ended."""
        self._stopped = True
        if os.getpid() == self._process_id:
            self._pool.shutdown()


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


async def until_over(call: "Future[T]", withdraw: Callable[[], bool]) -> Ended[T]:
    """Wait for the end of a call in another thread, as `until_ended`."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[T] = loop.create_future()

    def tell() -> None:
        if call.done() and not told.done():
            _pass_on(call, told)

    def over(_: "Future[T]") -> None:
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(tell)

    call.add_done_callback(over)
    return await until_ended(told, withdraw, tell)


def _pass_on(call: "Future[T]", told: "asyncio.Future[T]") -> None:
    """Set the loop's future as the call ended."""
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
    """Wait for a call's end. A cancelled task withdraws the call, or else waits on.

    `look()` does the rest of a step that Ctrl-C has cut off: after it, the future of a call that
    has ended is done.
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


class Job:
    """A call that waits for its turn; `begin()` then returns the work."""

    def __init__(self, begin: Callable[[], Work], ended: "asyncio.Future[Any]") -> None:
        self.begin = begin
        self.ended = ended
        self.call: Future[Any] | None = None
        self.is_begun = False  # The pool has the call, and `ended` will be set.


class Lane:
    """One call at a time; for the tasks of one event loop.

    The loop calls `before_end()` when a call has ended, before it sets the call's future, and
    `refused(error)` when a call cannot begin: the store is closed, or there is no thread.

    Ctrl-C may cut off each step at any line; `look` does the rest of the step.
    """

    def __init__(
        self,
        calls: Calls,
        loop: asyncio.AbstractEventLoop,
        before_end: Callable[[], None],
        refused: Callable[[Exception], None],
    ) -> None:
        self._calls = calls
        self._loop = loop
        self._before_end = before_end
        self._refused = refused
        self._jobs: deque[Job] = deque()
        self._under_way: Job | None = None

    @property
    def is_idle(self) -> bool:
        """True if no call is under way and none waits."""
        return self._under_way is None and not self._jobs

    def put(self, begin: Callable[[], Work]) -> Job:
        """Make a call in its turn, after the other requests of this step of the loop."""
        if self._under_way is not None:
            self.look()
        job = Job(begin, self._loop.create_future())
        self._jobs.append(job)
        self._loop.call_soon(self._go_on)
        return job

    def withdraw(self, job: Job) -> bool:
        """Withdraw the call; return False if it was begun."""
        if job is self._under_way or job not in self._jobs:
            return False
        self._jobs.remove(job)
        job.ended.cancel()
        return True

    async def finish(
        self, begin: Callable[[], Callable[[], T]], *, surely: bool = False
    ) -> Ended[T]:
        """Make a call in its turn and return how it ended, also to a cancelled task.

        Raises CancelledError only if the call was not begun; with `surely` it always begins.
        """
        job = Job(begin, self._loop.create_future())
        self._jobs.append(job)
        self.look()
        return await until_ended(job.ended, lambda: not surely and self.withdraw(job), self.look)

    def look(self) -> None:
        """Do the rest of a step that Ctrl-C has cut off; begin the next call."""
        job = self._under_way
        if job is not None and not job.is_begun:
            self._begin_or_refuse(job)
        elif job is not None and job.call is not None and job.call.done():
            self._end(job)
        self._go_on()

    def _go_on(self) -> None:
        if self._under_way is not None or not self._jobs:
            return
        job = self._under_way = self._jobs[0]
        self._jobs.popleft()
        try:
            self._calls.check()
            work = job.begin()
            job.call = Future()
            self._calls.start(job.call, work)
            self._follow(job, job.call)
        except Exception as error:
            self._refuse(job, error)

    def _follow(self, job: Job, call: "Future[Any]") -> None:
        call.add_done_callback(partial(self._call_over, job))
        job.is_begun = True

    def _refuse(self, job: Job, error: Exception) -> None:
        if not job.ended.done():
            job.ended.set_exception(error)
        self._refused(error)
        self._under_way = None
        self._loop.call_soon(self._go_on)

    def _begin_or_refuse(self, job: Job) -> None:
        """Decide about a call at whose beginning Ctrl-C came."""
        if self._jobs and self._jobs[0] is job:
            self._jobs.popleft()
        if job.call is None or job.call.cancel():
            self._refuse(job, RuntimeError(f"{NOT_BEGUN}: an interrupt came first"))
            job.ended.exception()  # Its task may be gone.
        else:
            self._follow(job, job.call)

    def _call_over(self, job: Job, _: "Future[Any]") -> None:
        """Have the loop end the job. Runs in the call's thread."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._end, job)

    def _end(self, job: Job) -> None:
        if job is not self._under_way or job.call is None:
            return
        self._before_end()
        if not job.ended.done():
            _pass_on(job.call, job.ended)
        self._under_way = None
        self._go_on()
