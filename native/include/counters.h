/* What a process counts of a store's events, in a mapped file of its own that outlives it: a SIGKILL loses nothing that was counted.
   Numbers are never given to another event, and new ones come last: processes of other versions read the file too. */
#ifndef EOSLOG_COUNTERS_H
#define EOSLOG_COUNTERS_H

#include <stddef.h>
#include <stdint.h>

#define COUNTER_PAGE_BYTES 4096
#define COUNTER_PAGE_MAGIC UINT64_C(0x31304e5543534f45) /* "EOSCUN01", little-endian. */
#define COUNTERS_MAX 256
/* Of how long something took: counts of the bounds below and of all beyond them, then the sum in nanoseconds. */
#define DURATION_BOUNDS 15
#define DURATION_COUNTERS (DURATION_BOUNDS + 2)

enum {
    COUNTER_DUPLICATE_BATCHES = 0,
    COUNTER_DUPLICATE_RECORDS,
    COUNTER_REFUSED_EPOCHS,          /* Calls of producers whose epoch was older than the newest. */
    COUNTER_REFUSED_SEQUENCES,
    COUNTER_PRODUCERS_FENCED,
    COUNTER_TRANSACTIONS_COMMITTED,
    COUNTER_TRANSACTIONS_ABORTED,    /* For whatever reason; the four that follow are among them. */
    COUNTER_ABORTED_TIMEOUT,
    COUNTER_ABORTED_DEAD_PROCESS,
    COUNTER_ABORTED_NEW_PRODUCER,
    COUNTER_ABORTED_ADMIN,
    COUNTER_PRODUCERS_EVICTED,
    COUNTER_REBALANCES,
    COUNTER_MEMBERS_EXPIRED,
    COUNTER_PARTITIONS_RECOVERED,
    COUNTER_CUT_BYTES,
    COUNTER_RETENTION_SEGMENTS,
    COUNTER_RETENTION_BYTES,
    COUNTER_RETENTION_RECORDS,
    COUNTER_JOURNAL_RECORDS,
    COUNTER_JOURNAL_BYTES,
    COUNTER_JOURNAL_REQUESTS,
    COUNTER_JOURNAL_RETIREMENTS,
    COUNTER_JOURNAL_FAILURES,
    COUNTER_LOG_SYNCS = 32,          /* DURATION_COUNTERS of them. */
    COUNTER_JOURNAL_WRITES = COUNTER_LOG_SYNCS + DURATION_COUNTERS,
    COUNTERS = COUNTER_JOURNAL_WRITES + DURATION_COUNTERS
};

typedef struct CounterPage {
    uint64_t magic;                  /* Stored first; without it nothing was counted. */
    uint64_t reserved[7];
    uint64_t counts[COUNTERS_MAX];
} CounterPage;

_Static_assert(sizeof(CounterPage) <= COUNTER_PAGE_BYTES, "counter page: fits");
_Static_assert(COUNTERS <= COUNTERS_MAX, "counter page: has room for all counters");

static const int64_t DURATION_BOUNDS_NS[DURATION_BOUNDS] = {
    50000,    100000,   250000,    500000,    1000000,   2500000,    5000000,    10000000,
    25000000, 50000000, 100000000, 250000000, 500000000, 1000000000, 2500000000,
};

/* `counts` is NULL for a log that is in no store. */
static inline void counter_add(uint64_t *counts, int counter, uint64_t change) {
    if (counts != NULL)
        __atomic_fetch_add(&counts[counter], change, __ATOMIC_RELAXED);
}

static inline void counter_add_duration(uint64_t *counts, int first, int64_t duration_ns) {
    int bucket = 0;
    while (bucket < DURATION_BOUNDS && duration_ns > DURATION_BOUNDS_NS[bucket])
        bucket++;
    counter_add(counts, first + bucket, 1);
    counter_add(counts, first + DURATION_BOUNDS + 1, (uint64_t)duration_ns);
}

static inline uint64_t counter_load(const uint64_t *counts, int counter) {
    return __atomic_load_n(&counts[counter], __ATOMIC_RELAXED);
}

#endif
