# cython: language_level=3
"""A lock for all threads of all processes of a store, which no interrupt leaves held.

It is in C for that: Python handles signals between its own steps, and so could come between a lock
that was just taken and the block that gives it back.
"""

import threading

from cpython.exc cimport PyErr_CheckSignals

from eoslog.bindings.shared_page cimport SharedPage

# While it waits for another process, a thread comes up so often to handle signals.
cdef double WAIT_S = 0.5


cdef class StoreWideLock:
    """A lock that may be held for long; a thread may take it more than once.

    Without a shared page there is one process, and its threads are all there are. `holder_died` is
    set when a holder died with it, until the process that recovers resets it.
    """

    cdef public bint holder_died
    cdef SharedPage _shared
    cdef int _index
    cdef double _timeout_s
    cdef object _threads

    def __init__(self, SharedPage shared, int index, double timeout_s):
        self.holder_died = False
        self._shared = shared
        self._index = index
        self._timeout_s = timeout_s
        self._threads = threading.RLock()

    cdef bint _acquire(self, bint blocking) except -1:
        cdef int outcome
        if blocking:
            self._threads.acquire()
        elif not self._threads.acquire(False):
            return False
        if self._shared is None:
            return True
        try:
            outcome = self._shared.take_for(self._index, 0)
            if outcome < 0:
                if not blocking:
                    self._threads.release()
                    return False
                outcome = self._waited_for()
            self.holder_died = self.holder_died or outcome == 1
            return True
        except BaseException:
            self._threads.release()
            raise

    cdef int _waited_for(self) except -1:
        """Wait for another process, or for who has it otherwise than by this object."""
        cdef double left_s = self._timeout_s
        cdef int outcome
        while left_s > 0:
            outcome = self._shared.take_for(self._index, min(left_s, WAIT_S))
            if outcome >= 0:
                return outcome
            PyErr_CheckSignals()
            left_s -= WAIT_S
        raise self._shared.held_too_long(self._index, self._timeout_s)

    def acquire(self, bint blocking=True):
        """Take it; False if another has it and this is not to wait.

        Raises StoreInUseError, which names the holder, when the time is over.
        """
        return self._acquire(blocking)

    def release(self):
        """Give it back, as often as it was taken."""
        if self._shared is not None:
            self._shared.give(self._index)
        self._threads.release()

    def __enter__(self):
        self._acquire(True)

    def __exit__(self, *error):
        if self._shared is not None:
            self._shared.give(self._index)
        self._threads.release()
