# What the coordinator knows of one transactional id.
from libc.stdint cimport int32_t

from eoslog.bindings.entry_lock cimport EntryLock
from eoslog.bindings.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status
from eoslog.native.transaction_log cimport Transaction


cdef class TransactionPart:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly PartitionLog log
    cdef bytes _topic_bytes


cdef int32_t find_part(const Transaction* txn, TransactionPart part) noexcept
cdef void fault_init(Fault* fault) noexcept


cdef class KnownTransaction:
    cdef Transaction _txn
    cdef readonly str transactional_id
    cdef readonly EntryLock lock
    cdef PartitionLog _state_log
    cdef bytes _key
    cdef list _held                          # Whatever the native parts borrow from.

    cdef tuple _read(self)
    cdef int _hold(self, TransactionPart part) except -1
    cdef int _before_repeat(self, Status status, Fault* fault, bint appending=*) except -1
    cdef PartitionLog _failed_log(self)
    cdef object _failure(self, Status status, Fault* fault, bint appending)
