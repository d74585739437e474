# Syncs of a log, and whose turn it is to make one.
from libc.stdint cimport int64_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.segment cimport Segment
from eoslog.native.status cimport Fault, Status
from eoslog.native.sync_queue cimport SyncQueue

# A sync that the kernel makes beside us. Its thread has the log's turn until it ends the sync.
cdef struct BegunSync:
    PartitionLog* log                # NULL: there is none.
    Segment* segment                 # Held.
    SyncQueue* queue
    int64_t used_bytes
    int64_t end_offset
    int64_t begun_ns                 # On the monotonic clock.

cdef Status log_flush(PartitionLog* log, bint with_indexes, Fault* out) noexcept nogil
cdef Status log_store_indexes(PartitionLog* log, Fault* out) noexcept nogil
cdef Status log_sync_up_to(
    PartitionLog* log, int64_t offset, bint in_pieces, Fault* out) noexcept nogil
cdef Status log_sync_durable(PartitionLog* log, int64_t offset, Fault* out) noexcept nogil
cdef bint log_begin_sync(
    PartitionLog* log, int64_t bytes_min, SyncQueue* queue, BegunSync* begun) noexcept nogil
cdef Status log_end_sync(const BegunSync* begun, Fault* out) noexcept nogil
cdef int log_sync_segments(
    PartitionLog* log, int64_t below_offset, bint with_indexes) noexcept nogil
cdef Status log_synced(
    PartitionLog* log, int64_t end_offset, int error, Fault* out) noexcept nogil
cdef int log_sync_directory(PartitionLog* log) noexcept nogil
