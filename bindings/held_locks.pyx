# cython: language_level=3
"""Several locks held at once, however a block is left.

A signal's handler may raise between any two steps of Python code, also between the step that takes
a lock and the one that notes it. Here is no such place: taking and noting are one step.
"""

cimport cython


@cython.final
cdef class HeldLocks:
    """A block, and the locks taken in it so far, in their order. They are given back with it."""

    cdef list _locks                 # Of each what to call, to give it back.

    def __cinit__(self):
        self._locks = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.release()

    def take(self, lock not None):
        """Take a lock, waiting for it, and hold it until the end of the block."""
        held = (lock.release, ())
        lock.acquire()
        self._locks.append(held)

    def take_if_free(self, lock not None):
        """Take a lock if that needs no waiting, and hold it so long; whether it is held now."""
        held = (lock.release, ())
        if not lock.acquire(False):
            return False
        self._locks.append(held)
        return True

    def enter(self, block not None):
        """Enter a block that is a lock, waiting for it, and stay so long; what it gives.

        One of C: Python code of its own could be interrupted before it is noted here.
        """
        held = (block.__exit__, (None, None, None))
        value = block.__enter__()
        self._locks.append(held)
        return value

    def release(self):
        """Let go of all of them, the last one first; then the first error is raised."""
        first = None
        while self._locks:
            give_back, arguments = self._locks.pop()
            try:
                give_back(*arguments)
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first
