# Records and batches as Python sees them.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.record_batch cimport Record as NativeRecord
from eoslog.native.batch_encode cimport RecordColumns

cdef class Record:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

cdef class ColumnSet:
    cdef RecordColumns columns
    cdef object _holders
    cdef object _timestamps

cdef ColumnSet open_columns(
    object values, object keys, object timestamps, object headers, int64_t timestamp_ms)
cdef Record make_record(
    const NativeRecord* native, str topic, int partition, int timestamp_type)

cdef int check_identity(
    Py_ssize_t producer_id, Py_ssize_t producer_epoch, Py_ssize_t base_sequence) except -1
