# The hot path of a transaction.
from libc.stdint cimport int64_t

from eoslog.bindings.accumulator cimport Accumulator, PartitionBuffer, TransactionReport
from eoslog.bindings.entry_lock cimport EntryLock

cdef enum:
    STATES_MAX = 32


cdef class ClientTransaction:
    cdef readonly Accumulator accumulator
    cdef readonly int64_t producer_id        # -1 before the first initialization.
    cdef readonly int producer_epoch         # Of the next, or the open, transaction.
    cdef int _state
    cdef int _idle, _open, _committing       # The numbers of three of the states.
    cdef unsigned int[STATES_MAX] _sources   # By target: a bit for each state it follows on.
    cdef object _entry
    cdef EntryLock _entry_lock               # None: its lock is another one.
    cdef object _plain_lock
    cdef object _entry_owner                 # Its `fenced_because` names what took the entry over.
    cdef readonly object state_partition     # The coordinator's own; changes with each transaction.
    cdef dict _others                        # Partitions written to other than by send().
    cdef public int64_t timeout_ms           # How old the open transaction may become.
    cdef public bint logs                    # Each begin and commit, by log_begin and log_commit.
    cdef public object end_refusal           # Why the user may not end it now; None as a rule.
    cdef bint _registered                    # The coordinator may know of this transaction.
    cdef Py_ssize_t _registered_count        # Of the touched buffers, whose partitions it knows.
    cdef TransactionReport _report           # Of the open one; None without functions to call.

    cpdef int check_end(self) except -1
    cdef bint may_begin(self) noexcept
    cdef int begin(self) except -1
    cdef int _commit(self) except -1
    cdef tuple _commit_entry(self, list pairs)
    cdef int _log_commit(self) except -1
    cdef int _wait_to_begin(self) except -1
    cdef int _take_entry(self) except -1
    cdef int _give_entry(self) except -1
    cdef int64_t _age(self) noexcept
    cdef bint _is_late(self) noexcept
    cdef bint _is_behind(self) noexcept
    cdef int _step(self, int target) except -1
    cdef TransactionReport report(self)
    cdef int _leave(self, int64_t producer_id, int producer_epoch) except -1
    cdef tuple _pair(self, PartitionBuffer buffer)
