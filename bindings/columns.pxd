# A column handed in from Python, held for the length of one call.
from libc.stdint cimport int64_t

from eoslog.native.column cimport Column

cdef class ColumnHolder:
    cdef Column column
    cdef object _owner               # Whatever keeps the bytes alive.
    cdef void* _scratch              # Pointers and lengths of a list; freed with the holder.

cdef ColumnHolder open_column(object source, str name)
cdef ColumnHolder column_in_order(const Column* column, const int64_t* order, int64_t count)
cdef ColumnHolder open_headers(object headers, Py_ssize_t count)
cdef object open_timestamps(object timestamps, Py_ssize_t count)
cdef bytes encode_headers(object headers)
