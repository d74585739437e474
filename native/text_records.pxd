# Records of a text: columns of pointers into it, filled line by line.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from eoslog.native.json_text cimport JsonCursor, TextFault

# A header as it stands in the text; value_bytes is -1 for null.
cdef struct TextHeader:
    uint8_t* name
    uint8_t* value
    int64_t name_bytes
    int64_t value_bytes

# Bytes that grow at their end.
cdef struct TextBuffer:
    uint8_t* data
    int64_t used_bytes
    int64_t room_bytes

cdef struct TextRecords:
    int64_t capacity                 # Of each column; they are one allocation.
    int64_t count
    const uint8_t** values
    const uint8_t** keys
    int64_t* value_bytes             # -1 = null.
    int64_t* key_bytes
    int64_t* timestamps
    int64_t* header_ends             # capacity + 1; encoded header sections end there.
    TextBuffer headers
    TextBuffer objects               # Values that do not stand in the text.
    TextHeader* pairs                # Of the record that is read.
    int64_t pair_count
    int64_t pair_capacity
    bint has_headers
    int64_t default_timestamp_ms
    # Limits of the topic. A timestamp of -1 is none, and always taken.
    int64_t batch_bytes_max
    int64_t timestamp_ms_min
    int64_t timestamp_ms_max
    # What was taken of the text: the number of the line after it, and how it goes on.
    int64_t line
    uint32_t crc
    uint8_t* next
    uint8_t* stop_after              # No record is begun from here on.
    # Place of a fault in its line, which is that of `line`.
    int64_t fault_byte
    int64_t fault_number             # The batch's size, or the timestamp.

cdef TextFault buffer_reserve(TextBuffer* buffer, int64_t more_bytes) noexcept nogil
cdef void buffer_free(TextBuffer* buffer) noexcept nogil

cdef TextFault records_open(TextRecords* records, int64_t capacity) noexcept nogil
cdef void records_close(TextRecords* records) noexcept nogil
cdef TextFault record_push(
    TextRecords* records, const uint8_t* value, int64_t value_bytes,
    const uint8_t* key, int64_t key_bytes, int64_t timestamp_ms,
) noexcept nogil
cdef TextFault headers_load(TextRecords* records, JsonCursor* cursor) noexcept nogil
cdef uint8_t* line_end(uint8_t* at, uint8_t* end) noexcept nogil
cdef void take_lines(TextRecords* records, uint8_t* end, int64_t line_count) noexcept nogil
cdef TextFault lines_parse(TextRecords* records, uint8_t* end) noexcept nogil
