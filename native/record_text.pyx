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

# One record: sizes are -1 for null. Its headers are JSON; none are 0 bytes.
cdef struct RecordText:
    int64_t timestamp_ms
    const uint8_t* key
    int64_t key_bytes
    const uint8_t* value
    int64_t value_bytes
    const uint8_t* headers
    int64_t headers_bytes


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


cdef uint8_t* json_rest_store(uint8_t* out, const RecordText* record) noexcept nogil:
    """Write what follows the offset in a line of JSON."""
    out = store(out, b', "timestamp_ms": ', 18)
    out = integer_store(out, record.timestamp_ms)
    out = store(out, b', "key": ', 9)
    out = json_bytes_store(out, record.key, record.key_bytes)
    out = store(out, b', "value": ', 11)
    out = json_bytes_store(out, record.value, record.value_bytes)
    out = store(out, b', "headers": ', 13)
    if record.headers_bytes:
        out = store(out, record.headers, record.headers_bytes)
    else:
        out = store(out, b"[]", 2)
    return store(out, b"}\n", 2)


cdef uint8_t* csv_text_store(uint8_t* out, const uint8_t* data, int64_t bytes) noexcept nogil:
    """Write a comma and a cell: nothing for null (-1 bytes), else its text in quotes.

    NULL if it is no UTF-8, or `out` is NULL. There is room for 3 bytes, and 2 for each of its
    bytes.
    """
    cdef const uint8_t* end
    cdef const uint8_t* quote
    if out == NULL:
        return NULL
    out[0] = c','
    out += 1
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


cdef uint8_t* csv_rest_store(uint8_t* out, const RecordText* record) noexcept nogil:
    """Write what follows the offset in a row of CSV; NULL if it is not UTF-8."""
    out[0] = c','
    out = integer_store(out + 1, record.timestamp_ms)
    out = csv_text_store(out, record.key, record.key_bytes)
    out = csv_text_store(out, record.value, record.value_bytes)
    out = csv_text_store(
        out, record.headers, record.headers_bytes if record.headers_bytes else -1)
    if out == NULL:
        return NULL
    out[0] = c'\n'
    return out + 1


cdef TextFault records_store(
    TextBuffer* buffer, const RecordCells* cells, int64_t count, bint as_csv, int64_t* stored,
) noexcept nogil:
    """Append records as rows of CSV or lines of JSON; `stored` is how many, before one that CSV
    cannot express.
    """
    cdef RecordText record
    cdef int64_t index, bytes_max
    cdef uint8_t* out
    record.key = record.value = record.headers = NULL
    record.headers_bytes = stored[0] = 0
    for index in range(count):
        record.timestamp_ms = cells.timestamps[index]
        record.key_bytes = cell_get(
            cells.key_data, cells.key_ends, cells.key_validity, index, &record.key)
        record.value_bytes = cell_get(
            cells.value_data, cells.value_ends, cells.value_validity, index, &record.value)
        if cells.header_ends != NULL:
            record.headers = cells.header_data + cells.header_ends[index]
            record.headers_bytes = cells.header_ends[index + 1] - cells.header_ends[index]
        if as_csv:
            bytes_max = 2 * (record.key_bytes + record.value_bytes + record.headers_bytes + 2)
        else:
            bytes_max = (json_bytes_bound(record.key_bytes) + json_bytes_bound(record.value_bytes)
                         + record.headers_bytes)
        if buffer_reserve(buffer, cells.prefix_bytes + NAMES_BYTES_MAX + bytes_max) != TEXT_OK:
            return TEXT_NO_MEMORY
        out = store(buffer.data + buffer.used_bytes, cells.prefix, cells.prefix_bytes)
        out = integer_store(out, cells.offsets[index])
        out = csv_rest_store(out, &record) if as_csv else json_rest_store(out, &record)
        if out == NULL:
            return TEXT_NOT_UTF8
        buffer.used_bytes = out - buffer.data
        stored[0] += 1
    return TEXT_OK
