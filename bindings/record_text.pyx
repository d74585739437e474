# cython: language_level=3
"""Records as text: the lines of the JSON envelope, and rows of CSV."""

from eoslog import errors

cimport cython
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from eoslog.bindings.text_records import json_text

from eoslog.native.json_text cimport (
    TEXT_NO_MEMORY, TEXT_OK, TextFault, json_bytes_bound, json_bytes_store,
)
from eoslog.native.record_text cimport RecordCells, records_store
from eoslog.native.text_records cimport TextBuffer, buffer_free, buffer_reserve
from eoslog.native.utf8 cimport utf8_end
from eoslog.native.varint cimport load_varint

CSV_NAMES = "topic,partition,offset,timestamp,key,value,headers"
cdef const uint8_t* NO_CELLS = b"\0"


@cython.final
cdef class RecordText:
    """Writer of records as text, into memory of its own that the next call uses again."""

    cdef TextBuffer _buffer
    cdef TextBuffer _headers
    cdef Py_ssize_t _exports
    cdef bint _as_csv

    def __cinit__(self, str form not None):
        memset(&self._buffer, 0, sizeof(TextBuffer))
        memset(&self._headers, 0, sizeof(TextBuffer))
        if form not in ("jsonl", "csv"):
            raise ValueError(f"form {form!r}")
        self._as_csv = form == "csv"

    def __dealloc__(self):
        buffer_free(&self._buffer)
        buffer_free(&self._headers)

    def encode(self, str topic not None, int32_t partition, object columns, Py_ssize_t count):
        """Return the first `count` records of a fetch as text, bytes that hold until the next call.

        Raises InvalidRecordError for bytes that are not UTF-8, which CSV cannot express.
        """
        cdef RecordCells cells
        cdef TextFault fault
        cdef int64_t stored = 0
        cdef const int64_t[::1] offsets = columns.offsets
        cdef const int64_t[::1] timestamps = columns.timestamps
        cdef const int32_t[::1] key_ends = columns.key_offsets
        cdef const int32_t[::1] value_ends = columns.value_offsets
        cdef const int64_t[::1] header_ends
        cdef const uint8_t[::1] key_data = columns.key_data
        cdef const uint8_t[::1] value_data = columns.value_data
        cdef const uint8_t[::1] prefix = self._prefix(topic, partition)
        cdef const uint8_t[::1] key_validity, value_validity
        if self._exports:
            raise BufferError("the text of the call before is still used")
        if not 0 <= count <= columns.record_count:
            raise ValueError(f"{count} of {columns.record_count} records")
        memset(&cells, 0, sizeof(RecordCells))
        self._buffer.used_bytes = 0
        if count == 0:
            return memoryview(b"")
        cells.prefix = &prefix[0]
        cells.prefix_bytes = prefix.shape[0]
        cells.offsets = &offsets[0]
        cells.timestamps = &timestamps[0]
        cells.key_ends = &key_ends[0]
        cells.value_ends = &value_ends[0]
        if key_data.shape[0]:
            cells.key_data = &key_data[0]
        else:
            cells.key_data = NO_CELLS
        if value_data.shape[0]:
            cells.value_data = &value_data[0]
        else:
            cells.value_data = NO_CELLS
        if columns.key_validity is not None:
            key_validity = columns.key_validity
            cells.key_validity = &key_validity[0]
        if columns.value_validity is not None:
            value_validity = columns.value_validity
            cells.value_validity = &value_validity[0]
        if columns.header_offsets is not None:
            self._headers.used_bytes = 0
            header_ends = store_headers(
                &self._headers, columns.header_data, columns.header_offsets)
            cells.header_data = self._headers.data
            cells.header_ends = &header_ends[0]
        with nogil:
            fault = records_store(&self._buffer, &cells, count, self._as_csv, &stored)
        if fault == TEXT_NO_MEMORY:
            raise errors.OutOfMemoryError(f"{count} records as text")
        if fault != TEXT_OK:
            raise errors.InvalidRecordError(
                f"{topic}-{partition}, offset {offsets[stored]}: its key or value is not UTF-8, "
                "which CSV cannot express: export it as jsonl or parquet")
        return memoryview(self)

    cdef bytes _prefix(self, str topic, int32_t partition):
        """What each line begins with."""
        if self._as_csv:
            return f"{topic},{partition},".encode()
        return (
            b'{"topic": ' + json_text(topic.encode())
            + f', "partition": {partition}, "offset": '.encode())

    def __getbuffer__(self, Py_buffer* view, int flags):
        cdef Py_ssize_t size = self._buffer.used_bytes
        view.buf = self._buffer.data
        view.obj = self
        view.len = size
        view.itemsize = 1
        view.readonly = 1
        view.format = "B"
        view.ndim = 1
        view.shape = &view.len
        view.strides = &view.itemsize
        view.suboffsets = NULL
        view.internal = NULL
        self._exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self._exports -= 1


cdef object store_headers(
    TextBuffer* buffer, const uint8_t[::1] data, const int32_t[::1] header_ends
):
    """Append the headers of each record as JSON; return where those of each end."""
    import numpy
    cdef int64_t[::1] ends = numpy.zeros(header_ends.shape[0], numpy.int64)
    cdef const uint8_t* at = &data[0]
    cdef const uint8_t* end
    cdef Py_ssize_t index
    cdef int32_t size = 0
    cdef uint8_t opening
    for index in range(1, header_ends.shape[0]):
        end = &data[0] + header_ends[index]
        opening = c'['
        while at < end:
            at = load_varint(at, end, &size)
            store_name(buffer, opening, at, size)
            at = load_varint(at + size, end, &size)
            store_header(buffer, c',', at, size, c' ')
            at += max(size, 0)           # -1 for null.
            buffer.data[buffer.used_bytes] = c']'
            buffer.used_bytes += 1
            opening = c','
        if opening == c',':
            buffer.data[buffer.used_bytes] = c']'
            buffer.used_bytes += 1
        ends[index] = buffer.used_bytes
    return ends.base


cdef int store_name(
    TextBuffer* buffer, uint8_t opening, const uint8_t* name, int32_t size
) except -1:
    """Append a header's name: what is not UTF-8 in it is replaced, as for a consumer."""
    cdef Py_ssize_t text_size
    cdef const char* text
    cdef str replaced
    if utf8_end(name, name + size) == name + size:
        return store_header(buffer, opening, name, size, c'[')
    replaced = (<const char*>name)[:size].decode("utf-8", "replace")
    text = PyUnicode_AsUTF8AndSize(replaced, &text_size)
    return store_header(buffer, opening, <const uint8_t*>text, text_size, c'[')


cdef int store_header(
    TextBuffer* buffer, uint8_t first, const uint8_t* data, int64_t size, uint8_t second
) except -1:
    """Append a part of a header after what comes before it, and leave room for two bytes."""
    cdef uint8_t* out
    if buffer_reserve(buffer, json_bytes_bound(size) + 5) != TEXT_OK:
        raise errors.OutOfMemoryError("headers as text")
    out = buffer.data + buffer.used_bytes
    out[0] = first
    out += 1
    if first == c',' and second == c'[':
        out[0] = c' '                # Between two headers.
        out += 1
    out[0] = second
    out = json_bytes_store(out + 1, data, size)
    buffer.used_bytes = out - buffer.data
    return 0
