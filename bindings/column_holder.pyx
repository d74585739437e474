# cython: language_level=3
"""One column of bytes, borrowed from its owner, and the memory that it needs besides."""

from eoslog import errors

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from eoslog.native.column cimport COLUMN_NULL, COLUMN_POINTERS, Column, column_get


@cython.final
cdef class ColumnHolder:
    """Bytes of a column, and what keeps them alive."""

    def __cinit__(self):
        memset(&self.column, 0, sizeof(Column))
        self._scratch = NULL

    def __dealloc__(self):
        free(self._scratch)


cdef int check_count(int64_t count, str name) except -1:
    """Raise ValueError for more records than a call may have."""
    if count > RECORDS_PER_CALL_MAX:
        raise ValueError(f"{name} must have at most {RECORDS_PER_CALL_MAX} items, got {count}")
    return 0


cdef void* make_scratch(ColumnHolder holder, int64_t count, int64_t item_bytes) except NULL:
    """Give the holder memory for so many items, and one at least."""
    if count < INT64_MAX // item_bytes:
        holder._scratch = malloc(<size_t>((count + 1) * item_bytes))
    if holder._scratch == NULL:
        raise errors.OutOfMemoryError(f"a column of {count} items of {item_bytes} bytes")
    return holder._scratch


cdef int make_pointers(
    ColumnHolder holder, int64_t count, const uint8_t*** pointers, int64_t** lengths
) except -1:
    """Have the holder's column be one of pointers, which the caller fills in."""
    pointers[0] = <const uint8_t**>make_scratch(
        holder, count, sizeof(uint8_t*) + sizeof(int64_t))
    lengths[0] = <int64_t*>(pointers[0] + count + 1)
    holder.column.kind = COLUMN_POINTERS
    holder.column.count = count
    holder.column.pointers = pointers[0]
    holder.column.lengths = lengths[0]
    return 0


cdef ColumnHolder column_in_order(const Column* column, const int64_t* order, int64_t count):
    """Return the cells of a column, which must outlive this one, in another order."""
    cdef ColumnHolder holder = ColumnHolder.__new__(ColumnHolder)
    cdef const uint8_t** pointers = NULL
    cdef int64_t* lengths = NULL
    cdef int64_t index
    if column.kind != COLUMN_NULL:
        make_pointers(holder, count, &pointers, &lengths)
        with nogil:
            for index in range(count):
                lengths[index] = column_get(column, order[index], &pointers[index])
    return holder
