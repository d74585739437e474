# A column of bytes handed in from Python, held for the length of one call.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.column cimport Column

cdef enum:
    RECORDS_PER_CALL_MAX = 1 << 30

cdef class ColumnHolder:
    cdef Column column
    cdef object _owner               # Whatever keeps the bytes alive.
    cdef void* _scratch              # Pointers and lengths, or bytes of our own; freed with it.

cdef int check_count(int64_t count, str name) except -1
cdef void* make_scratch(ColumnHolder holder, int64_t count, int64_t item_bytes) except NULL
cdef int make_pointers(
    ColumnHolder holder, int64_t count, const uint8_t*** pointers, int64_t** lengths) except -1
cdef ColumnHolder column_in_order(const Column* column, const int64_t* order, int64_t count)
