# Timestamp -> offset, sparse: Kafka's .timeindex.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.status cimport Fault, Status

cdef enum:
    TIME_INDEX_ENTRY_BYTES = 12

cdef struct TimeIndexEntry:
    int64_t timestamp                # Greatest one seen so far in the segment.
    int32_t relative_offset          # Last offset of the earliest batch that has it.

cdef struct TimeIndex:
    TimeIndexEntry* entries          # Anonymous mapping of capacity_count entries; never moves.
    int32_t capacity_count
    int32_t count
    int32_t stored_count             # Entries that the file holds already.

cdef Status time_index_open(TimeIndex* index, int64_t capacity_bytes) noexcept nogil
cdef void time_index_close(TimeIndex* index) noexcept nogil
cdef bint time_index_full(const TimeIndex* index) noexcept nogil
cdef void time_index_append(
    TimeIndex* index, int64_t timestamp, int32_t relative_offset) noexcept nogil
cdef int32_t time_index_lookup(const TimeIndex* index, int64_t timestamp) noexcept nogil
cdef void time_index_truncate(TimeIndex* index, int64_t relative_offset) noexcept nogil
cdef Status time_index_load(TimeIndex* index, int fd, int64_t file_bytes, Fault* out) noexcept nogil
cdef Status time_index_store(TimeIndex* index, int fd, Fault* out) noexcept nogil
