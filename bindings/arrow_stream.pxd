# Arrow data of any library as it comes: chunk by chunk, or all of it as one column.
from libc.stdint cimport int64_t, uint8_t

from eoslog.bindings.arrow_array cimport ArrowArray, ArrowSchema, OwnedArray, OwnedSchema
from eoslog.bindings.column_holder cimport ColumnHolder

cdef extern from "arrow_c_data.h" nogil:
    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
        const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
        void (*release)(ArrowArrayStream*) noexcept nogil

cdef class ArrowStream:
    cdef readonly str name           # What messages call it.
    cdef OwnedSchema schema
    cdef object _capsule             # It frees the stream's memory.
    cdef ArrowArrayStream* _stream   # NULL once it was released.
    cdef int64_t _row_count          # Rows of the chunks so far.

    cdef OwnedArray next_chunk(self)
    cdef int release(self) except -1
    cdef int _raise(self, int code) except -1

cdef bint has_arrow(object source)
cdef ArrowStream open_stream(object source, str name)
cdef ColumnHolder arrow_bytes(object source, str name)
cdef object arrow_times(object source, str name)
cdef ColumnHolder arrow_headers(object source, str name)
