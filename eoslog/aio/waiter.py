"""Tasks that wait for records: one thread sleeps for all of them, and wakes their event loops.

A task that begins to wait does not wake the sleeping thread. It asks the next append to its
partitions to wake the sleepers, and then checks once itself.
"""

import asyncio
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Protocol

from eoslog.session.append_signal import LOOK_AGAIN_S, AppendSignal, Watched
from eoslog.session.background_thread import BackgroundThread


class Waiting(Protocol):
    """A condition that a task waits for. The thread calls both methods; they must not block."""

    def watched(self) -> Iterable[Watched]:
        """Return the partitions whose appends may make it ready."""

    def is_ready(self) -> bool:
        """Return True if the task must check for itself."""


class _Waiter:
    """One task that waits."""

    def __init__(self, waiting: Waiting, loop: asyncio.AbstractEventLoop) -> None:
        self.waiting = waiting
        self.woken = loop.create_future()
        self.is_told = False
        self._loop = loop

    def wake(self, error: Exception | None = None) -> bool:
        """Wake the task, or make it raise the error; return False if its loop is closed."""
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
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread = BackgroundThread("eoslog-aio-wait", self._run)
        self._stopped = False

    async def wait(self, waiting: Waiting, timeout_s: float | None) -> bool:
        """Wait until it is ready or the timeout is over; return True if it may be ready.

        May return early, but always yields to the event loop once. Raises LogClosedError.
        """
        waiter = _Waiter(waiting, asyncio.get_running_loop())
        self._waiters.add(waiter)
        try:
            # In this order: an append after the check finds the request, and the thread the task.
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
        """Have the task that waits for this check for itself. For any thread."""
        for waiter in list(self._waiters):
            if waiter.waiting is waiting:
                waiter.wake()

    def stop(self) -> None:
        """Wake all tasks; no task waits any more."""
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
            sleeper = self._signal.sleeper()
            while not self._stopped:
                sleeper.look()
                for waiter in list(self._waiters):
                    # A woken task removes itself in its loop. Until then it asks for no wake-up:
                    # each costs a writer time.
                    if not waiter.is_told and not self._look_for(waiter):
                        self._waiters.discard(waiter)
                if not self._waiters:
                    break  # The next task rings.
                sleeper.sleep(LOOK_AGAIN_S)

    def _look_for(self, waiter: _Waiter) -> bool:
        """Wake the task if it is ready; return False if its event loop is closed."""
        try:
            return not self._is_ready(waiter) or waiter.wake()
        except Exception as error:
            return waiter.wake(error)

    def _is_ready(self, waiter: _Waiter) -> bool:
        self._signal.want(waiter.waiting.watched())
        return waiter.waiting.is_ready()
