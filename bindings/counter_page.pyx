# cython: language_level=3
"""What a process counts of a store's events: a mapped file that its death leaves as it is.

A count is one atomic addition: any thread raises it, with or without the GIL, and any process reads
it at any time.
"""

import errno
import os

from libc.stdint cimport int64_t, uint8_t

from eoslog.native.counters cimport (
    COUNTER_ABORTED_ADMIN, COUNTER_ABORTED_DEAD_PROCESS, COUNTER_ABORTED_NEW_PRODUCER,
    COUNTER_ABORTED_TIMEOUT, COUNTER_CUT_BYTES, COUNTER_DUPLICATE_BATCHES,
    COUNTER_DUPLICATE_RECORDS, COUNTER_JOURNAL_BYTES, COUNTER_JOURNAL_FAILURES,
    COUNTER_JOURNAL_RECORDS, COUNTER_JOURNAL_REQUESTS, COUNTER_JOURNAL_RETIREMENTS,
    COUNTER_JOURNAL_WRITES, COUNTER_LOG_SYNCS, COUNTER_MEMBERS_EXPIRED, COUNTER_PAGE_BYTES,
    COUNTER_PAGE_MAGIC, COUNTER_PARTITIONS_RECOVERED, COUNTER_PRODUCERS_EVICTED,
    COUNTER_PRODUCERS_FENCED, COUNTER_REBALANCES, COUNTER_REFUSED_EPOCHS,
    COUNTER_REFUSED_SEQUENCES, COUNTER_RETENTION_BYTES, COUNTER_RETENTION_RECORDS,
    COUNTER_RETENTION_SEGMENTS, COUNTER_TRANSACTIONS_ABORTED, COUNTER_TRANSACTIONS_COMMITTED,
    DURATION_BOUNDS, DURATION_BOUNDS_NS, counter_add, counter_load,
)
from eoslog.native.mapped_io cimport (
    close_fd, eos_file_bytes, eos_map, eos_map_anonymous, eos_open, eos_reserve, eos_unmap_file,
    munmap,
)

# Upper bounds of how long something took; one more count is that of all that took longer.
DURATION_BOUNDS_S = tuple(
    DURATION_BOUNDS_NS[index] / 1e9 for index in range(DURATION_BOUNDS))


cdef dict _numbers():
    cdef dict numbers = {
        "duplicate_batches": COUNTER_DUPLICATE_BATCHES,
        "duplicate_records": COUNTER_DUPLICATE_RECORDS,
        "refused_epochs": COUNTER_REFUSED_EPOCHS,
        "refused_sequences": COUNTER_REFUSED_SEQUENCES,
        "producers_fenced": COUNTER_PRODUCERS_FENCED,
        "transactions_committed": COUNTER_TRANSACTIONS_COMMITTED,
        "transactions_aborted": COUNTER_TRANSACTIONS_ABORTED,
        "aborted_timeout": COUNTER_ABORTED_TIMEOUT,
        "aborted_dead_process": COUNTER_ABORTED_DEAD_PROCESS,
        "aborted_new_producer": COUNTER_ABORTED_NEW_PRODUCER,
        "aborted_admin": COUNTER_ABORTED_ADMIN,
        "producers_evicted": COUNTER_PRODUCERS_EVICTED,
        "rebalances": COUNTER_REBALANCES,
        "members_expired": COUNTER_MEMBERS_EXPIRED,
        "partitions_recovered": COUNTER_PARTITIONS_RECOVERED,
        "cut_bytes": COUNTER_CUT_BYTES,
        "retention_segments": COUNTER_RETENTION_SEGMENTS,
        "retention_bytes": COUNTER_RETENTION_BYTES,
        "retention_records": COUNTER_RETENTION_RECORDS,
        "journal_records": COUNTER_JOURNAL_RECORDS,
        "journal_bytes": COUNTER_JOURNAL_BYTES,
        "journal_requests": COUNTER_JOURNAL_REQUESTS,
        "journal_retirements": COUNTER_JOURNAL_RETIREMENTS,
        "journal_failures": COUNTER_JOURNAL_FAILURES,
    }
    for name, first in {
            "log_syncs": COUNTER_LOG_SYNCS, "journal_writes": COUNTER_JOURNAL_WRITES}.items():
        for index in range(DURATION_BOUNDS):
            numbers[f"{name}_{DURATION_BOUNDS_NS[index] // 1000}us"] = first + index
        numbers[f"{name}_slower"] = first + DURATION_BOUNDS
        numbers[f"{name}_ns"] = first + DURATION_BOUNDS + 1
    return numbers


# The number of each counter, by its name.
NUMBERS = _numbers()


cdef class CounterPage:
    """The counts of this process. The file must not be there; it has room on the disk before
    anything is counted. Without a path they are in memory alone.

    Raises OSError.
    """

    def __cinit__(self, str path=None):
        cdef uint8_t* mapped = NULL
        cdef int error = 0
        cdef int fd = -1
        if path is None:
            mapped = eos_map_anonymous(COUNTER_PAGE_BYTES)
            error = errno.ENOMEM if mapped == NULL else 0
        else:
            error = eos_open(os.fsencode(path), True, False, &fd)
            if error == 0:
                error = eos_reserve(fd, 0, COUNTER_PAGE_BYTES, COUNTER_PAGE_BYTES)
            if error == 0:
                error = eos_map(fd, COUNTER_PAGE_BYTES, True, &mapped)
            if fd >= 0:
                close_fd(fd)
        if error != 0:
            raise OSError(error, os.strerror(error), path)
        self._page = <NativePage*>mapped
        self._page.magic = COUNTER_PAGE_MAGIC
        self.counts = self._page.counts

    def __dealloc__(self):
        if self._page != NULL:
            munmap(self._page, COUNTER_PAGE_BYTES)

    def __reduce__(self):
        raise TypeError("a counter page cannot be pickled or copied")

    def add(self, str name not None, Py_ssize_t change=1):
        """Raise a counter, by its name in NUMBERS."""
        if change < 0:
            raise ValueError(f"a counter does not fall by {-change}")
        counter_add(self.counts, <int>NUMBERS[name], <size_t>change)

    def close(self):
        """Let go of the file; what is counted from now on is nowhere. May be called twice."""
        eos_unmap_file(self._page, COUNTER_PAGE_BYTES)

    def read(self):
        """Return the counts that are not 0, by their names."""
        return counts_of(self._page)


cdef dict counts_of(const NativePage* page):
    cdef dict found = {}
    cdef int number
    for name, number in NUMBERS.items():
        count = counter_load(page.counts, number)
        if count:
            found[name] = count
    return found


def read_counters(str path not None):
    """Return the counts of a process, alive or dead, that are not 0, by their names; none of a file
    that was never made whole.

    Raises OSError: FileNotFoundError where there is no file.
    """
    cdef const NativePage* page
    cdef uint8_t* mapped = NULL
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int fd = -1
    cdef int error = eos_open(os.fsencode(path), False, True, &fd)
    if error == 0:
        error = eos_file_bytes(fd, &file_bytes, &modified_ms)
    if error == 0 and file_bytes >= COUNTER_PAGE_BYTES:
        error = eos_map(fd, COUNTER_PAGE_BYTES, False, &mapped)
    if fd >= 0:
        close_fd(fd)
    if error != 0:
        raise OSError(error, os.strerror(error), path)
    if mapped == NULL:
        return {}
    page = <const NativePage*>mapped
    try:
        return counts_of(page) if page.magic == COUNTER_PAGE_MAGIC else {}
    finally:
        munmap(mapped, COUNTER_PAGE_BYTES)
