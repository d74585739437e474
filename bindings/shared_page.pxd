# The shared page of a store, for those who take its locks without Python.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.shared_page cimport SharedPageHead


cdef class FollowedPage:
    cdef const SharedPageHead* _page


cdef class SharedPage:
    cdef SharedPageHead* _page
    cdef FollowedPage _followed              # None, unless the store is only read.
    cdef object _follow_count                # So many were followed, one after the other.
    cdef void* _map
    cdef int32_t _process_id
    cdef int64_t _held_count                 # Of locks, by all threads of this process.
    cdef readonly str path
    cdef readonly bytes session
    cdef object __weakref__

    # 0, or 1 if the last holder died with it; raises StoreInUseError when the time is over.
    cdef int take(self, int index, double timeout_s) except -1
    cdef object held_too_long(self, int index, double timeout_s)
    # The same, but -2 when the time is over.
    cdef int take_for(self, int index, double timeout_s) except -1
    cdef int give(self, int index) except -1
    cdef int _check_index(self, int index) except -1
    cdef int wait_to_begin(self) except -1
    cdef int _check_counter(self, int number) except -1
