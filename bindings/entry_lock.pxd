# The lock of one transactional id, among the processes of a store.
from libc.stdint cimport int32_t, int64_t

from eoslog.bindings.partition_log cimport PartitionLog
from eoslog.bindings.shared_page cimport SharedPage
from eoslog.native.partition_log cimport pthread_mutex_t


cdef class EntryLock:
    cdef SharedPage _page                    # None: a lock of this process alone.
    cdef pthread_mutex_t _private
    cdef bint _is_private
    cdef int _index
    cdef int _depth                          # How often the holder has it, by this object.
    cdef readonly str transactional_id
    cdef PartitionLog _state_log
    cdef object _keeper
    cdef public int64_t newer_offset         # Of a record that the entry may not know; -1: of none.

    cdef int take(self) except -1
    cdef int give(self) except -1
    cdef bint is_behind(self) noexcept
    cdef int _try(self) except -1
    cdef int _wait(self) except -1
    cdef bint _is_held_here(self)
    cdef int _enter(self) except -1
    cdef bint _is_log_ahead(self) noexcept
    cdef int _make_current(self) except -1
