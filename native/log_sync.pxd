# Syncs of a log, and whose turn it is to make one.
from libc.stdint cimport int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef Status log_flush(PartitionLog* log, bint with_indexes, Fault* out) noexcept nogil
cdef Status log_store_indexes(PartitionLog* log, Fault* out) noexcept nogil
cdef Status log_sync_up_to(
    PartitionLog* log, int64_t offset, bint in_pieces, Fault* out) noexcept nogil
cdef Status log_sync_durable(PartitionLog* log, int64_t offset, Fault* out) noexcept nogil
cdef void log_begin_sync(PartitionLog* log, int64_t bytes_min) noexcept nogil
cdef Status log_sync_segments(
    PartitionLog* log, int64_t below_offset, bint with_indexes, Fault* out) noexcept nogil
cdef int log_sync_directory(PartitionLog* log) noexcept nogil
