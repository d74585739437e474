# Writing batches into a segment's file by calls, past the map.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.batch_encode cimport RecordColumns
from eoslog.native.record_batch cimport BatchIdentity
from eoslog.native.segment cimport Segment

cdef int64_t batch_write_columns(
    Segment* segment, const RecordColumns* columns, int64_t first, int32_t count,
    const BatchIdentity* identity, int64_t max_timestamp, bint synced_soon,
) noexcept nogil
cdef int64_t batch_write_whole(
    Segment* segment, const uint8_t* header, const uint8_t* batch, int64_t batch_bytes
) noexcept nogil
