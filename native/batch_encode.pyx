# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Encoding records into batches: their sizes, one record, a whole batch from columns.

Invariants: batch_encode writes exactly the bytes that the record sizes add up to and never more
than batch_bytes_bound; batch_stream writes the same; the header is the last that is written.
"""
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from eoslog.native.column cimport COLUMN_NULL, column_bytes, column_get
from eoslog.native.crash_point cimport CRASH_POINT
from eoslog.native.crc32c cimport crc32c
from eoslog.native.record_batch cimport (
    BATCH_HEADER_BYTES, batch_header_fill, batch_header_finish, batch_header_store, batch_terminate,
)
from eoslog.native.store_window cimport (
    STORE_LINE_BYTES, STORE_WINDOW_BYTES, StoreWindow, store_window_close, store_window_drain,
    store_window_open,
)
from eoslog.native.varint cimport store_varint, store_varlong, varint_bytes, varlong_bytes

cdef const uint8_t* NO_HEADERS = b"\0"

# One record's parts, where they lie.
cdef struct RecordParts:
    int64_t timestamp_delta
    int32_t offset_delta
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers           # The encoded header section; NULL = no headers.
    int64_t key_bytes                # -1 = null.
    int64_t value_bytes              # -1 = null.
    int64_t headers_bytes


cdef int64_t batch_bytes_bound(
    const RecordColumns* columns, int64_t first, int64_t count
) noexcept nogil:
    """Upper bound of the size in bytes of a batch of records [first, first + count)."""
    cdef int64_t overhead_bytes = RECORD_OVERHEAD_BYTES_MAX
    # So close that 1,000 values of 1 KB need no look at each for a limit of 1 MiB.
    if columns.timestamps == NULL:
        overhead_bytes -= 9          # Of 10: the difference is 0.
    if columns.keys.kind == COLUMN_NULL:
        overhead_bytes -= 4
    if columns.headers.kind == COLUMN_NULL:
        overhead_bytes -= 4
    if count <= 0x7FFFFFFF:
        overhead_bytes -= 5 - varint_bytes(<int32_t>count)
    return (
        BATCH_HEADER_BYTES + count * overhead_bytes
        + column_bytes(&columns.keys, first, count)
        + column_bytes(&columns.values, first, count)
        + column_bytes(&columns.headers, first, count)
    )


cdef inline int64_t body_bytes(
    int64_t timestamp_delta, int32_t offset_delta, int64_t key_bytes, int64_t value_bytes,
    int64_t headers_bytes,
) noexcept nogil:
    """Size of a record after its length field; headers_bytes counts the header count's own
    bytes.
    """
    return (
        1 + varlong_bytes(timestamp_delta) + varint_bytes(offset_delta)
        + varint_bytes(<int32_t>key_bytes) + (key_bytes if key_bytes > 0 else 0)
        + varint_bytes(<int32_t>value_bytes) + (value_bytes if value_bytes > 0 else 0)
        + headers_bytes
    )


cdef int64_t record_bytes(
    const RecordColumns* columns, int64_t index, int64_t first
) noexcept nogil:
    """Exact encoded size in bytes of record `index` in a batch whose first record is `first`."""
    cdef const uint8_t* ignored
    cdef int64_t key_bytes = column_get(&columns.keys, index, &ignored)
    cdef int64_t value_bytes = column_get(&columns.values, index, &ignored)
    cdef int64_t headers_bytes = 1
    cdef int64_t timestamp_delta = 0
    cdef int64_t body
    if columns.headers.kind != COLUMN_NULL:
        headers_bytes = column_get(&columns.headers, index, &ignored)
    # A field beyond 31 bits is counted in full, and makes the record larger than any limit.
    if columns.timestamps != NULL:
        timestamp_delta = columns.timestamps[index] - columns.timestamps[first]
    body = body_bytes(
        timestamp_delta, <int32_t>(index - first), key_bytes, value_bytes, headers_bytes)
    return body + varint_bytes(<int32_t>body)


cdef uint8_t* record_encode(
    uint8_t* at, int64_t timestamp_delta, int32_t offset_delta,
    const uint8_t* key, int64_t key_bytes, const uint8_t* value, int64_t value_bytes,
    const uint8_t* headers, int64_t headers_bytes,
) noexcept nogil:
    """Write one record at `at` and answer the place after it.

    `headers` holds the encoded header section; NULL stands for "no headers" (one zero byte).
    """
    cdef RecordParts parts
    parts.timestamp_delta = timestamp_delta
    parts.offset_delta = offset_delta
    parts.key = key
    parts.key_bytes = key_bytes
    parts.value = value
    parts.value_bytes = value_bytes
    parts.headers = headers
    parts.headers_bytes = headers_bytes
    return parts_store(at, &parts)


cdef inline uint8_t* parts_store(uint8_t* at, const RecordParts* parts) noexcept nogil:
    at = opening_store(at, parts)
    if parts.key_bytes > 0:
        memcpy(at, parts.key, <size_t>parts.key_bytes)
        at += parts.key_bytes
    at = store_varint(at, <int32_t>parts.value_bytes)
    if parts.value_bytes > 0:
        memcpy(at, parts.value, <size_t>parts.value_bytes)
        at += parts.value_bytes
    if parts.headers == NULL:
        at[0] = 0
        return at + 1
    memcpy(at, parts.headers, <size_t>parts.headers_bytes)
    return at + parts.headers_bytes


cdef inline uint8_t* opening_store(uint8_t* at, const RecordParts* parts) noexcept nogil:
    """Write what stands before the key: length, attributes, deltas, the key's length."""
    at = store_varint(at, <int32_t>body_bytes(
        parts.timestamp_delta, parts.offset_delta, parts.key_bytes, parts.value_bytes,
        parts.headers_bytes if parts.headers != NULL else 1))
    at[0] = 0
    at = store_varlong(at + 1, parts.timestamp_delta)
    at = store_varint(at, parts.offset_delta)
    return store_varint(at, <int32_t>parts.key_bytes)


cdef inline void parts_get(
    const RecordColumns* columns, int64_t first, int32_t offset_delta, RecordParts* parts
) noexcept nogil:
    """Find record `first + offset_delta`, in a batch whose first record is `first`."""
    cdef int64_t index = first + offset_delta
    parts.offset_delta = offset_delta
    parts.timestamp_delta = 0
    if columns.timestamps != NULL:
        parts.timestamp_delta = columns.timestamps[index] - columns.timestamps[first]
    parts.key_bytes = column_get(&columns.keys, index, &parts.key)
    parts.value_bytes = column_get(&columns.values, index, &parts.value)
    parts.headers = NULL
    if columns.headers.kind != COLUMN_NULL:
        parts.headers_bytes = column_get(&columns.headers, index, &parts.headers)


cdef inline int64_t base_timestamp_of(const RecordColumns* columns, int64_t first) noexcept nogil:
    return columns.default_timestamp_ms if columns.timestamps == NULL else columns.timestamps[first]


cdef int64_t newest_timestamp(
    const RecordColumns* columns, int64_t first, int64_t count
) noexcept nogil:
    """The greatest timestamp of records [first, first + count), in ms."""
    cdef int64_t newest = columns.default_timestamp_ms
    cdef int64_t index
    if columns.timestamps == NULL:
        return newest
    newest = columns.timestamps[first]
    for index in range(first + 1, first + count):
        if columns.timestamps[index] > newest:
            newest = columns.timestamps[index]
    return newest


cdef int64_t records_encode(
    uint8_t* at, int64_t room_bytes, const RecordColumns* columns, int64_t first,
    int32_t* next_record, int32_t count,
) noexcept nogil:
    """Encode records of a batch of `count` from `next_record` on, as many as there surely is room
    for; their size in bytes. `next_record` becomes the first that was not.
    """
    cdef uint8_t* end = at
    cdef const uint8_t* limit = at + room_bytes
    cdef RecordParts parts
    while next_record[0] < count:
        parts_get(columns, first, next_record[0], &parts)
        if parts_bound(&parts) > limit - end:
            break
        end = parts_store(end, &parts)
        next_record[0] += 1
    return end - at


cdef inline int64_t parts_bound(const RecordParts* parts) noexcept nogil:
    """Upper bound of the size in bytes of an encoded record."""
    cdef int64_t bound = RECORD_OVERHEAD_BYTES_MAX
    if parts.key_bytes > 0:
        bound += parts.key_bytes
    if parts.value_bytes > 0:
        bound += parts.value_bytes
    if parts.headers != NULL:
        bound += parts.headers_bytes
    return bound


cdef int64_t batch_encode(
    uint8_t* at, const RecordColumns* columns, int64_t first, int32_t count,
    const BatchIdentity* identity, uint8_t* limit, int64_t max_timestamp,
) noexcept nogil:
    """Encode records [first, first + count) as one batch at `at`; answers its size in bytes.

    The records go first, then zeros after them as far as `limit` allows, and the header last: a
    writer killed in between leaves whatever stood in the place of the header, which is zeros.
    """
    cdef uint8_t* end = at + BATCH_HEADER_BYTES
    cdef RecordParts parts
    cdef int32_t index
    for index in range(count):
        parts_get(columns, first, index, &parts)
        CRASH_POINT("batch: record")
        end = parts_store(end, &parts)
    batch_terminate(end, limit)
    CRASH_POINT("batch: header")
    batch_header_store(
        at, end - at, count, base_timestamp_of(columns, first), max_timestamp, identity)
    return end - at


cdef int64_t batch_stream(
    uint8_t* at, const RecordColumns* columns, int64_t first, int32_t count,
    const BatchIdentity* identity, uint8_t* limit, int64_t max_timestamp,
) noexcept nogil:
    """Encode the batch, but store the records past the caches: faster where they are many, and not
    read at once.
    """
    cdef uint8_t header[BATCH_HEADER_BYTES]
    cdef StoreWindow window
    cdef RecordParts parts
    cdef uint8_t* end
    cdef int32_t index
    cdef uint32_t crc = batch_header_fill(
        header, count, base_timestamp_of(columns, first), max_timestamp, identity)
    store_window_open(&window, at + BATCH_HEADER_BYTES)
    for index in range(count):
        parts_get(columns, first, index, &parts)
        crc = parts_stream(&window, &parts, crc)
    crc = window_drain(&window, crc)
    crc = crc32c(crc, &window.bytes[window.begin], window.used - window.begin)
    end = window.line + window.used
    store_window_close(&window)
    batch_terminate(end, limit)
    CRASH_POINT("batch: header")
    batch_header_finish(at, header, end - at, crc)
    return end - at


cdef inline uint32_t parts_stream(
    StoreWindow* window, const RecordParts* parts, uint32_t crc
) noexcept nogil:
    """Put one record through the window; return the checksum of what that drained."""
    if window.used + RECORD_OVERHEAD_BYTES_MAX > STORE_WINDOW_BYTES:
        crc = window_drain(window, crc)
    window.used = opening_store(&window.bytes[window.used], parts) - window.bytes
    if parts.key_bytes > 0:
        crc = window_put(window, parts.key, <size_t>parts.key_bytes, crc)
    if window.used + RECORD_OVERHEAD_BYTES_MAX > STORE_WINDOW_BYTES:
        crc = window_drain(window, crc)
    window.used = store_varint(
        &window.bytes[window.used], <int32_t>parts.value_bytes) - window.bytes
    if parts.value_bytes > 0:
        crc = window_put(window, parts.value, <size_t>parts.value_bytes, crc)
    if parts.headers != NULL:
        return window_put(window, parts.headers, <size_t>parts.headers_bytes, crc)
    return window_put(window, NO_HEADERS, 1, crc)


cdef inline uint32_t window_put(
    StoreWindow* window, const uint8_t* data, size_t data_bytes, uint32_t crc
) noexcept nogil:
    cdef size_t piece_bytes
    while data_bytes > 0:
        if window.used == STORE_WINDOW_BYTES:
            crc = window_drain(window, crc)
        piece_bytes = STORE_WINDOW_BYTES - window.used
        if piece_bytes > data_bytes:
            piece_bytes = data_bytes
        memcpy(&window.bytes[window.used], data, piece_bytes)
        window.used += piece_bytes
        data += piece_bytes
        data_bytes -= piece_bytes
    return crc


cdef inline uint32_t window_drain(StoreWindow* window, uint32_t crc) noexcept nogil:
    """Store the window's whole lines; the checksum with them."""
    cdef size_t whole_bytes = window.used - window.used % STORE_LINE_BYTES
    if whole_bytes > 0:
        crc = crc32c(crc, &window.bytes[window.begin], whole_bytes - window.begin)
        store_window_drain(window)
    return crc
