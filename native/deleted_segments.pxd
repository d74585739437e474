# Deletion of a log's oldest segments.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef int64_t log_first_to_stay(PartitionLog* log, int64_t upto_offset) noexcept nogil
cdef Status log_delete_segments(
    PartitionLog* log, int64_t upto_offset, int32_t* deleted, Fault* out) noexcept nogil
cdef void derived_files_remove(PartitionLog* log, int64_t base_offset) noexcept nogil
