# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Offset -> position of a batch, sparse: Kafka's .index, held in memory and written behind.

Invariants: relative offsets and positions strictly increase; entries [0, stored_count) stand in the
file in Kafka's form, without a zero tail.
"""
from libc.stdint cimport uint8_t

from eoslog.native.atomics cimport load_acquire_32, store_release_32
from eoslog.native.byte_order cimport load_be32, store_be32
from eoslog.native.mapped_io cimport (
    eos_map_anonymous, eos_pread_all, eos_pwrite_all, eos_truncate, munmap,
)
from eoslog.native.status cimport (
    STATUS_CORRUPT, STATUS_INDEX_FULL, STATUS_IO, STATUS_NO_MEMORY, STATUS_OK, fault,
)

cdef enum:
    CHUNK_ENTRIES = 512


cdef Status offset_index_open(OffsetIndex* index, int64_t capacity_bytes) noexcept nogil:
    """Make an empty index with room for capacity_bytes / 8 entries (at least one)."""
    index.capacity_count = <int32_t>(capacity_bytes // OFFSET_INDEX_ENTRY_BYTES)
    if index.capacity_count < 1:
        index.capacity_count = 1
    index.count = 0
    index.stored_count = 0
    index.entries = <OffsetIndexEntry*>eos_map_anonymous(
        <size_t>index.capacity_count * sizeof(OffsetIndexEntry))
    return STATUS_OK if index.entries != NULL else STATUS_NO_MEMORY


cdef void offset_index_close(OffsetIndex* index) noexcept nogil:
    if index.entries != NULL:
        munmap(index.entries, <size_t>index.capacity_count * sizeof(OffsetIndexEntry))
    index.entries = NULL
    index.count = 0


cdef Status offset_index_append(
    OffsetIndex* index, int32_t relative_offset, int32_t position_bytes, Fault* out
) noexcept nogil:
    """Add an entry; its offset must be above the last one's."""
    if index.count == index.capacity_count:
        return fault(out, STATUS_INDEX_FULL, "the offset index is full",
                     index.capacity_count, index.count)
    if index.count > 0 and relative_offset <= index.entries[index.count - 1].relative_offset:
        return fault(out, STATUS_CORRUPT, "an index entry's offset does not rise",
                     index.entries[index.count - 1].relative_offset, relative_offset)
    index.entries[index.count].relative_offset = relative_offset
    index.entries[index.count].position_bytes = position_bytes
    store_release_32(&index.count, index.count + 1)
    return STATUS_OK


cdef int32_t offset_index_lookup(const OffsetIndex* index, int64_t relative_offset) noexcept nogil:
    """Greatest entry with an offset <= the target, or -1."""
    cdef int32_t low = 0
    cdef int32_t high = load_acquire_32(&index.count)
    cdef int32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if index.entries[middle].relative_offset <= relative_offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef int32_t offset_index_at_position(
    const OffsetIndex* index, int64_t position_bytes
) noexcept nogil:
    """Smallest entry with a position >= the target, or -1."""
    cdef int32_t low = 0
    cdef int32_t count = load_acquire_32(&index.count)
    cdef int32_t high = count
    cdef int32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if index.entries[middle].position_bytes < position_bytes:
            low = middle + 1
        else:
            high = middle
    return low if low < count else -1


cdef void offset_index_truncate(OffsetIndex* index, int64_t relative_offset) noexcept nogil:
    """Drop every entry with an offset >= the given one."""
    store_release_32(&index.count, offset_index_lookup(index, relative_offset - 1) + 1)
    if index.stored_count > index.count:
        index.stored_count = index.count


cdef Status offset_index_load(
    OffsetIndex* index, int fd, int64_t file_bytes, int64_t segment_bytes, Fault* out
) noexcept nogil:
    """Read the file's entries; STATUS_CORRUPT (and an empty index) when they make no sense.

    A zero tail, left by a writer that preallocates, ends the entries.
    """
    cdef uint8_t chunk[CHUNK_ENTRIES * OFFSET_INDEX_ENTRY_BYTES]
    cdef int64_t position = 0
    cdef int32_t slot, chunk_count, relative_offset, position_bytes
    cdef int error
    if file_bytes % OFFSET_INDEX_ENTRY_BYTES != 0:
        return fault(out, STATUS_CORRUPT, "an index does not end with a whole entry",
                     OFFSET_INDEX_ENTRY_BYTES, file_bytes)
    while file_bytes - position >= OFFSET_INDEX_ENTRY_BYTES:
        chunk_count = <int32_t>((file_bytes - position) // OFFSET_INDEX_ENTRY_BYTES)
        if chunk_count > CHUNK_ENTRIES:
            chunk_count = CHUNK_ENTRIES
        error = eos_pread_all(
            fd, chunk, <size_t>chunk_count * OFFSET_INDEX_ENTRY_BYTES, position)
        if error != 0:
            out.os_errno = error
            index.count = 0
            return STATUS_IO
        for slot in range(chunk_count):
            relative_offset = load_be32(&chunk[slot * OFFSET_INDEX_ENTRY_BYTES])
            position_bytes = load_be32(&chunk[slot * OFFSET_INDEX_ENTRY_BYTES + 4])
            if relative_offset == 0 and position_bytes == 0:
                index.stored_count = index.count
                return STATUS_OK
            if position_bytes <= 0 or position_bytes >= segment_bytes or (
                    index.count > 0
                    and position_bytes <= index.entries[index.count - 1].position_bytes) or (
                    offset_index_append(index, relative_offset, position_bytes, out) != STATUS_OK):
                index.count = 0
                return fault(out, STATUS_CORRUPT, "index entries do not rise or leave the segment",
                             segment_bytes, position_bytes)
        position += chunk_count * OFFSET_INDEX_ENTRY_BYTES
    index.stored_count = index.count
    return STATUS_OK


cdef Status offset_index_store(OffsetIndex* index, int fd, Fault* out) noexcept nogil:
    """Write the entries that the file does not hold yet, and cut the file to the entries."""
    cdef uint8_t chunk[CHUNK_ENTRIES * OFFSET_INDEX_ENTRY_BYTES]
    cdef int32_t chunk_count, slot
    cdef int error = 0
    while index.stored_count < index.count and error == 0:
        chunk_count = index.count - index.stored_count
        if chunk_count > CHUNK_ENTRIES:
            chunk_count = CHUNK_ENTRIES
        for slot in range(chunk_count):
            store_be32(&chunk[slot * OFFSET_INDEX_ENTRY_BYTES],
                       index.entries[index.stored_count + slot].relative_offset)
            store_be32(&chunk[slot * OFFSET_INDEX_ENTRY_BYTES + 4],
                       index.entries[index.stored_count + slot].position_bytes)
        error = eos_pwrite_all(
            fd, chunk, <size_t>chunk_count * OFFSET_INDEX_ENTRY_BYTES,
            <int64_t>index.stored_count * OFFSET_INDEX_ENTRY_BYTES)
        if error == 0:
            index.stored_count += chunk_count
    if error == 0:
        error = eos_truncate(fd, <int64_t>index.count * OFFSET_INDEX_ENTRY_BYTES)
    if error != 0:
        out.os_errno = error
        return fault(out, STATUS_IO, "the offset index could not be written", 0, error)
    return STATUS_OK
