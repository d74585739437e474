"""Timer of a store's producers: one thread appends the records that waited for `linger.ms`."""

import logging
import threading
import time
from collections.abc import Callable

from eoslog.session.background_thread import BackgroundThread

# What waited and could not be appended is tried again after so long.
RETRY_S = 1.0
_log = logging.getLogger(__name__)

# Appends what waited long enough; returns the seconds until the next call, or None.
AppendLingering = Callable[[], float | None]


class LingerTimer:
    """Makes the calls of producers when they are due. Its thread starts with the first."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)
        self._due_s: dict[AppendLingering, float] = {}
        self._thread = BackgroundThread("eoslog-linger", self._run)
        self._stopped = False

    def add(self, append: AppendLingering, delay_s: float) -> None:
        """Call a producer's `append` after `delay_s`, unless it waits already.

        Raises OutOfMemoryError if no thread can be started: it is not called then.
        """
        with self.lock:
            if self._stopped or append in self._due_s:
                return
            self._thread.start()
            self._due_s[append] = time.monotonic() + delay_s
            self._condition.notify()

    def remove(self, append: AppendLingering) -> None:
        """Stop calling it."""
        with self.lock:
            self._due_s.pop(append, None)

    def stop(self) -> None:
        """Stop all calls; return when a call under way has ended."""
        with self.lock:
            self._stopped = True
            self._due_s.clear()
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            append = self._next()
            if append is None:
                return
            try:
                again_s = append()
            except Exception:
                _log.exception("appending what a producer gathered")
                again_s = RETRY_S
            if again_s is not None:
                self.add(append, again_s)

    def _next(self) -> AppendLingering | None:
        """Wait for a call that is due and return it; None once stopped."""
        with self.lock:
            while not self._stopped:
                if not self._due_s:
                    self._condition.wait()
                    continue
                append = min(self._due_s, key=self._due_s.__getitem__)
                left_s = self._due_s[append] - time.monotonic()
                if left_s <= 0:
                    del self._due_s[append]
                    return append
                self._condition.wait(left_s)
            return None
