"""Wake-ups of readers that wait for records in one store, by the writers that append them.

All readers of a session's processes sleep on one word of the page that they share. A reader first
sets a flag at each partition, then looks, then sleeps. The engine's publish clears the flag, and
makes the system call only if it was set. A reader that dies costs one needless wake-up.

Without that page only this process takes part. Readers and writers share no lock: each reader
sleeps on a lock of its own, so an interrupted reader never blocks another.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from eoslog.bindings.shared_page import SharedPage

# A reader looks again after so long, woken or not: a writer may die between its publish and
# the wake-up, and Python handles signals only between two sleeps.
LOOK_AGAIN_S = 1.0


class Watched(Protocol):
    """Partition of the store that is waited for."""

    def want_wakeup(self) -> None:
        """Have the next publish wake the sleeping readers."""


class Sleeper(AbstractContextManager["Sleeper"], Protocol):
    """A waiting reader. What happens between `look` and `sleep` is not missed: the sleep ends."""

    def look(self) -> None:
        """Have each wake-up count from here on."""

    def sleep(self, timeout_s: float) -> None:
        """Sleep until a thread or process wakes it, at most LOOK_AGAIN_S; may return early."""


class AppendSignal:
    """Signal of one store. While no reader waits, it costs a writer next to nothing."""

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
        """Have all readers look again, in all processes, after a change that is no append."""
        if self.shared is not None:
            self.shared.wake()
            return
        for lock in list(self._sleeping):
            try:
                lock.release()
            except RuntimeError:
                continue  # Another thread has woken it just now.

    def want(self, partitions: Iterable[Watched]) -> None:
        """Have the next append to any of these wake the sleeping readers; call it after `look`.

        Raises what the partitions raise: LogClosedError.
        """
        if self.shared is not None:
            for partition in partitions:
                partition.want_wakeup()

    def sleeper(self) -> Sleeper:
        """Return a waiting reader, for as long as the block lasts."""
        if self.shared is not None:
            return _SharedSleeper(self.shared)
        return _OwnSleeper(self._sleeping)

    def wait(
        self, partitions: Iterable[Watched], is_ready: Callable[[], bool], timeout_s: float
    ) -> bool:
        """Wait until `is_ready()` or the time is over; return True if it is ready.

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
                # Before the flag is set again: the next append would pay for nothing.
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
