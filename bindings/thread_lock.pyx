# cython: language_level=3
"""A lock between threads that refuses the thread which holds it.

Such a thread would wait for itself forever. It comes from a signal handler, or from a method of an
argument, in the middle of another call.
"""

import threading

cimport cython

from eoslog.errors import ConcurrentAccessError

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()


def reentrant_call():
    """Return the error for a call in the middle of another call of the same thread."""
    return ConcurrentAccessError(
        "eoslog was called in the middle of another call of the same thread, from a signal handler "
        "or a method of an argument: this call did nothing; repeat it after the other call has "
        "returned")


cdef object concurrent_call():
    return ConcurrentAccessError(
        "two threads use one consumer at once: this call did nothing; make a consumer for each "
        "thread")


@cython.final
cdef class ThreadLock:
    """The lock, as a block. Raises ConcurrentAccessError for the thread that holds it.

    A second thread waits; if `waits` is False it gets a ConcurrentAccessError, too. The lock is
    taken and released in C: an interrupt (Ctrl-C) does not leave it held.
    """

    def __cinit__(self, bint waits=True):
        self._lock = threading.Lock()
        self._waits = waits
        self._owner = 0

    def __enter__(self):
        if not self.take(self._waits):
            raise concurrent_call()

    def __exit__(self, *ignored):
        self.give()

    def acquire(self, bint blocking=True):
        """Take the lock; return False if another thread holds it and `blocking` is False."""
        return self.take(blocking)

    def release(self):
        """Release the lock."""
        self.give()

    cdef bint take(self, bint blocking) except -1:
        if self._owner == PyThread_get_thread_ident():
            raise reentrant_call()
        if not self._lock.acquire(blocking):
            return False
        self._owner = PyThread_get_thread_ident()
        return True

    cdef int give(self) except -1:
        if self._owner == 0:
            return 0                     # Taken in the parent, before a fork.
        self._owner = 0
        self._lock.release()
        return 0

    cdef void renew(self):
        """Free the lock in a forked child: the thread that held it may not be here."""
        self._lock = threading.Lock()
        self._owner = 0

    def check(self):
        """Raise ConcurrentAccessError if a thread holds it."""
        if self._owner == PyThread_get_thread_ident():
            raise reentrant_call()
        if self._owner != 0:
            raise concurrent_call()

    def call_released(self, function not None, *arguments):
        """Call a function that may use the object, without the lock if the thread holds it.

        The lock is held again on return, also after an exception of the function.
        """
        if self._owner != PyThread_get_thread_ident():
            return function(*arguments)
        self.give()
        try:
            return function(*arguments)
        finally:
            self._take_again()

    cdef int _take_again(self) except -1:
        # An interrupt of the wait is raised once the lock is held: the caller releases it.
        interrupt = None
        while True:
            try:
                self.take(True)
                break
            except KeyboardInterrupt as raised:
                interrupt = raised
        if interrupt is not None:
            raise interrupt
        return 0

    def held_here(self):
        """Return True if the calling thread holds it."""
        return self._owner == PyThread_get_thread_ident()

    def locked(self):
        """Return True if a thread holds it."""
        return self._owner != 0
