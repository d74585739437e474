# Offset -> position of a batch, sparse: Kafka's .index.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.status cimport Fault, Status

cdef enum:
    OFFSET_INDEX_ENTRY_BYTES = 8

cdef struct OffsetIndexEntry:
    int32_t relative_offset          # Of the last record of the batch, to the segment's base.
    int32_t position_bytes           # Of the batch's first byte in the segment.

cdef struct OffsetIndex:
    OffsetIndexEntry* entries        # Anonymous mapping of capacity_count entries; never moves.
    int32_t capacity_count
    int32_t count
    int32_t stored_count             # Entries that the file holds already.

cdef Status offset_index_open(OffsetIndex* index, int64_t capacity_bytes) noexcept nogil
cdef void offset_index_close(OffsetIndex* index) noexcept nogil
cdef Status offset_index_append(
    OffsetIndex* index, int32_t relative_offset, int32_t position_bytes, Fault* out) noexcept nogil
cdef int32_t offset_index_lookup(const OffsetIndex* index, int64_t relative_offset) noexcept nogil
cdef int32_t offset_index_at_position(
    const OffsetIndex* index, int64_t position_bytes) noexcept nogil
cdef void offset_index_truncate(OffsetIndex* index, int64_t relative_offset) noexcept nogil
cdef Status offset_index_load(
    OffsetIndex* index, int fd, int64_t file_bytes, int64_t segment_bytes, Fault* out
) noexcept nogil
cdef Status offset_index_store(OffsetIndex* index, int fd, Fault* out) noexcept nogil
