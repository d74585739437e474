# One transactional id as its coordinator knows it, and the moves from state to state.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

# Numbers as they are stored. The last two are never stored.
cdef enum TransactionStatus:
    TRANSACTION_EMPTY = 0
    TRANSACTION_ONGOING = 1
    TRANSACTION_PREPARE_COMMIT = 2
    TRANSACTION_PREPARE_ABORT = 3
    TRANSACTION_COMPLETE_COMMIT = 4
    TRANSACTION_COMPLETE_ABORT = 5
    TRANSACTION_DEAD = 6
    TRANSACTION_PREPARE_EPOCH_FENCE = 7
    TRANSACTION_STATUS_COUNT = 8
    TRANSACTION_STORED_COUNT = 6

cdef enum:
    NO_PRODUCER_ID = -1
    EPOCH_EXHAUSTED = 32766          # The last epoch that a client is given.
    EPOCH_MAX = 32767                # Fences the holder of the last one.
    EPOCH_BUMPING_VERSION = 2        # Transaction version from which every end bumps the epoch.
    OWNER_BYTES = 16                 # Of a process's slot; all zero: none.

cdef struct TransactionState:
    int64_t producer_id
    int64_t previous_producer_id     # The one before the last rotation, -1 if none.
    int64_t next_producer_id         # While a rotation waits for Complete*, else -1.
    int64_t last_update_ms
    int64_t start_ms                 # Of the transaction, -1 when Empty.
    int32_t timeout_ms
    int32_t partition_count
    int32_t status
    int16_t producer_epoch
    int16_t next_producer_epoch
    int16_t last_producer_epoch      # The one before the last bump, -1 if no client may ask for it.
    int16_t client_version
    bint prepared                    # Decided from outside; only an end is taken.
    bint named                       # A PrepareCommit says where the log of each part has to end.
    uint8_t owner[OWNER_BYTES]       # The process whose producer has the id.

# One partition of a transaction: as the record lists it, and as it is written to.
cdef struct TransactionPart:
    const uint8_t* topic             # UTF-8, borrowed.
    PartitionLog* log                # Borrowed; NULL until it is attached.
    int64_t end_offset               # After what this transaction wrote there, 0 if nothing.
    uint8_t topic_id[16]             # Of the log with that end, where a decision names it.
    int32_t topic_bytes
    int32_t partition
    int32_t next_sequence
    int32_t registration             # Number of the record that listed it first.
    bint marked                      # Its marker is in its log.

# What an end of a transaction comes to.
cdef enum EndVerdict:
    END_DECIDE                       # The Ongoing transaction: write Prepare*.
    END_EMPTY_ABORT                  # Nothing is open: an abort only moves the epoch on.
    END_REPEATED                     # The answer of the call before it was lost: give it again.
    END_CONCURRENT
    END_INVALID_STATE
    END_FENCED
    END_OTHER_PRODUCER

cdef void state_clear(TransactionState* state) noexcept nogil
cdef bint transition_possible(int32_t target, int32_t source) noexcept nogil
cdef Status transition_check(
    const TransactionState* now, const TransactionState* next, Fault* out) noexcept nogil
cdef EndVerdict end_verdict(
    const TransactionState* now, int64_t producer_id, int16_t producer_epoch, bint commit
) noexcept nogil
cdef void state_to_ongoing(
    TransactionState* next, const TransactionState* now, int32_t partition_count, int64_t now_ms
) noexcept nogil
cdef void state_to_prepare(
    TransactionState* next, const TransactionState* now, bint commit, int64_t next_producer_id,
    int64_t now_ms,
) noexcept nogil
cdef void state_to_complete(
    TransactionState* next, const TransactionState* now, int64_t now_ms) noexcept nogil

cdef inline bint is_prepare(int32_t status) noexcept nogil:
    return status == TRANSACTION_PREPARE_COMMIT or status == TRANSACTION_PREPARE_ABORT

# Whether a client has the numbers that come with the end of the decided transaction, which uses up
# the epochs of its producer id.
cdef inline bint is_rotated_client(
    const TransactionState* state, int64_t producer_id, int64_t producer_epoch
) noexcept nogil:
    return (is_prepare(state.status) and state.next_producer_id != NO_PRODUCER_ID
            and producer_id == state.next_producer_id and producer_epoch == 0)

cdef inline bint state_has_owner(const TransactionState* state) noexcept nogil:
    cdef uint64_t halves[2]
    memcpy(halves, state.owner, OWNER_BYTES)
    return (halves[0] | halves[1]) != 0

# Epoch of the batches of the open or undecided transaction. A decision has the epoch above it, but
# for one of an older protocol, and for one that found no epoch above.
cdef inline int16_t state_data_epoch(const TransactionState* state) noexcept nogil:
    if (is_prepare(state.status) and state.client_version >= EPOCH_BUMPING_VERSION
            and state.producer_epoch > state.last_producer_epoch):
        return <int16_t>(state.producer_epoch - 1)
    return state.producer_epoch
