# Texts of JSON: strings, base64 where bytes are no UTF-8, integers.
from libc.stdint cimport int64_t, uint8_t

# What is wrong with a text; 0 if nothing is.
cdef enum TextFault:
    TEXT_OK = 0
    TEXT_NO_MEMORY = 1
    TEXT_NOT_JSON = 2
    TEXT_NOT_UTF8 = 3
    TEXT_HALF_SURROGATE = 4
    TEXT_NOT_A_FIELD = 5             # A name that the envelope does not have.
    TEXT_FIELD_TWICE = 6
    TEXT_NO_VALUE = 7
    TEXT_NOT_A_TEXT = 8              # Neither a string, nor null, nor {"base64": ...}.
    TEXT_NOT_BASE64 = 9
    TEXT_NOT_AN_INTEGER = 10
    TEXT_NOT_HEADERS = 11
    TEXT_NOT_A_TIME = 12
    TEXT_CELL_COUNT = 13
    TEXT_STRAY_QUOTE = 14
    TEXT_STRAY_RETURN = 15
    TEXT_TOO_LARGE = 16
    TEXT_TIME_OUTSIDE = 17

# A place in a text that is taken apart. Strings become their bytes in place: these are never more.
cdef struct JsonCursor:
    uint8_t* at
    uint8_t* end

cdef void json_skip_space(JsonCursor* cursor) noexcept nogil
cdef bint json_skip(JsonCursor* cursor, uint8_t byte) noexcept nogil
cdef TextFault json_string_load(
    JsonCursor* cursor, uint8_t** text, int64_t* text_bytes
) noexcept nogil
cdef TextFault json_bytes_load(
    JsonCursor* cursor, uint8_t** found, int64_t* found_bytes
) noexcept nogil
cdef TextFault json_integer_load(JsonCursor* cursor, int64_t* number) noexcept nogil

cdef enum:
    INTEGER_BYTES_MAX = 20

# Room for any bytes as JSON: each becomes six, or four thirds in base64, and what is around them.
cdef inline int64_t json_bytes_bound(int64_t byte_count) noexcept nogil:
    return 6 * byte_count + 24

cdef uint8_t* json_bytes_store(uint8_t* out, const uint8_t* data, int64_t bytes) noexcept nogil
cdef uint8_t* integer_store(uint8_t* out, int64_t number) noexcept nogil
