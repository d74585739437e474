# Record batch v2: header, validator, record cursor.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from eoslog.native.status cimport STATUS_COMPRESSED, STATUS_OK, Fault, Status, fault

cdef extern from "record_batch_layout.h" nogil:
    enum:
        BATCH_BASE_OFFSET
        BATCH_LENGTH
        BATCH_LEADER_EPOCH
        BATCH_MAGIC
        BATCH_CRC
        BATCH_ATTRIBUTES
        BATCH_LAST_OFFSET_DELTA
        BATCH_BASE_TIMESTAMP
        BATCH_MAX_TIMESTAMP
        BATCH_PRODUCER_ID
        BATCH_PRODUCER_EPOCH
        BATCH_BASE_SEQUENCE
        BATCH_RECORD_COUNT
        BATCH_HEADER_BYTES
        BATCH_LENGTH_OVERHEAD
        BATCH_MAGIC_V2
        ATTRIBUTE_COMPRESSION_MASK
        ATTRIBUTE_LOG_APPEND_TIME
        ATTRIBUTE_TRANSACTIONAL
        ATTRIBUTE_CONTROL

cdef enum:
    BATCH_TERMINATOR_BYTES = 17      # Zeros after the last batch: a length of 0 ends every scan.

cdef struct BatchHeader:
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int64_t batch_bytes              # The whole batch, with offset and length.
    uint32_t crc
    int32_t partition_leader_epoch
    int32_t last_offset_delta
    int32_t base_sequence
    int32_t record_count
    int16_t producer_epoch
    int16_t attributes
    uint8_t magic

# Who writes a batch, and where it will stand.
cdef struct BatchIdentity:
    int64_t base_offset
    int64_t producer_id
    int32_t partition_leader_epoch
    int32_t base_sequence
    int16_t producer_epoch
    int16_t attributes

cdef struct Record:
    int64_t offset
    int64_t timestamp
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers           # First header entry, past the count.
    int32_t key_bytes                # -1 = null.
    int32_t value_bytes              # -1 = null.
    int32_t header_count
    int32_t headers_bytes

# Walks the records of one validated batch.
cdef struct RecordCursor:
    const uint8_t* at
    const uint8_t* end
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_timestamp         # -1 unless the batch has log append time.
    int32_t remaining_count

cdef void batch_header_load(const uint8_t* batch, BatchHeader* header) noexcept nogil
cdef Status batch_check(
    const uint8_t* batch, int64_t available_bytes, BatchHeader* header, Fault* out
) noexcept nogil
# The two halves of batch_check, for callers that take the checksum themselves.
cdef Status batch_frame_check(
    const uint8_t* batch, int64_t available_bytes, BatchHeader* header, Fault* out
) noexcept nogil
cdef Status batch_counts_check(
    const BatchHeader* header, uint32_t crc, Fault* out
) noexcept nogil
cdef void batch_terminate(uint8_t* end, uint8_t* limit) noexcept nogil
cdef void batch_header_store(
    uint8_t* at, int64_t batch_bytes, int32_t record_count, int64_t base_timestamp,
    int64_t max_timestamp, const BatchIdentity* identity,
) noexcept nogil
cdef uint32_t batch_header_fill(
    uint8_t* header, int32_t record_count, int64_t base_timestamp, int64_t max_timestamp,
    const BatchIdentity* identity,
) noexcept nogil
cdef void batch_header_finish(
    uint8_t* at, uint8_t* header, int64_t batch_bytes, uint32_t crc
) noexcept nogil
cdef void cursor_open(
    RecordCursor* cursor, const uint8_t* batch, const BatchHeader* header
) noexcept nogil
cdef Status cursor_next(RecordCursor* cursor, Record* record, Fault* out) noexcept nogil

cdef inline Status check_uncompressed(const BatchHeader* header, Fault* out) noexcept nogil:
    """STATUS_COMPRESSED if the batch's records cannot be decoded without decompression."""
    if header.attributes & ATTRIBUTE_COMPRESSION_MASK:
        return fault(out, STATUS_COMPRESSED, "the batch is compressed", 0,
                     header.attributes & ATTRIBUTE_COMPRESSION_MASK)
    return STATUS_OK

cdef inline int32_t sequence_add(int32_t sequence, int32_t delta) noexcept nogil:
    # Sequences wrap from 2**31 - 1 to 0. Widen first: signed overflow is undefined in C.
    return <int32_t>((<int64_t>sequence + delta) & 0x7FFFFFFF)

cdef inline int32_t sequence_subtract(int32_t sequence, int32_t delta) noexcept nogil:
    return <int32_t>((<int64_t>sequence - delta) & 0x7FFFFFFF)
