# The aborted transactions of one partition, and a filter made of those that a read meets.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from eoslog.native.record_batch cimport BatchHeader
from eoslog.native.status cimport Status

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass

cdef enum:
    ABORT_ENTRY_BYTES = 34

cdef struct AbortedTransaction:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset              # Of the marker.
    int64_t last_stable_offset       # Once the marker was in.

# Of the whole log: entries by last_offset. The files, one a segment, are written later.
cdef struct AbortIndex:
    AbortedTransaction* entries
    int64_t count
    int64_t capacity
    int64_t stored_count             # So many of them are in files.
    pthread_mutex_t lock             # Readers copy under it; it is held for no input or output.

# The aborted transactions that overlap a range of batches, made ready for one walk over them.
cdef struct AbortedFilter:
    AbortedTransaction* found        # By first_offset; NULL if there are none.
    int64_t count
    int64_t next                     # Those before it have been met.
    int64_t* slots                   # Producer id, last_offset; slot_mask + 1 pairs.
    uint32_t slot_mask

cdef void abort_index_init(AbortIndex* index) noexcept nogil
cdef void abort_index_free(AbortIndex* index) noexcept nogil
cdef Status abort_index_reserve(AbortIndex* index) noexcept nogil
cdef Status abort_index_append(
    AbortIndex* index, const AbortedTransaction* aborted) noexcept nogil
cdef void abort_index_truncate(AbortIndex* index, int64_t offset) noexcept nogil
cdef void abort_index_drop_below(AbortIndex* index, int64_t offset) noexcept nogil
cdef int64_t abort_index_lower(AbortIndex* index, int64_t last_offset) noexcept nogil
cdef Status abort_index_collect(
    AbortIndex* index, int64_t offset, int64_t upper_bound, AbortedTransaction** found,
    int64_t* found_count) noexcept nogil
cdef void abort_entry_store(uint8_t* at, const AbortedTransaction* aborted) noexcept nogil
cdef bint abort_entry_load(const uint8_t* at, AbortedTransaction* aborted) noexcept nogil

cdef void filter_init(AbortedFilter* filter) noexcept nogil
cdef Status filter_open(
    AbortedFilter* filter, AbortIndex* index, int64_t offset, int64_t upper_bound) noexcept nogil
cdef void filter_rewind(AbortedFilter* filter) noexcept nogil
cdef bint filter_takes_out(AbortedFilter* filter, const BatchHeader* header) noexcept nogil
cdef void filter_close(AbortedFilter* filter) noexcept nogil
