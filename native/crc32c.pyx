# cython: language_level=3, wraparound=False
"""CRC-32C (Castagnoli), the checksum of Kafka's record batches, by the fastest way the CPU has.

The work is in C, since each way needs its own instruction set: see native/include/crc32c.h.
Every way gives the same result for the same data, whatever its length and alignment.
"""

from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32c.h" nogil:
    void crc32c_prepare()
    int crc32c_chosen()
    uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t bytes)
    bint crc32c_is_available(int implementation)
    uint32_t crc32c_run(int implementation, uint32_t crc, const uint8_t* data, size_t bytes)
    const char* crc32c_name(int implementation)


cdef uint32_t crc32c(uint32_t crc, const uint8_t* data, size_t bytes) noexcept nogil:
    """Continue a checksum (0 to start) over more data."""
    return crc32c_update(crc, data, bytes)


cdef const char* crc32c_implementation_name() noexcept nogil:
    """Name the implementation that this process uses."""
    return crc32c_name(crc32c_chosen())


cdef const char* crc32c_name_of(int implementation) noexcept nogil:
    """Name an implementation, available or not; NULL past the last."""
    return crc32c_name(implementation)


cdef int crc32c_with(
    int implementation, uint32_t crc, const uint8_t* data, size_t bytes, uint32_t* result,
) noexcept nogil:
    """Checksum by one given way; -1 if this CPU, or this build, does not have it."""
    if not crc32c_is_available(implementation):
        return -1
    result[0] = crc32c_run(implementation, crc, data, bytes)
    return 0


# The choice is made while the interpreter imports this module, once and by one thread: a
# caller of crc32c() has imported it first.
crc32c_prepare()
