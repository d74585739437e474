"""A background thread that is started when it is first needed, and waited for at the end.

An interrupt (Ctrl-C) may come while it is started. The thread may run all the same, later, or
never: Python's own lock between the two may be left held. Then another one is started with the next
need, and only one of them does the work.
"""

import threading
import time
from collections.abc import Callable

from eoslog.errors import OutOfMemoryError
from eoslog.thread_start import start_thread

# So long after one that did not begin no other one is waited for.
AGAIN_S = 60.0


class LastingThread:
    """Runs `work` once it is started, which ends when its owner has told it to.

    `work` looks first whether it was told to end: a thread that comes late only does that.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._at_work = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failed_s: float | None = None

    def start(self) -> None:
        """Have it run, if it does not. For one caller at a time. Raises OutOfMemoryError."""
        if not any(thread.is_alive() for thread in self._threads):
            if self._failed_s is not None and time.monotonic() < self._failed_s + AGAIN_S:
                raise OutOfMemoryError(f"the thread {self._name!r} did not begin a moment ago")
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            try:
                start_thread(thread)
            except OutOfMemoryError as error:
                if error.__cause__ is not None:
                    self._threads.remove(thread)  # Refused: nor does it come late.
                else:
                    self._failed_s = time.monotonic()
                raise

    def join(self) -> None:
        """Wait for its end, unless this is it. Its owner has told it to end."""
        for thread in self._threads:
            # One that never ran cannot be waited for, and need not be.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    @property
    def was_started(self) -> bool:
        """Whether anybody needed it."""
        return bool(self._threads)

    def _run(self) -> None:
        if self._at_work.acquire(blocking=False):
            try:
                self._work()
            finally:
                self._at_work.release()
