# A segment's file, read piece by piece into memory of one's own.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from eoslog.native.status cimport Fault, Status


cdef class SegmentPieces:
    cdef int _fd
    cdef uint8_t* _piece
    cdef int64_t _capacity_bytes
    cdef int64_t _position_bytes             # In the file, of the piece's first byte.
    cdef int64_t _held_bytes

    cdef Status at(
        self, int64_t position_bytes, int64_t wanted_bytes, const uint8_t** found, Fault* out
    ) noexcept
    cdef Status crc_of(
        self, int64_t position_bytes, int64_t wanted_bytes, uint32_t* crc, Fault* out
    ) noexcept
    cdef Status _fill(self, int64_t position_bytes, int64_t wanted_bytes, Fault* out) noexcept
