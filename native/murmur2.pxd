# Murmur2, 32 bits, as Kafka's clients place a key by it: same key, same partition in both.
# Kafka reads the words little-endian on every machine, so the bytes are put together one by one.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    MURMUR2_SHIFT = 24

cdef inline uint32_t murmur2(const uint8_t* data, int64_t byte_count) noexcept nogil:
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t state = 0x9747B28CU ^ <uint32_t>byte_count
    cdef int64_t whole_bytes = byte_count & ~<int64_t>3
    cdef int64_t rest_bytes = byte_count & 3
    cdef int64_t at
    cdef uint32_t word
    for at in range(0, whole_bytes, 4):
        word = (
            <uint32_t>data[at] | <uint32_t>data[at + 1] << 8
            | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        )
        word *= multiplier
        word ^= word >> MURMUR2_SHIFT
        word *= multiplier
        state *= multiplier
        state ^= word
    if rest_bytes > 2:
        state ^= <uint32_t>data[whole_bytes + 2] << 16
    if rest_bytes > 1:
        state ^= <uint32_t>data[whole_bytes + 1] << 8
    if rest_bytes > 0:
        state ^= <uint32_t>data[whole_bytes]
        state *= multiplier
    state ^= state >> 13
    state *= multiplier
    state ^= state >> 15
    return state

# The partition of a key; partition_count > 0. The sign bit is cleared, as Kafka does, not negated.
cdef inline int32_t partition_for_hash(uint32_t hash, int32_t partition_count) noexcept nogil:
    return <int32_t>((hash & 0x7FFFFFFF) % <uint32_t>partition_count)
