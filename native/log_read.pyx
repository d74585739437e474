# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Reading a partition's log: by offset, into columns.

Invariants: nothing at or above the upper bound is handed out; a range holds its segment's mapping
until it is closed; no record is handed out of a batch whose checksum was not found true in the same
call.
"""
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from eoslog.native.abort_index cimport (
    filter_close, filter_init, filter_open, filter_rewind, filter_takes_out,
)
from eoslog.native.atomics cimport load_acquire_64
from eoslog.native.control_page cimport control_load
from eoslog.native.crc32c cimport crc32c
from eoslog.native.partition_log cimport (
    log_acquire, log_end, log_next_base, log_release,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_COMPRESSION_MASK, ATTRIBUTE_CONTROL, BATCH_ATTRIBUTES, BATCH_HEADER_BYTES,
    BatchHeader, Record, RecordCursor, batch_check, batch_counts_check, batch_frame_check,
    batch_header_load, check_uncompressed, cursor_next, cursor_open,
)
from eoslog.native.segment cimport batch_end_offset, batch_in_chain, segment_find
from eoslog.native.status cimport (
    STATUS_CORRUPT, STATUS_OFFSET_OUT_OF_RANGE, STATUS_OK, fault,
)

cdef enum:
    CHECKED_BYTES = 16384            # Taken into the checksum, and decoded while they are in cache.
    RECORD_BYTES_MIN = 7             # Of a record without key, value and headers.
    CELL_BYTES_MAX = 0x7FFFFFF0      # Of a column: its offsets have 31 bits.


cdef Status check_offset(
    PartitionLog* log, int64_t offset, Fault* out
) noexcept nogil:
    cdef int64_t start = control_load(&log.page.log_start_offset)
    cdef int64_t end = log_end(log)
    if offset < start or offset > end:
        return fault(out, STATUS_OFFSET_OUT_OF_RANGE, "the offset is not in the log",
                     start if offset < start else end, offset)
    return STATUS_OK


cdef Status read_open(
    PartitionLog* log, int64_t offset, int64_t upper_bound, int64_t bytes_max, bint committed,
    ReadRange* found, Fault* out,
) noexcept nogil:
    """Hold the batches from the one with `offset` on: at least one, at most bytes_max, one segment.

    `found.segment` is NULL when there is nothing between offset and upper bound; `next_offset` is
    above the offset then where compaction left the offsets out. `committed`: the bound is the last
    stable offset or below, and batches of aborted transactions are left out of whatever is made of
    the range.
    """
    cdef Segment* segment = NULL
    cdef int64_t position = 0
    cdef int64_t used_bytes
    cdef int64_t next_base = -1
    cdef int64_t contiguous_from = max(offset, log.options.holes_below)
    cdef Status status = check_offset(log, offset, out)
    found.segment = NULL
    found.data_bytes = 0
    found.next_offset = offset
    filter_init(&found.filter)
    while status == STATUS_OK and offset < upper_bound:
        status = log_acquire(log, offset, &segment, out)
        if status != STATUS_OK:
            return status
        # If retention has deleted the segment, this is a later one.
        status = check_offset(log, offset, out)
        if status != STATUS_OK:
            log_release(log, segment)
            return status
        used_bytes = load_acquire_64(&segment.used_bytes)
        status = segment_find(segment, offset, used_bytes, &position, out)
        next_base = log_next_base(log, segment)
        if status == STATUS_OK and position < used_bytes:
            status = range_of(
                segment, position, used_bytes, contiguous_from, upper_bound, bytes_max,
                next_base if next_base >= 0 else log_end(log), found, out)
            if status == STATUS_OK and found.data_bytes > 0:
                found.segment = segment
                if committed:
                    status = filter_open(&found.filter, &log.aborts, offset, found.next_offset)
                    if status != STATUS_OK:
                        read_close(log, found)
                        return fault(out, status, "no memory for aborted transactions", 0, 0)
                return STATUS_OK
            next_base = -1           # What is there begins at the bound or after it.
        elif status == STATUS_OK and next_base > contiguous_from:
            out.base_offset = segment.base_offset
            out.position_bytes = used_bytes
            status = fault(
                out, STATUS_CORRUPT, "offsets are missing after the end of a segment",
                contiguous_from, next_base)
        log_release(log, segment)
        if next_base < 0:
            break
        offset = next_base
    if status == STATUS_OK:
        # No batch is below the bound: a reader goes on after what compaction left out.
        if contiguous_from > upper_bound:
            contiguous_from = upper_bound
        if found.next_offset < contiguous_from:
            found.next_offset = contiguous_from
    return status


cdef Status range_of(
    Segment* segment, int64_t position, int64_t used_bytes, int64_t contiguous_from,
    int64_t upper_bound, int64_t bytes_max, int64_t segment_end, ReadRange* found, Fault* out,
) noexcept nogil:
    """Take whole batches from `position` on until a bound is met.

    From `contiguous_from` on no offset may be missing: a batch after a hole that reaches further
    ends the range; as the first one it is the answer. `segment_end` is where the segment's
    offsets end for readers, taken after used_bytes. Each batch is compared with the next one too: a
    base offset that was damaged upwards shows there alone.
    """
    cdef int64_t base_offset_min = segment.base_offset
    cdef int64_t last_bytes = 0      # Of the last batch taken, while it is unproven.
    cdef int64_t last_base = 0
    cdef BatchHeader header
    cdef Status status
    found.data = segment.map + position
    found.position_bytes = position
    found.data_bytes = 0
    found.attributes = 0
    while position + BATCH_HEADER_BYTES <= used_bytes:
        status = batch_in_chain(segment, position, used_bytes, base_offset_min, &header, out)
        if status != STATUS_OK:
            if header.base_offset < base_offset_min:
                found.data_bytes -= last_bytes
                if last_bytes > 0:
                    found.next_offset = last_base
                out.position_bytes = position - last_bytes
            return STATUS_OK if found.data_bytes > 0 else status
        if found.data_bytes == 0 and header.base_offset > contiguous_from:
            out.base_offset = segment.base_offset
            out.position_bytes = position
            return fault(out, STATUS_CORRUPT, "offsets are missing before a batch",
                         contiguous_from, header.base_offset)
        if header.base_offset >= upper_bound:
            # Appended after the bound, unless nothing of the kind can be there.
            if batch_end_offset(&header) > segment_end and header.base_offset > segment_end and (
                    found.data_bytes == 0 or header.base_offset != base_offset_min):
                return beyond_segment(segment, position, segment_end, &header, found, out)
            break
        if batch_end_offset(&header) > segment_end:
            return beyond_segment(segment, position, segment_end, &header, found, out)
        if found.data_bytes > 0 and (
                found.data_bytes + header.batch_bytes > bytes_max
                or header.base_offset > base_offset_min and header.base_offset > contiguous_from):
            break
        last_bytes = header.batch_bytes
        last_base = header.base_offset
        if found.data_bytes > 0 and header.base_offset == base_offset_min:
            last_bytes = 0
        found.data_bytes += header.batch_bytes
        found.attributes |= header.attributes
        found.next_offset = batch_end_offset(&header)
        base_offset_min = found.next_offset
        position += header.batch_bytes
    return STATUS_OK


cdef Status beyond_segment(
    const Segment* segment, int64_t position, int64_t segment_end, const BatchHeader* header,
    const ReadRange* found, Fault* out,
) noexcept nogil:
    """The good batches before it first; as the first one it is the answer."""
    if found.data_bytes > 0:
        return STATUS_OK
    out.base_offset = segment.base_offset
    out.position_bytes = position
    return fault(out, STATUS_CORRUPT, "a batch's offsets lie beyond those of its segment",
                 segment_end, batch_end_offset(header))


cdef void read_close(PartitionLog* log, ReadRange* found) noexcept nogil:
    if found.segment != NULL:
        log_release(log, found.segment)
        filter_close(&found.filter)
    found.segment = NULL


cdef int64_t range_copy(ReadRange* found, uint8_t* target) noexcept nogil:
    """Copy the range's batches, without those of aborted transactions; how many bytes."""
    cdef int64_t position = 0
    cdef int64_t copied = 0
    cdef BatchHeader header
    if found.filter.count == 0:
        memcpy(target, found.data, <size_t>found.data_bytes)
        return found.data_bytes
    filter_rewind(&found.filter)
    while position < found.data_bytes:
        batch_header_load(found.data + position, &header)
        if not filter_takes_out(&found.filter, &header):
            memcpy(target + copied, found.data + position, <size_t>header.batch_bytes)
            copied += header.batch_bytes
        position += header.batch_bytes
    return copied


cdef Status range_end_at_compressed(ReadRange* found, Fault* out) noexcept nogil:
    """End the range before its first compressed batch; as the first one it is the answer.

    One that is left out of the range anyway stays in it.
    """
    cdef int64_t position = 0
    cdef bint taken_out
    cdef BatchHeader header
    cdef Status status
    if not found.attributes & ATTRIBUTE_COMPRESSION_MASK:
        return STATUS_OK
    filter_rewind(&found.filter)
    while position < found.data_bytes:
        batch_header_load(found.data + position, &header)
        taken_out = filter_takes_out(&found.filter, &header)
        status = check_uncompressed(&header, out)
        if status != STATUS_OK and not taken_out:
            if position == 0:
                return corrupt_at(found, position, status, out)
            found.data_bytes = position
            found.next_offset = header.base_offset
            return STATUS_OK
        position += header.batch_bytes
    return STATUS_OK


cdef Status corrupt_at(
    const ReadRange* found, int64_t position, Status status, Fault* out
) noexcept nogil:
    out.base_offset = found.segment.base_offset
    out.position_bytes = found.position_bytes + position
    return status


cdef Status fetch_measure(
    ReadRange* found, int64_t offset, int64_t upper_bound, int64_t records_max,
    FetchSizes* sizes, Fault* out,
) noexcept nogil:
    """Verify the range's batches and add up what their records need, from `offset` on.

    Stops before record records_max + 1 (-1: no limit) and where sizes would leave 31 bits. A bad
    batch after good records ends the range; as the first one it is the answer.
    """
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef RecordCursor cursor
    cdef Record record
    cdef FetchSizes before
    cdef int64_t passed_bytes
    cdef int32_t _index
    cdef Status status
    sizes_begin(sizes, offset)
    filter_rewind(&found.filter)
    while position < found.data_bytes:
        passed_bytes = passed_over(found, position, sizes)
        if passed_bytes > 0:
            position += passed_bytes
            continue
        before = sizes[0]
        status = batch_check(found.data + position, found.data_bytes - position, &header, out)
        if status == STATUS_OK:
            status = check_uncompressed(&header, out)
        if status == STATUS_OK and not header.attributes & ATTRIBUTE_CONTROL:
            cursor_open(&cursor, found.data + position, &header)
            for _index in range(header.record_count):
                status = cursor_next(&cursor, &record, out)
                if status != STATUS_OK:
                    break
                if record.offset < offset:
                    continue
                if record.offset >= upper_bound or sizes.record_count == records_max or (
                        not has_room(&record, sizes)):
                    return STATUS_OK
                measure_record(&record, sizes)
        if status != STATUS_OK:
            return batch_failed(found, position, status, &before, sizes, out)
        batch_passed(&header, sizes)
        position += header.batch_bytes
    return STATUS_OK


cdef inline void sizes_begin(FetchSizes* sizes, int64_t offset) noexcept nogil:
    sizes.record_count = sizes.key_bytes = sizes.value_bytes = sizes.header_count = 0
    sizes.null_key_count = sizes.null_value_count = 0
    sizes.next_offset = offset


cdef int64_t passed_over(
    ReadRange* found, int64_t position, FetchSizes* sizes
) noexcept nogil:
    """Return the bytes of a batch of an aborted transaction, by its header alone: no reader sees
    its records. 0 for all others.
    """
    cdef BatchHeader header
    if found.filter.count == 0:
        return 0
    batch_header_load(found.data + position, &header)
    if not filter_takes_out(&found.filter, &header):
        return 0
    batch_passed(&header, sizes)
    return header.batch_bytes


cdef inline void batch_passed(const BatchHeader* header, FetchSizes* sizes) noexcept nogil:
    if batch_end_offset(header) > sizes.next_offset:
        sizes.next_offset = batch_end_offset(header)


cdef Status batch_failed(
    const ReadRange* found, int64_t position, Status status, const FetchSizes* before,
    FetchSizes* sizes, Fault* out,
) noexcept nogil:
    """Good records before the bad batch end the range; as the first one it is the answer."""
    sizes[0] = before[0]
    if sizes.record_count > 0:
        return STATUS_OK
    return corrupt_at(found, position, status, out)


cdef inline bint has_room(const Record* record, const FetchSizes* sizes) noexcept nogil:
    return (sizes.value_bytes + record.value_bytes <= CELL_BYTES_MAX
            and sizes.key_bytes + record.key_bytes <= CELL_BYTES_MAX)


cdef inline void measure_record(const Record* record, FetchSizes* sizes) noexcept nogil:
    sizes.record_count += 1
    sizes.next_offset = record.offset + 1
    sizes.header_count += record.header_count
    if record.key_bytes >= 0:
        sizes.key_bytes += record.key_bytes
    else:
        sizes.null_key_count += 1
    if record.value_bytes >= 0:
        sizes.value_bytes += record.value_bytes
    else:
        sizes.null_value_count += 1


cdef int64_t fetch_records_max(ReadRange* found, int64_t records_max) noexcept nogil:
    """Return how many records the range can have, by its batches' headers and bytes, and at most
    records_max of them (-1: no limit).
    """
    cdef int64_t position = 0
    cdef int64_t count = 0
    cdef int64_t fitting
    cdef BatchHeader header
    while position < found.data_bytes:
        batch_header_load(found.data + position, &header)
        fitting = (header.batch_bytes - BATCH_HEADER_BYTES) // RECORD_BYTES_MIN
        if header.record_count > 0:
            count += fitting if fitting < header.record_count else header.record_count
        position += header.batch_bytes
    return count if records_max < 0 or count < records_max else records_max


cdef Status fetch_decode(
    ReadRange* found, int64_t offset, int64_t upper_bound, const FetchColumns* columns,
    FetchSizes* sizes, Fault* out,
) noexcept nogil:
    """Verify and decode the range's batches, from `offset` on, all but the bytes of the cells.

    Stops where there is no room for another record, and where sizes would leave 31 bits. A bad
    batch after good records ends the range; as the first one it is the answer.
    """
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef FetchSizes before
    cdef int64_t passed_bytes
    cdef bint is_full = False
    cdef Status status
    sizes_begin(sizes, offset)
    if columns.keys.ends != NULL:
        columns.keys.ends[0] = 0
    if columns.values.ends != NULL:
        columns.values.ends[0] = 0
    if columns.headers.ends != NULL:
        columns.headers.ends[0] = 0
    filter_rewind(&found.filter)
    while position < found.data_bytes and not is_full:
        passed_bytes = passed_over(found, position, sizes)
        if passed_bytes > 0:
            position += passed_bytes
            continue
        before = sizes[0]
        status = decode_batch(
            found, position, offset, upper_bound, columns, sizes, &header, &is_full, out)
        if status != STATUS_OK:
            return batch_failed(found, position, status, &before, sizes, out)
        if not is_full:
            batch_passed(&header, sizes)
        position += header.batch_bytes
    return STATUS_OK


cdef Status decode_batch(
    ReadRange* found, int64_t position, int64_t offset, int64_t upper_bound,
    const FetchColumns* columns, FetchSizes* sizes, BatchHeader* header, bint* is_full,
    Fault* out,
) noexcept nogil:
    """Decode a batch while its checksum is taken, a piece at a time: each piece is read from memory
    once. Only with STATUS_OK was the checksum true, and may the records be believed.
    """
    cdef const uint8_t* at = found.data + position + BATCH_ATTRIBUTES    # Up to here it is taken.
    cdef const uint8_t* end
    cdef uint32_t crc = 0
    cdef RecordCursor cursor
    cdef Record record
    cdef int32_t _index
    cdef Status decoded = STATUS_OK
    cdef Status status = batch_frame_check(
        found.data + position, found.data_bytes - position, header, out)
    if status != STATUS_OK:
        return status
    end = found.data + position + header.batch_bytes
    if not header.attributes & (ATTRIBUTE_COMPRESSION_MASK | ATTRIBUTE_CONTROL):
        cursor_open(&cursor, found.data + position, header)
        for _index in range(header.record_count):
            while at <= cursor.at and at < end:
                crc = checksum_piece(crc, &at, end)
            decoded = cursor_next(&cursor, &record, out)
            if decoded != STATUS_OK:
                break
            if record.offset < offset:
                continue
            if record.offset >= upper_bound or sizes.record_count == columns.records_max or (
                    not has_room(&record, sizes)):
                is_full[0] = True
                break
            put_record(&record, sizes.record_count, columns)
            measure_record(&record, sizes)
    while at < end:
        crc = checksum_piece(crc, &at, end)
    status = batch_counts_check(header, crc, out)
    if status == STATUS_OK:
        status = check_uncompressed(header, out)
    return decoded if status == STATUS_OK else status


cdef inline uint32_t checksum_piece(
    uint32_t crc, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    cdef int64_t piece_bytes = end - at[0]
    if piece_bytes > CHECKED_BYTES:
        piece_bytes = CHECKED_BYTES
    crc = crc32c(crc, at[0], <size_t>piece_bytes)
    at[0] += piece_bytes
    return crc


cdef inline void put_record(
    const Record* record, int64_t row, const FetchColumns* columns
) noexcept nogil:
    if columns.offsets != NULL:
        columns.offsets[row] = record.offset
    if columns.timestamps != NULL:
        columns.timestamps[row] = record.timestamp
    if columns.keys.ends != NULL:
        put_cell(&columns.keys, row, record.key, record.key_bytes)
    if columns.values.ends != NULL:
        put_cell(&columns.values, row, record.value, record.value_bytes)
    if columns.headers.ends != NULL:
        put_cell(&columns.headers, row, record.headers, record.headers_bytes)


cdef inline void put_cell(
    const FetchCells* cells, int64_t row, const uint8_t* cell, int32_t cell_bytes
) noexcept nogil:
    cells.sources[row] = cell if cell_bytes >= 0 else NULL
    cells.ends[row + 1] = cells.ends[row] + (cell_bytes if cell_bytes > 0 else 0)


cdef void fetch_copy(
    const FetchCells* cells, int64_t record_count, uint8_t* data, uint8_t* validity
) noexcept nogil:
    """Copy the bytes of cells that fetch_decode found; a bitmap (or NULL) is zeroed before."""
    cdef int64_t row
    cdef int32_t cell_bytes
    for row in range(record_count):
        if cells.sources[row] == NULL:
            continue
        if validity != NULL:
            validity[row >> 3] |= <uint8_t>(1 << (row & 7))
        cell_bytes = cells.ends[row + 1] - cells.ends[row]
        if cell_bytes > 0:
            memcpy(data + cells.ends[row], cells.sources[row], <size_t>cell_bytes)


cdef Status scan_headers(
    PartitionLog* log, int64_t offset, int64_t upper_bound, int64_t* batch_count,
    int64_t* record_count, int64_t* next_offset, int32_t* leader_epoch, Fault* out,
) noexcept nogil:
    """Walk the batch headers from `offset` on without looking at a record. `leader_epoch` is the
    highest of them, -1 if there are none.
    """
    cdef ReadRange found
    cdef int64_t position
    cdef BatchHeader header
    cdef Status status
    batch_count[0] = 0
    record_count[0] = 0
    next_offset[0] = offset
    leader_epoch[0] = -1
    while True:
        status = read_open(log, next_offset[0], upper_bound, 0x7FFFFFFF, False, &found, out)
        if status == STATUS_OK:
            next_offset[0] = found.next_offset
        if status != STATUS_OK or found.segment == NULL:
            return status
        position = 0
        while position < found.data_bytes:
            batch_header_load(found.data + position, &header)
            batch_count[0] += 1
            record_count[0] += header.record_count
            if leader_epoch[0] < header.partition_leader_epoch:
                leader_epoch[0] = header.partition_leader_epoch
            position += header.batch_bytes
        read_close(log, &found)


cdef Status find_hole(
    PartitionLog* log, int64_t offset, int64_t* first, int64_t* upper_bound, Fault* out
) noexcept nogil:
    """The first offsets from `offset` on that no batch holds, [first, upper_bound).

    upper_bound is -1 if there are none below the log end.
    """
    cdef int64_t end = log_end(log)
    cdef int64_t next_base = 0
    cdef Segment* segment = NULL
    cdef Status status = STATUS_OK
    first[0] = offset
    upper_bound[0] = -1
    while status == STATUS_OK and upper_bound[0] < 0 and 0 <= next_base and first[0] < end:
        status = log_acquire(log, first[0], &segment, out)
        if status != STATUS_OK:
            return status
        next_base = log_next_base(log, segment)
        status = hole_in_segment(
            segment, next_base if next_base >= 0 else end, first, upper_bound, out)
        log_release(log, segment)
    return status


cdef Status hole_in_segment(
    const Segment* segment, int64_t segment_end, int64_t* first, int64_t* upper_bound, Fault* out
) noexcept nogil:
    """`first` becomes the end of the segment where there is none."""
    cdef int64_t used_bytes = load_acquire_64(&segment.used_bytes)
    cdef int64_t position = 0
    cdef int64_t base_offset_min = segment.base_offset
    cdef BatchHeader header
    cdef Status status = segment_find(segment, first[0], used_bytes, &position, out)
    while status == STATUS_OK and position + BATCH_HEADER_BYTES <= used_bytes:
        status = batch_in_chain(segment, position, used_bytes, base_offset_min, &header, out)
        if status == STATUS_OK and header.base_offset > first[0]:
            upper_bound[0] = header.base_offset
            return status
        base_offset_min = first[0] = batch_end_offset(&header)
        position += header.batch_bytes
    if status == STATUS_OK and first[0] < segment_end:
        upper_bound[0] = segment_end
    return status
