# cython: language_level=3
"""Several locks held at once, however a block is left.

A signal's handler may raise between any two steps of Python code, also between the step that takes
a lock and the one that notes it. Here is no such place: taking and noting are one step.
"""

cimport cython


@cython.final
cdef class HeldLocks:
    """The locks taken so far, in their order."""

    cdef list _locks

    def __cinit__(self):
        self._locks = []

    def take(self, lock not None):
        """Take a lock, waiting for it, and hold it until release()."""
        lock.acquire()
        self._locks.append(lock)

    def release(self):
        """Let go of all of them, the last one first."""
        while self._locks:
            self._locks.pop().release()
