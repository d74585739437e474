# cython: language_level=3
"""Several locks as one block, which an interrupt (Ctrl-C) never leaves held.

Python handles signals between its own steps. The locks are taken, noted and released in C, so that
no such step lies between taking a lock and the block that releases it.
"""

import types

cimport cython


@cython.final
cdef class LockBlock:
    """A block that takes locks in their order, then calls `prepare`, and releases them at its end.

    A lock is a block of C: a ThreadLock, an RLock, a LockedFile, a lock of the shared page.
    `prepare` is called with what each lock's block gave, and returns what this block gives; an
    error of it releases the locks. `finish` is called before they are released, also after an
    error. Raises what a lock raises; no lock is held then.
    """

    cdef tuple _locks
    cdef list _held
    cdef object _prepare
    cdef object _finish

    __class_getitem__ = classmethod(types.GenericAlias)

    def __cinit__(self, *locks, prepare=None, finish=None):
        self._locks = locks
        self._held = []
        self._prepare = prepare
        self._finish = finish

    def __enter__(self):
        cdef list given = []
        try:
            for lock in self._locks:
                leave = lock.__exit__
                given.append(lock.__enter__())
                self._held.append(leave)
            return None if self._prepare is None else self._prepare(*given)
        except BaseException:
            self._release()
            raise

    def __exit__(self, *error):
        try:
            if self._finish is not None:
                self._finish()
        finally:
            self._release()

    cdef int _release(self) except -1:
        first = None
        while self._held:
            try:
                self._held.pop()(None, None, None)
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first
        return 0


@cython.final
cdef class IfFree:
    """A block with a lock held if that needs no waiting; gives True if it is held."""

    cdef object _lock
    cdef bint _held

    def __cinit__(self, lock not None):
        self._lock = lock
        self._held = False

    def __enter__(self):
        self._held = self._lock.acquire(False)
        return self._held

    def __exit__(self, *error):
        if self._held:
            self._held = False
            self._lock.release()
