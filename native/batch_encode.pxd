# Encoding records into batches: sizes, single records, whole batches from columns.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.column cimport Column
from eoslog.native.record_batch cimport BatchIdentity

# Bytes a record may need besides its key, value and headers: length 5, attributes 1, timestamp 10,
# offset 5, key length 5, value length 5, header count 5.
cdef enum:
    RECORD_OVERHEAD_BYTES_MAX = 36

# Records to encode. `headers` holds each record's whole header section (count and entries) already
# encoded, or is COLUMN_NULL; `timestamps` is NULL when all records carry `default_timestamp_ms`.
cdef struct RecordColumns:
    Column keys
    Column values
    Column headers
    const int64_t* timestamps
    int64_t default_timestamp_ms
    int64_t count

cdef int64_t batch_bytes_bound(
    const RecordColumns* columns, int64_t first, int64_t count
) noexcept nogil
cdef int64_t record_bytes(
    const RecordColumns* columns, int64_t index, int64_t first
) noexcept nogil
cdef int64_t records_encode(
    uint8_t* at, int64_t room_bytes, const RecordColumns* columns, int64_t first,
    int32_t* next_record, int32_t count,
) noexcept nogil
cdef int64_t batch_encode(
    uint8_t* at, const RecordColumns* columns, int64_t first, int32_t count,
    const BatchIdentity* identity, uint8_t* limit, int64_t max_timestamp,
) noexcept nogil
cdef int64_t batch_stream(
    uint8_t* at, const RecordColumns* columns, int64_t first, int32_t count,
    const BatchIdentity* identity, uint8_t* limit, int64_t max_timestamp,
) noexcept nogil
cdef uint8_t* record_encode(
    uint8_t* at, int64_t timestamp_delta, int32_t offset_delta,
    const uint8_t* key, int64_t key_bytes, const uint8_t* value, int64_t value_bytes,
    const uint8_t* headers, int64_t headers_bytes,
) noexcept nogil
cdef int64_t newest_timestamp(
    const RecordColumns* columns, int64_t first, int64_t count
) noexcept nogil
