# UTF-8 as Python decodes it: no overlong forms, no surrogates, nothing above U+10FFFF.
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    WORD_BYTES = 8

cdef inline uint64_t load_word(const uint8_t* at) noexcept nogil:
    cdef uint64_t word = 0
    memcpy(&word, at, sizeof(word))
    return word

# Place after the character of several bytes that begins at `at`, where a byte of 0x80 or more
# stands; NULL if that is no UTF-8.
cdef inline const uint8_t* utf8_character_end(
    const uint8_t* at, const uint8_t* end
) noexcept nogil:
    cdef int first = at[0]
    cdef int length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if first < 0xC2 or first > 0xF4 or end - at < length or at[1] & 0xC0 != 0x80:
        return NULL
    if length >= 3:
        if at[2] & 0xC0 != 0x80:
            return NULL
        if (first == 0xE0 and at[1] < 0xA0) or (first == 0xED and at[1] > 0x9F):
            return NULL
    if length == 4:
        if at[3] & 0xC0 != 0x80:
            return NULL
        if (first == 0xF0 and at[1] < 0x90) or (first == 0xF4 and at[1] > 0x8F):
            return NULL
    return at + length

# Place of the first byte that is not UTF-8; `end` if there is none.
cdef inline const uint8_t* utf8_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* after
    while at < end:
        while end - at >= WORD_BYTES and not load_word(at) & 0x8080808080808080ULL:
            at += WORD_BYTES
        if at == end:
            break
        if at[0] < 0x80:
            at += 1
            continue
        after = utf8_character_end(at, end)
        if after == NULL:
            return at
        at = after
    return end
