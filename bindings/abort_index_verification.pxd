# A log's aborted transactions, followed batch by batch, and compared with the abort index.
from libc.stdint cimport int64_t, uint8_t

from eoslog.bindings.opened_log cimport OpenedLog
from eoslog.native.record_batch cimport BatchHeader


cdef class AbortIndexView:
    cdef list entries                # As the engine knows them; by their markers.
    cdef bytes data                  # Of the file.
    cdef int64_t stored_count        # So many entries should be in it.
    cdef int64_t log_end_offset


cdef class AbortIndexCheck:
    cdef dict _open                  # Producer id: where its open transaction begins.
    cdef list _aborted               # Of the segment that is followed now.
    cdef int64_t _log_first_offset
    cdef bint _lost

    cdef int follow(self, const uint8_t* batch, const BatchHeader* header) except -1
    cdef void lose_track(self) noexcept
    cdef int check_segment(
        self, OpenedLog log, dict described, int64_t upper_bound, list problems) except -1
    cdef object _wrong_in_memory(self, AbortIndexView view, list expected)
    cdef object _wrong_in_file(self, AbortIndexView view, int64_t upper_bound, list expected)
