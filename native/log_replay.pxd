# Batches that stand in a log, taken into what it knows of producers and transactions.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from eoslog.native.abort_index cimport AbortIndex
from eoslog.native.ongoing_transactions cimport OngoingTransactions
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.record_batch cimport BatchHeader
from eoslog.native.sequence_window cimport ProducerEntry
from eoslog.native.status cimport Fault, Status

# A marker's key is a version and a type, its value a version and the coordinator's epoch.
cdef enum:
    MARKER_KEY_BYTES = 4
    MARKER_VALUE_BYTES = 6
    MARKER_ABORT = 0
    MARKER_COMMIT = 1

cdef Status log_replay(PartitionLog* log, int64_t from_offset, Fault* out) noexcept nogil
cdef Status log_replay_batch(
    PartitionLog* log, const uint8_t* batch, const BatchHeader* header) noexcept nogil
cdef bint marker_load(
    const uint8_t* batch, const BatchHeader* header, int16_t* marker_type,
    int32_t* coordinator_epoch, int64_t* timestamp) noexcept nogil
cdef Status log_end_transaction(
    OngoingTransactions* ongoing, AbortIndex* aborts, const ProducerEntry* entry, bint commit,
    int64_t marker_offset) noexcept nogil
cdef Status log_restore_ongoing(PartitionLog* log) noexcept nogil
