# The commit journal of a process, for Python.
from eoslog.native.commit_journal cimport CommitJournal as NativeJournal


cdef class CommitJournal:
    cdef NativeJournal native
    cdef readonly object logs                # By the address of each native log, weakly.
    cdef object _file
    cdef object _counters

    cdef int _check_half(self, int half) except -1
