"""Timer of a store's producers: one thread appends the records that waited for `linger.ms`."""

import logging
import threading
import time
from typing import Protocol

from eoslog.session.background_thread import BackgroundThread

_log = logging.getLogger(__name__)


class LingeringProducer(Protocol):
    """The part of a producer that the timer uses."""

    def append_lingering(self) -> float | None:
        """Append what waited long enough; return the seconds until the next call, or None."""


class LingerTimer:
    """Calls producers when they are due. Its thread starts with the first that waits."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._due_s: dict[LingeringProducer, float] = {}
        self._thread = BackgroundThread("eoslog-linger", self._run)
        self._stopped = False

    def add(self, producer: LingeringProducer, delay_s: float) -> None:
        """Call the producer after `delay_s`, unless it waits already.

        Raises OutOfMemoryError if no thread can be started: the producer is not called then.
        """
        with self._lock:
            if self._stopped or producer in self._due_s:
                return
            self._thread.start()
            self._due_s[producer] = time.monotonic() + delay_s
            self._condition.notify()

    def remove(self, producer: LingeringProducer) -> None:
        """Stop calling the producer."""
        with self._lock:
            self._due_s.pop(producer, None)

    def stop(self) -> None:
        """Stop calling producers; return when a call under way has ended."""
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
            except Exception:  # The other producers go on.
                _log.exception("appending what a producer gathered")
                continue
            if again_s is not None:
                self.add(producer, again_s)

    def _next(self) -> LingeringProducer | None:
        """Wait for a producer that is due and return it; None once stopped."""
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
