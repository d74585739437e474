# cython: language_level=3
"""A lock between threads that a thread is refused which has it already.

Another one would wait for itself for ever: in the handler of a signal, which runs between any two
lines of Python, also where its thread holds the lock.
"""

import threading

cimport cython


@cython.final
cdef class ThreadLock:
    """The lock, as a block. Raises RuntimeError for a thread that is in it."""

    cdef object _lock
    cdef bint _entered

    def __cinit__(self):
        self._lock = threading.RLock()
        self._entered = False

    def __enter__(self):
        self._lock.acquire()
        if self._entered:
            self._lock.release()
            raise RuntimeError(
                "the store was called from a handler of a signal, in the middle of a call of the "
                "same thread that holds a lock: do it once that call has returned")
        self._entered = True

    def __exit__(self, *ignored):
        self._entered = False
        self._lock.release()

    def locked(self):
        """Whether a thread has it."""
        return bool(self._entered)
