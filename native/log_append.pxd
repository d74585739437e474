# Appending to a partition's log.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from eoslog.native.batch_encode cimport RecordColumns
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.record_batch cimport BatchHeader
from eoslog.native.status cimport Fault, Status

cdef struct ProducerStamp:
    int64_t producer_id              # -1: no producer, no verdict.
    int16_t producer_epoch
    int32_t base_sequence            # Of the first record; moves on with each batch written.
    bint transactional               # The coordinator has the partition in the transaction.

cdef struct AppendOutcome:
    int64_t base_offset              # Of the first batch, new or found.
    int64_t last_offset              # Of the last batch, inclusive.
    int64_t timestamp                # Max timestamp of the last batch.
    int64_t record_count             # Records that are in the log now, duplicates included.
    int64_t duplicate_count          # Of these, the ones that were there before the call.

cdef Status log_append_columns(
    PartitionLog* log, const RecordColumns* columns, ProducerStamp* stamp,
    int64_t batch_records_max, int64_t batch_bytes_max, AppendOutcome* outcome, Fault* out,
) noexcept nogil
cdef Status log_append_batch(
    PartitionLog* log, const uint8_t* batch, int64_t batch_bytes, bint verified,
    AppendOutcome* outcome, Fault* out) noexcept nogil
cdef Status log_room_for(
    PartitionLog* log, int64_t batch_bytes, int64_t timestamp, Fault* out) noexcept nogil
cdef void log_place(PartitionLog* log, const uint8_t* batch, int64_t batch_bytes) noexcept nogil
cdef Status append_whole(
    PartitionLog* log, const uint8_t* batch, const BatchHeader* header, bint verified,
    AppendOutcome* outcome, Fault* out) noexcept nogil
cdef void outcome_add(
    AppendOutcome* outcome, int64_t base_offset, int64_t last_offset, int64_t timestamp,
    bint duplicate) noexcept nogil
