# Records of one producer for one partition, encoded one by one until they make a batch.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.record_batch cimport BatchIdentity

cdef class RecordAccumulator:
    cdef uint8_t* _buffer            # A batch header's room, then the records.
    cdef int64_t _capacity_bytes
    cdef int64_t _used_bytes
    cdef int64_t _base_timestamp
    cdef int64_t _min_timestamp
    cdef int64_t _max_timestamp
    cdef int32_t _record_count
    cdef bint _busy                  # An append without the GIL is reading the buffer.
    cdef readonly int64_t batch_bytes_max

    cdef int64_t add_record(
        self, object value, object key, object headers, int64_t timestamp_ms) except -1
    cdef int finish(self, const BatchIdentity* identity) except -1
    cdef void reset(self) noexcept
