# Batches being filled for the partitions of one topic: records of columns go where they belong.
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.batch_encode cimport RecordColumns
from eoslog.native.record_batch cimport BatchIdentity

# What stopped a fill, where it was no full batch (then it is the partition).
cdef enum:
    FILL_DONE = -1                   # All records are in.
    FILL_NO_ROOM = -2                # Another buffer would exceed the bytes that may be held.
    FILL_NO_MEMORY = -3

cdef enum:
    OWN_PARTITION = -1               # Each record goes where its key says.

cdef struct OpenBatch:
    uint8_t* bytes                   # Owned; NULL = no record yet.
    size_t capacity_bytes
    size_t used_bytes                # With the place of the header; 0 = no record.
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t record_count

cdef struct BatchFiller:
    OpenBatch* batches               # One for each partition; owned.
    int32_t partition_count
    int32_t keyless_partition        # Where the next record without a key goes.
    size_t batch_bytes_max
    size_t held_bytes                # Capacity of all batches.
    int64_t record_count             # In all batches.

cdef int filler_open(
    BatchFiller* filler, int32_t partition_count, int32_t keyless_partition, size_t batch_bytes_max,
) noexcept nogil
cdef void filler_close(BatchFiller* filler) noexcept nogil
cdef int32_t filler_fill(
    BatchFiller* filler, const RecordColumns* columns, int64_t* index, int32_t partition,
    size_t held_bytes_max,
) noexcept nogil
cdef int64_t oversized_record(
    const RecordColumns* columns, int64_t batch_bytes_max, int64_t* batch_bytes
) noexcept nogil
cdef void filler_finish(
    BatchFiller* filler, int32_t partition, const BatchIdentity* identity
) noexcept nogil
cdef void filler_empty(BatchFiller* filler, int32_t partition) noexcept nogil
cdef void filler_release(BatchFiller* filler) noexcept nogil
