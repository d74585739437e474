"""Readers of one store that wait for records, and the writers that wake them.

In the processes of a session all sleep on one word of the page that they share: a reader first says
at each partition that a wake-up is wanted, then looks, then sleeps; the engine's publish takes that
wish, and only then pays for waking anybody. A reader that dies costs one wake-up in vain.

Without that page it is a matter of this process. No lock is shared between readers and writers:
each reader sleeps on a lock of its own, so that one who is interrupted, at whatever step, leaves
nothing behind that another would wait for.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from eoslog.bindings.shared_page import SharedPage

# Whoever sleeps looks again after so long, woken or not: a writer may die between its publish and
# the wake-up, and Python handles signals only between two sleeps.
LOOK_AGAIN_S = 1.0


class Watched(Protocol):
    """Partition of the store that is waited for."""

    def want_wakeup(self) -> None:
        """Have the next publish wake whoever sleeps."""


class Sleeper(AbstractContextManager["Sleeper"], Protocol):
    """One who waits. What happens between `look` and `sleep` is not missed: the sleep ends."""

    def look(self) -> None:
        """Have each wake-up count from here on."""

    def sleep(self, timeout_s: float) -> None:
        """Sleep until a thread or process wakes it, at most LOOK_AGAIN_S; may return early."""


class AppendSignal:
    """One for a store. A writer pays next to nothing as long as nobody waits."""

    def __init__(self, shared: SharedPage | None = None) -> None:
        self.shared = shared
        self._sleeping: set[threading.Lock] = set()

    def appended(self) -> None:
        """Wake the waiting threads after an append is published, where the engine does not do it
        itself.
        """
        if self.shared is None and self._sleeping:
            self.wake()

    def wake(self) -> None:
        """Have everybody look again, in all processes, after a change that is no append."""
        if self.shared is not None:
            self.shared.wake()
            return
        for lock in list(self._sleeping):
            try:
                lock.release()
            except RuntimeError:
                continue  # Somebody else has woken it just now.

    def want(self, partitions: Iterable[Watched]) -> None:
        """Have the next append to any of these wake whoever sleeps; to be called after `look`.

        Raises what the partitions raise: LogClosedError.
        """
        if self.shared is not None:
            for partition in partitions:
                partition.want_wakeup()

    def sleeper(self) -> Sleeper:
        """One who waits, for as long as the block lasts."""
        if self.shared is not None:
            return _SharedSleeper(self.shared)
        return _OwnSleeper(self._sleeping)

    def wait(
        self, partitions: Iterable[Watched], is_ready: Callable[[], bool], timeout_s: float
    ) -> bool:
        """Wait until `is_ready()` or the time is over; whether it is ready.

        It is asked after each append to one of these partitions, after each `wake`, and once a
        second. Raises what it raises, and LogClosedError for a partition that is closed.
        """
        deadline_s = time.monotonic() + timeout_s
        with self.sleeper() as sleeper:
            while True:
                # Wanted first, looked second: an append that is not seen here finds the wish.
                sleeper.look()
                self.want(partitions)
                if is_ready():
                    return True
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                sleeper.sleep(left_s)
                # Before it is wanted anew: the next append would pay for nobody.
                if is_ready():
                    return True


class _SharedSleeper:
    """Sleeps on the word of the page that all processes share."""

    def __init__(self, shared: SharedPage) -> None:
        self._shared = shared
        self._word = 0

    def look(self) -> None:
        self._word = self._shared.wake_word()

    def sleep(self, timeout_s: float) -> None:
        self._shared.wait(self._word, min(timeout_s, LOOK_AGAIN_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing: there is nothing to release."""


class _OwnSleeper:
    """Sleeps on a lock that only those who wake release."""

    def __init__(self, sleeping: set[threading.Lock]) -> None:
        self._sleeping = sleeping
        self._lock = threading.Lock()
        self._lock.acquire()

    def look(self) -> None:
        """A wake-up since the last sleep leaves the lock free, and the next sleep ends at once."""

    def sleep(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=min(timeout_s, LOOK_AGAIN_S))

    def __enter__(self) -> Self:
        self._sleeping.add(self._lock)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._sleeping.discard(self._lock)
