"""The timer of a store's producers: it appends what waited for `linger.ms`. One thread for all."""

import logging
import threading
import time
from typing import Protocol

from eoslog.session.background_thread import BackgroundThread

_log = logging.getLogger(__name__)


class LingeringProducer(Protocol):
    """What the timer needs of a producer."""

    def append_lingering(self) -> float | None:
        """Append what waited long enough; in how many seconds to call again, or None."""


class LingerTimer:
    """Calls producers when their time has come. Its thread starts with the first that waits."""

    def __init__(self) -> None:
        # Taken as it is, not through the condition: an exception of a signal's handler could come
        # between the steps of the condition's own code, and leave it held.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._due_s: dict[LingeringProducer, float] = {}
        self._thread = BackgroundThread("eoslog-linger", self._run)
        self._stopped = False

    def add(self, producer: LingeringProducer, delay_s: float) -> None:
        """Call the producer after so many seconds, unless it waits already.

        Raises OutOfMemoryError if there may be no thread for it: the producer is not called then.
        """
        with self._lock:
            if self._stopped or producer in self._due_s:
                return
            self._thread.start()
            self._due_s[producer] = time.monotonic() + delay_s
            self._condition.notify()

    def remove(self, producer: LingeringProducer) -> None:
        """Do not call the producer any more."""
        with self._lock:
            self._due_s.pop(producer, None)

    def stop(self) -> None:
        """Call nobody any more; returns when a call under way has ended."""
        with self._lock:
            self._stopped = True
            self._due_s.clear()
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            producer = self._next()
            if producer is None:
                return
            try:
                again_s = producer.append_lingering()
            except Exception:  # The others' records must not wait for ever.
                _log.exception("appending what a producer gathered")
                continue
            if again_s is not None:
                self.add(producer, again_s)

    def _next(self) -> LingeringProducer | None:
        """The producer whose time has come; waits for it. None once stopped."""
        with self._lock:
            while not self._stopped:
                if not self._due_s:
                    self._condition.wait()
                    continue
                producer = min(self._due_s, key=self._due_s.__getitem__)
                left_s = self._due_s[producer] - time.monotonic()
                if left_s <= 0:
                    del self._due_s[producer]
                    return producer
                self._condition.wait(left_s)
            return None
