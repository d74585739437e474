# Search of a log by time.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef Status offset_for_timestamp(
    PartitionLog* log, int64_t timestamp, int64_t upper_bound, int64_t* offset_out,
    int64_t* timestamp_out, Fault* out) noexcept nogil
