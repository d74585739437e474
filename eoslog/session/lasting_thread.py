"""A background thread that is started when it is first needed, and waited for at the end.

An interrupt (Ctrl-C) may come while it is started. The thread may run all the same, later, or
never: Python's own lock between the two may be left held. Then another one is started with the next
need, and only one of them does the work.
"""

import _thread
import threading
import time
from collections.abc import Callable

from eoslog.bindings.joined_threads import wait_for_release
from eoslog.errors import OutOfMemoryError
from eoslog.session.thread_start import start_thread

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
        self._turns: list[_Turn] = []
        self._failed_s: float | None = None

    def start(self) -> None:
        """Have it run, if it does not. For one caller at a time. Raises OutOfMemoryError."""
        if not any(turn.is_running for turn in self._turns):
            if self._failed_s is not None and time.monotonic() < self._failed_s + AGAIN_S:
                raise OutOfMemoryError(f"the thread {self._name!r} did not begin a moment ago")
            turn = _Turn()
            thread = threading.Thread(target=self._run, args=(turn,), name=self._name, daemon=True)
            self._turns.append(turn)
            try:
                start_thread(thread)
            except OutOfMemoryError as error:
                if error.__cause__ is not None:
                    self._turns.remove(turn)  # Refused: nor does it come late.
                else:
                    self._failed_s = time.monotonic()
                raise

    def join(self) -> None:
        """Wait for its end, unless this is it. Its owner has told it to end."""
        for turn in self._turns:
            # One that has not begun cannot be waited for, and need not be.
            if turn.is_running and turn.thread_id != threading.get_ident():
                wait_for_release(turn.end)

    @property
    def was_started(self) -> bool:
        """Whether anybody needed it."""
        return bool(self._turns)

    def _run(self, turn: "_Turn") -> None:
        turn.thread_id = threading.get_ident()
        try:
            if self._at_work.acquire(blocking=False):
                try:
                    self._work()
                finally:
                    self._at_work.release()
        finally:
            turn.end.release()


class _Turn:
    """A thread, from its first step on; `end` is held until its last one.

    `Thread.join` and `is_alive` are not asked: an interrupt in their middle leaves Python's lock of
    the thread held, or lets go of it while the thread runs.
    """

    def __init__(self) -> None:
        self.thread_id: int | None = None
        self.end = _thread.allocate_lock()
        self.end.acquire()

    @property
    def is_running(self) -> bool:
        return self.thread_id is not None and self.end.locked()
