# Reading a partition's log: by offset, into columns.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from eoslog.native.abort_index cimport AbortedFilter
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.segment cimport Segment
from eoslog.native.status cimport Fault, Status

# Whole batches of one segment, held until read_close.
cdef struct ReadRange:
    Segment* segment                 # NULL: nothing to read.
    const uint8_t* data
    int64_t data_bytes
    int64_t position_bytes           # Of data[0] in the segment file.
    int64_t next_offset              # After the last batch of the range.
    int16_t attributes               # All bits that any of its batches has.
    AbortedFilter filter             # Takes out nothing unless the read is of decided data.

# What the records of a range need, from fetch_measure.
cdef struct FetchSizes:
    int64_t record_count
    int64_t key_bytes
    int64_t value_bytes
    int64_t null_key_count
    int64_t null_value_count
    int64_t header_count
    int64_t next_offset

# Keys, values or headers of records, cell after cell: where fetch_decode found them, and where
# their bytes go. `ends` has room for one more than the records; its first is 0.
cdef struct FetchCells:
    const uint8_t** sources          # NULL: the record has none.
    int32_t* ends

# Where fetch_decode puts records; there is room for `records_max`. What is NULL is not wanted (of
# cells: their ends).
cdef struct FetchColumns:
    int64_t records_max
    int64_t* offsets
    int64_t* timestamps
    FetchCells keys
    FetchCells values
    FetchCells headers               # As a record has them, past their count.

cdef Status read_open(
    PartitionLog* log, int64_t offset, int64_t upper_bound, int64_t bytes_max, bint committed,
    ReadRange* found, Fault* out) noexcept nogil
cdef void read_close(PartitionLog* log, ReadRange* found) noexcept nogil
cdef Status fetch_measure(
    ReadRange* found, int64_t offset, int64_t upper_bound, int64_t records_max,
    FetchSizes* sizes, Fault* out) noexcept nogil
cdef int64_t fetch_records_max(ReadRange* found, int64_t records_max) noexcept nogil
cdef Status fetch_decode(
    ReadRange* found, int64_t offset, int64_t upper_bound, const FetchColumns* columns,
    FetchSizes* sizes, Fault* out) noexcept nogil
cdef void fetch_copy(
    const FetchCells* cells, int64_t record_count, uint8_t* data, uint8_t* validity
) noexcept nogil
cdef int64_t range_copy(ReadRange* found, uint8_t* target) noexcept nogil
cdef Status range_end_at_compressed(ReadRange* found, Fault* out) noexcept nogil
cdef Status scan_headers(
    PartitionLog* log, int64_t offset, int64_t upper_bound, int64_t* batch_count,
    int64_t* record_count, int64_t* next_offset, int32_t* leader_epoch, Fault* out) noexcept nogil
cdef Status find_hole(
    PartitionLog* log, int64_t offset, int64_t* first, int64_t* upper_bound, Fault* out
) noexcept nogil
