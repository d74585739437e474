# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""A sparse index of one segment, held in memory in the file's form and written later.

Invariants: keys strictly increase; entries [0, stored_count) stand in the file, which the next
index_file_store ends after the last entry.
"""
from libc.stdint cimport INT32_MAX
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from eoslog.native.atomics cimport load_acquire_32, store_release_32
from eoslog.native.byte_order cimport store_be32, store_be64
from eoslog.native.mapped_io cimport (
    close_fd, eos_file_bytes, eos_map_anonymous, eos_open, eos_pread_all, eos_pwrite_all,
    eos_sync_file, eos_truncate, munmap,
)

cdef enum:
    PIECE_ENTRIES = 512


cdef bint index_file_open(
    IndexFile* index, int32_t entry_bytes, int64_t capacity_bytes
) noexcept nogil:
    """Make an empty index with room for capacity_bytes (at least two entries); False if there is no
    memory.
    """
    index.entry_bytes = entry_bytes
    index.capacity_count = <int32_t>(capacity_bytes // entry_bytes)
    if index.capacity_count < 2:
        index.capacity_count = 2
    index.count = 0
    index.stored_count = 0
    index.packed = False
    index.entries = eos_map_anonymous(<size_t>index.capacity_count * <size_t>entry_bytes)
    return index.entries != NULL


cdef void index_file_close(IndexFile* index) noexcept nogil:
    give_back(index)
    index.entries = NULL
    index.count = 0


cdef void give_back(IndexFile* index) noexcept nogil:
    if index.packed:
        free(index.entries)
    elif index.entries != NULL:
        munmap(index.entries, <size_t>index.capacity_count * <size_t>index.entry_bytes)
    index.packed = False


cdef bint index_file_pack(IndexFile* index) noexcept nogil:
    """Keep the entries without a mapping, until index_file_unpack; False if there is no memory.
    They are not read until then.
    """
    cdef size_t used_bytes = <size_t>index.count * <size_t>index.entry_bytes
    cdef uint8_t* entries = <uint8_t*>malloc(used_bytes + 1)
    if entries == NULL:
        return False
    memcpy(entries, index.entries, used_bytes)
    give_back(index)
    index.entries = entries
    index.packed = True
    return True


cdef bint index_file_unpack(IndexFile* index) noexcept nogil:
    """Have room for more entries again; False if there is no memory."""
    cdef uint8_t* entries
    if not index.packed:
        return True
    entries = eos_map_anonymous(<size_t>index.capacity_count * <size_t>index.entry_bytes)
    if entries == NULL:
        return False
    memcpy(entries, index.entries, <size_t>index.count * <size_t>index.entry_bytes)
    give_back(index)
    index.entries = entries
    return True


cdef void index_file_append(IndexFile* index, int64_t key, int32_t value) noexcept nogil:
    """Add an entry if its key is above the last one's and there is room."""
    cdef uint8_t* at = index.entries + <int64_t>index.count * index.entry_bytes
    if index.count == index.capacity_count:
        return
    if index.count > 0 and key <= index_file_key(index, index.count - 1):
        return
    if index.entry_bytes - INDEX_VALUE_BYTES == sizeof(int64_t):
        store_be64(at, key)
    else:
        store_be32(at, <int32_t>key)
    store_be32(at + index.entry_bytes - INDEX_VALUE_BYTES, value)
    store_release_32(&index.count, index.count + 1)


cdef int32_t index_file_lookup(const IndexFile* index, int64_t key) noexcept nogil:
    """Greatest entry with a key <= the given one, or -1."""
    cdef int32_t low = 0
    cdef int32_t high = load_acquire_32(&index.count)
    cdef int32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if index_file_key(index, middle) <= key:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef void index_file_truncate(IndexFile* index, int32_t count) noexcept nogil:
    """Drop every entry but the first `count`."""
    store_release_32(&index.count, count)
    if index.stored_count > count:
        index.stored_count = count


cdef int32_t index_file_load(
    IndexFile* index, const char* path, int32_t entry_bytes, int64_t capacity_bytes
) noexcept nogil:
    """Make an index with room for capacity_bytes and all of its file, and read the file.

    Returns how many entries were read, -1 if there is no memory: 0 of a file that is missing, too
    long or ends inside an entry. They are past `count`, which is 0: the caller looks at them
    before it raises that. A zero tail, left by a writer that preallocates, is read only in part.
    """
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int64_t position = 0
    cdef int64_t piece_bytes
    cdef int32_t entry_count = 0
    cdef int fd = -1
    if eos_open(path, False, True, &fd) == 0:
        eos_file_bytes(fd, &file_bytes, &modified_ms)
    if file_bytes > INT32_MAX:
        file_bytes = 0
    if not index_file_open(
            index, entry_bytes, file_bytes if file_bytes > capacity_bytes else capacity_bytes):
        entry_count = -1
    elif file_bytes % entry_bytes == 0:
        while position < file_bytes:
            piece_bytes = PIECE_ENTRIES * <int64_t>entry_bytes
            if piece_bytes > file_bytes - position:
                piece_bytes = file_bytes - position
            if eos_pread_all(fd, index.entries + position, <size_t>piece_bytes, position) != 0:
                entry_count = 0
                break
            position += piece_bytes
            entry_count = <int32_t>(position // entry_bytes)
            if index_file_key(index, entry_count - 1) == 0 and (
                    index_file_value(index, entry_count - 1) == 0):
                break
    if fd >= 0:
        close_fd(fd)
    return entry_count


cdef int index_file_store(IndexFile* index, const char* path, bint sync) noexcept nogil:
    """Write the entries that the file does not hold yet, and cut the file to the entries; with
    `sync`, to the disk. 0 or an errno.
    """
    cdef int64_t stored_bytes = <int64_t>index.stored_count * index.entry_bytes
    cdef int32_t count = load_acquire_32(&index.count)
    cdef int64_t used_bytes = <int64_t>count * index.entry_bytes
    cdef int fd = -1
    cdef int error = eos_open(path, True, False, &fd)
    if error != 0:
        return error
    error = eos_pwrite_all(
        fd, index.entries + stored_bytes, <size_t>(used_bytes - stored_bytes), stored_bytes)
    if error == 0:
        index.stored_count = count
        error = eos_truncate(fd, used_bytes)
    if error == 0 and sync:
        error = eos_sync_file(fd)
    close_fd(fd)
    return error
