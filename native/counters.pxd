# What a process counts of a store's events, in a mapped file that outlives it.
from libc.stdint cimport int64_t, uint64_t

cdef extern from "counters.h" nogil:
    enum:
        COUNTER_PAGE_BYTES
        DURATION_BOUNDS
        DURATION_COUNTERS
        COUNTER_DUPLICATE_BATCHES
        COUNTER_DUPLICATE_RECORDS
        COUNTER_REFUSED_EPOCHS
        COUNTER_REFUSED_SEQUENCES
        COUNTER_PRODUCERS_FENCED
        COUNTER_TRANSACTIONS_COMMITTED
        COUNTER_TRANSACTIONS_ABORTED
        COUNTER_ABORTED_TIMEOUT
        COUNTER_ABORTED_DEAD_PROCESS
        COUNTER_ABORTED_NEW_PRODUCER
        COUNTER_ABORTED_ADMIN
        COUNTER_PRODUCERS_EVICTED
        COUNTER_REBALANCES
        COUNTER_MEMBERS_EXPIRED
        COUNTER_PARTITIONS_RECOVERED
        COUNTER_CUT_BYTES
        COUNTER_RETENTION_SEGMENTS
        COUNTER_RETENTION_BYTES
        COUNTER_RETENTION_RECORDS
        COUNTER_JOURNAL_RECORDS
        COUNTER_JOURNAL_BYTES
        COUNTER_JOURNAL_REQUESTS
        COUNTER_JOURNAL_RETIREMENTS
        COUNTER_JOURNAL_FAILURES
        COUNTER_LOG_SYNCS
        COUNTER_JOURNAL_WRITES
        COUNTERS
    const uint64_t COUNTER_PAGE_MAGIC
    const int64_t DURATION_BOUNDS_NS[]
    ctypedef struct CounterPage:
        uint64_t magic
        uint64_t counts[256]
    void counter_add(uint64_t* counts, int counter, uint64_t change) noexcept
    void counter_add_duration(uint64_t* counts, int first, int64_t duration_ns) noexcept
    uint64_t counter_load(const uint64_t* counts, int counter) noexcept
