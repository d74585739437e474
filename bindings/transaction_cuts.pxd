# Offsets of several logs, moved down until they cut no transaction in two.
from eoslog.native.transaction_cuts cimport TransactionCuts as NativeCuts


cdef class TransactionCuts:
    cdef NativeCuts _cuts

    cdef int _check_number(self, Py_ssize_t number) except -1
