# The aborted transactions of a log, followed batch by batch, beside what its .txnindex files say.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.partition_log cimport PartitionLog as NativeLog
from eoslog.native.record_batch cimport BatchHeader


cdef class AbortIndexCheck:
    cdef dict _open                  # Producer id: where its open transaction begins.
    cdef list _aborted               # Of the segment that is followed now.
    cdef int64_t _log_first_offset
    cdef bint _lost

    cdef int follow(self, const uint8_t* batch, const BatchHeader* header) except -1
    cdef void lose_track(self) noexcept
    cdef int check_file(
        self, NativeLog* log, dict described, int64_t upper_bound, list problems) except -1
