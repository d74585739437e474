# CRC-32C (Castagnoli), the checksum of Kafka's record batches, by the fastest way the CPU has.
from libc.stdint cimport uint8_t, uint32_t


# Continue `crc` (0 to start) over `bytes` of data.
cdef uint32_t crc32c(uint32_t crc, const uint8_t* data, size_t bytes) noexcept nogil

# The name of the implementation that crc32c() runs.
cdef const char* crc32c_implementation_name() noexcept nogil

# For tests. Implementations count from 0; the name is NULL past the last.
cdef const char* crc32c_name_of(int implementation) noexcept nogil

# -1 if this CPU, or this build, cannot run the implementation; else 0, and the result.
cdef int crc32c_with(
    int implementation, uint32_t crc, const uint8_t* data, size_t bytes, uint32_t* result,
) noexcept nogil
