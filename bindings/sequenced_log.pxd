# One producer at one partition: what an append of a few records needs to know.
from libc.stdint cimport int16_t, int32_t, int64_t

from eoslog.bindings.partition_log cimport AppendResult, PartitionLog


cdef class SequencedLog:
    cdef readonly object partition
    cdef public int64_t position
    cdef public bint in_doubt
    cdef readonly int64_t _producer_id
    cdef readonly int16_t _producer_epoch
    cdef readonly bint _idempotent
    cdef public int32_t _next_sequence
    cdef public bint _appended
    # Whether an append needs nothing but the log itself.
    cdef readonly bint is_plain

    cdef PartitionLog log_for(self, object values)
    cdef AppendResult append_values(self, PartitionLog log, object values)
    cdef int took(self, AppendResult result) except -1
