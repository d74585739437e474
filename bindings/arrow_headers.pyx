# cython: language_level=3
"""Headers of records from Arrow lists of (key, value), encoded as a record has them."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from eoslog.bindings.arrow_array cimport (
    Cells, OwnedArray, bytes_column, check_cells, child_cells, format_of, is_valid, type_name,
    validity_of,
)
from eoslog.bindings.column_holder cimport ColumnHolder, make_scratch
from eoslog.native.column cimport COLUMN_NULL, COLUMN_OFFSETS_64, Column, column_get
from eoslog.native.varint cimport store_varint, varint_bytes

cdef enum:
    HEADER_BYTES_MAX = 0x7FFFFFFF

cdef frozenset TEXTS = frozenset(("u", "U", "vu"))

# What is wrong with the headers of a row.
cdef enum:
    NULL_HEADER = 1
    NULL_KEY = 2
    LARGE_HEADER = 3
    NOT_ASCII = 4                    # The key that has to be looked at more closely; no error.

# The lists of some records, and the headers in them.
cdef struct Lists:
    const uint8_t* validity          # Of the lists.
    int64_t validity_at
    const int32_t* ends_32           # One of the two; the first belongs to the first list.
    const int64_t* ends_64
    int64_t count
    const uint8_t* header_validity
    int64_t header_at
    const Column* keys               # From the first header of the first list on.
    const Column* values

# How far a walk over the headers came.
cdef struct Walk:
    int64_t row
    int64_t header
    int64_t bytes
    int wrong


cdef ColumnHolder headers_column(const Cells* cells, OwnedArray owner, str name):
    """Encode the headers of each record: a list, a large list or a map of texts and bytes.

    A null list is one without headers. Raises TypeError for other types, ValueError for a null
    header or key, a key that is no text, and a broken array.
    """
    cdef ColumnHolder holder = ColumnHolder.__new__(ColumnHolder)
    cdef ColumnHolder keys, values
    cdef Lists lists
    cdef Walk walk
    cdef Cells headers
    cdef str form = format_of(cells.schema, name)
    check_cells(cells, name)
    holder.column.count = cells.count
    if form == "n" or cells.count == 0:
        holder.column.kind = COLUMN_NULL
        return holder
    headers = header_cells(cells, form, owner, &lists, name)
    keys, values = header_columns(&headers, form, owner, name)
    lists.keys = &keys.column
    lists.values = &values.column
    lists.header_validity = validity_of(&headers, name)
    lists.header_at = headers.array.offset + headers.first
    walk.row = walk.bytes = 0
    walk.header = -1
    while True:
        with nogil:
            measure(&lists, &walk)
        if walk.wrong == 0:
            break
        if walk.wrong != NOT_ASCII:
            raise_wrong(walk.wrong, owner.first_row + walk.row, name)
        check_text(&keys.column, walk.header, owner.first_row + walk.row, name)
    encode(holder, &lists, walk.bytes)
    return holder


cdef Cells header_cells(
    const Cells* cells, str form, OwnedArray owner, Lists* lists, str name
) except *:
    """Return the cells that the lists have, from the first list's first on."""
    cdef Cells headers
    cdef int64_t at = cells.array.offset + cells.first
    cdef int64_t index, first, last
    cdef bint rise = True
    if form not in ("+l", "+L", "+m") or cells.schema.dictionary != NULL:
        raise TypeError(
            f"{name} must be a list of headers (key and value) for each record, got "
            f"{type_name(form)}")
    if cells.schema.n_children != 1 or cells.array.n_children != 1 or (
            cells.schema.children == NULL or cells.array.n_buffers < 2
            or cells.array.buffers[1] == NULL):
        raise ValueError(f"{name} must be an Arrow array of lists with their offsets")
    lists.count = cells.count
    lists.validity = validity_of(cells, name)
    lists.validity_at = at
    lists.ends_32 = NULL
    lists.ends_64 = NULL
    if <size_t>cells.array.buffers[1] % (8 if form == "+L" else 4):
        raise ValueError(f"{name} must be an Arrow array: its buffer 1 is not aligned")
    if form == "+L":
        lists.ends_64 = <const int64_t*>cells.array.buffers[1] + at
    else:
        lists.ends_32 = <const int32_t*>cells.array.buffers[1] + at
    first = end_of(lists, 0)
    last = end_of(lists, cells.count)
    for index in range(cells.count):
        rise &= end_of(lists, index) <= end_of(lists, index + 1)
        if not rise:
            break
    if not rise or first < 0:
        raise ValueError(
            f"{name} must be an Arrow array whose offsets never fall: row "
            f"{owner.first_row + (0 if rise else index)} has less than no headers")
    headers.schema = cells.schema.children[0]
    headers.array = cells.array.children[0]
    headers.first = first
    headers.count = last - first
    return headers


cdef tuple header_columns(const Cells* headers, str form, OwnedArray owner, str name):
    """Return the keys and the values of all headers."""
    cdef Cells field
    cdef dict found = {}
    cdef int64_t number
    cdef str kind
    kind = format_of(headers.schema, name)
    if kind != "+s" or headers.schema.dictionary != NULL:
        raise TypeError(f"{name} must be lists of structs (key and value), got {type_name(kind)}")
    check_cells(headers, name)
    for number in range(headers.schema.n_children):
        field = child_cells(headers, number, name)
        kind = format_of(field.schema, name)
        if form == "+m":                 # The fields of a map may have any names.
            title = ("key", "value")[number] if number < 2 else str(number)
        else:
            title = b"" if field.schema.name == NULL else <bytes>field.schema.name
            title = title.decode("utf-8", "replace")
        if title not in ("key", "value") or title in found:
            raise TypeError(f"{name} must have headers of one key and one value, got {title!r:.80}")
        if title == "key" and text_format(field, name) not in TEXTS:
            raise TypeError(f"{name} must have keys of text, got {type_name(kind)}")
        found[title] = bytes_column(&field, owner, f"{name} (each {title})")
    if len(found) != 2:
        raise TypeError(f"{name} must have headers of one key and one value, got {list(found)}")
    return found["key"], found["value"]


cdef str text_format(Cells field, str name):
    if field.schema.dictionary != NULL:
        return format_of(field.schema.dictionary, name)
    return format_of(field.schema, name)


cdef int raise_wrong(int wrong, int64_t row, str name) except -1:
    if wrong == NULL_HEADER:
        raise ValueError(f"{name} must have no null header, got one in row {row}")
    if wrong == NULL_KEY:
        raise ValueError(f"{name} must have no null key, got one in row {row}")
    raise ValueError(f"{name} must have at most {HEADER_BYTES_MAX} bytes each, not so row {row}")


cdef int check_text(const Column* keys, int64_t header, int64_t row, str name) except -1:
    cdef const uint8_t* key = NULL
    cdef int64_t key_bytes = column_get(keys, header, &key)
    try:
        PyUnicode_DecodeUTF8(<const char*>key, key_bytes, NULL)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} must have keys of valid text, not so row {row}: {error}") from None
    return 0


cdef inline int64_t end_of(const Lists* lists, int64_t index) noexcept nogil:
    return lists.ends_64[index] if lists.ends_32 == NULL else lists.ends_32[index]


cdef inline int64_t header_count(const Lists* lists, int64_t row) noexcept nogil:
    if not is_valid(lists.validity, lists.validity_at + row):
        return 0
    return end_of(lists, row + 1) - end_of(lists, row)


cdef inline bint is_ascii(const uint8_t* text, int64_t text_bytes) noexcept nogil:
    cdef uint8_t bits = 0
    cdef int64_t index
    for index in range(text_bytes):
        bits |= text[index]
    return bits < 0x80


cdef void measure(const Lists* lists, Walk* walk) noexcept nogil:
    """Add up the bytes of the encoded headers from where the walk stopped on; `wrong` says why it
    stops before the end.

    A walk that stopped at a key that is not ASCII goes on with the bytes of that header.
    """
    cdef const uint8_t* cell = NULL
    cdef int64_t key_bytes, value_bytes, first, upper_bound
    cdef int64_t base = end_of(lists, 0)
    cdef int64_t known_text = walk.header
    walk.wrong = 0
    while walk.row < lists.count:
        first = end_of(lists, walk.row) - base
        upper_bound = first + header_count(lists, walk.row)
        if known_text < 0:
            if upper_bound - first > HEADER_BYTES_MAX:
                walk.wrong = LARGE_HEADER
                return
            walk.bytes += varint_bytes(<int32_t>(upper_bound - first))
            walk.header = first
        while walk.header < upper_bound:
            if not is_valid(lists.header_validity, lists.header_at + walk.header):
                walk.wrong = NULL_HEADER
                return
            key_bytes = column_get(lists.keys, walk.header, &cell)
            if key_bytes < 0:
                walk.wrong = NULL_KEY
                return
            if known_text != walk.header and not is_ascii(cell, key_bytes):
                walk.wrong = NOT_ASCII
                return
            value_bytes = column_get(lists.values, walk.header, &cell)
            if key_bytes > HEADER_BYTES_MAX or value_bytes > HEADER_BYTES_MAX:
                walk.wrong = LARGE_HEADER
                return
            walk.bytes += varint_bytes(<int32_t>key_bytes) + key_bytes
            walk.bytes += varint_bytes(<int32_t>value_bytes)
            if value_bytes > 0:
                walk.bytes += value_bytes
            walk.header += 1
        known_text = -1
        walk.row += 1


cdef int encode(ColumnHolder holder, const Lists* lists, int64_t encoded_bytes) except -1:
    """Make the encoded headers the holder's column."""
    cdef int64_t count = lists.count
    cdef int64_t* ends
    cdef uint8_t* data
    # The ends come first: they are aligned.
    ends = <int64_t*>make_scratch(holder, encoded_bytes + 8 * (count + 1), 1)
    data = <uint8_t*>(ends + count + 1)
    with nogil:
        encode_all(lists, data, ends)
    holder.column.kind = COLUMN_OFFSETS_64
    holder.column.data = data
    holder.column.offsets_64 = ends
    return 0


cdef void encode_all(const Lists* lists, uint8_t* data, int64_t* ends) noexcept nogil:
    cdef uint8_t* at = data
    cdef const uint8_t* cell = NULL
    cdef int64_t row, header, first, upper_bound, cell_bytes
    cdef int64_t base = end_of(lists, 0)
    ends[0] = 0
    for row in range(lists.count):
        first = end_of(lists, row) - base
        upper_bound = first + header_count(lists, row)
        at = store_varint(at, <int32_t>(upper_bound - first))
        for header in range(first, upper_bound):
            cell_bytes = column_get(lists.keys, header, &cell)
            at = put_cell(at, cell, cell_bytes)
            cell_bytes = column_get(lists.values, header, &cell)
            at = put_cell(at, cell, cell_bytes)
        ends[row + 1] = at - data


cdef inline uint8_t* put_cell(
    uint8_t* at, const uint8_t* cell, int64_t cell_bytes
) noexcept nogil:
    at = store_varint(at, <int32_t>cell_bytes)
    if cell_bytes > 0:
        memcpy(at, cell, <size_t>cell_bytes)
        at += cell_bytes
    return at
