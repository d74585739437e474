# cython: language_level=3
"""Checking every byte of a segment, and saying all that is wrong with it.

The log may be in use, by other processes too: its files are read, and not mapped.
"""

from eoslog import errors

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from eoslog.bindings.abort_index_verification cimport AbortIndexCheck
from eoslog.bindings.index_verification import verify_offset_index, verify_time_index
from eoslog.bindings.producers_verification cimport ProducersCheck
from eoslog.bindings.segment_pieces cimport SegmentPieces
from eoslog.bindings.status cimport compression_name, raise_status
from eoslog.native.mapped_io cimport EIO, ENODATA
from eoslog.native.record_batch cimport (
    ATTRIBUTE_COMPRESSION_MASK, BATCH_ATTRIBUTES, BATCH_HEADER_BYTES, BATCH_MAGIC, BATCH_MAGIC_V2,
    BatchHeader, Record as NativeRecord, RecordCursor, batch_check, batch_header_load, cursor_next,
    cursor_open,
)
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_IO, STATUS_OK, Fault, Status, fault

cdef enum:
    BELIEVED_BYTES = 4194304         # A longer batch gets memory only once its checksum was right.
    LONG_BYTES = 262144              # Other threads run while a longer batch is checked.


def verify_segment(
    dict described, SegmentPieces pieces, Py_ssize_t expected, AbortIndexCheck aborts,
    ProducersCheck producers, Py_ssize_t contiguous_from, object log_end, list problems
):
    """Check a segment's batches and indexes; its problems go to the list. Returns its end.

    `described` is an entry of PartitionLog.segment_files(): what follows its size is left
    alone. `expected` is the end of the segment before, -1 for the first; from `contiguous_from` on
    no offset may be missing. `aborts` follows the transactions of the sound batches, `producers`
    their writers. `log_end()` is asked for where the last segment ends, which may have moved on;
    None for others.
    """
    cdef BatchHeader header
    cdef Fault found
    cdef Status status
    cdef const uint8_t* batch = NULL
    cdef int64_t position = 0
    cdef int64_t size = described["size_bytes"]
    cdef dict batches = {}
    cdef dict peaks = {}
    cdef int64_t greatest_time = -1
    cdef bint is_whole = True
    reason = misplaced(described["base_offset"], expected, contiguous_from, producers._lost)
    if reason is not None:
        problems.append({"path": described["path"], "position_bytes": 0, "reason": reason})
    if 0 <= expected < described["base_offset"]:
        producers.pass_hole(described["base_offset"])
    expected = max(expected, described["base_offset"])
    while position < size:
        memset(&found, 0, sizeof(Fault))
        status = verify_batch(
            pieces, position, size - position, expected, &batch, &header, &found)
        if status == STATUS_OK:
            if header.base_offset > expected:
                producers.pass_hole(header.base_offset)
            reason = producers.follow(batch, &header)
            if header.base_offset > expected and header.base_offset > contiguous_from and (
                    not producers._lost):
                reason = missing(max(expected, contiguous_from), header.base_offset)
            if reason is not None:
                problems.append(
                    {"path": described["path"], "position_bytes": position, "reason": reason})
            if header.attributes & ATTRIBUTE_COMPRESSION_MASK:
                problems.append(unreadable(described["path"], position, &header))
            batches[position] = header.base_offset + header.last_offset_delta
            expected = header.base_offset + header.last_offset_delta + 1
            if header.max_timestamp >= greatest_time:
                greatest_time = header.max_timestamp
                peaks[expected - 1] = greatest_time
            aborts.follow(batch, &header)
        else:
            is_whole = False
            aborts.lose_track()
            producers.lose_track()
            problems.append({"path": described["path"], "position_bytes": position,
                             "reason": reason_of(status, &found, described)})
            if status != STATUS_CORRUPT or not leads_on(
                    pieces, position, size - position, expected, &header):
                return expected  # Where the next batch begins is unknown.
            batches[position] = None
        position += header.batch_bytes
    verify_offset_index(described, batches, expected, log_end, problems)
    verify_time_index(described, peaks if is_whole else None, expected, log_end, problems)
    return expected


cdef dict unreadable(str path, int64_t position, const BatchHeader* header):
    """The problem of a batch that is whole and compressed, in the words of the readers' error."""
    error = errors.UnsupportedCompressionTypeError(
        path, position, compression_name(header.attributes))
    return {"path": path, "position_bytes": position, "reason": error.reason}


cdef object misplaced(
    Py_ssize_t base_offset, Py_ssize_t expected, Py_ssize_t contiguous_from, bint lost_track
):
    """Return why a segment of this name does not follow the one that ends at `expected`; None if it
    does, or if there is none before it.
    """
    if 0 <= base_offset < expected:
        return (f"the file begins at offset {base_offset} by its name, where the one before it "
                f"goes on to {expected - 1}")
    if 0 <= expected < base_offset and base_offset > contiguous_from and not lost_track:
        return missing(max(expected, contiguous_from), base_offset)
    return None


cdef str missing(Py_ssize_t first, Py_ssize_t upper_bound):
    return f"offsets {first} to {upper_bound - 1} are missing"


cdef object reason_of(Status status, const Fault* found, dict described):
    """Return what is wrong with the file. Raises errors that are not of the file, as of memory."""
    if status == STATUS_IO and found.os_errno == ENODATA:
        return f"the file is shorter than its {described['size_bytes']} bytes"
    if status == STATUS_IO and found.os_errno == EIO:
        return "the device reports an error where the file is read"
    if status != STATUS_CORRUPT:
        raise_status(status, found, described["path"], described["path"])
    return found.reason.decode()


cdef Status verify_batch(
    SegmentPieces pieces, int64_t position_bytes, int64_t bytes_left, int64_t base_offset_min,
    const uint8_t** batch, BatchHeader* header, Fault* out,
) noexcept:
    """Read the batch at a position, and check everything about it; `batch` is good until the next
    piece is read.
    """
    cdef int64_t wanted_bytes = bytes_left
    cdef uint32_t crc = 0
    cdef Status status
    if wanted_bytes > BATCH_HEADER_BYTES:
        wanted_bytes = BATCH_HEADER_BYTES
    status = pieces.at(position_bytes, wanted_bytes, batch, out)
    if status != STATUS_OK:
        return status
    if wanted_bytes == BATCH_HEADER_BYTES:
        batch_header_load(batch[0], header)
        if batch[0][BATCH_MAGIC] == BATCH_MAGIC_V2 and (
                BATCH_HEADER_BYTES < header.batch_bytes <= bytes_left):
            wanted_bytes = header.batch_bytes
    if wanted_bytes > BELIEVED_BYTES:
        status = pieces.crc_of(
            position_bytes + BATCH_ATTRIBUTES, wanted_bytes - BATCH_ATTRIBUTES, &crc, out)
        if status == STATUS_OK and crc != header.crc:
            status = fault(out, STATUS_CORRUPT, "batch checksum does not match its bytes",
                           header.crc, crc)
    if status == STATUS_OK:
        status = pieces.at(position_bytes, wanted_bytes, batch, out)
    if status != STATUS_OK:
        return status
    # Its header may have been read twice: no length is believed beyond what is in memory.
    if wanted_bytes <= LONG_BYTES:
        return check_batch(batch[0], wanted_bytes, base_offset_min, header, out)
    with nogil:
        status = check_batch(batch[0], wanted_bytes, base_offset_min, header, out)
    return status


cdef Status check_batch(
    const uint8_t* batch, int64_t bytes_left, int64_t base_offset_min, BatchHeader* header,
    Fault* out,
) noexcept nogil:
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
    SegmentPieces pieces, int64_t position_bytes, int64_t bytes_left, int64_t base_offset_min,
    BatchHeader* header,
) noexcept:
    """True if a broken batch's length can be trusted: another batch, or the end, follows there. Its
    header is loaded.
    """
    cdef BatchHeader following
    cdef Fault ignored
    cdef const uint8_t* found = NULL
    if bytes_left < BATCH_HEADER_BYTES or pieces.at(
            position_bytes, BATCH_HEADER_BYTES, &found, &ignored) != STATUS_OK:
        return False
    batch_header_load(found, header)
    if header.batch_bytes < BATCH_HEADER_BYTES or header.batch_bytes > bytes_left:
        return False
    if header.batch_bytes == bytes_left:
        return True
    if header.batch_bytes + BATCH_HEADER_BYTES > bytes_left or pieces.at(
            position_bytes + header.batch_bytes, BATCH_HEADER_BYTES, &found,
            &ignored) != STATUS_OK:
        return False
    batch_header_load(found, &following)
    return following.magic == BATCH_MAGIC_V2 and following.base_offset > base_offset_min and (
        BATCH_HEADER_BYTES <= following.batch_bytes <= bytes_left - header.batch_bytes)
