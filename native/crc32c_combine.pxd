# The CRC-32C of two pieces from the checksums of each, without reading them again.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "crc32c_combine.h" nogil:
    uint32_t crc32c_combine(uint32_t crc, uint32_t next_crc, uint64_t next_bytes) noexcept
