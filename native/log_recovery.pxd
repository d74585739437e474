# Opening a partition's log, repairing its tail, cutting it back.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.partition_log cimport PartitionLog, SegmentFile
from eoslog.native.status cimport Fault, Status

cdef Status log_open(
    PartitionLog* log, const SegmentFile* files, int32_t file_count, bint clean,
    int64_t recovery_point, int64_t checkpoint, int64_t log_start_offset, Fault* out,
) noexcept nogil
cdef Status log_truncate(PartitionLog* log, int64_t offset, Fault* out) noexcept nogil
