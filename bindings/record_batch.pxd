# Records and batches as Python sees them.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from eoslog.native.record_batch cimport Record as NativeRecord

cdef class Record:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

cdef class BatchHeader:
    cdef readonly int64_t position_bytes
    cdef readonly int64_t base_offset
    cdef readonly int64_t batch_bytes
    cdef readonly int32_t partition_leader_epoch
    cdef readonly int magic
    cdef readonly uint32_t crc
    cdef readonly int attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t record_count

cdef Record make_record(
    const NativeRecord* native, str topic, int partition, int timestamp_type)

cdef tuple decode_headers(const uint8_t* at, const uint8_t* end)

cdef int check_identity(
    Py_ssize_t producer_id, Py_ssize_t producer_epoch, Py_ssize_t base_sequence) except -1
