# cython: language_level=3
"""Columns of one call: opened and checked once, and the records of each partition among them."""

from eoslog import errors

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from eoslog.bindings.arrow_array cimport (
    Cells, OwnedArray, OwnedSchema, all_cells, bytes_column, check_cells, child_cells, first_null,
    format_of, taken_array, times_column, validity_of,
)
from eoslog.bindings.arrow_headers cimport headers_column
from eoslog.bindings.column_holder cimport ColumnHolder, check_count, column_in_order
from eoslog.bindings.columns cimport open_column, open_headers, open_timestamps
from eoslog.bindings.partitioner cimport checked_partition_count
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX
from eoslog.native.batch_filler cimport oversized_record
from eoslog.native.column cimport COLUMN_POINTERS, Column, column_get
from eoslog.native.murmur2 cimport murmur2, partition_for_hash

# Columns of a record batch that is appended.
cdef tuple FIELDS = ("value", "key", "timestamp", "headers")


@cython.final
cdef class ColumnSet:
    """Columns of one call, checked against each other; their bytes are borrowed until it is
    dropped.
    """

    def __cinit__(self):
        memset(&self.columns, 0, sizeof(RecordColumns))

    def __len__(self):
        return self.columns.count

    def check_sizes(self, Py_ssize_t batch_bytes_max):
        """Raise RecordTooLargeError for a record whose batch would exceed the limit by itself."""
        cdef int64_t batch_bytes = 0
        cdef int64_t index
        with nogil:
            index = oversized_record(&self.columns, batch_bytes_max, &batch_bytes)
        if index >= 0:
            raise errors.RecordTooLargeError(
                f"record {index} makes a batch of {batch_bytes} bytes; limit {batch_bytes_max}")

    def by_partition(self, Py_ssize_t partition_count, Py_ssize_t first_partition,
                     Py_ssize_t batch_bytes_max):
        """Return each partition that gets records, and the columns of these, in the order given.

        A record with a key goes where Kafka's partitioner puts the key. The others fill one
        partition's batch after the other, from `first_partition` on.
        """
        cdef int32_t count = checked_partition_count(partition_count)
        cdef ColumnSet ordered
        cdef int64_t first = 0
        cdef list found = []
        cdef int32_t[::1] partitions
        cdef int64_t[::1] order, ends
        if not 0 <= first_partition < count:
            raise ValueError(
                f"first_partition must be from 0 to {count - 1}, got {first_partition}")
        if count == 1:
            return [(0, self)]
        if self.columns.count == 0:
            return found
        import numpy
        partitions = numpy.empty(self.columns.count, numpy.int32)
        order = numpy.empty(self.columns.count, numpy.int64)
        ends = numpy.zeros(count, numpy.int64)
        with nogil:
            place_records(
                &self.columns, count, <int32_t>first_partition, batch_bytes_max, &partitions[0])
            sort_by_partition(&partitions[0], self.columns.count, &ends[0], count, &order[0])
        ordered = self._in_order(order)
        for partition, end in enumerate(ends.base.tolist()):
            if end > first:
                found.append((partition, ordered._cut(first, end)))
            first = end
        return found

    cdef int _set(
        self, int64_t count, ColumnHolder values, ColumnHolder keys, ColumnHolder headers,
        int64_t timestamp_ms,
    ) except -1:
        """Take over columns of that length; the timestamps are set before."""
        cdef const int64_t[::1] moments
        if self.timestamps is not None and count:
            moments = self.timestamps
            self.columns.timestamps = &moments[0]
        self.columns.values = values.column
        self.columns.keys = keys.column
        self.columns.headers = headers.column
        self.columns.default_timestamp_ms = timestamp_ms
        self.columns.count = count
        self._holders = (values, keys, headers)
        return 0

    cdef ColumnSet _in_order(self, const int64_t[::1] order):
        """Return the records in another order."""
        cdef ColumnSet ordered = ColumnSet.__new__(ColumnSet)
        cdef int64_t count = self.columns.count
        cdef ColumnHolder values = column_in_order(&self.columns.values, &order[0], count)
        cdef ColumnHolder keys = column_in_order(&self.columns.keys, &order[0], count)
        cdef ColumnHolder headers = column_in_order(&self.columns.headers, &order[0], count)
        cdef const int64_t[::1] moments
        ordered.columns = self.columns
        ordered.columns.values = values.column
        ordered.columns.keys = keys.column
        ordered.columns.headers = headers.column
        if self.timestamps is not None:
            ordered.timestamps = self.timestamps[order.base]
            moments = ordered.timestamps
            ordered.columns.timestamps = &moments[0]
        ordered._holders = (self, values, keys, headers)
        return ordered

    cdef ColumnSet _cut(self, int64_t first, int64_t upper_bound):
        """Return the records [first, upper_bound) of columns that were put in order."""
        cdef ColumnSet piece = ColumnSet.__new__(ColumnSet)
        piece._holders = self
        piece.columns = self.columns
        piece.columns.count = upper_bound - first
        cut_pointers(&piece.columns.values, first)
        cut_pointers(&piece.columns.keys, first)
        cut_pointers(&piece.columns.headers, first)
        if self.timestamps is not None:
            piece.timestamps = self.timestamps[first:upper_bound]
            piece.columns.timestamps = self.columns.timestamps + first
        return piece


cpdef ColumnSet open_columns(
    object values, object keys, object timestamps, object headers, Py_ssize_t timestamp_ms
):
    """Open the columns of a call; `timestamp_ms` holds where no timestamps are given.

    Columns that were opened before come in the place of `values`, and are returned as they are; an
    Arrow array of structs has all columns. Raises TypeError for what is not a column, and
    ValueError for columns that differ in length or have more than 2**30 records.
    """
    if type(values) is ColumnSet:
        return values
    cdef ColumnHolder value_holder
    cdef OwnedSchema schema
    cdef OwnedArray array
    if type(values) is not list and not hasattr(values, "__arrow_c_stream__") and (
            hasattr(values, "__arrow_c_array__")):
        schema, array = taken_array(values, "values")
        if format_of(&schema.schema, "values") == "+s":
            check_alone(keys, timestamps, headers)
            return columns_of_chunk(schema, array, fields_of(schema), timestamp_ms)
        value_holder = bytes_of_chunk(schema, array, "values")
    else:
        value_holder = open_column(values, "values")
    return open_beside(value_holder, values is None, keys, timestamps, headers, timestamp_ms)


cdef ColumnHolder bytes_of_chunk(OwnedSchema schema, OwnedArray array, str name):
    cdef Cells cells = all_cells(schema, array)
    return bytes_column(&cells, array, name)


cdef ColumnSet open_beside(
    ColumnHolder value_holder, bint are_null, object keys, object timestamps, object headers,
    Py_ssize_t timestamp_ms,
):
    """Open the other columns of a call beside its values."""
    cdef ColumnSet opened = ColumnSet.__new__(ColumnSet)
    cdef ColumnHolder key_holder = open_column(keys, "keys")
    cdef ColumnHolder header_holder
    cdef int64_t count = value_holder.column.count
    if are_null:
        if keys is None:
            raise TypeError("values must be a column if keys is None, got None")
        count = key_holder.column.count      # All values null: a column of tombstones.
    check_count(count, "values")
    if keys is not None and key_holder.column.count != count:
        raise ValueError(
            f"keys must have {count} items, one for each value, got {key_holder.column.count}")
    header_holder = open_headers(headers, count)
    try:
        opened.timestamps = open_timestamps(timestamps, count)
    except errors.InvalidTimestampError as error:
        error.appended_record_count = 0
        raise
    opened._set(count, value_holder, key_holder, header_holder, timestamp_ms)
    return opened


cdef int check_alone(object keys, object timestamps, object headers) except -1:
    """Raise TypeError for columns beside a record batch, which has its own."""
    for name, given in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
        if given is not None:
            raise TypeError(
                f"{name} must be a column of the record batch that values is, got "
                f"{type(given).__name__}")
    return 0


cdef tuple fields_of(OwnedSchema schema):
    """Return the places of value, key, timestamp and headers in a record batch, -1 for one that it
    does not have. Raises TypeError for other columns, or two of one name.
    """
    cdef list places = [-1] * len(FIELDS)
    cdef int64_t number
    cdef bytes name
    if schema.schema.children == NULL and schema.schema.n_children:
        raise ValueError("values must have an Arrow type with its fields")
    for number in range(schema.schema.n_children):
        if schema.schema.children[number] == NULL or schema.schema.children[number].name == NULL:
            raise ValueError("values must have an Arrow type whose fields have names")
        name = schema.schema.children[number].name
        title = name.decode("utf-8", "replace")
        if title.startswith("__index_level_"):
            continue                     # The index without a name of a frame of pandas.
        if title not in FIELDS:
            raise TypeError(
                f"values must have the columns value, key, timestamp and headers alone, got "
                f"{title!r:.80}")
        if places[FIELDS.index(title)] >= 0:
            raise TypeError(f"values must have each column once, got two of {title!r}")
        places[FIELDS.index(title)] = number
    if places[0] < 0:
        raise TypeError("values must have a column 'value'")
    return tuple(places)


cdef ColumnSet columns_of_chunk(
    OwnedSchema schema, OwnedArray array, tuple places, Py_ssize_t timestamp_ms
):
    """Open a record batch with its columns at these places."""
    cdef ColumnSet opened = ColumnSet.__new__(ColumnSet)
    cdef Cells cells = all_cells(schema, array)
    cdef Cells column
    cdef ColumnHolder value_holder, key_holder, header_holder
    cdef int64_t wrong
    check_cells(&cells, "values")
    wrong = first_null(validity_of(&cells, "values"), array.array.offset, cells.count)
    if wrong >= 0:
        raise ValueError(f"values must have no null rows, got one in row {array.first_row + wrong}")
    value, key, timestamp, headers = places
    column = child_cells(&cells, value, "values")
    value_holder = bytes_column(&column, array, "column 'value'")
    if key < 0:
        key_holder = open_column(None, "keys")
    else:
        column = child_cells(&cells, key, "values")
        key_holder = bytes_column(&column, array, "column 'key'")
    if headers < 0:
        header_holder = open_column(None, "headers")
    else:
        column = child_cells(&cells, headers, "values")
        header_holder = headers_column(&column, array, "column 'headers'")
    if timestamp >= 0:
        column = child_cells(&cells, timestamp, "values")
        try:
            opened.timestamps = times_column(&column, array, "column 'timestamp'")
        except errors.InvalidTimestampError as error:
            error.appended_record_count = 0
            raise
    opened._set(cells.count, value_holder, key_holder, header_holder, timestamp_ms)
    return opened


cdef void place_records(
    const RecordColumns* columns, int32_t partition_count, int32_t keyless_partition,
    int64_t batch_bytes_max, int32_t* partitions,
) noexcept nogil:
    """Fill in the partition of each record."""
    cdef const uint8_t* key = NULL
    cdef const uint8_t* ignored = NULL
    cdef int64_t key_bytes, bound, index
    cdef int64_t gathered_bytes = 0
    for index in range(columns.count):
        key_bytes = column_get(&columns.keys, index, &key)
        if key_bytes >= 0:
            partitions[index] = partition_for_hash(murmur2(key, key_bytes), partition_count)
            continue
        # A null value counts -1, and the overhead is less by more than that.
        bound = RECORD_OVERHEAD_BYTES_MAX + column_get(&columns.values, index, &ignored)
        bound += column_get(&columns.headers, index, &ignored)
        if gathered_bytes > 0 and gathered_bytes + bound > batch_bytes_max:
            keyless_partition = (keyless_partition + 1) % partition_count
            gathered_bytes = 0
        gathered_bytes += bound
        partitions[index] = keyless_partition


cdef void sort_by_partition(
    const int32_t* partitions, int64_t record_count, int64_t* ends, int32_t partition_count,
    int64_t* order,
) noexcept nogil:
    """Fill in the records by partition, in the order given, and where each partition's end.

    `ends` comes with zeros.
    """
    cdef int64_t index, first
    cdef int64_t before = 0
    cdef int32_t partition
    for index in range(record_count):
        ends[partitions[index]] += 1
    for partition in range(partition_count):
        first = before
        before += ends[partition]
        ends[partition] = first
    for index in range(record_count):
        order[ends[partitions[index]]] = index
        ends[partitions[index]] += 1


cdef void cut_pointers(Column* column, int64_t first) noexcept nogil:
    if column.kind == COLUMN_POINTERS:
        column.pointers += first
        column.lengths += first
