# Arrow arrays of any library, by its C data interface: as columns of bytes, times and headers.
from libc.stdint cimport int64_t, uint8_t

from eoslog.bindings.column_holder cimport ColumnHolder

cdef extern from "arrow_c_data.h" nogil:
    struct ArrowSchema:
        const char* format
        const char* name
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept nogil
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil

cdef class OwnedSchema:
    cdef ArrowSchema schema

cdef class OwnedArray:
    cdef ArrowArray array
    cdef int64_t first_row           # Rows of the call that came before it.

# Cells [first, first + count) of an array, and what a message calls them.
cdef struct Cells:
    const ArrowSchema* schema
    const ArrowArray* array
    int64_t first
    int64_t count

cdef inline bint is_valid(const uint8_t* validity, int64_t bit) noexcept nogil:
    return validity == NULL or (validity[bit >> 3] >> (bit & 7)) & 1

cdef tuple taken_array(object source, str name)
cdef str format_of(const ArrowSchema* schema, str name)
cdef str type_name(str form)
cdef Cells all_cells(OwnedSchema schema, OwnedArray array)
cdef int check_cells(const Cells* cells, str name) except -1
cdef const uint8_t* validity_of(const Cells* cells, str name) except? NULL
cdef int64_t first_null(
    const uint8_t* validity, int64_t at, int64_t count) noexcept nogil
cdef Cells child_cells(const Cells* cells, int64_t number, str name) except *
cdef ColumnHolder bytes_column(const Cells* cells, OwnedArray owner, str name)
cdef object times_column(const Cells* cells, OwnedArray owner, str name)
