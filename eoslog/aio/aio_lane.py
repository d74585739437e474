"""Calls of one object that are made one after the other, in the order in which they were asked for.

They are begun and ended in the event loop and run in other threads; no task of its own stands
between, so that nobody who cancels all tasks cancels what others asked for.
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
    """A call that waits for its turn. `begin` is asked for the work when the turn has come."""

    def __init__(self, begin: Callable[[], Work], ended: "asyncio.Future[Any]") -> None:
        self.begin = begin
        self.ended = ended
        self.call: Future[Any] | None = None
        self.is_begun = False  # The call is made, and its end will be told.


class Lane:
    """One call at a time; for the tasks of one event loop.

    `before_end()` is called in the loop when a call has ended, before its end is told.
    `refused(error)` is called where no call can be begun any more: the store is closed.

    Each step may be cut off by an interrupt, at any of its lines; `look` does the rest of it.
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
        """Whether nothing is under way and nothing waits."""
        return self._under_way is None and not self._jobs

    def put(self, begin: Callable[[], Work]) -> Job:
        """Make a call in its turn. What is asked for in the same step of the loop comes before."""
        if self._under_way is not None:
            self.look()
        job = Job(begin, self._loop.create_future())
        self._jobs.append(job)
        self._loop.call_soon(self._go_on)
        return job

    def withdraw(self, job: Job) -> bool:
        """Do not make the call; False if it was begun."""
        if job is self._under_way or job not in self._jobs:
            return False
        self._jobs.remove(job)
        job.ended.cancel()
        return True

    async def finish(
        self, begin: Callable[[], Callable[[], T]], *, surely: bool = False
    ) -> Ended[T]:
        """Make a call in its turn; how it ended, also for a task that was cancelled meanwhile.

        Raises CancelledError only if the call was not begun; `surely` waits for that turn, too.
        """
        job = Job(begin, self._loop.create_future())
        self._jobs.append(job)
        self.look()
        return await until_ended(job.ended, lambda: not surely and self.withdraw(job), self.look)

    def look(self) -> None:
        """Go on where an interrupt has cut a step off; begin the next call."""
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
        """An interrupt came as the call was to be made, or just behind."""
        if self._jobs and self._jobs[0] is job:
            self._jobs.popleft()
        if job.call is None or job.call.cancel():
            self._refuse(job, RuntimeError(f"{NOT_BEGUN}: an interrupt came before"))
            job.ended.exception()  # Nobody may be left to ask for it.
        else:
            self._follow(job, job.call)

    def _call_over(self, job: Job, _: "Future[Any]") -> None:
        """Runs in the call's thread."""
        with suppress(RuntimeError):  # The loop is closed: nobody waits for the answer.
            self._loop.call_soon_threadsafe(self._end, job)

    def _end(self, job: Job) -> None:
        if job is not self._under_way or job.call is None:
            return
        self._before_end()
        if not job.ended.done():
            pass_on(job.call, job.ended)
        self._under_way = None
        self._go_on()
