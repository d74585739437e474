# Ending the active segment and beginning the next.
from libc.stdint cimport int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.segment cimport Segment
from eoslog.native.status cimport Fault, Status

cdef Status log_roll(PartitionLog* log, Fault* out) noexcept nogil
cdef bint is_for_want(Status status, const Fault* out) noexcept nogil
cdef Status log_end_segment(PartitionLog* log, Segment* ended, Fault* out) noexcept nogil
cdef void log_note_producers(PartitionLog* log, int64_t base_offset) noexcept nogil
