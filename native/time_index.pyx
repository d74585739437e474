# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Timestamp -> offset, sparse: Kafka's .timeindex, held in memory and written behind.

Invariants: timestamps strictly increase, offsets never decrease; the last slot is kept for the
entry that sealing the segment adds.
"""
from libc.stdint cimport uint8_t

from eoslog.native.atomics cimport load_acquire_32, store_release_32
from eoslog.native.byte_order cimport load_be32, load_be64, store_be32, store_be64
from eoslog.native.mapped_io cimport (
    eos_map_anonymous, eos_pread_all, eos_pwrite_all, eos_truncate, munmap,
)
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_IO, STATUS_NO_MEMORY, STATUS_OK, fault

cdef enum:
    CHUNK_ENTRIES = 512


cdef Status time_index_open(TimeIndex* index, int64_t capacity_bytes) noexcept nogil:
    """Make an empty index with room for capacity_bytes / 12 entries (at least two)."""
    index.capacity_count = <int32_t>(capacity_bytes // TIME_INDEX_ENTRY_BYTES)
    if index.capacity_count < 2:
        index.capacity_count = 2
    index.count = 0
    index.stored_count = 0
    index.entries = <TimeIndexEntry*>eos_map_anonymous(
        <size_t>index.capacity_count * sizeof(TimeIndexEntry))
    return STATUS_OK if index.entries != NULL else STATUS_NO_MEMORY


cdef void time_index_close(TimeIndex* index) noexcept nogil:
    if index.entries != NULL:
        munmap(index.entries, <size_t>index.capacity_count * sizeof(TimeIndexEntry))
    index.entries = NULL
    index.count = 0


cdef bint time_index_full(const TimeIndex* index) noexcept nogil:
    return index.count >= index.capacity_count - 1


cdef void time_index_append(
    TimeIndex* index, int64_t timestamp, int32_t relative_offset
) noexcept nogil:
    """Add an entry if its timestamp is above the last one's and a slot is left."""
    if index.count == index.capacity_count:
        return
    if index.count > 0 and timestamp <= index.entries[index.count - 1].timestamp:
        return
    index.entries[index.count].timestamp = timestamp
    index.entries[index.count].relative_offset = relative_offset
    store_release_32(&index.count, index.count + 1)


cdef int32_t time_index_lookup(const TimeIndex* index, int64_t timestamp) noexcept nogil:
    """Greatest entry with a timestamp <= the target, or -1."""
    cdef int32_t low = 0
    cdef int32_t high = load_acquire_32(&index.count)
    cdef int32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if index.entries[middle].timestamp <= timestamp:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef void time_index_truncate(TimeIndex* index, int64_t relative_offset) noexcept nogil:
    """Drop every entry with an offset >= the given one."""
    cdef int32_t count = index.count
    while count > 0 and index.entries[count - 1].relative_offset >= relative_offset:
        count -= 1
    store_release_32(&index.count, count)
    if index.stored_count > count:
        index.stored_count = count


cdef Status time_index_load(
    TimeIndex* index, int fd, int64_t file_bytes, Fault* out
) noexcept nogil:
    """Read the file's entries; STATUS_CORRUPT (and an empty index) when they are not whole or do
    not rise.

    A zero tail, left by a writer that preallocates, ends the entries.
    """
    cdef uint8_t chunk[CHUNK_ENTRIES * TIME_INDEX_ENTRY_BYTES]
    cdef int64_t position = 0
    cdef int64_t timestamp
    cdef int32_t slot, chunk_count, relative_offset
    cdef int error
    if file_bytes % TIME_INDEX_ENTRY_BYTES != 0:
        return fault(out, STATUS_CORRUPT, "a time index does not end with a whole entry",
                     TIME_INDEX_ENTRY_BYTES, file_bytes)
    while file_bytes - position >= TIME_INDEX_ENTRY_BYTES:
        chunk_count = <int32_t>((file_bytes - position) // TIME_INDEX_ENTRY_BYTES)
        if chunk_count > CHUNK_ENTRIES:
            chunk_count = CHUNK_ENTRIES
        error = eos_pread_all(fd, chunk, <size_t>chunk_count * TIME_INDEX_ENTRY_BYTES, position)
        if error != 0:
            out.os_errno = error
            index.count = 0
            return STATUS_IO
        for slot in range(chunk_count):
            timestamp = load_be64(&chunk[slot * TIME_INDEX_ENTRY_BYTES])
            relative_offset = load_be32(&chunk[slot * TIME_INDEX_ENTRY_BYTES + 8])
            if timestamp == 0 and relative_offset == 0 and index.count > 0:
                index.stored_count = index.count
                return STATUS_OK
            if index.count == index.capacity_count or relative_offset < 0 or (
                    index.count > 0
                    and (timestamp <= index.entries[index.count - 1].timestamp
                         or relative_offset < index.entries[index.count - 1].relative_offset)):
                index.count = 0
                return fault(out, STATUS_CORRUPT, "time index entries do not rise",
                             0, relative_offset)
            time_index_append(index, timestamp, relative_offset)
        position += chunk_count * TIME_INDEX_ENTRY_BYTES
    index.stored_count = index.count
    return STATUS_OK


cdef Status time_index_store(TimeIndex* index, int fd, Fault* out) noexcept nogil:
    """Write the entries that the file does not hold yet, and cut the file to the entries."""
    cdef uint8_t chunk[CHUNK_ENTRIES * TIME_INDEX_ENTRY_BYTES]
    cdef int32_t chunk_count, slot
    cdef int error = 0
    while index.stored_count < index.count and error == 0:
        chunk_count = index.count - index.stored_count
        if chunk_count > CHUNK_ENTRIES:
            chunk_count = CHUNK_ENTRIES
        for slot in range(chunk_count):
            store_be64(&chunk[slot * TIME_INDEX_ENTRY_BYTES],
                       index.entries[index.stored_count + slot].timestamp)
            store_be32(&chunk[slot * TIME_INDEX_ENTRY_BYTES + 8],
                       index.entries[index.stored_count + slot].relative_offset)
        error = eos_pwrite_all(
            fd, chunk, <size_t>chunk_count * TIME_INDEX_ENTRY_BYTES,
            <int64_t>index.stored_count * TIME_INDEX_ENTRY_BYTES)
        if error == 0:
            index.stored_count += chunk_count
    if error == 0:
        error = eos_truncate(fd, <int64_t>index.count * TIME_INDEX_ENTRY_BYTES)
    if error != 0:
        out.os_errno = error
        return fault(out, STATUS_IO, "the time index could not be written", 0, error)
    return STATUS_OK
