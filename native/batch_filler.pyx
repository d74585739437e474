# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Batches being filled: each record is copied once, from its column to the end of its partition's
batch.

Invariants: a batch holds whole records, in the order in which they came; it has at most
batch_bytes_max bytes, or one record; held_bytes is the sum of the capacities.
"""

from libc.stdlib cimport calloc, free, realloc

from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX, record_bytes, record_encode
from eoslog.native.column cimport COLUMN_NULL, column_get
from eoslog.native.murmur2 cimport murmur2, partition_for_hash
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES, batch_header_store

cdef enum:
    FIRST_CAPACITY_BYTES = 1 << 14


cdef int filler_open(
    BatchFiller* filler, int32_t partition_count, int32_t keyless_partition, size_t batch_bytes_max,
) noexcept nogil:
    """Begin with empty batches; -1 if there is no memory."""
    filler.batches = <OpenBatch*>calloc(<size_t>partition_count, sizeof(OpenBatch))
    if filler.batches == NULL:
        return -1
    filler.partition_count = partition_count
    filler.keyless_partition = keyless_partition
    filler.batch_bytes_max = batch_bytes_max
    filler.held_bytes = 0
    filler.record_count = 0
    return 0


cdef void filler_close(BatchFiller* filler) noexcept nogil:
    """Free everything; what is held is lost."""
    if filler.batches != NULL:
        filler_release(filler)
        free(filler.batches)
        filler.batches = NULL


cdef int32_t filler_fill(
    BatchFiller* filler, const RecordColumns* columns, int64_t* index, int32_t partition,
    size_t held_bytes_max,
) noexcept nogil:
    """Add records from `index` on until a batch is full; answers its partition, or why not.

    `index` is then that of the first record that was not added.
    """
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef const uint8_t* headers = NULL
    cdef int64_t key_bytes, value_bytes, timestamp
    cdef int64_t headers_bytes = 0
    cdef size_t bound
    cdef int32_t where, grown
    cdef OpenBatch* batch
    cdef bint with_headers = columns.headers.kind != COLUMN_NULL
    while index[0] < columns.count:
        key_bytes = column_get(&columns.keys, index[0], &key)
        value_bytes = column_get(&columns.values, index[0], &value)
        bound = RECORD_OVERHEAD_BYTES_MAX
        if key_bytes > 0:
            bound += <size_t>key_bytes
        if value_bytes > 0:
            bound += <size_t>value_bytes
        if with_headers:
            headers_bytes = column_get(&columns.headers, index[0], &headers)
            bound += <size_t>headers_bytes
        where = partition
        if where == OWN_PARTITION:
            if key_bytes < 0:
                where = filler.keyless_partition
            else:
                where = partition_for_hash(murmur2(key, key_bytes), filler.partition_count)
        batch = &filler.batches[where]
        if batch.record_count > 0 and batch.used_bytes + bound > filler.batch_bytes_max:
            if partition == OWN_PARTITION and key_bytes < 0:
                keyless_move_on(filler)
            return where
        if batch.record_count == 0:
            bound += BATCH_HEADER_BYTES
        if batch.used_bytes + bound > batch.capacity_bytes:
            grown = batch_grow(filler, batch, batch.used_bytes + bound, held_bytes_max)
            if grown < 0:
                return grown
        timestamp = columns.default_timestamp_ms
        if columns.timestamps != NULL:
            timestamp = columns.timestamps[index[0]]
        if batch.record_count == 0:
            batch.used_bytes = BATCH_HEADER_BYTES
            batch.base_timestamp = timestamp
            batch.max_timestamp = timestamp
        elif timestamp > batch.max_timestamp:
            batch.max_timestamp = timestamp
        batch.used_bytes = <size_t>(record_encode(
            batch.bytes + batch.used_bytes, timestamp - batch.base_timestamp, batch.record_count,
            key, key_bytes, value, value_bytes, headers, headers_bytes) - batch.bytes)
        batch.record_count += 1
        filler.record_count += 1
        index[0] += 1
        if batch.used_bytes + RECORD_OVERHEAD_BYTES_MAX > filler.batch_bytes_max:
            if partition == OWN_PARTITION and key_bytes < 0:
                keyless_move_on(filler)
            return where             # Not even an empty record is sure to find room.
    return FILL_DONE


cdef inline void keyless_move_on(BatchFiller* filler) noexcept nogil:
    filler.keyless_partition = (filler.keyless_partition + 1) % filler.partition_count


cdef int32_t batch_grow(
    BatchFiller* filler, OpenBatch* batch, size_t wanted_bytes, size_t held_bytes_max
) noexcept nogil:
    """Make room for so many bytes; 0, FILL_NO_ROOM or FILL_NO_MEMORY."""
    cdef size_t capacity_bytes = 2 * batch.capacity_bytes
    cdef uint8_t* grown
    if capacity_bytes < FIRST_CAPACITY_BYTES:
        capacity_bytes = FIRST_CAPACITY_BYTES
    # A batch does not get larger than this, but for one that is a single record.
    if capacity_bytes > filler.batch_bytes_max:
        capacity_bytes = filler.batch_bytes_max
    if capacity_bytes < wanted_bytes:
        capacity_bytes = wanted_bytes
    if filler.held_bytes > 0:
        if filler.held_bytes - batch.capacity_bytes + capacity_bytes > held_bytes_max:
            return FILL_NO_ROOM
    grown = <uint8_t*>realloc(batch.bytes, capacity_bytes)
    if grown == NULL:
        return FILL_NO_MEMORY
    filler.held_bytes += capacity_bytes - batch.capacity_bytes
    batch.bytes = grown
    batch.capacity_bytes = capacity_bytes
    return 0


cdef int64_t oversized_record(
    const RecordColumns* columns, int64_t batch_bytes_max, int64_t* batch_bytes
) noexcept nogil:
    """The first record that makes a batch above the limit all by itself, and that batch's size; -1
    if there is none.
    """
    cdef const uint8_t* ignored = NULL
    cdef int64_t index, bound
    for index in range(columns.count):
        bound = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES_MAX
        bound += column_get(&columns.keys, index, &ignored)
        bound += column_get(&columns.values, index, &ignored)
        bound += column_get(&columns.headers, index, &ignored)
        # A null counts -1, and its overhead is less than was added for it.
        if bound > batch_bytes_max:
            batch_bytes[0] = BATCH_HEADER_BYTES + record_bytes(columns, index, index)
            if batch_bytes[0] > batch_bytes_max:
                return index
    return -1


cdef void filler_finish(
    BatchFiller* filler, int32_t partition, const BatchIdentity* identity
) noexcept nogil:
    """Write the header of a batch with records: its used bytes are then one whole batch."""
    cdef OpenBatch* batch = &filler.batches[partition]
    batch_header_store(
        batch.bytes, <int64_t>batch.used_bytes, batch.record_count, batch.base_timestamp,
        batch.max_timestamp, identity)


cdef void filler_empty(BatchFiller* filler, int32_t partition) noexcept nogil:
    """Forget the records of one batch and keep its memory."""
    cdef OpenBatch* batch = &filler.batches[partition]
    filler.record_count -= batch.record_count
    batch.record_count = 0
    batch.used_bytes = 0


cdef void filler_release(BatchFiller* filler) noexcept nogil:
    """Forget all records and free their memory."""
    cdef int32_t partition
    for partition in range(filler.partition_count):
        filler_empty(filler, partition)
        free(filler.batches[partition].bytes)
        filler.batches[partition].bytes = NULL
        filler.batches[partition].capacity_bytes = 0
    filler.held_bytes = 0
