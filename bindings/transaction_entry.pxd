# The coordinator's entry of one transactional id.
from libc.stdint cimport int32_t, int64_t

from eoslog.bindings.known_transaction cimport KnownTransaction
from eoslog.native.status cimport Fault, Status
from eoslog.native.transaction_log cimport TransactionBatch
from eoslog.native.transaction_state cimport TransactionState


cdef class TransactionEntry(KnownTransaction):
    cdef readonly object completion_error

    cdef int _check_can_add(
        self, int64_t producer_id, int64_t producer_epoch, bint even_if_prepared=*) except -1
    cdef int _check_next(self, int64_t next_producer_id) except -1
    cdef int _write(self, const TransactionState* next) except -1
    cdef int _register(
        self, list parts, int64_t producer_id, int64_t producer_epoch) except -1
    cdef int _append(self, list filled, bint commit, int64_t next_producer_id) except -1
    cdef int _collect(self, list filled, TransactionBatch* batches) except -1
    cdef int _append_all(
        self, TransactionBatch* batches, int32_t batch_count, bint commit,
        int64_t next_producer_id) except -1
    cdef int _end(self, bint commit, bint fencing, int64_t next_producer_id) except -1
    cdef int _ended(self, Status status, Fault* fault) except -1
    cdef tuple _answer(self)
