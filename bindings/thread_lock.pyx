# cython: language_level=3
"""A lock between threads that refuses the thread which holds it.

Such a thread would wait for itself forever. It comes from a signal handler, or from a method of an
argument, in the middle of another call.
"""

import threading

cimport cython

from eoslog.errors import ConcurrentAccessError


def reentrant_call():
    """Return the error for a call in the middle of another call of the same thread."""
    return ConcurrentAccessError(
        "eoslog was called in the middle of another call of the same thread, from a signal handler "
        "or a method of an argument: this call did nothing; repeat it after the other call has "
        "returned")


@cython.final
cdef class ThreadLock:
    """The lock, as a block. Raises ConcurrentAccessError for a thread that holds it.

    It is taken and released in C: an interrupt (Ctrl-C) does not leave it held.
    """

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
        """Take the lock; return False if another thread holds it and `blocking` is False."""
        return self._take(blocking)

    def release(self):
        """Release the lock."""
        self._entered = False
        self._lock.release()

    cdef bint _take(self, bint blocking) except -1:
        if not self._lock.acquire(blocking):
            return False
        if self._entered:
            self._lock.release()
            raise reentrant_call()
        self._entered = True
        return True

    def check(self):
        """Raise ConcurrentAccessError if the thread holds it. The caller keeps others out."""
        if self._entered:
            raise reentrant_call()

    def locked(self):
        """Return True if a thread holds it."""
        return bool(self._entered)
