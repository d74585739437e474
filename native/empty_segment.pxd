# The active segment while it is empty: another file may take its name.
from libc.stdint cimport int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef Status empty_segment_renew(PartitionLog* log, Fault* out) noexcept nogil
cdef Status empty_segment_enlarge(
    PartitionLog* log, int64_t capacity_bytes, Fault* out) noexcept nogil
cdef Status empty_segment_reload(PartitionLog* log, Fault* out) noexcept nogil
cdef Status empty_segment_make_anew(PartitionLog* log, Fault* out) noexcept nogil
cdef Status empty_segment_for_close(PartitionLog* log, Fault* out) noexcept nogil
