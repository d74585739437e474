# The transactions of an opened log.
from libc.stdint cimport int64_t

from eoslog.bindings.log_producers cimport LogProducers
from eoslog.native.log_read cimport ReadRange


cdef class LogTransactions(LogProducers):
    cdef bint _open_range(
        self, int64_t first, int64_t upper_bound, ReadRange* batches) except -1
