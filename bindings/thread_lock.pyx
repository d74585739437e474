# cython: language_level=3
"""A lock between threads that a thread is refused which has it already.

Another one would wait for itself for ever: in the handler of a signal, which runs between any two
lines of Python, also where its thread holds the lock.
"""

import threading

cimport cython

from eoslog.bindings.handler_wait cimport acquired_by

from eoslog.bindings.handler_wait import ReentrantCallError
from eoslog.errors import ConcurrentAccessError


cdef str CALLED_FROM_HANDLER = (
    "the store was called from a handler of a signal, in the middle of a call of the same thread "
    "that holds a lock: do it once that call has returned")


def called_from_handler():
    """The error for a call that would come between the steps of one of the same thread."""
    return ConcurrentAccessError(CALLED_FROM_HANDLER)


def refused_to_holder():
    """The error for a thread that would take a lock of the engine's which it has."""
    return ReentrantCallError(CALLED_FROM_HANDLER)


@cython.final
cdef class ThreadLock:
    """The lock, as a block. Raises ReentrantCallError for a thread that is in it."""

    cdef object _lock
    cdef bint _entered

    def __cinit__(self):
        self._lock = threading.RLock()
        self._entered = False

    def __enter__(self):
        self._take(True)

    def __exit__(self, *ignored):
        self.release()

    def acquire(self, bint blocking=True):
        """Take it; False if another thread has it and this one is not to wait."""
        return self._take(blocking)

    def release(self):
        """Give it back."""
        self._entered = False
        self._lock.release()

    cdef bint _take(self, bint blocking) except -1:
        if blocking:
            acquired_by(self._lock.acquire)
        elif not self._lock.acquire(False):
            return False
        if self._entered:
            self._lock.release()
            raise refused_to_holder()
        self._entered = True
        return True

    def check(self):
        """Raise ReentrantCallError if the thread is in it; the caller keeps other threads out."""
        if self._entered:
            raise refused_to_holder()

    def locked(self):
        """Whether a thread has it."""
        return bool(self._entered)
