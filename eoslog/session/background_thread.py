"""A thread that lives as long as its owner."""

import threading
from collections.abc import Callable

from eoslog.errors import OutOfMemoryError


class BackgroundThread:
    """Calls `work` once, from the first `start` until the owner has `work` return.

    `work` first checks if it must end: after Ctrl-C inside `start` the thread may begin late.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread if it was not started. Raises OutOfMemoryError if a limit refuses it."""
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                self._thread.start()
            except (RuntimeError, MemoryError) as error:
                self._thread = None
                raise OutOfMemoryError(
                    f"the thread {self._name!r} cannot be started: {error}; see the limits of the "
                    "process on its memory and threads"
                ) from error

    def join(self) -> None:
        """Wait for the thread's end, except in the thread itself.

        May be called again after Ctrl-C. `Thread.join` alone may not: in Python 3.11 it then
        returns although the thread runs.
        """
        thread = self._thread
        if thread is None or thread.ident is None or thread is threading.current_thread():
            return
        self._ended.wait()
        thread.join()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()
