# Columns of one call, opened together.
from libc.stdint cimport int64_t

from eoslog.native.batch_encode cimport RecordColumns

cdef class ColumnSet:
    cdef RecordColumns columns
    cdef readonly object timestamps  # As given, in milliseconds; None = those of the default.
    cdef object _holders             # What keeps the bytes alive.

    cdef ColumnSet _in_order(self, const int64_t[::1] order)
    cdef ColumnSet _cut(self, int64_t first, int64_t upper_bound)

cpdef ColumnSet open_columns(
    object values, object keys, object timestamps, object headers, Py_ssize_t timestamp_ms)
