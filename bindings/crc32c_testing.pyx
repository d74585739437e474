# cython: language_level=3
"""Every CRC-32C implementation by its number, for tests and measurements only."""

from libc.stdint cimport uint8_t, uint32_t

from eoslog.native.crc32c cimport (
    crc32c,
    crc32c_implementation_name,
    crc32c_name_of,
    crc32c_with,
)


def implementations():
    """Name every implementation, in the order of their numbers, available here or not."""
    names = []
    while crc32c_name_of(<int>len(names)) != NULL:
        names.append((<bytes>crc32c_name_of(<int>len(names))).decode())
    return names


def chosen():
    """Name the implementation that this process uses."""
    return (<bytes>crc32c_implementation_name()).decode()


def checksum(const uint8_t[::1] data not None, uint32_t crc=0):
    """Continue `crc` over the data as the engine does."""
    return crc32c(crc, &data[0] if data.shape[0] else NULL, <size_t>data.shape[0])


def checksum_by(int implementation, const uint8_t[::1] data not None, uint32_t crc=0):
    """Continue `crc` by one implementation; None if this CPU does not have it."""
    cdef uint32_t result = 0
    cdef const uint8_t* first = &data[0] if data.shape[0] else NULL
    if crc32c_with(implementation, crc, first, <size_t>data.shape[0], &result) < 0:
        return None
    return result


def repeated(int implementation, const uint8_t[::1] data not None, int count):
    """Checksum the data `count` times in a chain, each call waiting for the one before."""
    cdef uint32_t crc = 0
    cdef int status = 0
    cdef int _call
    cdef size_t byte_count = <size_t>data.shape[0]
    cdef const uint8_t* first
    if byte_count == 0:
        raise ValueError("nothing to checksum")
    first = &data[0]
    with nogil:
        for _call in range(count):
            status = crc32c_with(implementation, crc, first, byte_count, &crc)
    return None if status < 0 else crc
