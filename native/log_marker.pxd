# The end of a transaction at one partition, as a control batch in its log.
from libc.stdint cimport int16_t, int32_t, int64_t

from eoslog.native.log_append cimport AppendOutcome
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef enum:
    # Instead of an epoch: this store's own coordinator. Locks keep a second one out, so it needs no
    # fencing. It writes the highest epoch that the partition has seen of the producer, 0 if none.
    LOCAL_COORDINATOR = -1

cdef struct Marker:
    int64_t producer_id
    int64_t timestamp_ms
    int32_t coordinator_epoch        # Or LOCAL_COORDINATOR.
    int16_t producer_epoch
    bint commit
    bint newer_epoch                 # Each transaction's end raises the epoch (transaction v2).

cdef Status log_append_marker(
    PartitionLog* log, const Marker* marker, AppendOutcome* outcome, Fault* out) noexcept nogil
