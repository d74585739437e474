"""Readers of one store that wait for records, and the writers that wake them.

No lock is shared between the two: each reader sleeps on a lock of its own, so that one who is
interrupted, at whatever step, leaves nothing behind that another would wait for.
"""

import threading
import time
from collections.abc import Callable


class AppendSignal:
    """One for a store. A writer pays a look at a set as long as nobody waits."""

    def __init__(self) -> None:
        self._waiting: set[threading.Lock] = set()

    def appended(self) -> None:
        """Wake whoever waits; called after the log end was published."""
        if self._waiting:
            for sleeper in list(self._waiting):
                try:
                    sleeper.release()
                except RuntimeError:
                    continue  # Somebody else has woken it just now.

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `is_ready()` or the time is over; whether it is ready."""
        deadline_s = time.monotonic() + timeout_s
        sleeper = threading.Lock()
        sleeper.acquire()
        # Known first, looked second: an append that is not seen here will see the sleeper.
        self._waiting.add(sleeper)
        try:
            while not is_ready():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                sleeper.acquire(timeout=left_s)
            return True
        finally:
            self._waiting.discard(sleeper)
