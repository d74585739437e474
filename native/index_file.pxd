# A sparse index of one segment, in memory and in its file: what the offset and time index share.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.byte_order cimport load_be32, load_be64

cdef enum:
    INDEX_VALUE_BYTES = 4

cdef struct IndexFile:
    uint8_t* entries                 # Mapping of capacity_count entries; moves when it is packed.
    int32_t entry_bytes              # A key of 32 or 64 bits and a value of 32, big-endian.
    int32_t capacity_count
    int32_t count
    int32_t stored_count             # Entries that the file holds already.
    bint packed                      # On the heap, without room for more.

cdef inline int64_t index_file_key(const IndexFile* index, int32_t entry) noexcept nogil:
    cdef const uint8_t* at = index.entries + <int64_t>entry * index.entry_bytes
    if index.entry_bytes - INDEX_VALUE_BYTES == sizeof(int64_t):
        return load_be64(at)
    return load_be32(at)

cdef inline int32_t index_file_value(const IndexFile* index, int32_t entry) noexcept nogil:
    return load_be32(
        index.entries + (<int64_t>entry + 1) * index.entry_bytes - INDEX_VALUE_BYTES)

cdef bint index_file_open(
    IndexFile* index, int32_t entry_bytes, int64_t capacity_bytes) noexcept nogil
cdef void index_file_close(IndexFile* index) noexcept nogil
cdef bint index_file_pack(IndexFile* index) noexcept nogil
cdef bint index_file_unpack(IndexFile* index) noexcept nogil
cdef void index_file_append(IndexFile* index, int64_t key, int32_t value) noexcept nogil
cdef int32_t index_file_lookup(const IndexFile* index, int64_t key) noexcept nogil
cdef void index_file_truncate(IndexFile* index, int32_t count) noexcept nogil
cdef int32_t index_file_load(
    IndexFile* index, const char* path, int32_t entry_bytes, int64_t capacity_bytes) noexcept nogil
cdef int index_file_store(IndexFile* index, const char* path, bint sync) noexcept nogil
