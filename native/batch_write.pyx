# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Writing batches into a segment's file by calls, past the map.

A store through the map needs a page in the cache, so zeros are written there ahead; where batches
are synced soon, those go to the disk too.

Invariants: only the reserved part of the file is written to, so a full disk was noticed before; the
bytes are those that batch_encode stores, with the zeros that end a scan after them. A call that
failed leaves something or nothing of the batch there: it may be stored over.
"""
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove, memset

from eoslog.native.batch_encode cimport (
    RECORD_OVERHEAD_BYTES_MAX, record_bytes, records_encode,
)
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.crc32c cimport crc32c
from eoslog.native.mapped_io cimport (
    ENOMEM, eos_page_end, eos_page_start, eos_pwrite_all, eos_pwritev_all, iovec,
)
from eoslog.native.record_batch cimport (
    BATCH_HEADER_BYTES, batch_header_fill, batch_header_finish,
)
from eoslog.native.segment cimport segment_begin_sync

cdef enum:
    PIECE_BYTES = 262144             # Stays in a core's own cache.
    # A marker fits, which is stored through the map next: a page that is not in the cache would be
    # read first, with all that the kernel reads ahead.
    ZEROS_BYTES = 128


# Records on their way into the file, from a position on.
cdef struct Pieces:
    Segment* segment
    uint8_t* buffer
    int64_t capacity
    int64_t used
    int64_t position_bytes           # Of buffer[0] in the file.
    uint32_t crc                     # Of what was written.
    bint synced_soon


cdef int64_t batch_write_columns(
    Segment* segment, const RecordColumns* columns, int64_t first, int32_t count,
    const BatchIdentity* identity, int64_t max_timestamp, bint synced_soon,
) noexcept nogil:
    """Encode records [first, first + count) as the segment's next batch, the header last. Return
    its size in bytes; 0: it failed.

    `synced_soon`: the disk begins with its first part while the rest is still being encoded.
    """
    cdef uint8_t header[BATCH_HEADER_BYTES]
    cdef Pieces pieces
    cdef int64_t batch_bytes = 0
    cdef int64_t base_timestamp = (
        columns.default_timestamp_ms if columns.timestamps == NULL else columns.timestamps[first])
    cdef int error
    pieces.segment = segment
    pieces.capacity = PIECE_BYTES
    pieces.buffer = <uint8_t*>malloc(<size_t>pieces.capacity)
    pieces.used = 0
    pieces.position_bytes = segment.used_bytes + BATCH_HEADER_BYTES
    pieces.synced_soon = synced_soon
    pieces.crc = batch_header_fill(header, count, base_timestamp, max_timestamp, identity)
    error = ENOMEM if pieces.buffer == NULL else write_records(&pieces, columns, first, count)
    if error == 0:
        batch_bytes = pieces.position_bytes + pieces.used - segment.used_bytes
        pieces.crc = crc32c(pieces.crc, pieces.buffer, <size_t>pieces.used)
        batch_header_finish(header, header, batch_bytes, pieces.crc)
        error = write_end(segment, pieces.buffer, pieces.used, pieces.position_bytes, header)
    free(pieces.buffer)
    return batch_bytes if error == 0 else 0


cdef int write_records(
    Pieces* pieces, const RecordColumns* columns, int64_t first, int32_t count
) noexcept nogil:
    """Write the records, but for the last piece; 0 or an errno."""
    cdef int32_t next_record = 0
    cdef int64_t piece_bytes
    cdef int error = 0
    while error == 0:
        pieces.used += records_encode(
            pieces.buffer + pieces.used, pieces.capacity - pieces.used, columns, first,
            &next_record, count)
        if next_record == count:
            return 0
        # Whole pages, so that none is written twice.
        piece_bytes = eos_page_start(pieces.position_bytes + pieces.used) - pieces.position_bytes
        if piece_bytes > 0:
            error = write_piece(pieces, piece_bytes)
        else:
            error = grow(pieces, record_bytes(columns, first + next_record, first))
    return error


cdef int write_piece(Pieces* pieces, int64_t piece_bytes) noexcept nogil:
    """Write the first bytes of the buffer; 0 or an errno."""
    # The header comes last: its page would go to the disk twice, and the sync wait for that.
    cdef int64_t behind_header = eos_page_end(pieces.segment.used_bytes + BATCH_HEADER_BYTES)
    cdef int error
    EOS_CHECK(pieces.position_bytes + piece_bytes <= pieces.segment.reserved_bytes,
              "batch: pieces within the reserved")
    error = eos_pwrite_all(
        pieces.segment.fd, pieces.buffer, <size_t>piece_bytes, pieces.position_bytes)
    pieces.crc = crc32c(pieces.crc, pieces.buffer, <size_t>piece_bytes)
    pieces.position_bytes += piece_bytes
    pieces.used -= piece_bytes
    if error == 0 and pieces.synced_soon:
        segment_begin_sync(pieces.segment, behind_header, pieces.position_bytes)
    memmove(pieces.buffer, pieces.buffer + piece_bytes, <size_t>pieces.used)
    return error


cdef int grow(Pieces* pieces, int64_t bytes) noexcept nogil:
    """Have room for a record that is larger than a piece, as much as its encoding may take; 0 or an
    errno.
    """
    cdef int64_t capacity = pieces.used + bytes + RECORD_OVERHEAD_BYTES_MAX
    cdef uint8_t* grown = <uint8_t*>realloc(pieces.buffer, <size_t>capacity)
    if grown == NULL:
        return ENOMEM
    pieces.buffer = grown
    pieces.capacity = capacity
    return 0


cdef int64_t batch_write_whole(
    Segment* segment, const uint8_t* header, const uint8_t* batch, int64_t batch_bytes
) noexcept nogil:
    """Write an encoded batch with another header as the segment's next batch, the header last.
    Return its size in bytes; 0: it failed.
    """
    if write_end(segment, batch + BATCH_HEADER_BYTES, batch_bytes - BATCH_HEADER_BYTES,
                 segment.used_bytes + BATCH_HEADER_BYTES, header) != 0:
        return 0
    return batch_bytes


cdef int write_end(
    const Segment* segment, const uint8_t* records, int64_t bytes, int64_t position_bytes,
    const uint8_t* header,
) noexcept nogil:
    """Write the last records of a batch, zeros after them as far as the file goes, then the header;
    0 or an errno.
    """
    cdef iovec[2] parts
    cdef uint8_t[ZEROS_BYTES] zeros
    cdef int64_t room = segment.reserved_bytes - position_bytes - bytes
    cdef int error
    EOS_CHECK(room >= 0, "batch: written within the reserved")
    memset(zeros, 0, ZEROS_BYTES)
    parts[0].iov_base = <void*>records
    parts[0].iov_len = <size_t>bytes
    parts[1].iov_base = zeros
    parts[1].iov_len = <size_t>min(room, <int64_t>ZEROS_BYTES)
    error = eos_pwritev_all(segment.fd, parts, 2, position_bytes)
    if error == 0:
        error = eos_pwrite_all(segment.fd, header, BATCH_HEADER_BYTES, segment.used_bytes)
    return error
