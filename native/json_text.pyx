# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Texts of JSON, read and written.

Invariants: what is read is as RFC 8259 has it, and becomes UTF-8; what is written are the bytes
that Python's json writes without `ensure_ascii`; a string is turned into its bytes in place.
"""
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

from eoslog.native.utf8 cimport WORD_BYTES, load_word, utf8_character_end

cdef enum:
    INT64_DIGITS_MAX = 19

cdef const char* HEX = b"0123456789abcdef"
cdef const char* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

cdef enum:
    HIGH_BITS = 0x8080808080808080ULL


cdef inline uint64_t specials(const uint8_t* at) noexcept nogil:
    """A high bit is set if one of the next eight bytes is a control, a quote, a backslash, or not
    ASCII.
    """
    cdef uint64_t word = load_word(at)
    cdef uint64_t quotes = word ^ <uint64_t>0x2222222222222222
    cdef uint64_t backslashes = word ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    return (
        (word - <uint64_t>0x2020202020202020) | (quotes - <uint64_t>0x0101010101010101)
        | (backslashes - <uint64_t>0x0101010101010101) | word)


cdef const uint8_t* plain_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Place of the first byte that a JSON string has in another form, or that is not UTF-8."""
    cdef const uint8_t* after
    while at < end:
        while end - at >= 4 * WORD_BYTES:
            if (specials(at) | specials(at + WORD_BYTES) | specials(at + 2 * WORD_BYTES)
                    | specials(at + 3 * WORD_BYTES)) & HIGH_BITS:
                break
            at += 4 * WORD_BYTES
        while end - at >= WORD_BYTES and not specials(at) & HIGH_BITS:
            at += WORD_BYTES
        while at < end and at[0] < 0x80:
            if at[0] < 0x20 or at[0] == c'"' or at[0] == c'\\':
                return at
            at += 1
        while at < end and at[0] >= 0x80:
            after = utf8_character_end(at, end)
            if after == NULL:
                return at
            at = after
    return end


cdef void json_skip_space(JsonCursor* cursor) noexcept nogil:
    while cursor.at < cursor.end and (
            cursor.at[0] == c' ' or cursor.at[0] == c'\t' or cursor.at[0] == c'\r'
            or cursor.at[0] == c'\n'):
        cursor.at += 1


cdef bint json_skip(JsonCursor* cursor, uint8_t byte) noexcept nogil:
    """Pass over white space and this byte; False, at the byte in its place, if it is not there."""
    json_skip_space(cursor)
    if cursor.at == cursor.end or cursor.at[0] != byte:
        return False
    cursor.at += 1
    return True


cdef int32_t hex_load(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Number that four hexadecimal digits are; -1 if they are not."""
    cdef int32_t number = 0
    cdef int index
    cdef uint8_t byte
    if end - at < 4:
        return -1
    for index in range(4):
        byte = at[index]
        if c'0' <= byte <= c'9':
            number = number * 16 + byte - c'0'
        elif c'a' <= (byte | 0x20) <= c'f':
            number = number * 16 + (byte | 0x20) - c'a' + 10
        else:
            return -1
    return number


cdef uint8_t* character_store(uint8_t* out, uint32_t code) noexcept nogil:
    if code < 0x80:
        out[0] = <uint8_t>code
        return out + 1
    if code < 0x800:
        out[0] = <uint8_t>(0xC0 | code >> 6)
        out[1] = <uint8_t>(0x80 | (code & 0x3F))
        return out + 2
    if code < 0x10000:
        out[0] = <uint8_t>(0xE0 | code >> 12)
        out[1] = <uint8_t>(0x80 | (code >> 6 & 0x3F))
        out[2] = <uint8_t>(0x80 | (code & 0x3F))
        return out + 3
    out[0] = <uint8_t>(0xF0 | code >> 18)
    out[1] = <uint8_t>(0x80 | (code >> 12 & 0x3F))
    out[2] = <uint8_t>(0x80 | (code >> 6 & 0x3F))
    out[3] = <uint8_t>(0x80 | (code & 0x3F))
    return out + 4


cdef TextFault escape_load(uint8_t** at, const uint8_t* end, uint8_t** out) noexcept nogil:
    """Turn an escape at a backslash into its bytes."""
    cdef uint8_t kind
    cdef int32_t code, low
    if end - at[0] < 2:
        return TEXT_NOT_JSON
    kind = at[0][1]
    if kind == c'u':
        code = hex_load(at[0] + 2, end)
        if code < 0:
            return TEXT_NOT_JSON
        if 0xDC00 <= code <= 0xDFFF:
            return TEXT_HALF_SURROGATE
        if 0xD800 <= code <= 0xDBFF:
            if end - at[0] < 12 or at[0][6] != c'\\' or at[0][7] != c'u':
                return TEXT_HALF_SURROGATE
            low = hex_load(at[0] + 8, end)
            if low < 0xDC00 or low > 0xDFFF:
                return TEXT_HALF_SURROGATE
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            at[0] += 6
        at[0] += 6
        out[0] = character_store(out[0], <uint32_t>code)
        return TEXT_OK
    if kind == c'n':
        kind = c'\n'
    elif kind == c't':
        kind = c'\t'
    elif kind == c'r':
        kind = c'\r'
    elif kind == c'b':
        kind = c'\b'
    elif kind == c'f':
        kind = c'\f'
    elif kind != c'"' and kind != c'\\' and kind != c'/':
        return TEXT_NOT_JSON
    out[0][0] = kind
    out[0] += 1
    at[0] += 2
    return TEXT_OK


cdef TextFault json_string_load(
    JsonCursor* cursor, uint8_t** text, int64_t* text_bytes
) noexcept nogil:
    """Read a string, white space before it included; its bytes take its place."""
    cdef uint8_t* run
    cdef uint8_t* out
    cdef TextFault fault
    if not json_skip(cursor, c'"'):
        return TEXT_NOT_JSON
    out = cursor.at
    text[0] = out
    while True:
        run = <uint8_t*>plain_end(cursor.at, cursor.end)
        if out != cursor.at:
            memmove(out, cursor.at, <size_t>(run - cursor.at))
        out += run - cursor.at
        cursor.at = run
        if run == cursor.end:
            return TEXT_NOT_JSON
        if run[0] == c'"':
            cursor.at += 1
            text_bytes[0] = out - text[0]
            return TEXT_OK
        if run[0] != c'\\':
            return TEXT_NOT_UTF8 if run[0] >= 0x80 else TEXT_NOT_JSON
        fault = escape_load(&cursor.at, cursor.end, &out)
        if fault != TEXT_OK:
            return fault


cdef int base64_digit(uint8_t byte) noexcept nogil:
    if c'A' <= byte <= c'Z':
        return byte - c'A'
    if c'a' <= byte <= c'z':
        return byte - c'a' + 26
    if c'0' <= byte <= c'9':
        return byte - c'0' + 52
    return 62 if byte == c'+' else 63 if byte == c'/' else -1


cdef bint base64_load(uint8_t* text, int64_t* text_bytes) noexcept nogil:
    """Turn base64 into its bytes in place; False if it is not."""
    cdef int64_t length = text_bytes[0]
    cdef int64_t index
    cdef uint8_t* out = text
    cdef int padding = 0
    cdef int digit
    cdef uint32_t bits = 0
    if length % 4:
        return False
    while padding < 2 and padding < length and text[length - 1 - padding] == c'=':
        padding += 1
    for index in range(length - padding):
        digit = base64_digit(text[index])
        if digit < 0:
            return False
        bits = bits << 6 | <uint32_t>digit
        if index % 4:
            out[0] = <uint8_t>(bits >> (6 - 2 * (index % 4)))
            out += 1
    text_bytes[0] = out - text
    return True


cdef TextFault json_bytes_load(
    JsonCursor* cursor, uint8_t** found, int64_t* found_bytes
) noexcept nogil:
    """Read a string, null (-1 bytes) or {"base64": string}; the bytes take its place."""
    cdef TextFault fault
    json_skip_space(cursor)
    if cursor.at == cursor.end:
        return TEXT_NOT_JSON
    if cursor.at[0] == c'"':
        return json_string_load(cursor, found, found_bytes)
    if cursor.at[0] == c'n':
        if cursor.end - cursor.at < 4 or memcmp(cursor.at, b"null", 4) != 0:
            return TEXT_NOT_JSON
        cursor.at += 4
        found[0] = NULL
        found_bytes[0] = -1
        return TEXT_OK
    if cursor.at[0] != c'{':
        return TEXT_NOT_A_TEXT
    cursor.at += 1
    fault = json_string_load(cursor, found, found_bytes)
    if fault != TEXT_OK:
        return fault
    if found_bytes[0] != 6 or memcmp(found[0], b"base64", 6) != 0:
        return TEXT_NOT_A_TEXT
    if not json_skip(cursor, c':'):
        return TEXT_NOT_JSON
    json_skip_space(cursor)
    if cursor.at < cursor.end and cursor.at[0] != c'"':
        return TEXT_NOT_BASE64
    fault = json_string_load(cursor, found, found_bytes)
    if fault != TEXT_OK:
        return fault
    if not base64_load(found[0], found_bytes):
        return TEXT_NOT_BASE64
    return TEXT_OK if json_skip(cursor, c'}') else TEXT_NOT_JSON


cdef TextFault json_integer_load(JsonCursor* cursor, int64_t* number) noexcept nogil:
    """Read an integer of 64 bits, without fraction or exponent."""
    cdef bint is_negative = False
    cdef uint64_t found = 0
    cdef int digits = 0
    json_skip_space(cursor)
    if cursor.at < cursor.end and cursor.at[0] == c'-':
        is_negative = True
        cursor.at += 1
    while cursor.at < cursor.end and c'0' <= cursor.at[0] <= c'9':
        digits += 1
        # A zero at the beginning stands alone.
        if digits > INT64_DIGITS_MAX or (digits == 2 and found == 0):
            return TEXT_NOT_AN_INTEGER
        found = found * 10 + cursor.at[0] - c'0'
        cursor.at += 1
    if digits == 0 or found > 0x7FFFFFFFFFFFFFFFULL:
        return TEXT_NOT_AN_INTEGER
    if cursor.at < cursor.end and (
            cursor.at[0] == c'.' or cursor.at[0] | 0x20 == c'e'):
        return TEXT_NOT_AN_INTEGER
    number[0] = -<int64_t>found if is_negative else <int64_t>found
    return TEXT_OK


cdef uint8_t* string_store(uint8_t* out, const uint8_t* data, int64_t bytes) noexcept nogil:
    """Write bytes as a string; NULL if they are not UTF-8."""
    cdef const uint8_t* end = data + bytes
    cdef const uint8_t* run
    cdef uint8_t kind
    out[0] = c'"'
    out += 1
    while True:
        run = plain_end(data, end)
        memcpy(out, data, <size_t>(run - data))
        out += run - data
        data = run
        if data == end:
            out[0] = c'"'
            return out + 1
        kind = data[0]
        if kind >= 0x80:
            return NULL
        data += 1
        out[0] = c'\\'
        if kind == c'\n':
            out[1] = c'n'
        elif kind == c'\t':
            out[1] = c't'
        elif kind == c'\r':
            out[1] = c'r'
        elif kind == c'\b':
            out[1] = c'b'
        elif kind == c'\f':
            out[1] = c'f'
        elif kind >= 0x20:
            out[1] = kind
        else:
            memcpy(out + 1, b"u00", 3)
            out[4] = <uint8_t>HEX[kind >> 4]
            out[5] = <uint8_t>HEX[kind & 15]
            out += 4
        out += 2


cdef uint8_t* base64_store(uint8_t* out, const uint8_t* data, int64_t bytes) noexcept nogil:
    cdef uint32_t bits
    while bytes >= 3:
        bits = <uint32_t>data[0] << 16 | <uint32_t>data[1] << 8 | data[2]
        out[0] = <uint8_t>BASE64[bits >> 18]
        out[1] = <uint8_t>BASE64[bits >> 12 & 63]
        out[2] = <uint8_t>BASE64[bits >> 6 & 63]
        out[3] = <uint8_t>BASE64[bits & 63]
        out += 4
        data += 3
        bytes -= 3
    if bytes:
        bits = <uint32_t>data[0] << 16 | (<uint32_t>data[1] << 8 if bytes == 2 else 0)
        out[0] = <uint8_t>BASE64[bits >> 18]
        out[1] = <uint8_t>BASE64[bits >> 12 & 63]
        out[2] = <uint8_t>BASE64[bits >> 6 & 63] if bytes == 2 else c'='
        out[3] = c'='
        out += 4
    return out


cdef uint8_t* json_bytes_store(uint8_t* out, const uint8_t* data, int64_t bytes) noexcept nogil:
    """Write bytes as a string, as null (-1 bytes), or as {"base64": string} if they are not UTF-8.

    There is room for `json_bytes_bound` bytes.
    """
    cdef uint8_t* after
    if bytes < 0:
        memcpy(out, b"null", 4)
        return out + 4
    after = string_store(out, data, bytes)
    if after != NULL:
        return after
    memcpy(out, b'{"base64": "', 12)
    out = base64_store(out + 12, data, bytes)
    memcpy(out, b'"}', 2)
    return out + 2


cdef uint8_t* integer_store(uint8_t* out, int64_t number) noexcept nogil:
    """Write a number in decimal; there is room for INTEGER_BYTES_MAX bytes."""
    cdef uint8_t[INTEGER_BYTES_MAX] digits
    cdef int count = 0
    cdef uint64_t left = <uint64_t>number
    if number < 0:
        out[0] = c'-'
        out += 1
        left = 0 - left
    while True:
        digits[count] = <uint8_t>(c'0' + left % 10)
        count += 1
        left //= 10
        if left == 0:
            break
    while count > 0:
        count -= 1
        out[0] = digits[count]
        out += 1
    return out
