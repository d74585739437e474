# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Record batch v2: header, validator, record cursor.

Invariants: a batch that batch_check let pass has a true checksum and fits in what is there;
cursor_next never reads past the end of its batch.
"""
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from eoslog.native.byte_order cimport (
    load_be16, load_be32, load_be64, store_be16, store_be32, store_be64,
)
from eoslog.native.crash_point cimport CRASH_POINT
from eoslog.native.crc32c cimport crc32c
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_OK, fault
from eoslog.native.varint cimport load_varint, load_varlong


cdef void batch_header_load(const uint8_t* batch, BatchHeader* header) noexcept nogil:
    """Read the 61 header bytes at `batch`; nothing is judged."""
    header.base_offset = load_be64(batch + BATCH_BASE_OFFSET)
    header.batch_bytes = <int64_t>load_be32(batch + BATCH_LENGTH) + BATCH_LENGTH_OVERHEAD
    header.partition_leader_epoch = load_be32(batch + BATCH_LEADER_EPOCH)
    header.magic = batch[BATCH_MAGIC]
    header.crc = <uint32_t>load_be32(batch + BATCH_CRC)
    header.attributes = load_be16(batch + BATCH_ATTRIBUTES)
    header.last_offset_delta = load_be32(batch + BATCH_LAST_OFFSET_DELTA)
    header.base_timestamp = load_be64(batch + BATCH_BASE_TIMESTAMP)
    header.max_timestamp = load_be64(batch + BATCH_MAX_TIMESTAMP)
    header.producer_id = load_be64(batch + BATCH_PRODUCER_ID)
    header.producer_epoch = load_be16(batch + BATCH_PRODUCER_EPOCH)
    header.base_sequence = load_be32(batch + BATCH_BASE_SEQUENCE)
    header.record_count = load_be32(batch + BATCH_RECORD_COUNT)


cdef Status batch_check(
    const uint8_t* batch, int64_t available_bytes, BatchHeader* header, Fault* out
) noexcept nogil:
    """Load and judge the batch at `batch`: it fits, is magic 2, and its checksum is true.

    Only after STATUS_OK may the other fields be believed.
    """
    cdef uint32_t crc
    cdef Status status = batch_frame_check(batch, available_bytes, header, out)
    if status != STATUS_OK:
        return status
    crc = crc32c(0, batch + BATCH_ATTRIBUTES, <size_t>(header.batch_bytes - BATCH_ATTRIBUTES))
    return batch_counts_check(header, crc, out)


cdef Status batch_frame_check(
    const uint8_t* batch, int64_t available_bytes, BatchHeader* header, Fault* out
) noexcept nogil:
    """Load the header at `batch`, and judge what can be judged before the checksum: it fits."""
    if available_bytes < BATCH_HEADER_BYTES:
        return fault(out, STATUS_CORRUPT, "fewer bytes left than a batch header",
                     BATCH_HEADER_BYTES, available_bytes)
    # The magic byte stands at the same place in every format, so it is asked first.
    if batch[BATCH_MAGIC] != BATCH_MAGIC_V2:
        return fault(
            out, STATUS_CORRUPT, "batch magic is not 2", BATCH_MAGIC_V2, batch[BATCH_MAGIC])
    batch_header_load(batch, header)
    if header.batch_bytes < BATCH_HEADER_BYTES:
        return fault(out, STATUS_CORRUPT, "batch length is below the header size",
                     BATCH_HEADER_BYTES, header.batch_bytes)
    if header.batch_bytes > available_bytes:
        return fault(out, STATUS_CORRUPT, "batch runs past the end of the bytes",
                     header.batch_bytes, available_bytes)
    return STATUS_OK


cdef Status batch_counts_check(
    const BatchHeader* header, uint32_t crc, Fault* out
) noexcept nogil:
    """Judge the rest of a batch that fits, by the checksum of its bytes."""
    if crc != header.crc:
        return fault(out, STATUS_CORRUPT, "batch checksum does not match its bytes",
                     header.crc, crc)
    if header.record_count < 0 or header.last_offset_delta < 0:
        return fault(out, STATUS_CORRUPT, "batch counts are negative", 0, header.record_count)
    if header.record_count == 0 and header.batch_bytes != BATCH_HEADER_BYTES:
        return fault(out, STATUS_CORRUPT, "batch counts no record, and has bytes after its header",
                     BATCH_HEADER_BYTES, header.batch_bytes)
    return STATUS_OK


cdef void batch_terminate(uint8_t* end, uint8_t* limit) noexcept nogil:
    """Zero the place of the next header's length and magic, so that a scan ends here."""
    cdef int64_t room = limit - end
    if room > 0:
        CRASH_POINT("batch: terminator")
        memset(end, 0, <size_t>(room if room < BATCH_TERMINATOR_BYTES else BATCH_TERMINATOR_BYTES))


cdef void batch_header_store(
    uint8_t* at, int64_t batch_bytes, int32_t record_count, int64_t base_timestamp,
    int64_t max_timestamp, const BatchIdentity* identity,
) noexcept nogil:
    """Write the header of a batch whose records stand after it, checksum included."""
    cdef uint8_t header[BATCH_HEADER_BYTES]
    cdef uint32_t crc = batch_header_fill(
        header, record_count, base_timestamp, max_timestamp, identity)
    crc = crc32c(crc, at + BATCH_HEADER_BYTES, <size_t>(batch_bytes - BATCH_HEADER_BYTES))
    batch_header_finish(at, header, batch_bytes, crc)


cdef uint32_t batch_header_fill(
    uint8_t* header, int32_t record_count, int64_t base_timestamp, int64_t max_timestamp,
    const BatchIdentity* identity,
) noexcept nogil:
    """Fill in a header but for its length and checksum; answers the checksum of the header's own
    part, from which the records' bytes go on.
    """
    store_be64(&header[BATCH_BASE_OFFSET], identity.base_offset)
    store_be32(&header[BATCH_LEADER_EPOCH], identity.partition_leader_epoch)
    header[BATCH_MAGIC] = BATCH_MAGIC_V2
    store_be16(&header[BATCH_ATTRIBUTES], identity.attributes)
    store_be32(&header[BATCH_LAST_OFFSET_DELTA], record_count - 1)
    store_be64(&header[BATCH_BASE_TIMESTAMP], base_timestamp)
    store_be64(&header[BATCH_MAX_TIMESTAMP], max_timestamp)
    store_be64(&header[BATCH_PRODUCER_ID], identity.producer_id)
    store_be16(&header[BATCH_PRODUCER_EPOCH], identity.producer_epoch)
    store_be32(&header[BATCH_BASE_SEQUENCE], identity.base_sequence)
    store_be32(&header[BATCH_RECORD_COUNT], record_count)
    return crc32c(0, &header[BATCH_ATTRIBUTES], BATCH_HEADER_BYTES - BATCH_ATTRIBUTES)


cdef void batch_header_finish(
    uint8_t* at, uint8_t* header, int64_t batch_bytes, uint32_t crc
) noexcept nogil:
    """Complete the filled header, and put it before the records that stand after `at`."""
    store_be32(&header[BATCH_LENGTH], <int32_t>(batch_bytes - BATCH_LENGTH_OVERHEAD))
    store_be32(&header[BATCH_CRC], <int32_t>crc)
    memcpy(at, header, BATCH_HEADER_BYTES)


cdef void cursor_open(
    RecordCursor* cursor, const uint8_t* batch, const BatchHeader* header
) noexcept nogil:
    """Stand before the first record of an uncompressed batch that batch_check let pass."""
    cursor.at = batch + BATCH_HEADER_BYTES
    cursor.end = batch + header.batch_bytes
    cursor.base_offset = header.base_offset
    cursor.base_timestamp = header.base_timestamp
    cursor.append_timestamp = -1
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        cursor.append_timestamp = header.max_timestamp
    cursor.remaining_count = header.record_count


cdef Status cursor_next(RecordCursor* cursor, Record* record, Fault* out) noexcept nogil:
    """Decode the next record. The caller asks no more than record_count times."""
    cdef int32_t body_length = 0
    cdef int32_t offset_delta = 0
    cdef int64_t timestamp_delta = 0
    cdef const uint8_t* at = load_varint(cursor.at, cursor.end, &body_length)
    cdef const uint8_t* end
    if at == NULL or body_length < 0 or body_length > cursor.end - at:
        return fault(out, STATUS_CORRUPT, "record runs past the end of its batch",
                     body_length, cursor.end - cursor.at)
    end = at + body_length
    if at == end:
        return fault(out, STATUS_CORRUPT, "record is empty", 1, 0)
    at = load_varlong(at + 1, end, &timestamp_delta)       # Past the unused attributes byte.
    if at != NULL:
        at = load_varint(at, end, &offset_delta)
    if at != NULL:
        at = field_load(at, end, &record.key, &record.key_bytes)
    if at != NULL:
        at = field_load(at, end, &record.value, &record.value_bytes)
    if at != NULL:
        at = load_varint(at, end, &record.header_count)
    if at == NULL or record.header_count < 0 or record.header_count > end - at:
        return fault(out, STATUS_CORRUPT, "record fields run past the end of the record",
                     body_length, cursor.remaining_count)
    record.headers = at
    record.headers_bytes = <int32_t>(end - at)
    if record.header_count == 0 and at != end:
        return fault(out, STATUS_CORRUPT, "record has bytes after its last field", 0, end - at)
    if record.header_count > 0 and not headers_fill(at, end, record.header_count):
        return fault(out, STATUS_CORRUPT, "record headers do not fill the record",
                     record.header_count, end - at)
    # Wrapping: the checksum of what is decoded may still be outstanding.
    record.offset = <int64_t>(<uint64_t>cursor.base_offset + <uint64_t>offset_delta)
    record.timestamp = cursor.append_timestamp
    if record.timestamp < 0:
        record.timestamp = <int64_t>(<uint64_t>cursor.base_timestamp + <uint64_t>timestamp_delta)
    cursor.at = end
    cursor.remaining_count -= 1
    if cursor.remaining_count == 0 and end != cursor.end:
        return fault(out, STATUS_CORRUPT, "batch has bytes after its last record",
                     0, cursor.end - end)
    return STATUS_OK


cdef inline const uint8_t* field_load(
    const uint8_t* at, const uint8_t* end, const uint8_t** bytes_out, int32_t* length_out
) noexcept nogil:
    """Load a length (-1 = null) and step over its bytes; NULL when they are not all there."""
    at = load_varint(at, end, length_out)
    if at == NULL or length_out[0] < -1 or length_out[0] > end - at:
        return NULL
    bytes_out[0] = at
    if length_out[0] > 0:
        at += length_out[0]
    return at


cdef bint headers_fill(const uint8_t* at, const uint8_t* end, int32_t count) noexcept nogil:
    """True if `count` headers fill the bytes exactly, each with a key that is not null."""
    cdef const uint8_t* ignored = NULL
    cdef int32_t length = 0
    cdef int32_t _index
    for _index in range(count):
        at = field_load(at, end, &ignored, &length)
        if at == NULL or length < 0:
            return False
        at = field_load(at, end, &ignored, &length)
        if at == NULL:
            return False
    return at == end
