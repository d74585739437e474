# The value of a transactional id's record in __transaction_state, versions 0 and 1.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.status cimport Fault, Status
from eoslog.native.transaction_state cimport TransactionPart, TransactionState

cdef enum:
    TRANSACTION_VALUE_CLASSIC = 0
    TRANSACTION_VALUE_FLEXIBLE = 1   # Compact lengths and tagged fields; the one we write.
    TRANSACTION_VALUE_FIXED_BYTES = 128  # All but the partitions, at most.

cdef int64_t transaction_value_bound(
    const TransactionPart* parts, int32_t part_count) noexcept nogil
cdef int64_t transaction_value_encode(
    uint8_t* at, const TransactionState* state, const TransactionPart* parts, int32_t version
) noexcept nogil
cdef Status transaction_value_decode(
    const uint8_t* value, int64_t value_bytes, TransactionState* state, int32_t* version,
    TransactionPart* parts, int32_t part_count_max, Fault* out,
) noexcept nogil
