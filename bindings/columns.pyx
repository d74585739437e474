# cython: language_level=3
"""Columns handed in from Python: lists of bytes, Arrow data of any library, numpy arrays; borrowed,
not copied.
"""

from collections.abc import Mapping

from eoslog import errors

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from eoslog.bindings.arrow_stream cimport arrow_bytes, arrow_headers, arrow_times, has_arrow
from eoslog.bindings.column_holder cimport ColumnHolder, make_pointers
from eoslog.native.column cimport COLUMN_FIXED
from eoslog.native.varint cimport store_varint

# A column that was not given: every record is null. Nothing changes it.
cdef ColumnHolder NULLS = ColumnHolder.__new__(ColumnHolder)


cdef ColumnHolder open_column(object source, str name):
    """Borrow a column. None is a column of nulls. Raises TypeError for a value that is no
    column.
    """
    cdef ColumnHolder holder
    if source is None:
        return NULLS
    holder = ColumnHolder.__new__(ColumnHolder)
    if isinstance(source, (list, tuple)):
        open_list(holder, source, name)
        return holder
    if has_arrow(source):
        try:
            return arrow_bytes(source, name)
        except ImportError:
            if not hasattr(source, "to_list"):
                raise
            # A Series of pandas, which needs pyarrow for it.
    import numpy
    if isinstance(source, numpy.ndarray):
        open_numpy(holder, source, name)
        return holder
    open_list(holder, series_of_bytes(source, name), name)
    return holder


cdef list series_of_bytes(object source, str name):
    """A Series (of pandas, of polars) of bytes or of texts as a list of bytes, with None for what
    is missing; of anything else, its cells. Raises TypeError, and ValueError for half a character.
    """
    cells = series_as_list(source, name)
    if str not in set(map(type, cells)):
        return cells
    try:
        return [cell.encode() if type(cell) is str else cell for cell in cells]
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be bytes or valid text: {error}") from None


cdef list series_as_list(object source, str name):
    """A Series (of pandas, of polars) as a list, with None for what is missing. Raises TypeError
    for anything else: it is the last kind of column that is looked for.
    """
    cells = source.to_list() if hasattr(source, "to_list") else None
    if not isinstance(cells, list):
        raise TypeError(
            f"{name} must be a list of bytes, an Arrow binary or string array, a numpy array of "
            f"bytes or a Series of bytes or texts, got {type(source).__name__}"
            f"{', which collect() makes a frame of' * hasattr(source, 'collect')}")
    if hasattr(source, "isna"):          # Pandas has nan and other things in their places.
        cells = [None if is_missing else cell
                 for cell, is_missing in zip(cells, source.isna(), strict=True)]
    return cells


cdef int open_list(ColumnHolder holder, object source, str name) except -1:
    cdef object cells = tuple(source)    # A copy: it cannot change while the GIL is released.
    cdef Py_ssize_t count = len(cells)
    cdef const uint8_t** pointers = NULL
    cdef int64_t* lengths = NULL
    cdef Py_ssize_t index
    make_pointers(holder, count, &pointers, &lengths)
    for index in range(count):
        cell = cells[index]
        if type(cell) is bytes:
            pointers[index] = <const uint8_t*>PyBytes_AS_STRING(cell)
            lengths[index] = PyBytes_GET_SIZE(cell)
        elif cell is None:
            pointers[index] = NULL
            lengths[index] = -1
        else:
            raise TypeError(f"{name}[{index}] must be bytes or None, got {type(cell).__name__}")
    holder._owner = cells
    return 0


cdef int open_numpy(ColumnHolder holder, object source, str name) except -1:
    import numpy
    cdef const uint8_t[:, ::1] rows
    if source.dtype.kind == "S" and source.ndim == 1:
        # numpy pads with zeros and hides them: a cell is what item access shows.
        return open_list(holder, source.tolist(), name)
    if source.dtype == numpy.uint8 and source.ndim == 2:
        if numpy.ma.is_masked(source):
            raise ValueError(f"{name} must have no masked bytes")
        source = numpy.ascontiguousarray(source)
        rows = source
        holder._owner = source
        holder.column.kind = COLUMN_FIXED
        holder.column.count = rows.shape[0]
        holder.column.fixed_bytes = rows.shape[1]
        if rows.shape[0] and rows.shape[1]:
            holder.column.data = &rows[0, 0]
        return 0
    if source.dtype.kind == "O" and source.ndim == 1:
        return open_list(holder, source.tolist(), name)
    raise TypeError(
        f"{name} must be a numpy array of dtype S or O, or a two-dimensional one of uint8, got "
        f"one of {source.dtype} with {source.ndim} dimensions")


cdef object open_timestamps(object timestamps, Py_ssize_t count):
    """Timestamps in milliseconds as a contiguous int64 array, or None for the default timestamp."""
    if timestamps is None:
        return None
    import numpy
    # Pandas has times of its own, and no need of pyarrow for them.
    if has_arrow(timestamps) and not hasattr(timestamps, "isna"):
        array = arrow_times(timestamps, "timestamps")
    else:
        array = timestamp_column(timestamps)
    if array.ndim != 1:
        raise ValueError(f"timestamps must have one dimension, got {array.ndim}")
    if array.shape[0] != count:
        raise ValueError(
            f"timestamps must have {count} items, one for each record, got {array.shape[0]}")
    return numpy.ascontiguousarray(array)


cdef object timestamp_column(object timestamps):
    """Return the timestamps of a caller as int64 milliseconds: the same memory where it can be.
    Raises TypeError, ValueError for nulls and for what is beyond 64 bits, InvalidTimestampError for
    times before 1970. The integer -1 is none.
    """
    import numpy
    try:
        has_nulls, array = array_of_times(timestamps)
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
        raise TypeError(
            "timestamps must be a column of integers (milliseconds) or times, got "
            f"{type(timestamps).__name__}: {error}") from error
    if has_nulls:
        raise ValueError("timestamps must have no nulls")
    if array.dtype.kind == "M":
        array = milliseconds_of(array)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"timestamps must be integers (milliseconds) or times, got {array.dtype}")
    if array.size and array.max() > INT64_MAX:
        raise ValueError(f"timestamps must fit into 64 bits, got {array.max()}")
    return array.astype(numpy.int64, copy=False)


cdef tuple array_of_times(object times):
    """Return True if there are nulls in a column of any library, and the column as a numpy array.
    Raises whatever that library raises.
    """
    if isinstance(times, (str, bytes, bytearray)):
        raise TypeError("it is not a column")
    import numpy
    if isinstance(times, numpy.ma.MaskedArray):
        return numpy.ma.is_masked(times), numpy.asarray(times)
    if not hasattr(times, "isna"):
        return False, numpy.asarray(times)
    kind = times.dtype                                       # Of pandas.
    unit = getattr(getattr(kind, "pyarrow_dtype", kind), "unit", None)
    # Without its type one with a time zone would become an array of objects.
    wanted = f"datetime64[{unit}]" if kind.kind == "M" and unit is not None else None
    return numpy.any(times.isna()), times.to_numpy(dtype=wanted)


cdef object milliseconds_of(object times):
    """Datetimes as milliseconds, rounded down. ValueError for what is beyond 64 bits of them, and
    for what is no time.
    """
    import numpy
    cdef bint is_beyond = numpy.isnat(times).any()
    found = times
    try:
        found = times.astype("datetime64[ms]")
        # Numpy before version 2.5 multiplies coarser units without a look at what becomes of it.
        if numpy.can_cast(times.dtype, found.dtype, "safe"):
            is_beyond |= (found.astype(times.dtype) != times).any()
    except OverflowError:
        is_beyond = True
    if is_beyond:
        raise ValueError("timestamps must be times that fit into 64 bits of milliseconds")
    found = found.view(numpy.int64)
    if found.size and found.min() < 0:   # -1 would stand for none.
        raise errors.InvalidTimestampError(
            f"timestamps must be 1970 or later, got {times[found.argmin()]}")
    return found


cdef int varint_append(bytearray out, Py_ssize_t value) except -1:
    cdef uint8_t scratch[8]
    cdef uint8_t* end
    if not -1 <= value <= 0x7FFFFFFF:
        raise ValueError(f"headers must have at most {0x7FFFFFFF} bytes each, got {value}")
    end = store_varint(scratch, <int32_t>value)
    out += (<char*>scratch)[:end - scratch]
    return 0


cdef bytes encoded_name(str name):
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"headers must have names of valid text, got {name!r:.80}: {error}") from None


cdef list checked_pairs(object headers):
    cdef list pairs, checked
    if headers is None:
        return []
    if type(headers) is list:
        pairs = <list>headers
    elif isinstance(headers, Mapping):
        pairs = list(headers.items())
    else:
        try:
            pairs = list(headers)
        except TypeError:
            raise TypeError(
                "headers must be pairs of (str, bytes or None), got "
                f"{type(headers).__name__}") from None
    checked = []
    for pair in pairs:
        try:
            # Arrow hands them out as dicts.
            if type(pair) is not tuple and isinstance(pair, Mapping):
                name, value = pair["key"], pair["value"]
            else:
                name, value = pair
        except (TypeError, ValueError, KeyError):
            raise TypeError(
                f"headers must be pairs of (str, bytes or None), got {pair!r:.80}") from None
        if not isinstance(name, str):
            raise TypeError(f"headers must have names of str, got {type(name).__name__}")
        if value is not None and not isinstance(value, bytes):
            raise TypeError(
                f"headers must have values of bytes or None, got {type(value).__name__}")
        checked.append((name, value))
    return checked


cdef object header_cells(object headers):
    """A column of headers as a list with a cell for each record; None for no column.

    Raises TypeError.
    """
    if headers is None or isinstance(headers, list):
        return headers
    import numpy
    if isinstance(headers, numpy.ma.MaskedArray):
        return headers.tolist()          # With None for what is masked.
    if hasattr(headers, "to_list"):
        return series_as_list(headers, "headers")
    if not isinstance(headers, (str, bytes, bytearray, memoryview, Mapping)):
        try:
            return list(headers)
        except TypeError:
            pass
    raise TypeError(
        f"headers must be a list with the headers of each record, got {type(headers).__name__}")


cdef bytes encode_headers(object headers):
    """The header section of one record: count, then name and value of each."""
    cdef bytearray out = bytearray()
    cdef list pairs = checked_pairs(headers)
    cdef bytes raw
    varint_append(out, len(pairs))
    for name, value in pairs:
        raw = encoded_name(name)
        varint_append(out, len(raw))
        out += raw
        if value is None:
            varint_append(out, -1)
        else:
            varint_append(out, len(value))
            out += value
    return bytes(out)


cdef ColumnHolder open_headers(object headers, Py_ssize_t count):
    """Encode each record's headers; None for no headers at all."""
    cdef ColumnHolder holder
    cdef object cells
    if headers is None:
        return open_column(None, "headers")
    # A Series of pandas may hold anything, and needs pyarrow for Arrow.
    if has_arrow(headers) and not hasattr(headers, "isna"):
        holder = arrow_headers(headers, "headers")
    else:
        cells = [encode_headers(one) for one in header_cells(headers)]
        holder = open_column(cells, "headers")
    if holder.column.count != count:
        raise ValueError(
            f"headers must have {count} items, one for each record, got {holder.column.count}")
    return holder
