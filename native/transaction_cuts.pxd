# Offsets of several logs, moved down until they cut no transaction in two.
from libc.stdint cimport int32_t, int64_t, uint32_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

# Batches of one transaction in a log, with none of another's in between.
cdef struct TransactionRun:
    int64_t last_offset
    uint32_t transaction             # Its index.

cdef struct CutLog:
    int64_t cut
    TransactionRun* runs             # By offset; those from `left` on lie at or beyond the cut.
    int64_t count
    int64_t capacity
    int64_t left

cdef struct MetTransaction:
    int64_t producer_id
    int32_t producer_epoch           # Of its batches.
    bint left_out
    int64_t place                    # Its newest one; -1: none.

# Where a transaction begins in one log.
cdef struct TransactionPlace:
    int64_t first_offset
    int64_t next                     # The transaction's place in another log; -1: no more.
    int32_t log

cdef struct TransactionCuts:
    CutLog* logs
    int32_t log_count
    MetTransaction* met
    uint32_t met_count
    uint32_t met_capacity
    uint32_t* slots                  # Index in `met` + 1; 0 = empty. Power of two.
    uint32_t slot_count
    TransactionPlace* places
    int64_t place_count
    int64_t place_capacity

cdef Status cuts_init(TransactionCuts* cuts, int32_t log_count) noexcept nogil
cdef void cuts_free(TransactionCuts* cuts) noexcept nogil
cdef Status cuts_take_in(
    TransactionCuts* cuts, int32_t number, PartitionLog* log, int64_t* first, int64_t upper_bound,
    Fault* out) noexcept nogil
cdef bint cuts_met(
    const TransactionCuts* cuts, int64_t producer_id, int32_t producer_epoch) noexcept nogil
cdef void cuts_settle(TransactionCuts* cuts) noexcept nogil
