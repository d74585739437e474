# The records of transactional ids in __transaction_state as Python sees them.
from libc.stdint cimport int32_t, uint8_t

from eoslog.native.transaction_state cimport TransactionPart, TransactionState

cdef TransactionPart* decode_value(
    const uint8_t[::1] value, str path, TransactionState* state, int32_t* version) except NULL
cdef str topic_of(const TransactionPart* part, str path)
cdef bytes owner_of(const TransactionState* state)
cdef int set_owner(TransactionState* state, bytes owner) except -1
