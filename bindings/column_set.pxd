# Columns of one call, opened together.
from libc.stdint cimport int64_t

from eoslog.bindings.arrow_array cimport OwnedArray, OwnedSchema
from eoslog.bindings.column_holder cimport ColumnHolder
from eoslog.native.batch_encode cimport RecordColumns

cdef class ColumnSet:
    cdef RecordColumns columns
    cdef readonly object timestamps  # As given, in milliseconds; None = those of the default.
    cdef object _holders             # What keeps the bytes alive.

    cdef int _set(
        self, int64_t count, ColumnHolder values, ColumnHolder keys, ColumnHolder headers,
        int64_t timestamp_ms) except -1
    cdef ColumnSet _in_order(self, const int64_t[::1] order)
    cdef ColumnSet _cut(self, int64_t first, int64_t upper_bound)

cpdef ColumnSet open_columns(
    object values, object keys, object timestamps, object headers, Py_ssize_t timestamp_ms)
cdef ColumnHolder bytes_of_chunk(OwnedSchema schema, OwnedArray array, str name)
cdef ColumnSet open_beside(
    ColumnHolder value_holder, bint are_null, object keys, object timestamps, object headers,
    Py_ssize_t timestamp_ms)
cdef tuple fields_of(OwnedSchema schema)
cdef ColumnSet columns_of_chunk(
    OwnedSchema schema, OwnedArray array, tuple places, Py_ssize_t timestamp_ms)
