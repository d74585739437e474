# cython: language_level=3
"""A segment's file, read piece by piece: no access can fault, even if the file is cut or deleted.
While a piece is read, other threads run.

Invariant: as long as it is open the file is not recycled for another segment. One that is deleted
keeps its bytes until then.
"""

import os

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from eoslog.native.crc32c cimport crc32c
from eoslog.native.mapped_io cimport (
    ENODATA, ENOENT, EWOULDBLOCK, close_fd, eos_is_at, eos_open, eos_pread_upto, eos_share,
)
from eoslog.native.status cimport STATUS_IO, STATUS_NO_MEMORY, STATUS_OK, fault

cdef enum:
    PIECE_BYTES = 262144             # Stays in the processor's own cache.


def open_segment(str path):
    """The file at a path; None if it is not there any more, or is being recycled just now.

    Raises OSError.
    """
    cdef bytes encoded = os.fsencode(path)
    cdef const char* name = encoded
    cdef SegmentPieces pieces = SegmentPieces.__new__(SegmentPieces)
    cdef int error = eos_open(name, False, True, &pieces._fd)
    if error == 0:
        error = eos_share(pieces._fd)
    if error == 0:
        error = eos_is_at(pieces._fd, name)
    if error == ENOENT or error == EWOULDBLOCK:
        return None
    if error != 0:
        raise OSError(error, os.strerror(error), path)
    return pieces


@cython.final
cdef class SegmentPieces:
    """An open segment file; it is closed with the object."""

    def __cinit__(self):
        self._fd = -1
        self._piece = NULL

    def __dealloc__(self):
        free(self._piece)
        if self._fd >= 0:
            close_fd(self._fd)

    cdef Status at(
        self, int64_t position_bytes, int64_t wanted_bytes, const uint8_t** found, Fault* out
    ) noexcept:
        """Read so many bytes from a position on, to be used until the next call.

        STATUS_IO with ENODATA: the file ends before.
        """
        cdef Status status
        if position_bytes < self._position_bytes or (
                position_bytes + wanted_bytes > self._position_bytes + self._held_bytes):
            status = self._fill(position_bytes, wanted_bytes, out)
            if status != STATUS_OK:
                return status
        found[0] = self._piece + (position_bytes - self._position_bytes)
        return STATUS_OK

    cdef Status crc_of(
        self, int64_t position_bytes, int64_t wanted_bytes, uint32_t* crc, Fault* out
    ) noexcept:
        """Sum bytes up that need not fit into memory."""
        cdef const uint8_t* found = NULL
        cdef int64_t step_bytes
        cdef Status status
        crc[0] = 0
        while wanted_bytes > 0:
            step_bytes = wanted_bytes if wanted_bytes < PIECE_BYTES else PIECE_BYTES
            status = self.at(position_bytes, step_bytes, &found, out)
            if status != STATUS_OK:
                return status
            crc[0] = crc32c(crc[0], found, <size_t>step_bytes)
            position_bytes += step_bytes
            wanted_bytes -= step_bytes
        return STATUS_OK

    cdef Status _fill(
        self, int64_t position_bytes, int64_t wanted_bytes, Fault* out
    ) noexcept:
        """Hold a piece that begins at a position; longer than asked for, if the file is."""
        cdef int64_t bytes = wanted_bytes if wanted_bytes > PIECE_BYTES else PIECE_BYTES
        cdef uint8_t* piece
        cdef size_t done_bytes = 0
        self._held_bytes = 0
        if bytes > self._capacity_bytes:
            piece = <uint8_t*>realloc(self._piece, <size_t>bytes)
            if piece == NULL:
                return fault(out, STATUS_NO_MEMORY, "no memory for a batch", 0, bytes)
            self._piece = piece
            self._capacity_bytes = bytes
        with nogil:
            out.os_errno = eos_pread_upto(
                self._fd, self._piece, <size_t>bytes, position_bytes, &done_bytes)
        if out.os_errno == 0 and <int64_t>done_bytes < wanted_bytes:
            out.os_errno = ENODATA
        if out.os_errno != 0:
            return fault(out, STATUS_IO, "a segment file could not be read", wanted_bytes,
                         <int64_t>done_bytes)
        self._position_bytes = position_bytes
        self._held_bytes = <int64_t>done_bytes
        return STATUS_OK
