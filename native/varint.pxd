# Zig-zag varints of the record format: 7 bits a byte, lowest group first.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef inline uint32_t zigzag32(int32_t value) noexcept nogil:
    return (<uint32_t>value << 1) ^ <uint32_t>(value >> 31)

cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)

cdef inline int varuint_bytes(uint64_t raw) noexcept nogil:
    cdef int count = 1
    while raw >= 0x80:
        raw >>= 7
        count += 1
    return count

cdef inline int varint_bytes(int32_t value) noexcept nogil:
    return varuint_bytes(zigzag32(value))

cdef inline int varlong_bytes(int64_t value) noexcept nogil:
    return varuint_bytes(zigzag64(value))

cdef inline uint8_t* store_varuint(uint8_t* at, uint64_t raw) noexcept nogil:
    while raw >= 0x80:
        at[0] = <uint8_t>(raw | 0x80)
        at += 1
        raw >>= 7
    at[0] = <uint8_t>raw
    return at + 1

cdef inline uint8_t* store_varint(uint8_t* at, int32_t value) noexcept nogil:
    return store_varuint(at, zigzag32(value))

cdef inline uint8_t* store_varlong(uint8_t* at, int64_t value) noexcept nogil:
    return store_varuint(at, zigzag64(value))

# Both loads answer the place after the varint, or NULL when it runs past `end` or has too many
# bytes (more than 5 for 32 bits, more than 10 for 64 bits).
cdef inline const uint8_t* load_varint(
    const uint8_t* at, const uint8_t* end, int32_t* value
) noexcept nogil:
    cdef uint32_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end:
        byte = at[0]
        at += 1
        raw |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
            return at
        shift += 7
        if shift > 28:
            return NULL
    return NULL

cdef inline const uint8_t* load_varlong(
    const uint8_t* at, const uint8_t* end, int64_t* value
) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end:
        byte = at[0]
        at += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
            return at
        shift += 7
        if shift > 63:
            return NULL
    return NULL
