# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Timestamp -> offset, sparse: Kafka's .timeindex.

Invariants: timestamps strictly increase, offsets never decrease.
"""
from eoslog.native.index_file cimport index_file_load, index_file_truncate


cdef bint time_index_load(
    IndexFile* index, const char* path, int64_t capacity_bytes
) noexcept nogil:
    """Make an index of a file's entries, of none if they do not rise; False if there is no
    memory.
    """
    cdef int32_t read_count = index_file_load(index, path, TIME_INDEX_ENTRY_BYTES, capacity_bytes)
    cdef int32_t entry_count = 0
    cdef int32_t last_offset = 0
    while entry_count < read_count:
        if entry_count > 0 and time_index_timestamp(index, entry_count) == 0 and (
                time_index_offset(index, entry_count) == 0):
            break                    # A zero tail.
        if time_index_offset(index, entry_count) < last_offset or (
                entry_count > 0 and time_index_timestamp(index, entry_count)
                <= time_index_timestamp(index, entry_count - 1)):
            entry_count = 0
            break
        last_offset = time_index_offset(index, entry_count)
        entry_count += 1
    index.count = index.stored_count = entry_count
    return read_count >= 0


cdef void time_index_truncate(IndexFile* index, int64_t relative_offset) noexcept nogil:
    """Drop every entry with an offset >= the given one."""
    cdef int32_t count = index.count
    while count > 0 and time_index_offset(index, count - 1) >= relative_offset:
        count -= 1
    index_file_truncate(index, count)
