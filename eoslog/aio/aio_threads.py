"""Threads that make calls: as many as there are calls at once, up to a limit, kept for the next.

As in `aio_call` nothing here takes a lock that an interrupt of the event loop's thread could leave
held. A thread waits in a queue of the interpreter's own, written in C.
"""

import atexit
import os
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from eoslog.aio.aio_call import Call
from eoslog.session.background_thread import BackgroundThread


class CallingThreads:
    """Threads of one owner. They are made when they are needed, and end with `stop`."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._calls: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        self._began: deque[None] = deque()
        self._threads: list[BackgroundThread] = []
        self._stopper: deque[None] = deque((None,))
        self._process_id = os.getpid()
        self._at_exit = partial(_stop, weakref.ref(self))
        atexit.register(self._at_exit)

    @property
    def has_any(self) -> bool:
        """Whether there is a thread at work: it will come to each call that waits."""
        return bool(self._began)

    def put(self, call: Call[Any]) -> None:
        """Have a call made in its turn. Raises OutOfMemoryError where a thread is wanted
        and there may be no more; the call waits for those that there are, if `has_any`.
        """
        self._calls.put(call)
        self._have_enough()

    def stop(self) -> None:
        """Make the calls that were put before, then end all threads; what comes later is left in
        `drain`. Not for one of the threads themselves.
        """
        atexit.unregister(self._at_exit)
        if os.getpid() != self._process_id:
            return  # A child has none.
        self._calls.put(None)
        with suppress(IndexError):
            self._stopper.pop()  # One waits for them: whoever comes first.
            for thread in self._threads:
                thread.join()

    def drain(self) -> list[Call[Any]]:
        """Calls that nobody will make any more."""
        left = []
        with suppress(Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    left.append(call)
        return left

    def let_go(self) -> None:
        """Have the threads end when they have nothing to do, without waiting for them."""
        atexit.unregister(self._at_exit)
        self._calls.put(None)

    def _have_enough(self) -> None:
        """A thread that has just taken a call may still count as idle: it looks again then."""
        if self._calls.qsize() > len(self._idle) and len(self._threads) < self._threads_max:
            thread = BackgroundThread("eoslog-aio", self._work)
            self._threads.append(thread)
            try:
                thread.start()
            except MemoryError:
                self._threads.remove(thread)
                raise

    def _work(self) -> None:
        self._began.append(None)
        while True:
            self._idle.append(None)
            call = self._calls.get()
            self._idle.pop()
            if call is None:
                self._calls.put(None)  # For the next one.
                return
            with suppress(MemoryError):
                self._have_enough()
            call.run()
            del call  # And with it what it answered.


def _stop(threads: "weakref.ref[CallingThreads]") -> None:
    """What was begun ends before the interpreter does."""
    found = threads()
    if found is not None:
        found.stop()
