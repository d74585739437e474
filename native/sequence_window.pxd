# The last five batches of one producer on one partition, and the verdict on its next one.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from eoslog.native.record_batch cimport BatchHeader, sequence_subtract
from eoslog.native.status cimport Fault, Status

cdef enum:
    WINDOW_BATCHES_MAX = 5
    NO_SEQUENCE = -1
    OFFSETS_SEQUENCE = -2            # A group coordinator's batch: not judged, and written as 0.
    NO_EPOCH = -1

cdef struct BatchMetadata:
    int64_t last_offset
    int64_t timestamp
    int32_t last_sequence
    int32_t offset_delta

cdef struct ProducerEntry:
    int64_t producer_id
    int64_t last_timestamp
    int64_t current_txn_first_offset  # -1 = no open transaction.
    int64_t changed_at_offset        # Log end after the last change: shows what is not yet in LMDB.
    int32_t coordinator_epoch        # -1 until a marker was seen.
    int16_t producer_epoch           # -1 = nothing known.
    uint8_t batch_count              # 0..5 remembered batches,
    uint8_t batch_first              # a ring that starts here, oldest first.
    BatchMetadata batches[WINDOW_BATCHES_MAX]

cdef inline BatchMetadata* window_at(ProducerEntry* entry, int index) noexcept nogil:
    return &entry.batches[(entry.batch_first + index) % WINDOW_BATCHES_MAX]

cdef inline int32_t window_last_sequence(ProducerEntry* entry) noexcept nogil:
    if entry.batch_count == 0:
        return NO_SEQUENCE
    return window_at(entry, entry.batch_count - 1).last_sequence

cdef inline int32_t metadata_first_sequence(const BatchMetadata* batch) noexcept nogil:
    if batch.last_sequence < 0:
        return NO_SEQUENCE
    return sequence_subtract(batch.last_sequence, batch.offset_delta)

cdef void entry_clear(ProducerEntry* entry, int64_t producer_id) noexcept nogil
cdef Status window_verdict(
    ProducerEntry* entry, int16_t producer_epoch, int32_t base_sequence, int32_t record_count,
    bint transactional, bint verified, BatchMetadata* first_write, Fault* out,
) noexcept nogil
cdef void window_accept(
    ProducerEntry* entry, int16_t producer_epoch, int32_t last_sequence, int32_t offset_delta,
    int64_t last_offset, int64_t timestamp,
) noexcept nogil
cdef void entry_replay(ProducerEntry* entry, const BatchHeader* header) noexcept nogil
cdef void entry_marker(
    ProducerEntry* entry, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp
) noexcept nogil
