# A lock between threads that refuses the thread which holds it.

cdef class ThreadLock:
    cdef object _lock
    cdef bint _waits
    cdef unsigned long _owner            # Thread that holds it; 0 if it is free.

    cdef bint take(self, bint blocking) except -1
    cdef int give(self) except -1
    cdef int _take_again(self) except -1
    cdef void renew(self)
