# cython: language_level=3
"""A lock between threads that refuses the thread which holds it.

Such a thread would wait for itself forever. It comes from a signal handler, or from a method of an
argument, in the middle of another call.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock,
)

from eoslog.errors import ConcurrentAccessError

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()
    ctypedef enum PyLockStatus:
        PY_LOCK_ACQUIRED
    PyLockStatus PyThread_acquire_lock_timed(
        PyThread_type_lock lock, long long timeout_us, int ends_at_signal) nogil

cdef enum:
    DO_NOT_WAIT = 0                      # In place of a mode.
    FOR_EVER = -1                        # In place of a time.


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
        self._waits = waits
        self.renew()

    def __dealloc__(self):
        if self._lock != NULL:
            if self._owner != 0:
                PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    def __enter__(self):
        if self._lent_count:
            raise ConcurrentAccessError(
                "called from a function that eoslog called in the middle of another call "
                "(on_assigned, on_revoked, on_lost): this call did nothing; make it after the "
                "function has returned")
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
        if not PyThread_acquire_lock(self._lock, DO_NOT_WAIT):
            if not blocking:
                return False
            self._wait()
        self._owner = PyThread_get_thread_ident()
        return True

    cdef int _wait(self) except -1:
        cdef PyLockStatus status
        while True:
            with nogil:
                status = PyThread_acquire_lock_timed(self._lock, FOR_EVER, True)
            if status == PY_LOCK_ACQUIRED:
                return 0
            PyErr_CheckSignals()

    cdef int give(self) except -1:
        if self._owner == 0:
            return 0                     # Taken in the parent, before a fork.
        self._owner = 0
        PyThread_release_lock(self._lock)
        return 0

    cdef int renew(self) except -1:
        """Free the lock in a forked child: the thread that held it may not be here."""
        self._lock = PyThread_allocate_lock()
        if self._lock == NULL:
            raise MemoryError("no memory for a lock")
        self._owner = 0
        self._lent_count = 0
        return 0

    def check(self):
        """Raise ConcurrentAccessError if a thread holds it."""
        if self._owner == PyThread_get_thread_ident():
            raise reentrant_call()
        if self._owner != 0:
            raise concurrent_call()

    def call_released(self, function not None, *arguments):
        """Call a function that may use the object, without the lock if the thread holds it.

        The lock is held again on return, also after an exception of the function. Until then no
        block takes it.
        """
        cdef bint is_held = self._owner == PyThread_get_thread_ident()
        self._lent_count += 1
        if is_held:
            self.give()
        try:
            return function(*arguments)
        finally:
            self._lent_count -= 1
            if is_held:
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

    def in_use(self):
        """Return True if a thread holds it, or has released it for the call of a function."""
        return self._owner != 0 or self._lent_count != 0
