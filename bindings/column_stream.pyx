# cython: language_level=3
"""Records that come as an Arrow stream: chunk by chunk, each read when it is asked for."""

cimport cython

from eoslog.bindings.arrow_array cimport OwnedArray, format_of
from eoslog.bindings.arrow_stream cimport ArrowStream, has_arrow, open_stream
from eoslog.bindings.column_set cimport (
    ColumnSet, bytes_of_chunk, columns_of_chunk, fields_of, open_beside,
)

cdef str NAME = "values"


@cython.final
cdef class ColumnStream:
    """The chunks of a stream, each as a ColumnSet; a context manager that releases the stream."""

    cdef ArrowStream _stream
    cdef object _now_ms
    cdef tuple _places               # Of the columns in a record batch; None: the values alone.

    def next_columns(self):
        """Read the next chunk that has records: a ColumnSet, None after the last one.

        Its records without a timestamp get the time of then. Raises ArrowStreamError, TypeError,
        ValueError, InvalidTimestampError.
        """
        cdef OwnedArray chunk
        cdef ColumnSet columns
        while self._stream is not None:
            chunk = self._stream.next_chunk()
            if chunk is None:
                return None
            if self._places is None:
                columns = open_beside(
                    bytes_of_chunk(self._stream.schema, chunk, NAME), False, None, None, None,
                    self._now_ms())
            else:
                columns = columns_of_chunk(
                    self._stream.schema, chunk, self._places, self._now_ms())
            if columns.columns.count:
                return columns

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._stream is not None:
            self._stream.release()


def open_column_stream(values, now_ms not None):
    """Open values that are a stream; None for all others. `now_ms` reads the clock.

    A stream of structs has the columns value, key, timestamp and headers; each other one has the
    values. Raises TypeError for other columns, and what the source raises.
    """
    cdef ColumnStream opened
    cdef ArrowStream stream
    if type(values) is list or not has_arrow(values):
        return None
    try:
        stream = open_stream(values, NAME)
    except ImportError:
        if not hasattr(values, "to_list"):
            raise
        return None                      # A Series of pandas, which needs pyarrow for it.
    if stream is None:
        return None
    opened = ColumnStream.__new__(ColumnStream)
    opened._stream = stream
    opened._now_ms = now_ms
    opened._places = None
    try:
        if format_of(&stream.schema.schema, NAME) == "+s":
            opened._places = fields_of(stream.schema)
    except BaseException:
        stream.release()
        raise
    return opened
