# The transactions of an opened log.
from eoslog.bindings.log_producers cimport LogProducers


cdef class LogTransactions(LogProducers):
    pass
