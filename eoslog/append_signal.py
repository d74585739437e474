"""Readers of one store that wait for records, and the writers that wake them."""

import threading
import time
from collections.abc import Callable


class AppendSignal:
    """One for a store. A writer pays a look at a counter as long as nobody waits."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0

    def appended(self) -> None:
        """Wake whoever waits; called after the log end was published."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `is_ready()` or the time is over; whether it is ready."""
        deadline_s = time.monotonic() + timeout_s
        with self._condition:
            # Counted first, looked second: an append that is not seen here will see the count.
            self._waiting += 1
            try:
                while not is_ready():
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return False
                    self._condition.wait(left_s)
                return True
            finally:
                self._waiting -= 1
