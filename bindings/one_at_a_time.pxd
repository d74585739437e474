# A block that a thread does not enter from within itself.

cdef class OneAtATime:
    cdef bint entered

    cdef int look(self) except -1
