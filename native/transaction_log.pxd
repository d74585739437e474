# A transactional id at work: its moves as records of the state log, its batches and its markers.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from eoslog.native.log_append cimport AppendOutcome
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status
from eoslog.native.transaction_state cimport TransactionPart, TransactionState

cdef enum:
    FAILED_STATE_LOG = -1            # Instead of a part's index.

cdef struct Transaction:
    TransactionState state           # As the newest record has it.
    PartitionLog* state_log          # Borrowed.
    const uint8_t* key               # Of the records; borrowed.
    int64_t key_bytes
    TransactionPart* parts           # By topic and partition; owned.
    int32_t part_count
    int32_t part_capacity
    uint8_t* value                   # The newest record's value; owned.
    int64_t value_bytes
    int64_t value_capacity
    uint8_t* spare                   # Where the next value is encoded; owned.
    int64_t spare_capacity
    int64_t record_offset            # Of the newest record, -1 if there is none.
    int64_t prepare_offset           # Of the decision while its markers are not all written, or -1.
    int64_t durable_prepare          # A decision that is on the disk with its data, or -1.
    int32_t registration             # How many records added parts to this transaction.
    int32_t failed_part              # Where the last call failed: a part, or FAILED_STATE_LOG.
    bint durable
    bint taken_over                  # The transaction was begun under an earlier coordinator.
    bint changed                     # A record was written since the owner asked last.

# One gathered batch on its way to a part: a header's room, then records.
cdef struct TransactionBatch:
    uint8_t* buffer
    int64_t used_bytes
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t record_count
    int32_t part                     # Index; found by the caller once all parts are there.
    bint appended
    int64_t base_offset              # Once it is appended.

# Whether a record that is in the state log lists the part. All parts of a record are listed at
# once, for those too who look on without a lock.
cdef inline bint part_listed(const Transaction* txn, const TransactionPart* part) noexcept nogil:
    return part.registration <= txn.registration

cdef void transaction_init(Transaction* txn) noexcept nogil
cdef void transaction_free(Transaction* txn) noexcept nogil
cdef int32_t transaction_find_part(
    const Transaction* txn, const uint8_t* topic, int32_t topic_bytes, int32_t partition
) noexcept nogil
cdef int32_t transaction_add_part(
    Transaction* txn, const uint8_t* topic, int32_t topic_bytes, int32_t partition,
    PartitionLog* log,
) noexcept nogil
cdef void transaction_remove_part(Transaction* txn, int32_t index) noexcept nogil
cdef void transaction_withdraw(Transaction* txn) noexcept nogil
cdef Status transaction_write(
    Transaction* txn, const TransactionState* next, Fault* out) noexcept nogil
cdef Status transaction_write_tombstone(Transaction* txn, Fault* out) noexcept nogil
cdef Status transaction_register(Transaction* txn, Fault* out) noexcept nogil
cdef Status transaction_append(
    Transaction* txn, TransactionBatch* batches, int32_t batch_count, Fault* out) noexcept nogil
cdef Status transaction_sync_parts(Transaction* txn, Fault* out) noexcept nogil
cdef Status transaction_sync_state(Transaction* txn, Fault* out) noexcept nogil
cdef Status transaction_revoke(Transaction* txn, Fault* out) noexcept nogil
cdef Status transaction_decide(
    Transaction* txn, bint commit, bint fencing, int64_t next_producer_id, Fault* out
) noexcept nogil
cdef Status transaction_complete(Transaction* txn, Fault* out) noexcept nogil
