# cython: language_level=3
"""Times of the records of a segment, by its batches.

The time index leads to them. It is believed as far as its last entry names a batch that has
that time; the headers of the batches from there on are read, or all of them. The files are read,
and not mapped: they may be in use, by other processes too.
"""

import os
import struct

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from eoslog.bindings.file_descriptor import open_regular
from eoslog.bindings.segment_pieces import open_segment
from eoslog.bindings.segment_pieces cimport SegmentPieces
from eoslog.bindings.status cimport raise_status
from eoslog.native.mapped_io cimport ENODATA
from eoslog.native.record_batch cimport (
    BATCH_HEADER_BYTES, BATCH_MAGIC_V2, BatchHeader, batch_header_load,
)
from eoslog.native.status cimport STATUS_IO, STATUS_OK, Fault, Status

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


cdef struct Walk:
    int64_t newest                   # Greatest timestamp of the batches; -1: none has one.
    bint any                         # Whether there was a batch.
    bint met                         # Whether one was the batch that the time index named.
    bint broken                      # Whether it ended at bytes that are no batch, and no zeros.


def newest_timestamp(str path not None):
    """The greatest timestamp of the batches in a segment's file, -1 if none has one.

    None if there is no batch in it, or no file. After a damaged batch only the time index is
    left. Raises OSError, StoreError.
    """
    cdef SegmentPieces pieces = open_segment(path)
    cdef int64_t base_offset, position, time, offset
    cdef Walk walk
    if pieces is None:
        return None
    base_offset = int(os.path.basename(path)[:20])
    time, relative = _last_time_entry(path[:-4] + ".timeindex")
    offset = base_offset + relative
    position = named_position(pieces, path, base_offset, relative)
    walk_batches(pieces, path, position, time, offset, &walk)
    if position > 0 and not walk.met:
        walk_batches(pieces, path, 0, time, offset, &walk)
    if not walk.any:
        return None
    return max(walk.newest, time) if walk.broken else walk.newest


cdef int walk_batches(
    SegmentPieces pieces, path, int64_t position, int64_t time, int64_t offset, Walk* walk
) except -1:
    """Read the headers from a position on, where a batch begins."""
    cdef BatchHeader header
    cdef int64_t base_offset_min = 0
    memset(walk, 0, sizeof(Walk))
    walk.newest = -1
    while header_at(pieces, path, position, &header, &walk.broken):
        if header.magic != BATCH_MAGIC_V2 or header.batch_bytes < BATCH_HEADER_BYTES or (
                header.base_offset < base_offset_min or header.last_offset_delta < 0):
            walk.broken = True
            return 0
        base_offset_min = header.base_offset + header.last_offset_delta + 1
        walk.any = True
        walk.newest = max(walk.newest, header.max_timestamp)
        if header.max_timestamp == time and base_offset_min - 1 == offset:
            walk.met = True
        position += header.batch_bytes
    return 0


cdef bint header_at(
    SegmentPieces pieces, path, int64_t position, BatchHeader* header, bint* broken
) except -1:
    """True if there is anything at a position, read as a header: no zeros, nor the file's end."""
    cdef const uint8_t* raw = NULL
    cdef Fault found
    cdef Status status
    memset(&found, 0, sizeof(Fault))
    status = pieces.at(position, BATCH_HEADER_BYTES, &raw, &found)
    if status == STATUS_IO and found.os_errno == ENODATA:
        broken[0] = False
        return False
    if status != STATUS_OK:
        raise_status(status, &found, path, path)
    batch_header_load(raw, header)
    return any_byte(raw)


cdef bint any_byte(const uint8_t* raw) noexcept:
    cdef int index
    for index in range(BATCH_HEADER_BYTES):
        if raw[index] != 0:
            return True
    return False


cdef int64_t named_position(
    SegmentPieces pieces, path, int64_t base_offset, int64_t relative
) except -1:
    """Find the last batch that the offset index names, of those up to a relative offset; 0 where it
    names none that is there.
    """
    cdef BatchHeader header
    cdef bint broken = False
    cdef int64_t found, position
    found, position = _offset_entry_up_to(path[:-4] + ".index", relative)
    if position <= 0 or not header_at(pieces, path, position, &header, &broken):
        return 0
    if header.magic != BATCH_MAGIC_V2 or (
            header.base_offset + header.last_offset_delta != base_offset + found):
        return 0
    return position


def _last_time_entry(path):
    """Timestamp and relative offset of a .timeindex file's last entry; -1 where there is none."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            entry_count = os.fstat(file.fileno()).st_size // _TIME_ENTRY.size
            if not entry_count:
                return -1, -1
            file.seek((entry_count - 1) * _TIME_ENTRY.size)
            return _TIME_ENTRY.unpack(file.read(_TIME_ENTRY.size))
    except FileNotFoundError:
        return -1, -1


def _offset_entry_up_to(path, relative):
    """Relative offset and position of an .index file's last entry up to a relative offset; -1 where
    there is none.
    """
    found = -1, -1
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            low, high = 0, os.fstat(file.fileno()).st_size // _OFFSET_ENTRY.size
            while low < high:
                middle = (low + high) // 2
                file.seek(middle * _OFFSET_ENTRY.size)
                entry = _OFFSET_ENTRY.unpack(file.read(_OFFSET_ENTRY.size))
                if entry[0] <= relative:
                    low, found = middle + 1, entry
                else:
                    high = middle
    except FileNotFoundError:
        return -1, -1
    return found
