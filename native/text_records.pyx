# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Records of a text, whatever its format: their columns, their headers, and lines as values.

Invariants: `next`, `line` and `crc` go over whole records together, so that a text can be taken up
again after any of them; a record that is refused leaves all three before it.
"""
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, memset

from eoslog.native.crc32c cimport crc32c
from eoslog.native.json_text cimport (
    TEXT_NO_MEMORY, TEXT_NOT_HEADERS, TEXT_OK, TEXT_TIME_OUTSIDE, TEXT_TOO_LARGE, json_bytes_load,
    json_skip, json_skip_space, json_string_load,
)
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES
from eoslog.native.varint cimport store_varint, varint_bytes

cdef enum:
    COLUMN_CELL_BYTES = 6 * 8
    HEADER_OVERHEAD_BYTES = 10       # Two lengths.


cdef TextFault buffer_reserve(TextBuffer* buffer, int64_t more_bytes) noexcept nogil:
    """Have room for so many bytes more."""
    cdef int64_t wanted = buffer.used_bytes + more_bytes
    cdef void* data
    if wanted <= buffer.room_bytes:
        return TEXT_OK
    if wanted < 2 * buffer.room_bytes:
        wanted = 2 * buffer.room_bytes
    data = realloc(buffer.data, <size_t>wanted)
    if data == NULL:
        return TEXT_NO_MEMORY
    buffer.data = <uint8_t*>data
    buffer.room_bytes = wanted
    return TEXT_OK


cdef void buffer_free(TextBuffer* buffer) noexcept nogil:
    free(buffer.data)
    memset(buffer, 0, sizeof(TextBuffer))


cdef TextFault records_open(TextRecords* records, int64_t capacity) noexcept nogil:
    """Make room for so many records; what `records` had before must be zeros."""
    cdef int64_t* cells = <int64_t*>malloc(<size_t>(capacity + 1) * COLUMN_CELL_BYTES)
    if cells == NULL:
        return TEXT_NO_MEMORY
    records.header_ends = cells      # It has one cell more.
    cells[0] = 0
    cells += capacity + 1
    records.value_bytes = cells
    records.key_bytes = cells + capacity
    records.timestamps = cells + 2 * capacity
    records.values = <const uint8_t**>(cells + 3 * capacity)
    records.keys = <const uint8_t**>(cells + 4 * capacity)
    records.capacity = capacity
    return TEXT_OK


cdef void records_close(TextRecords* records) noexcept nogil:
    free(records.header_ends)
    free(records.pairs)
    buffer_free(&records.headers)
    buffer_free(&records.objects)
    memset(records, 0, sizeof(TextRecords))


cdef TextFault encode_headers(TextRecords* records) noexcept nogil:
    """Append the header section of the record that is read: count, then name and value of each."""
    cdef TextBuffer* buffer = &records.headers
    cdef TextHeader* pair
    cdef uint8_t* out
    cdef int64_t bound = HEADER_OVERHEAD_BYTES
    cdef int64_t index
    for index in range(records.pair_count):
        pair = &records.pairs[index]
        bound += HEADER_OVERHEAD_BYTES + pair.name_bytes + max(pair.value_bytes, 0)
    if buffer_reserve(buffer, bound) != TEXT_OK:
        return TEXT_NO_MEMORY
    out = store_varint(buffer.data + buffer.used_bytes, <int32_t>records.pair_count)
    for index in range(records.pair_count):
        pair = &records.pairs[index]
        out = store_varint(out, <int32_t>pair.name_bytes)
        memcpy(out, pair.name, <size_t>pair.name_bytes)
        out = store_varint(out + pair.name_bytes, <int32_t>pair.value_bytes)
        if pair.value_bytes > 0:
            memcpy(out, pair.value, <size_t>pair.value_bytes)
            out += pair.value_bytes
    buffer.used_bytes = out - buffer.data
    return TEXT_OK


cdef int64_t lone_batch_bytes(
    int64_t key_bytes, int64_t value_bytes, int64_t headers_bytes
) noexcept nogil:
    """Size of the batch that a record is by itself."""
    cdef int64_t body_bytes = (
        3                            # Attributes, and no difference of timestamp and offset.
        + varint_bytes(<int32_t>key_bytes) + max(key_bytes, 0)
        + varint_bytes(<int32_t>value_bytes) + max(value_bytes, 0) + headers_bytes)
    return BATCH_HEADER_BYTES + varint_bytes(<int32_t>body_bytes) + body_bytes


cdef TextFault record_push(
    TextRecords* records, const uint8_t* value, int64_t value_bytes,
    const uint8_t* key, int64_t key_bytes, int64_t timestamp_ms,
) noexcept nogil:
    """Append a record with the headers that were read, if the topic takes it; there must be room
    for it.
    """
    cdef int64_t index = records.count
    cdef int64_t batch_bytes
    if encode_headers(records) != TEXT_OK:
        return TEXT_NO_MEMORY
    batch_bytes = lone_batch_bytes(
        key_bytes, value_bytes, records.headers.used_bytes - records.header_ends[index])
    if batch_bytes > records.batch_bytes_max:
        records.fault_number = batch_bytes
        return TEXT_TOO_LARGE
    if timestamp_ms != -1 and not (
            records.timestamp_ms_min <= timestamp_ms <= records.timestamp_ms_max):
        records.fault_number = timestamp_ms
        return TEXT_TIME_OUTSIDE
    records.has_headers |= records.pair_count > 0
    records.pair_count = 0
    records.header_ends[index + 1] = records.headers.used_bytes
    records.values[index] = value
    records.value_bytes[index] = value_bytes
    records.keys[index] = key
    records.key_bytes[index] = key_bytes
    records.timestamps[index] = timestamp_ms
    records.count = index + 1
    return TEXT_OK


cdef TextFault headers_load(TextRecords* records, JsonCursor* cursor) noexcept nogil:
    """Read headers, a JSON array of pairs of name and value."""
    cdef TextHeader* pair
    cdef void* pairs
    cdef TextFault fault
    records.pair_count = 0
    if not json_skip(cursor, c'['):
        return TEXT_NOT_HEADERS
    if json_skip(cursor, c']'):
        return TEXT_OK
    while True:
        if records.pair_count == records.pair_capacity:
            pairs = realloc(
                records.pairs, <size_t>(2 * records.pair_capacity + 8) * sizeof(TextHeader))
            if pairs == NULL:
                return TEXT_NO_MEMORY
            records.pairs = <TextHeader*>pairs
            records.pair_capacity = 2 * records.pair_capacity + 8
        pair = &records.pairs[records.pair_count]
        if not json_skip(cursor, c'['):
            return TEXT_NOT_HEADERS
        json_skip_space(cursor)
        if cursor.at < cursor.end and cursor.at[0] != c'"':
            return TEXT_NOT_HEADERS
        fault = json_string_load(cursor, &pair.name, &pair.name_bytes)
        if fault != TEXT_OK:
            return fault
        if not json_skip(cursor, c','):
            return TEXT_NOT_HEADERS
        fault = json_bytes_load(cursor, &pair.value, &pair.value_bytes)
        if fault != TEXT_OK:
            return fault
        if not json_skip(cursor, c']'):
            return TEXT_NOT_HEADERS
        records.pair_count += 1
        if json_skip(cursor, c']'):
            return TEXT_OK
        if not json_skip(cursor, c','):
            return TEXT_NOT_HEADERS


cdef uint8_t* line_end(uint8_t* at, uint8_t* end) noexcept nogil:
    """Place of the line feed that ends the line at `at`; `end` if there is none."""
    cdef uint8_t* found = <uint8_t*>memchr(at, c'\n', <size_t>(end - at))
    return end if found == NULL else found


cdef void take_lines(TextRecords* records, uint8_t* end, int64_t line_count) noexcept nogil:
    """Note that the text was taken up to `end`; `crc` is the caller's."""
    records.next = end
    records.line += line_count


cdef TextFault lines_parse(TextRecords* records, uint8_t* end) noexcept nogil:
    """Take each line as a value, from `next` on; the last one may lack its line feed."""
    cdef uint8_t* at = records.next
    cdef uint8_t* stop
    cdef int64_t value_bytes
    cdef TextFault fault
    while at < end and at < records.stop_after and records.count < records.capacity:
        stop = line_end(at, end)
        value_bytes = stop - at
        # A carriage return before a line feed is a part of the line end.
        if stop < end and value_bytes > 0 and (stop - 1)[0] == c'\r':
            value_bytes -= 1
        fault = record_push(records, at, value_bytes, NULL, -1, records.default_timestamp_ms)
        if fault != TEXT_OK:
            return fault
        stop += stop < end
        records.crc = crc32c(records.crc, at, <size_t>(stop - at))
        take_lines(records, stop, 1)
        at = stop
    return TEXT_OK
