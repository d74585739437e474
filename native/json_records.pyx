# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Records of JSON lines. Each line is an object with the fields of the envelope, in any order."""
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcmp

from eoslog.native.crc32c cimport crc32c
from eoslog.native.json_text cimport (
    TEXT_FIELD_TWICE, TEXT_NO_VALUE, TEXT_NOT_A_FIELD, TEXT_NOT_JSON, TEXT_OK,
    JsonCursor, json_bytes_load, json_integer_load, json_skip, json_skip_space, json_string_load,
)
from eoslog.native.text_records cimport headers_load, line_end, record_push, take_lines

cdef enum Field:
    FIELD_NONE = 0
    FIELD_VALUE = 1
    FIELD_KEY = 2
    FIELD_TIMESTAMP = 4
    FIELD_HEADERS = 8
    # Where a record was: it gets a place of its own.
    FIELD_TOPIC = 16
    FIELD_PARTITION = 32
    FIELD_OFFSET = 64


cdef inline bint is_name(const uint8_t* name, int64_t bytes, const char* wanted,
                         int64_t wanted_bytes) noexcept nogil:
    return bytes == wanted_bytes and memcmp(name, wanted, <size_t>bytes) == 0


cdef Field field_of(const uint8_t* name, int64_t bytes) noexcept nogil:
    if is_name(name, bytes, b"value", 5):
        return FIELD_VALUE
    if is_name(name, bytes, b"key", 3):
        return FIELD_KEY
    if is_name(name, bytes, b"timestamp_ms", 12):
        return FIELD_TIMESTAMP
    if is_name(name, bytes, b"headers", 7):
        return FIELD_HEADERS
    if is_name(name, bytes, b"topic", 5):
        return FIELD_TOPIC
    if is_name(name, bytes, b"partition", 9):
        return FIELD_PARTITION
    return FIELD_OFFSET if is_name(name, bytes, b"offset", 6) else FIELD_NONE


cdef bint is_null(JsonCursor* cursor) noexcept nogil:
    """Pass over a null, if it is one."""
    json_skip_space(cursor)
    if cursor.end - cursor.at < 4 or memcmp(cursor.at, b"null", 4) != 0:
        return False
    cursor.at += 4
    return True


cdef TextFault object_load(TextRecords* records, JsonCursor* cursor) noexcept nogil:
    """Read one object, and append its record."""
    cdef uint8_t* name = NULL
    cdef uint8_t* value = NULL
    cdef uint8_t* key = NULL
    cdef int64_t name_bytes = 0
    cdef int64_t value_bytes = -1
    cdef int64_t key_bytes = -1
    cdef int64_t timestamp_ms = records.default_timestamp_ms
    cdef int64_t ignored = 0
    cdef int found = 0
    cdef Field field
    cdef TextFault fault
    records.pair_count = 0
    if not json_skip(cursor, c'{'):
        return TEXT_NOT_JSON
    if not json_skip(cursor, c'}'):
        while True:
            fault = json_string_load(cursor, &name, &name_bytes)
            if fault != TEXT_OK:
                return fault
            field = field_of(name, name_bytes)
            if field == FIELD_NONE:
                return TEXT_NOT_A_FIELD
            if found & field:
                return TEXT_FIELD_TWICE
            found |= field
            if not json_skip(cursor, c':'):
                return TEXT_NOT_JSON
            if field == FIELD_VALUE:
                fault = json_bytes_load(cursor, &value, &value_bytes)
            elif field == FIELD_KEY:
                fault = json_bytes_load(cursor, &key, &key_bytes)
            elif is_null(cursor):
                pass
            elif field == FIELD_TIMESTAMP:
                fault = json_integer_load(cursor, &timestamp_ms)
            elif field == FIELD_HEADERS:
                fault = headers_load(records, cursor)
            elif field == FIELD_TOPIC:
                fault = json_string_load(cursor, &name, &name_bytes)
            else:
                fault = json_integer_load(cursor, &ignored)
            if fault != TEXT_OK:
                return fault
            if json_skip(cursor, c'}'):
                break
            if not json_skip(cursor, c','):
                return TEXT_NOT_JSON
    json_skip_space(cursor)
    if cursor.at != cursor.end:
        return TEXT_NOT_JSON
    if not found & FIELD_VALUE:
        return TEXT_NO_VALUE
    return record_push(records, value, value_bytes, key, key_bytes, timestamp_ms)


cdef TextFault json_records_parse(TextRecords* records, uint8_t* end) noexcept nogil:
    """Take each line that is not blank as a record, from `next` on; the last one may lack its line
    feed.
    """
    cdef JsonCursor cursor
    cdef uint8_t* at = records.next
    cdef uint8_t* stop
    cdef uint32_t crc
    cdef TextFault fault
    while at < end and at < records.stop_after and records.count < records.capacity:
        stop = line_end(at, end)
        # Before the line's strings become their bytes.
        crc = crc32c(records.crc, at, <size_t>(stop + (stop < end) - at))
        cursor.at = at
        cursor.end = stop
        json_skip_space(&cursor)
        if cursor.at < stop:
            fault = object_load(records, &cursor)
            if fault != TEXT_OK:
                records.fault_byte = cursor.at - at
                return fault
        at = stop + (stop < end)
        records.crc = crc
        take_lines(records, at, 1)
    return TEXT_OK
