# What this process counts of a store's events, in a file of its own.
from libc.stdint cimport uint64_t

from eoslog.native.counters cimport CounterPage as NativePage


cdef class CounterPage:
    cdef NativePage* _page
    cdef uint64_t* counts                    # As long as this object lives.
