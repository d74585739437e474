# cython: language_level=3
"""Arrow arrays of any library, by its C data interface: cells of bytes, borrowed, and times.

The maker of an array is not trusted: counts, buffers, offsets, indices and views are checked before
a cell is read, and an error names the column and the row. The sizes of most buffers are not part of
the interface, so that one that is too short cannot be seen. Plain columns are borrowed as they are;
views and dictionaries become pointers to the bytes where they lie.
"""

from eoslog import errors

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport (
    INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t,
)
from libc.string cimport memcpy, memset

from eoslog.bindings.column_holder cimport ColumnHolder, check_count, make_pointers
from eoslog.native.column cimport (
    COLUMN_FIXED, COLUMN_NULL, COLUMN_OFFSETS_32, COLUMN_OFFSETS_64, COLUMN_POINTERS, Column,
    column_get,
)

ctypedef fused ArrowOffset:
    int32_t
    int64_t

cdef enum:
    VIEW_BYTES = 16
    VIEW_INLINE_BYTES_MAX = 12
    FIXED_BYTES_MAX = 0x7FFFFFFF
    VALID = -1                       # No row is wrong.

# Bytes of an index into a dictionary, or of an integer, by its format; negative: without a sign.
cdef dict WIDTHS = {"c": 1, "C": -1, "s": 2, "S": -2, "i": 4, "I": -4, "l": 8, "L": -8}
# Bytes, and milliseconds of one unit, of times by their format; negative: units in one millisecond.
cdef dict TIMES = {
    "tss": (8, 1000), "tsm": (8, 1), "tsu": (8, -1000), "tsn": (8, -1_000_000),
    "tdD": (4, 86_400_000), "tdm": (8, 1),
}
# Names of types, for errors, by the beginning of their format.
cdef dict TYPE_NAMES = {
    "n": "null", "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32",
    "I": "uint32", "l": "int64", "L": "uint64", "e": "float16", "f": "float32", "g": "float64",
    "z": "binary", "Z": "large_binary", "vz": "binary_view", "w": "fixed_size_binary",
    "u": "string", "U": "large_string", "vu": "string_view", "d": "decimal", "td": "date",
    "tt": "time", "ts": "timestamp", "tD": "duration", "ti": "interval", "+l": "list",
    "+L": "large_list", "+vl": "list_view", "+vL": "large_list_view", "+w": "fixed_size_list",
    "+s": "struct", "+m": "map", "+u": "union", "+r": "run_end_encoded",
}
cdef uint8_t[1] NO_BYTES             # Where cells without bytes point to.


@cython.final
cdef class OwnedSchema:
    """Type of Arrow arrays, released with the object."""

    def __cinit__(self):
        memset(&self.schema, 0, sizeof(ArrowSchema))

    def __dealloc__(self):
        if self.schema.release != NULL:
            self.schema.release(&self.schema)


@cython.final
cdef class OwnedArray:
    """An Arrow array, released with the object."""

    def __cinit__(self):
        memset(&self.array, 0, sizeof(ArrowArray))
        self.first_row = 0

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


cdef tuple taken_array(object source, str name):
    """Take a source's array over: (OwnedSchema, OwnedArray)."""
    cdef object schema_capsule, array_capsule
    cdef OwnedSchema schema = OwnedSchema.__new__(OwnedSchema)
    cdef OwnedArray array = OwnedArray.__new__(OwnedArray)
    cdef ArrowSchema* given_schema
    cdef ArrowArray* given_array
    if hasattr(source, "validate"):
        source.validate()                # ValueError where pyarrow's buffers are too short.
    schema_capsule, array_capsule = source.__arrow_c_array__()
    given_schema = <ArrowSchema*>PyCapsule_GetPointer(schema_capsule, "arrow_schema")
    given_array = <ArrowArray*>PyCapsule_GetPointer(array_capsule, "arrow_array")
    if given_schema.release == NULL or given_array.release == NULL:
        raise ValueError(f"{name} must be an Arrow array that no other consumer has released")
    schema.schema = given_schema[0]
    given_schema.release = NULL
    array.array = given_array[0]
    given_array.release = NULL
    return schema, array


cdef str format_of(const ArrowSchema* schema, str name):
    """Return the format of a type, as the interface writes it."""
    if schema == NULL or schema.release == NULL or schema.format == NULL:
        raise ValueError(f"{name} must have an Arrow type that was not released")
    return schema.format.decode("utf-8", "replace")


cdef str type_name(str form):
    """Return the name that Arrow's libraries have for the type of a format."""
    cdef int length
    for length in (3, 2, 1):
        if form[:length] in TYPE_NAMES:
            return TYPE_NAMES[form[:length]]
    return f"format {form!r}"


cdef Cells all_cells(OwnedSchema schema, OwnedArray array):
    """Return all cells of an array."""
    cdef Cells cells
    cells.schema = &schema.schema
    cells.array = &array.array
    cells.first = 0
    cells.count = array.array.length
    return cells


cdef int check_cells(const Cells* cells, str name) except -1:
    """Raise ValueError for cells that an array does not have."""
    cdef const ArrowArray* array = cells.array
    if array == NULL or array.release == NULL:
        raise ValueError(f"{name} must be an Arrow array that no other consumer has released")
    if array.length < 0 or array.offset < 0 or array.offset > INT64_MAX - array.length or (
            cells.first < 0 or cells.count < 0 or cells.first > array.length - cells.count):
        raise ValueError(
            f"{name} must be an Arrow array of its rows: rows {cells.first} to "
            f"{cells.first + <object>cells.count} of length {array.length}, offset {array.offset}")
    if array.null_count < -1 or array.null_count > array.length:
        raise ValueError(
            f"{name} must be an Arrow array: null count {array.null_count} of {array.length} rows")
    if array.n_buffers < 0 or array.n_children < 0 or (
            array.n_buffers > 0 and array.buffers == NULL) or (
            array.n_children > 0 and array.children == NULL):
        raise ValueError(f"{name} must be an Arrow array with its buffers")
    return check_count(cells.count, name)


cdef int64_t place_of(const Cells* cells) noexcept nogil:
    """Index of the first cell in the array's buffers."""
    return cells.array.offset + cells.first


cdef const void* buffer_of(
    const Cells* cells, int64_t number, int64_t item_bytes, str name
) except? NULL:
    """Return a buffer, which has no items only if there are no cells."""
    cdef const void* found = NULL
    if number < cells.array.n_buffers:
        found = cells.array.buffers[number]
    if cells.count and (found == NULL or <uintptr_t>found % <uintptr_t>item_bytes):
        state = "missing" if found == NULL else f"not aligned to {item_bytes} bytes"
        raise ValueError(f"{name} must be an Arrow array: its buffer {number} is {state}")
    return found


cdef const uint8_t* validity_of(const Cells* cells, str name) except? NULL:
    """Return the bitmap of the cells that are not null, NULL if none is null."""
    cdef const ArrowArray* array = cells.array
    if array.null_count == 0 or array.n_buffers == 0:
        return NULL
    if array.buffers[0] == NULL and array.null_count > 0:
        raise ValueError(
            f"{name} must be an Arrow array: {array.null_count} nulls without a bitmap")
    return <const uint8_t*>array.buffers[0]


cdef int64_t first_null(const uint8_t* validity, int64_t at, int64_t count) noexcept nogil:
    """Return the first of these cells that is null; -1 if none is."""
    cdef int64_t index
    if validity != NULL:
        for index in range(count):
            if not is_valid(validity, at + index):
                return index
    return VALID


cdef Cells child_cells(const Cells* cells, int64_t number, str name) except *:
    """Return the cells of a struct's field that belong to these cells of the struct."""
    cdef Cells child
    if cells.schema.n_children != cells.array.n_children or not (
            0 <= number < cells.array.n_children) or cells.schema.children == NULL:
        raise ValueError(
            f"{name} must be an Arrow array of its type: {cells.array.n_children} fields of "
            f"{cells.schema.n_children}")
    child.schema = cells.schema.children[number]
    child.array = cells.array.children[number]
    child.first = place_of(cells)
    child.count = cells.count
    return child


# Cells of bytes.

cdef ColumnHolder bytes_column(const Cells* cells, OwnedArray owner, str name):
    """Borrow cells of bytes or of text. Raises TypeError for others, ValueError for a broken array.
    """
    cdef ColumnHolder holder = ColumnHolder.__new__(ColumnHolder)
    cdef Column* column = &holder.column
    cdef str form = format_of(cells.schema, name)
    check_cells(cells, name)
    holder._owner = owner
    column.count = cells.count
    if cells.schema.dictionary != NULL:
        open_dictionary(holder, cells, owner, name)
    elif form == "z" or form == "u":
        column.kind = COLUMN_OFFSETS_32
        open_offsets(holder, cells, 4, owner, name)
    elif form == "Z" or form == "U":
        column.kind = COLUMN_OFFSETS_64
        open_offsets(holder, cells, 8, owner, name)
    elif form == "vz" or form == "vu":
        open_views(holder, cells, owner, name)
    elif form.startswith("w:"):
        open_fixed(holder, cells, form, name)
    elif form == "n":
        column.kind = COLUMN_NULL
    else:
        found = "a record batch" if form == "+s" else type_name(form)
        raise TypeError(f"{name} must be an Arrow binary or string array, got {found}")
    return holder


cdef int open_offsets(
    ColumnHolder holder, const Cells* cells, int64_t offset_bytes, OwnedArray owner, str name
) except -1:
    cdef Column* column = &holder.column
    cdef const uint8_t* offsets = <const uint8_t*>buffer_of(cells, 1, offset_bytes, name)
    cdef const uint8_t* data = NULL
    cdef int64_t wrong, bytes
    if cells.count == 0:
        column.kind = COLUMN_POINTERS    # An empty array may lack its offsets buffer.
        return 0
    offsets += place_of(cells) * offset_bytes
    with nogil:
        if offset_bytes == 4:
            column.offsets_32 = <const int32_t*>offsets
            wrong = falling_offset(column.offsets_32, column.count)
        else:
            column.offsets_64 = <const int64_t*>offsets
            wrong = falling_offset(column.offsets_64, column.count)
    if wrong != VALID:
        raise ValueError(
            f"{name} must be an Arrow array whose offsets never fall: row "
            f"{owner.first_row + wrong} has less than no bytes")
    if cells.array.n_buffers > 2:
        data = <const uint8_t*>cells.array.buffers[2]
    if data == NULL:
        bytes = (<int64_t>column.offsets_32[column.count] if offset_bytes == 4
                 else column.offsets_64[column.count])
        if bytes:
            raise ValueError(f"{name} must be an Arrow array: its buffer 2 is missing")
        data = NO_BYTES
    column.data = data
    return borrow_validity(column, cells, name)


cdef int borrow_validity(Column* column, const Cells* cells, str name) except -1:
    column.validity = validity_of(cells, name)
    column.validity_bit_offset = place_of(cells)
    return 0


cdef int64_t falling_offset(const ArrowOffset* offsets, int64_t count) noexcept nogil:
    """Return a row of negative length, or one that begins before the data; -1 if there is none."""
    cdef int64_t index
    cdef bint rise = True
    for index in range(count):
        rise &= offsets[index] <= offsets[index + 1]
    if rise and offsets[0] >= 0:
        return VALID
    for index in range(count):
        if offsets[index] > offsets[index + 1]:
            return index
    return 0


cdef int open_fixed(ColumnHolder holder, const Cells* cells, str form, str name) except -1:
    cdef Column* column = &holder.column
    cdef const uint8_t* data
    cdef int64_t width
    if not form[2:].isdecimal() or int(form[2:]) > FIXED_BYTES_MAX:
        raise TypeError(f"{name} must be an Arrow binary array, got format {form!r}")
    width = int(form[2:])
    column.kind = COLUMN_FIXED
    column.fixed_bytes = width
    if width and place_of(cells) + cells.count > INT64_MAX // width:
        raise ValueError(f"{name} must be an Arrow array of its rows, got {cells.count} of them")
    if width:
        data = <const uint8_t*>buffer_of(cells, 1, 1, name)
    else:
        data = NO_BYTES
    if data != NULL:
        column.data = data + place_of(cells) * width
    return borrow_validity(column, cells, name)


cdef int open_views(ColumnHolder holder, const Cells* cells, OwnedArray owner, str name) except -1:
    cdef const ArrowArray* array = cells.array
    cdef const uint8_t* validity = validity_of(cells, name)
    cdef const uint8_t* views = <const uint8_t*>buffer_of(cells, 1, 1, name)
    cdef int64_t data_count = array.n_buffers - 3
    cdef const int64_t* data_bytes = NULL
    cdef const uint8_t** pointers = NULL
    cdef int64_t* lengths = NULL
    cdef int64_t at = place_of(cells)
    cdef int64_t count = cells.count
    cdef int64_t wrong
    make_pointers(holder, count, &pointers, &lengths)
    if data_count > 0:
        data_bytes = <const int64_t*>buffer_of(cells, array.n_buffers - 1, 8, name)
    if count == 0:
        return 0
    with nogil:
        wrong = point_to_views(
            views, validity, array.buffers + 2, data_bytes, data_count, at, count, pointers,
            lengths)
    if wrong != VALID:
        raise ValueError(
            f"{name} must be an Arrow array of views: that of row {owner.first_row + wrong} leaves "
            "its buffer")
    return 0


cdef int64_t point_to_views(
    const uint8_t* views, const uint8_t* validity, const void** data, const int64_t* data_bytes,
    int64_t data_count, int64_t at, int64_t count, const uint8_t** pointers, int64_t* lengths,
) noexcept nogil:
    """Fill in where the cells are; the first that is nowhere, or -1."""
    cdef int64_t index
    cdef const uint8_t* view
    cdef int32_t length, number, offset
    for index in range(count):
        if not is_valid(validity, at + index):
            pointers[index] = NULL
            lengths[index] = -1
            continue
        view = views + (at + index) * VIEW_BYTES
        memcpy(&length, view, 4)
        if length < 0:
            return index
        lengths[index] = length
        if length <= VIEW_INLINE_BYTES_MAX:
            pointers[index] = view + 4
            continue
        memcpy(&number, view + 8, 4)
        memcpy(&offset, view + 12, 4)
        if not 0 <= number < data_count or data[number] == NULL or offset < 0 or (
                offset > data_bytes[number] - length):
            return index
        pointers[index] = <const uint8_t*>data[number] + offset
    return VALID


cdef int open_dictionary(
    ColumnHolder holder, const Cells* cells, OwnedArray owner, str name
) except -1:
    """The values of a dictionary, in the order of the indices; null where either is."""
    cdef Cells values
    cdef ColumnHolder found
    cdef const uint8_t* validity
    cdef const uint8_t* indices
    cdef const uint8_t** pointers = NULL
    cdef int64_t* lengths = NULL
    cdef int64_t at = place_of(cells)
    cdef int64_t count = cells.count
    cdef int64_t wrong
    cdef int width
    values = dictionary_of(cells, name, &width)
    found = bytes_column(&values, owner, f"{name} (its dictionary)")
    validity = validity_of(cells, name)
    indices = <const uint8_t*>buffer_of(cells, 1, abs(width), name)
    make_pointers(holder, count, &pointers, &lengths)
    with nogil:
        wrong = look_up(
            &found.column, indices, width, validity, at, count, pointers, lengths)
    if wrong != VALID:
        raise_no_value(wrong, values.count, owner, name)
    return 0


cdef Cells dictionary_of(const Cells* cells, str name, int* width) except *:
    """Return the values of a dictionary, and the width of the indices into it."""
    cdef Cells values
    cdef str form = format_of(cells.schema, name)
    width[0] = WIDTHS.get(form, 0)
    if not width[0]:
        raise TypeError(f"{name} must have a dictionary with whole indices, got {type_name(form)}")
    if cells.schema.dictionary.dictionary != NULL:
        raise TypeError(f"{name} must have a dictionary of plain values, got one of a dictionary")
    if cells.array.dictionary == NULL:
        raise ValueError(f"{name} must be an Arrow array with its dictionary")
    values.schema = cells.schema.dictionary
    values.array = cells.array.dictionary
    values.first = 0
    values.count = cells.array.dictionary.length
    return values


cdef int raise_no_value(int64_t row, int64_t value_count, OwnedArray owner, str name) except -1:
    raise ValueError(
        f"{name} must be an Arrow array of its dictionary's {value_count} values: the index of row "
        f"{owner.first_row + row} is none of them")


cdef int64_t look_up(
    const Column* values, const uint8_t* indices, int width, const uint8_t* validity, int64_t at,
    int64_t count, const uint8_t** pointers, int64_t* lengths,
) noexcept nogil:
    """Fill in where the cells are; the first that is nowhere, or -1."""
    cdef int64_t index, value
    for index in range(count):
        if not is_valid(validity, at + index):
            pointers[index] = NULL
            lengths[index] = -1
            continue
        value = integer_at(indices, at + index, width)
        if not 0 <= value < values.count:
            return index
        lengths[index] = column_get(values, value, &pointers[index])
    return VALID


cdef inline int64_t integer_at(const uint8_t* items, int64_t index, int width) noexcept nogil:
    """Return an integer; one without a sign that does not fit is negative."""
    if width == 8 or width == -8:
        return (<const int64_t*>items)[index]
    if width == 4:
        return (<const int32_t*>items)[index]
    if width == -4:
        return (<const uint32_t*>items)[index]
    if width == 2:
        return (<const int16_t*>items)[index]
    if width == -2:
        return (<const uint16_t*>items)[index]
    if width == 1:
        return (<const int8_t*>items)[index]
    return items[index]


# Times.

cdef object times_column(const Cells* cells, OwnedArray owner, str name):
    """Return times, or integers, as milliseconds in a numpy array of int64, rounded down.

    Raises TypeError for others, ValueError for nulls and for what is beyond 64 bits, and
    InvalidTimestampError for times before 1970.
    """
    import numpy
    cdef str form = format_of(cells.schema, name)
    cdef int64_t[::1] milliseconds
    cdef const uint8_t* items
    cdef const uint8_t* validity
    cdef int64_t at, wrong
    cdef int64_t count = cells.count
    cdef int64_t unit = 1
    cdef int width = WIDTHS.get(form, 0)
    cdef bint are_times = not width
    if cells.schema.dictionary != NULL:
        return times_of_dictionary(cells, owner, name)
    if are_times:
        width, unit = TIMES.get(form.partition(":")[0], (0, 1))
    if not width:
        raise TypeError(
            f"{name} must be a column of integers (milliseconds) or times, got {type_name(form)}")
    check_cells(cells, name)
    at = place_of(cells)
    validity = validity_of(cells, name)
    items = <const uint8_t*>buffer_of(cells, 1, abs(width), name)
    wrong = first_null(validity, at, count)
    if wrong != VALID:
        raise ValueError(
            f"{name} must have no nulls, got one in row {owner.first_row + wrong}")
    found = numpy.empty(count, numpy.int64)
    if count == 0:
        return found
    milliseconds = found
    with nogil:
        wrong = take_times(items, width, unit, at, count, &milliseconds[0])
    if wrong != VALID:                   # Only items of eight bytes can be too large.
        value = (<const uint64_t*>items)[at + wrong] if width < 0 else (
            <const int64_t*>items)[at + wrong]
        raise ValueError(
            f"{name} must fit into 64 bits of milliseconds, got {value} of {type_name(form)} in "
            f"row {owner.first_row + wrong}")
    if are_times and found.min() < 0:    # -1 would stand for none.
        wrong = found.argmin()
        raise errors.InvalidTimestampError(
            f"{name} must be 1970 or later, got {found[wrong]} ms in row {owner.first_row + wrong}")
    return found


cdef object times_of_dictionary(const Cells* cells, OwnedArray owner, str name):
    """The times of a dictionary, in the order of the indices."""
    import numpy
    cdef Cells values
    cdef int64_t[::1] milliseconds, known
    cdef int64_t index, value
    cdef int64_t at
    cdef const uint8_t* validity
    cdef const uint8_t* indices
    cdef int width
    values = dictionary_of(cells, name, &width)
    check_cells(cells, name)
    known = times_column(&values, owner, f"{name} (their dictionary)")
    validity = validity_of(cells, name)
    at = place_of(cells)
    index = first_null(validity, at, cells.count)
    if index != VALID:
        raise ValueError(f"{name} must have no nulls, got one in row {owner.first_row + index}")
    indices = <const uint8_t*>buffer_of(cells, 1, abs(width), name)
    milliseconds = numpy.empty(cells.count, numpy.int64)
    for index in range(cells.count):
        value = integer_at(indices, at + index, width)
        if not 0 <= value < values.count:
            raise_no_value(index, values.count, owner, name)
        milliseconds[index] = known[value]
    return milliseconds.base


cdef int64_t take_times(
    const uint8_t* items, int width, int64_t unit, int64_t at, int64_t count,
    int64_t* milliseconds,
) noexcept nogil:
    """Fill in milliseconds; the first that does not fit into 64 bits, or -1."""
    cdef int64_t index, item, low, high
    if unit > 1:
        high = INT64_MAX // unit
        low = -high
        for index in range(count):
            item = integer_at(items, at + index, width)
            if not low <= item <= high:
                return index
            milliseconds[index] = item * unit
    elif unit < 0:
        for index in range(count):
            milliseconds[index] = integer_at(items, at + index, width) // -unit
    else:
        for index in range(count):
            milliseconds[index] = integer_at(items, at + index, width)
            if width == -8 and milliseconds[index] < 0:
                return index
    return VALID
