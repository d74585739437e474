# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Records as text, a line for each record; in CSV a text may have line ends in it.

Invariant: a line of JSON is what Python's json writes of the same record.
"""
from libc.string cimport memchr, memcpy

from eoslog.native.json_text cimport (
    TEXT_NO_MEMORY, TEXT_NOT_UTF8, TEXT_OK, integer_store, json_bytes_bound,
    json_bytes_store,
)
from eoslog.native.text_records cimport buffer_reserve
from eoslog.native.utf8 cimport utf8_end

cdef enum:
    NAMES_BYTES_MAX = 128            # Of the fields of a line of JSON, after the prefix.


cdef int64_t cell_get(
    const uint8_t* data, const int32_t* ends, const uint8_t* validity, int64_t index,
    const uint8_t** cell,
) noexcept nogil:
    """Size of a cell, -1 if it is null."""
    if validity != NULL and not (validity[index >> 3] >> (index & 7)) & 1:
        return -1
    cell[0] = data + ends[index]
    return ends[index + 1] - ends[index]


cdef uint8_t* store(uint8_t* out, const void* data, int64_t bytes) noexcept nogil:
    memcpy(out, data, <size_t>bytes)
    return out + bytes


cdef TextFault json_records_store(
    TextBuffer* buffer, const RecordCells* cells, int64_t first, int64_t upper_bound,
    int64_t* stored,
) noexcept nogil:
    """Append records as lines of JSON; `stored` is how many."""
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef int64_t key_bytes, value_bytes, index
    cdef int64_t headers_bytes = 0
    cdef int64_t headers_at = 0
    cdef uint8_t* out
    stored[0] = 0
    for index in range(first, upper_bound):
        key_bytes = cell_get(cells.key_data, cells.key_ends, cells.key_validity, index, &key)
        value_bytes = cell_get(
            cells.value_data, cells.value_ends, cells.value_validity, index, &value)
        if cells.header_ends != NULL:
            headers_at = cells.header_ends[index]
            headers_bytes = cells.header_ends[index + 1] - headers_at
        if buffer_reserve(
                buffer, cells.prefix_bytes + NAMES_BYTES_MAX + json_bytes_bound(key_bytes)
                + json_bytes_bound(value_bytes) + headers_bytes) != TEXT_OK:
            return TEXT_NO_MEMORY
        out = store(buffer.data + buffer.used_bytes, cells.prefix, cells.prefix_bytes)
        out = integer_store(out, cells.offsets[index])
        out = store(out, b', "timestamp_ms": ', 18)
        out = integer_store(out, cells.timestamps[index])
        out = store(out, b', "key": ', 9)
        out = json_bytes_store(out, key, key_bytes)
        out = store(out, b', "value": ', 11)
        out = json_bytes_store(out, value, value_bytes)
        out = store(out, b', "headers": ', 13)
        if headers_bytes:
            out = store(out, cells.header_data + headers_at, headers_bytes)
        else:
            out = store(out, b"[]", 2)
        out = store(out, b"}\n", 2)
        buffer.used_bytes = out - buffer.data
        stored[0] += 1
    return TEXT_OK


cdef uint8_t* csv_text_store(uint8_t* out, const uint8_t* data, int64_t bytes) noexcept nogil:
    """Write a cell: nothing for null (-1 bytes), else its text in quotes; NULL if it is no UTF-8.

    There is room for 2 bytes, and 2 for each of its bytes.
    """
    cdef const uint8_t* end
    cdef const uint8_t* quote
    if bytes < 0:
        return out
    end = data + bytes
    if utf8_end(data, end) != end:
        return NULL
    out[0] = c'"'
    out += 1
    while True:
        quote = <const uint8_t*>memchr(data, c'"', <size_t>(end - data))
        if quote == NULL:
            break
        out = store(out, data, quote + 1 - data)
        out[0] = c'"'
        out += 1
        data = quote + 1
    out = store(out, data, end - data)
    out[0] = c'"'
    return out + 1


cdef TextFault csv_records_store(
    TextBuffer* buffer, const RecordCells* cells, int64_t first, int64_t upper_bound,
    int64_t* stored,
) noexcept nogil:
    """Append records as rows of CSV; `stored` is how many, before one that is not UTF-8."""
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef int64_t key_bytes, value_bytes, index
    cdef int64_t headers_bytes = -1
    cdef int64_t headers_at = 0
    cdef uint8_t* out
    stored[0] = 0
    for index in range(first, upper_bound):
        key_bytes = cell_get(cells.key_data, cells.key_ends, cells.key_validity, index, &key)
        value_bytes = cell_get(
            cells.value_data, cells.value_ends, cells.value_validity, index, &value)
        if cells.header_ends != NULL:
            headers_at = cells.header_ends[index]
            headers_bytes = cells.header_ends[index + 1] - headers_at
            if headers_bytes == 0:
                headers_bytes = -1
        if buffer_reserve(
                buffer, cells.prefix_bytes + NAMES_BYTES_MAX
                + 2 * (key_bytes + value_bytes + headers_bytes + 3)) != TEXT_OK:
            return TEXT_NO_MEMORY
        out = store(buffer.data + buffer.used_bytes, cells.prefix, cells.prefix_bytes)
        out = integer_store(out, cells.offsets[index])
        out[0] = c','
        out = integer_store(out + 1, cells.timestamps[index])
        out[0] = c','
        out = csv_text_store(out + 1, key, key_bytes)
        if out == NULL:
            return TEXT_NOT_UTF8
        out[0] = c','
        out = csv_text_store(out + 1, value, value_bytes)
        if out == NULL:
            return TEXT_NOT_UTF8
        out[0] = c','
        out = csv_text_store(out + 1, cells.header_data + headers_at, headers_bytes)
        out[0] = c'\n'
        buffer.used_bytes = out + 1 - buffer.data
        stored[0] += 1
    return TEXT_OK
