"""Calls of one object that are made one after the other, in the order in which they were asked for.

They are begun and ended in the event loop and run in other threads; no task of its own stands
between, so that nobody who cancels all tasks cancels what others asked for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from eoslog.aio_calls import Calls, Ended, until_ended

T = TypeVar("T")

Work = Callable[[], Any]


class Job:
    """A call that waits for its turn. `begin` is asked for the work when the turn has come."""

    def __init__(self, begin: Callable[[], Work], ended: "asyncio.Future[Any]") -> None:
        self.begin = begin
        self.ended = ended


class Lane:
    """One call at a time; for the tasks of one event loop.

    `refused(error)` is called where no call can be begun any more: the store is closed.
    """

    def __init__(
        self,
        calls: Calls,
        loop: asyncio.AbstractEventLoop,
        refused: Callable[[Exception], None],
    ) -> None:
        self._calls = calls
        self._loop = loop
        self._refused = refused
        self._jobs: deque[Job] = deque()
        self._under_way: Job | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return self._under_way is None and not self._jobs

    def put(self, begin: Callable[[], Work]) -> Job:
        """Make a call in its turn. What is asked for in the same step of the loop comes before."""
        job = Job(begin, self._loop.create_future())
        self._jobs.append(job)
        self._loop.call_soon(self._go_on)
        return job

    def withdraw(self, job: Job) -> bool:
        """Do not make the call; False if it was begun."""
        if job not in self._jobs:
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
        self._go_on()
        return await until_ended(job.ended, lambda: not surely and self.withdraw(job))

    def _go_on(self) -> None:
        if self._under_way is not None or not self._jobs:
            return
        job = self._under_way = self._jobs.popleft()
        try:
            self._calls.check()
            call = self._calls.submit(job.begin())
        except Exception as error:
            self._under_way = None
            job.ended.set_exception(error)
            self._refused(error)
            self._loop.call_soon(self._go_on)
            return
        call.add_done_callback(self._call_over)

    def _call_over(self, call: "Future[Any]") -> None:
        """Runs in the call's thread."""
        try:
            self._loop.call_soon_threadsafe(self._end, call)
        except RuntimeError:
            return  # The loop is closed: nobody waits for the answer.

    def _end(self, call: "Future[Any]") -> None:
        job, self._under_way = self._under_way, None
        if job is not None:
            error = call.exception()
            if error is not None:
                job.ended.set_exception(error)
            else:
                job.ended.set_result(call.result())
        self._go_on()
