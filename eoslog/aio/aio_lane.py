"""Calls of one object, made one after another in the order of the requests.

The event loop begins and ends them; the thread pool runs them. The lane has no task of its own, so
a program that cancels all tasks does not cancel the calls of others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from eoslog.aio.aio_calls import NOT_BEGUN, Calls, Ended, pass_on, until_ended

T = TypeVar("T")

Work = Callable[[], Any]


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
            pass_on(job.call, job.ended)
        self._under_way = None
        self._go_on()
