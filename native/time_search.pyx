# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Search of a log by time.

Invariant: an index that lies is ignored, as the log is the truth.
"""
from eoslog.native.atomics cimport load_acquire_64
from eoslog.native.control_page cimport control_load
from eoslog.native.index_file cimport index_file_lookup
from eoslog.native.partition_log cimport log_acquire, log_next_base, log_release
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, BATCH_HEADER_BYTES, BatchHeader, Record, RecordCursor, batch_check,
    batch_header_load, check_uncompressed, cursor_next, cursor_open,
)
from eoslog.native.segment cimport Segment, batch_end_offset, batch_in_chain, segment_find
from eoslog.native.status cimport STATUS_OK
from eoslog.native.time_index cimport time_index_offset, time_index_timestamp


cdef Status offset_for_timestamp(
    PartitionLog* log, int64_t timestamp, int64_t upper_bound, int64_t* offset_out,
    int64_t* timestamp_out, Fault* out,
) noexcept nogil:
    """First record at or past log start with a timestamp >= the given one; offset -1 if there is
    none.
    """
    cdef int64_t offset = control_load(&log.page.log_start_offset)
    cdef Segment* segment = NULL
    cdef int64_t next_base
    cdef Status status = STATUS_OK
    offset_out[0] = -1
    while status == STATUS_OK and offset < upper_bound and offset_out[0] < 0:
        status = log_acquire(log, offset, &segment, out)
        if status != STATUS_OK:
            return status
        if segment.max_timestamp >= timestamp:
            status = time_in_segment(
                segment, timestamp, offset, upper_bound, offset_out, timestamp_out, out)
        next_base = log_next_base(log, segment)
        log_release(log, segment)
        if next_base <= offset:
            return status
        offset = next_base
    return status


cdef Status time_in_segment(
    Segment* segment, int64_t timestamp, int64_t offset, int64_t upper_bound, int64_t* offset_out,
    int64_t* timestamp_out, Fault* out,
) noexcept nogil:
    cdef int64_t used_bytes = load_acquire_64(&segment.used_bytes)
    cdef int64_t position = 0
    cdef int64_t base_offset_min = segment.base_offset
    cdef BatchHeader header
    cdef RecordCursor cursor
    cdef Record record
    cdef int32_t _index
    cdef Status status = time_scan_start(segment, timestamp, offset, used_bytes, &position, out)
    while status == STATUS_OK and position + BATCH_HEADER_BYTES <= used_bytes:
        status = batch_in_chain(segment, position, used_bytes, base_offset_min, &header, out)
        if status != STATUS_OK or header.base_offset >= upper_bound:
            return status
        base_offset_min = batch_end_offset(&header)
        if header.max_timestamp >= timestamp and not header.attributes & ATTRIBUTE_CONTROL:
            status = batch_check(segment.map + position, used_bytes - position, &header, out)
            out.base_offset = segment.base_offset
            out.position_bytes = position
            if status == STATUS_OK:
                status = check_uncompressed(&header, out)
            if status != STATUS_OK:
                return status
            cursor_open(&cursor, segment.map + position, &header)
            for _index in range(header.record_count):
                status = cursor_next(&cursor, &record, out)
                if status != STATUS_OK:
                    return status
                if record.timestamp >= timestamp and offset <= record.offset < upper_bound:
                    offset_out[0] = record.offset
                    timestamp_out[0] = record.timestamp
                    return STATUS_OK
        position += header.batch_bytes
    return status


cdef Status time_scan_start(
    const Segment* segment, int64_t timestamp, int64_t offset, int64_t used_bytes,
    int64_t* position, Fault* out,
) noexcept nogil:
    """Position of a batch before which every record from `offset` on is older than the
    timestamp.
    """
    # The entry below the target: every batch before the one it names is older than the target.
    cdef int32_t entry = index_file_lookup(&segment.time_index, timestamp - 1)
    cdef int64_t start
    cdef BatchHeader header
    cdef Status status
    if entry >= 0:
        start = segment.base_offset + time_index_offset(&segment.time_index, entry)
        if start > offset:
            status = segment_find(segment, start, used_bytes, position, out)
            if status == STATUS_OK and position[0] + BATCH_HEADER_BYTES <= used_bytes:
                batch_header_load(segment.map + position[0], &header)
                if header.max_timestamp == time_index_timestamp(&segment.time_index, entry):
                    return STATUS_OK
    return segment_find(segment, offset, used_bytes, position, out)
