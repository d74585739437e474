# cython: language_level=3
"""Arrow data of any library as it comes: an array, or the chunks of a stream.

A stream runs its producer's code, which may take long and run Python: without the GIL.
Invariants: a stream is released once, by `release` or with the object; a chunk is released with
its OwnedArray; after an error of its producer a stream gives no more.
"""

import os

from eoslog import errors

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint8_t

from eoslog.bindings.arrow_array cimport (
    Cells, OwnedArray, OwnedSchema, all_cells, bytes_column, taken_array, times_column,
)
from eoslog.bindings.arrow_headers cimport headers_column
from eoslog.bindings.column_holder cimport ColumnHolder, check_count, make_pointers
from eoslog.native.column cimport COLUMN_NULL, Column, column_get


@cython.final
cdef class ArrowStream:
    """The chunks of a source, each with its rows."""

    def __cinit__(self):
        self._stream = NULL
        self._row_count = 0

    def __dealloc__(self):
        if self._stream != NULL and self._stream.release != NULL:
            self._stream.release(self._stream)

    cdef OwnedArray next_chunk(self):
        """Return the next chunk, None after the last one. Raises ArrowStreamError."""
        cdef OwnedArray chunk = OwnedArray.__new__(OwnedArray)
        cdef int code
        if self._stream == NULL:
            return None
        with nogil:
            code = self._stream.get_next(self._stream, &chunk.array)
        if code != 0:
            self._raise(code)
        if chunk.array.release == NULL:
            self.release()
            return None
        chunk.first_row = self._row_count
        if chunk.array.length > 0:
            self._row_count += chunk.array.length
        return chunk

    cdef int release(self) except -1:
        """Release the stream: it gives no more. A second call does nothing."""
        cdef ArrowArrayStream* stream = self._stream
        self._stream = NULL
        if stream != NULL and stream.release != NULL:
            with nogil:
                stream.release(stream)
        self._capsule = None
        return 0

    cdef int _raise(self, int code) except -1:
        """Raise the error that the stream's producer reports."""
        cdef const char* text = self._stream.get_last_error(self._stream)
        reason = os.strerror(code) if text == NULL else text.decode("utf-8", "replace")
        self.release()
        raise errors.ArrowStreamError(
            f"{self.name}: the stream failed after {self._row_count} records: {reason}")


cdef bint has_arrow(object source):
    """True if a source gives Arrow data. A pandas Series of objects is read as it is: its bytes are
    borrowed, and Arrow would copy them.
    """
    if hasattr(source, "__arrow_c_stream__"):
        return not (hasattr(source, "isna") and getattr(source, "dtype", None) == object)
    return hasattr(source, "__arrow_c_array__")


cdef ArrowStream open_stream(object source, str name):
    """Open the stream of a source; None if it has none. Raises what the source raises."""
    cdef ArrowStream opened
    cdef int code
    if not hasattr(source, "__arrow_c_stream__"):
        return None
    if hasattr(source, "validate"):
        source.validate()                # ValueError where pyarrow's buffers are too short.
    opened = ArrowStream.__new__(ArrowStream)
    opened.name = name
    opened.schema = OwnedSchema.__new__(OwnedSchema)
    opened._capsule = source.__arrow_c_stream__()
    opened._stream = <ArrowArrayStream*>PyCapsule_GetPointer(
        opened._capsule, "arrow_array_stream")
    if opened._stream.release == NULL:
        opened._stream = NULL
        raise ValueError(f"{name} must be an Arrow stream that no other consumer has released")
    with nogil:
        code = opened._stream.get_schema(opened._stream, &opened.schema.schema)
    if code != 0:
        opened._raise(code)
    return opened


cdef tuple chunks_of(object source, str name):
    """Return the type and all chunks of a source: (OwnedSchema, list of OwnedArray)."""
    cdef ArrowStream stream = open_stream(source, name)
    cdef OwnedArray chunk
    cdef list chunks = []
    if stream is None:
        schema, chunk = taken_array(source, name)
        return schema, [chunk]
    try:
        while True:
            chunk = stream.next_chunk()
            if chunk is None:
                return stream.schema, chunks
            chunks.append(chunk)
    finally:
        stream.release()


cdef ColumnHolder empty_column():
    cdef ColumnHolder holder = ColumnHolder.__new__(ColumnHolder)
    cdef const uint8_t** pointers = NULL
    cdef int64_t* lengths = NULL
    make_pointers(holder, 0, &pointers, &lengths)
    return holder


cdef ColumnHolder joined(list holders):
    """Return one column of the cells of several, which are borrowed from them."""
    cdef ColumnHolder holder = ColumnHolder.__new__(ColumnHolder)
    cdef ColumnHolder part
    cdef Column* column
    cdef const uint8_t** pointers = NULL
    cdef int64_t* lengths = NULL
    cdef int64_t index
    cdef int64_t count = 0
    cdef bint all_null = True
    if len(holders) == 1:
        return holders[0]
    for part in holders:
        count += part.column.count
        all_null &= part.column.kind == COLUMN_NULL
        check_count(count, "a column")
    if all_null:
        holder.column.count = count
        return holder
    make_pointers(holder, count, &pointers, &lengths)
    holder._owner = holders
    for part in holders:
        column = &part.column
        with nogil:
            for index in range(column.count):
                lengths[index] = column_get(column, index, &pointers[index])
        pointers += column.count
        lengths += column.count
    return holder


ctypedef ColumnHolder (*column_of_cells)(const Cells* cells, OwnedArray array, str name)


cdef ColumnHolder all_chunks(object source, str name, column_of_cells open_cells):
    """Borrow all chunks of a source as one column, each opened by that function."""
    cdef OwnedSchema schema
    cdef OwnedArray chunk
    cdef Cells cells
    cdef list chunks, holders
    schema, chunks = chunks_of(source, name)
    holders = []
    for chunk in chunks:
        cells = all_cells(schema, chunk)
        holders.append(open_cells(&cells, chunk, name))
    return joined(holders) if holders else empty_column()


cdef ColumnHolder arrow_bytes(object source, str name):
    """Borrow a source as one column of bytes: all chunks at once."""
    return all_chunks(source, name, bytes_column)


cdef ColumnHolder arrow_headers(object source, str name):
    """Encode the headers of a source."""
    return all_chunks(source, name, headers_column)


cdef object arrow_times(object source, str name):
    """Return the times of a source as milliseconds in a numpy array."""
    import numpy
    cdef OwnedSchema schema
    cdef OwnedArray chunk
    cdef Cells cells
    cdef list chunks, found
    schema, chunks = chunks_of(source, name)
    found = []
    for chunk in chunks:
        cells = all_cells(schema, chunk)
        found.append(times_column(&cells, chunk, name))
    if len(found) == 1:
        return found[0]
    return numpy.concatenate(found) if found else numpy.empty(0, numpy.int64)
