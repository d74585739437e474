# How long a handler of a signal waits for a lock, for all locks of the engine.

cdef int acquired_by(object acquire) except -1

cdef class Patience:
    cdef readonly double slice_s             # For how long to wait now.
    cdef double _left_s
    cdef bint _asked

    cdef int waited(self, double most_s) except -1
