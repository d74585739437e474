# Timestamp -> offset, sparse: Kafka's .timeindex.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.index_file cimport IndexFile, index_file_key, index_file_value

cdef enum:
    TIME_INDEX_ENTRY_BYTES = 12

# Greatest one seen so far in the segment: the key.
cdef inline int64_t time_index_timestamp(const IndexFile* index, int32_t entry) noexcept nogil:
    return index_file_key(index, entry)

# Last offset of the earliest batch that has it, to the segment's base.
cdef inline int32_t time_index_offset(const IndexFile* index, int32_t entry) noexcept nogil:
    return index_file_value(index, entry)

cdef inline bint time_index_full(const IndexFile* index) noexcept nogil:
    # The last slot is kept for the entry that sealing the segment adds.
    return index.count >= index.capacity_count - 1

cdef bint time_index_load(
    IndexFile* index, const char* path, int64_t capacity_bytes) noexcept nogil
cdef void time_index_truncate(IndexFile* index, int64_t relative_offset) noexcept nogil
