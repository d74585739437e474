# Reading an opened log: batches, columns, records.
from libc.stdint cimport int64_t

from eoslog.bindings.opened_log cimport OpenedLog
from eoslog.native.log_read cimport FetchSizes, ReadRange
from eoslog.native.status cimport Fault, Status


cdef class LogReader(OpenedLog):
    cdef int _open_range(
        self, int64_t offset, int64_t bound, int64_t max_bytes, bint committed, ReadRange* found
    ) except -1
    cdef Status _decode(
        self, ReadRange* found, int64_t offset, int64_t bound, int64_t max_records, int parts,
        FetchSizes* sizes, object into, Fault* fault) except *
    cdef object _timestamp_types(self, ReadRange* found, object offsets)
    cdef int _copy_headers(
        self, ReadRange* found, int64_t offset, int64_t bound, object into) except -1
    cdef list _records(
        self, ReadRange* found, int64_t offset, int64_t record_count, bytes prefix, dict newest)
    cdef tuple _fetch(
        self, int64_t offset, int64_t max_records, int64_t max_bytes, int64_t bound,
        bint committed, bytes prefix, dict newest)
