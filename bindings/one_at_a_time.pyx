# cython: language_level=3
"""A block that a thread does not enter from within itself.

A handler of a signal runs between any two lines of Python, and a column's own methods while it is
read: what they call may come to the producer that is just appending, whose locks let the same
thread in. Numbered like the outer append, the inner one would pass for it.
"""

cimport cython

from eoslog.errors import ConcurrentAccessError


@cython.final
cdef class OneAtATime:
    """The block; whoever enters holds a lock that keeps other threads out. Raises
    ConcurrentAccessError.
    """

    def __cinit__(self):
        self.entered = False

    def __enter__(self):
        self.look()
        self.entered = True

    def __exit__(self, *ignored):
        self.entered = False

    @property
    def is_entered(self):
        """Whether the thread is in the block."""
        return bool(self.entered)

    def check(self):
        """Raise if the thread is in the block."""
        self.look()

    cdef int look(self) except -1:
        if self.entered:
            raise ConcurrentAccessError(
                "a producer was called in the middle of a call of its own by the same thread, from "
                "a handler of a signal or a method of what is appended: this call did nothing")
        return 0
