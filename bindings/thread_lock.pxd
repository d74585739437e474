# A lock between threads that refuses the thread which holds it.

from cpython.pythread cimport PyThread_type_lock


cdef class ThreadLock:
    cdef PyThread_type_lock _lock
    cdef bint _waits
    cdef unsigned long _owner            # Thread that holds it; 0 if it is free.
    cdef int _lent_count                 # Functions that call_released is calling.

    cdef bint take(self, bint blocking) except -1
    cdef int give(self) except -1
    cdef int _take_again(self) except -1
    cdef int _wait(self) except -1
    cdef int renew(self) except -1
