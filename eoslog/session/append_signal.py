"""Wake-ups of readers that wait for records in one store, by the writers that append them.

All readers of a session's processes sleep on one word of the page that they share, each for the
bits of its partitions: of 32, so that few others wake with it. A reader first sets a flag at each
partition, then looks, then sleeps. The engine's publish clears the flag, and makes the system call
only if it was set. A reader that dies costs one needless wake-up. Readers and
writers share no lock, so an interrupted reader never blocks another.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from eoslog.bindings.shared_page import ALL_BITS, SharedPage

# A reader looks again after so long, woken or not: a writer may die between its publish and
# the wake-up, and Python handles signals only between two sleeps.
LOOK_AGAIN_S = 1.0
# One that only reads the store is not woken: its wish would be a store to their pages.
FOLLOWED_LOOK_S = 0.02


class Watched(Protocol):
    """Partition of the store that is waited for."""

    def want_wakeup(self) -> int:
        """Have the next publish wake the sleeping readers; return the bit for which they sleep."""


class AppendSignal:
    """Signal of one store. While no reader waits, it costs a writer next to nothing."""

    def __init__(self, shared: SharedPage, look_again_s: float = LOOK_AGAIN_S) -> None:
        self.shared = shared
        self._look_again_s = look_again_s

    def wake(self) -> None:
        """Have all readers look again, in all processes, after a change that is no append."""
        self.shared.wake()

    def want(self, partitions: Iterable[Watched]) -> int:
        """Have the next append to any of these wake the sleeping readers; call it after `look`.

        Return the bits to sleep for. Raises what the partitions raise: LogClosedError.
        """
        bits = 0
        for partition in partitions:
            bits |= partition.want_wakeup()
        return bits

    def sleeper(self) -> "Sleeper":
        """Return a waiting reader."""
        return Sleeper(self.shared, self._look_again_s)

    def wait(
        self, partitions: Iterable[Watched], is_ready: Callable[[], bool], timeout_s: float
    ) -> bool:
        """Wait until `is_ready()` or the time is over; return True if it is ready.

        It is asked after each append to one of these partitions, after each `wake`, and again and
        again. Raises what it raises, and LogClosedError for a partition that is closed.
        """
        deadline_s = time.monotonic() + timeout_s
        sleeper = self.sleeper()
        while True:
            # Wanted first, looked second: an append that is not seen here finds the wish.
            sleeper.look()
            bits = self.want(partitions)
            if is_ready():
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            sleeper.sleep(left_s, bits or ALL_BITS)
            # Before the flag is set again: the next append would pay for nothing.
            if is_ready():
                return True


class Sleeper:
    """A waiting reader. What happens between `look` and `sleep` is not missed: the sleep ends."""

    def __init__(self, shared: SharedPage, look_again_s: float) -> None:
        self._shared = shared
        self._look_again_s = look_again_s
        self._word = 0

    def look(self) -> None:
        """Have each wake-up count from here on."""
        self._word = self._shared.wake_word()

    def sleep(self, timeout_s: float, bits: int = ALL_BITS) -> None:
        """Sleep until a thread or process wakes one of the bits, or it is time to look again; may
        return early.
        """
        self._shared.wait(self._word, min(timeout_s, self._look_again_s), bits)
