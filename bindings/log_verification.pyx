# cython: language_level=3
"""Checking every byte of a segment, and saying all that is wrong with it."""

import os

import numpy

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from eoslog.bindings.abort_index_verification cimport AbortIndexCheck
from eoslog.native.record_batch cimport (
    ATTRIBUTE_COMPRESSION_MASK, BATCH_HEADER_BYTES, BATCH_MAGIC_V2, BatchHeader,
    Record as NativeRecord, RecordCursor, batch_check, batch_header_load, cursor_next, cursor_open,
)
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_OK, Fault, Status


def verify_segment(
    dict described, Py_ssize_t expected, AbortIndexCheck aborts, object log_end, list problems
):
    """Check a segment's batches and index; its problems go to the list. The offset behind it.

    `described` is an entry of PartitionLog.segments(); `expected` is the end of the segment
    before, -1 for the first. `aborts` follows the transactions of the sound batches. `log_end()`
    is asked for where the last segment ends, which may have moved on meanwhile; None for others.
    """
    cdef const uint8_t[::1] data
    cdef BatchHeader header
    cdef Fault fault
    cdef Status status
    cdef int64_t position = 0
    cdef int64_t size = described["size_bytes"]
    cdef dict batches = {}
    raw = numpy.empty(0, numpy.uint8)
    if size and os.path.getsize(described["path"]):
        raw = numpy.memmap(described["path"], numpy.uint8, "r")
    if raw.shape[0] < size:
        problems.append({"path": described["path"], "position_bytes": raw.shape[0],
                         "reason": f"the file is shorter than its {size} bytes"})
        size = raw.shape[0]
        aborts.lose_track()
    data = raw
    if expected < 0:
        expected = described["base_offset"]
    while position < size:
        memset(&fault, 0, sizeof(Fault))
        status = verify_batch(&data[position], size - position, expected, &header, &fault)
        if status != STATUS_OK:
            aborts.lose_track()
            problems.append({"path": described["path"], "position_bytes": position,
                             "reason": fault.reason.decode()})
            if not leads_on(&data[position], size - position, expected):
                return expected  # Nothing says where the next batch begins.
            batch_header_load(&data[position], &header)
            batches[position] = None
        else:
            batches[position] = header.base_offset + header.last_offset_delta
            expected = header.base_offset + header.last_offset_delta + 1
            aborts.follow(&data[position], &header)
        position += header.batch_bytes
    _verify_index(described, batches, expected, log_end, problems)
    return expected


cdef Status verify_batch(
    const uint8_t* batch, int64_t bytes_left, int64_t base_offset_min, BatchHeader* header,
    Fault* out,
) noexcept nogil:
    """Check everything about a batch that stands in a log."""
    cdef RecordCursor cursor
    cdef NativeRecord record
    cdef int32_t _index
    cdef Status status = batch_check(batch, bytes_left, header, out)
    if status == STATUS_OK and header.base_offset < base_offset_min:
        out.reason = b"the base offset is below the end of the batch before"
        return STATUS_CORRUPT
    if status == STATUS_OK and not header.attributes & ATTRIBUTE_COMPRESSION_MASK:
        cursor_open(&cursor, batch, header)
        for _index in range(header.record_count):
            status = cursor_next(&cursor, &record, out)
            if status != STATUS_OK:
                break
    return status


cdef bint leads_on(
    const uint8_t* batch, int64_t bytes_left, int64_t base_offset_min
) noexcept nogil:
    """Whether a broken batch's length is to be believed: another batch, or the end, follows
    there.
    """
    cdef BatchHeader header
    cdef BatchHeader following
    if bytes_left < BATCH_HEADER_BYTES:
        return False
    batch_header_load(batch, &header)
    if header.batch_bytes < BATCH_HEADER_BYTES or header.batch_bytes > bytes_left:
        return False
    if header.batch_bytes == bytes_left:
        return True
    if header.batch_bytes + BATCH_HEADER_BYTES > bytes_left:
        return False
    batch_header_load(batch + header.batch_bytes, &following)
    return following.magic == BATCH_MAGIC_V2 and following.base_offset > base_offset_min and (
        BATCH_HEADER_BYTES <= following.batch_bytes <= bytes_left - header.batch_bytes)


def _verify_index(
    dict described, dict batches, Py_ssize_t expected, object log_end, list problems
):
    """Each .index entry names the batch that stands at its position."""
    path = described["path"][:-4] + ".index"
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return                       # The active segment's index is in memory until it is stored.
    end = expected if log_end is None else log_end()
    if len(raw) % 8:
        problems.append({"path": path, "position_bytes": len(raw), "reason": "not whole entries"})
    for position in range(0, len(raw) - 7, 8):
        relative = int.from_bytes(raw[position:position + 4], "big", signed=True)
        place = int.from_bytes(raw[position + 4:position + 8], "big", signed=True)
        if relative == 0 and place == 0:
            return                   # The zero tail of a file that was made larger ahead of need.
        if expected <= described["base_offset"] + relative < end and place not in batches:
            return                   # Of a batch that came in while the others were looked at.
        if batches.get(place, -1) not in (None, described["base_offset"] + relative):
            problems.append({"path": path, "position_bytes": position,
                             "reason": f"no batch at {place} ends at relative offset {relative}"})
            return
