"""Tasks that wait for records: one thread sleeps for all of them, and wakes their event loops.

The thread is not told of a task that begins to wait while it sleeps: the task itself has the next
append to its partitions wake the sleepers, and then looks once. So beginning to wait wakes nobody.
"""

import asyncio
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Protocol

from eoslog.session.append_signal import LOOK_AGAIN_S, AppendSignal, Watched
from eoslog.session.background_thread import BackgroundThread


class Waiting(Protocol):
    """What a task waits for. Both are called by the thread too, and must not wait themselves."""

    def watched(self) -> Iterable[Watched]:
        """The partitions whose appends may make it ready."""

    def is_ready(self) -> bool:
        """Whether the task is to look for itself."""


class _Waiter:
    """One task that waits."""

    def __init__(self, waiting: Waiting, loop: asyncio.AbstractEventLoop) -> None:
        self.waiting = waiting
        self.woken = loop.create_future()
        self.is_told = False
        self._loop = loop

    def wake(self, error: Exception | None = None) -> bool:
        """Wake the task, or have it raise the error; False if its event loop is closed."""
        self.is_told = True
        try:
            self._loop.call_soon_threadsafe(self._set, error)
        except RuntimeError:
            return False
        return True

    def _set(self, error: Exception | None) -> None:
        if self.woken.done():
            return
        if error is None:
            self.woken.set_result(None)
        else:
            self.woken.set_exception(error)


class TailWaiter:
    """The waiting tasks of one store. Its thread starts with the first of them."""

    def __init__(self, signal: AppendSignal) -> None:
        self._signal = signal
        self._waiters: set[_Waiter] = set()
        # A queue in C: of an Event an interrupt of the loop's thread may leave the lock held.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread = BackgroundThread("eoslog-aio-wait", self._run)
        self._stopped = False

    async def wait(self, waiting: Waiting, timeout_s: float | None) -> bool:
        """Wait until it is ready, or the time (if any) is over; whether it may be ready.

        May return early, but always lets others have a step of the event loop. Raises what looking
        raises: LogClosedError. A task that is cancelled meanwhile leaves nothing behind.
        """
        waiter = _Waiter(waiting, asyncio.get_running_loop())
        self._waiters.add(waiter)
        try:
            # In this order: who appends after the look finds the wish, and the thread the task.
            if self._stopped or self._is_ready(waiter):
                await asyncio.sleep(0)
                return True
            self._wake_thread()
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter.woken
            except TimeoutError:
                return False
            return True
        finally:
            self._waiters.discard(waiter)

    def wake(self, waiting: Waiting) -> None:
        """Have the task that waits for this look for itself, in whatever thread this is called."""
        for waiter in list(self._waiters):
            if waiter.waiting is waiting:
                waiter.wake()

    def stop(self) -> None:
        """Wake all; nobody waits any more."""
        self._stopped = True
        for waiter in list(self._waiters):
            waiter.wake()
        self._bell.put(None)
        self._signal.wake()
        self._thread.join()

    def _wake_thread(self) -> None:
        if self._bell.empty():
            self._bell.put(None)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            self._bell.get()
            with self._signal.sleeper() as sleeper:
                while not self._stopped:
                    sleeper.look()
                    for waiter in list(self._waiters):
                        # One that was told takes itself out, once its loop has come to it. Until
                        # then it wants no wake-ups: a writer would pay for each.
                        if not waiter.is_told and not self._look_for(waiter):
                            self._waiters.discard(waiter)
                    if not self._waiters:
                        break  # Who comes behind this rings.
                    sleeper.sleep(LOOK_AGAIN_S)

    def _look_for(self, waiter: _Waiter) -> bool:
        """Look, and wake the task if it is ready; False if its event loop is closed."""
        try:
            return not self._is_ready(waiter) or waiter.wake()
        except Exception as error:
            return waiter.wake(error)

    def _is_ready(self, waiter: _Waiter) -> bool:
        self._signal.want(waiter.waiting.watched())
        return waiter.waiting.is_ready()
