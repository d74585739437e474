# Segments that leave a log, and when their files are freed.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.segment cimport Segment
from eoslog.native.status cimport Fault, Status

cdef void segment_retire(PartitionLog* log, Segment* segment) noexcept nogil
cdef int32_t deleted_segments_free(PartitionLog* log) noexcept nogil
cdef void log_drop_segments(PartitionLog* log, int64_t first_base_offset) noexcept nogil
cdef int64_t log_raise_start(PartitionLog* log, int64_t upto_offset) noexcept nogil
cdef Status log_delete_segments(
    PartitionLog* log, int64_t upto_offset, int32_t* deleted, Fault* out) noexcept nogil
cdef void derived_files_remove(PartitionLog* log, int64_t base_offset) noexcept nogil
