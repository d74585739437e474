# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Offset -> position of a batch, sparse: Kafka's .index.

Invariants: relative offsets and positions strictly increase.
"""
from eoslog.native.index_file cimport index_file_load, index_file_lookup, index_file_truncate


cdef bint offset_index_load(
    IndexFile* index, const char* path, int64_t capacity_bytes, int64_t segment_bytes
) noexcept nogil:
    """Make an index of a file's entries, of none if they do not rise or leave the segment; False if
    there is no memory.
    """
    cdef int32_t read_count = index_file_load(
        index, path, OFFSET_INDEX_ENTRY_BYTES, capacity_bytes)
    cdef int32_t entry_count = 0
    cdef int32_t last_position = 0
    while entry_count < read_count:
        if offset_index_position(index, entry_count) == 0 and (
                offset_index_offset(index, entry_count) == 0):
            break                    # A zero tail.
        if not last_position < offset_index_position(index, entry_count) < segment_bytes or (
                entry_count > 0 and offset_index_offset(index, entry_count)
                <= offset_index_offset(index, entry_count - 1)):
            entry_count = 0
            break
        last_position = offset_index_position(index, entry_count)
        entry_count += 1
    index.count = index.stored_count = entry_count
    return read_count >= 0


cdef void offset_index_truncate(IndexFile* index, int64_t relative_offset) noexcept nogil:
    """Drop every entry with an offset >= the given one."""
    index_file_truncate(index, index_file_lookup(index, relative_offset - 1) + 1)
