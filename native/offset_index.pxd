# Offset -> position of a batch, sparse: Kafka's .index.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.index_file cimport IndexFile, index_file_key, index_file_value

cdef enum:
    OFFSET_INDEX_ENTRY_BYTES = 8

# Of the last record of the batch, to the segment's base: the key.
cdef inline int32_t offset_index_offset(const IndexFile* index, int32_t entry) noexcept nogil:
    return <int32_t>index_file_key(index, entry)

# Of the batch's first byte in the segment.
cdef inline int32_t offset_index_position(const IndexFile* index, int32_t entry) noexcept nogil:
    return index_file_value(index, entry)

cdef bint offset_index_load(
    IndexFile* index, const char* path, int64_t capacity_bytes, int64_t segment_bytes
) noexcept nogil
cdef void offset_index_truncate(IndexFile* index, int64_t relative_offset) noexcept nogil
