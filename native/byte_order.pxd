# Big-endian loads and stores at any alignment.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cdef extern from "byte_order.h" nogil:
    int16_t load_be16(const uint8_t* at) noexcept
    int32_t load_be32(const uint8_t* at) noexcept
    int64_t load_be64(const uint8_t* at) noexcept
    void store_be16(uint8_t* at, int16_t value) noexcept
    void store_be32(uint8_t* at, int32_t value) noexcept
    void store_be64(uint8_t* at, int64_t value) noexcept
