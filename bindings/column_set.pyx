# cython: language_level=3
"""Columns of one call: opened and checked once, and the records of each partition among them."""

from eoslog import errors

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from eoslog.bindings.columns cimport (
    ColumnHolder, column_in_order, open_column, open_headers, open_timestamps,
)
from eoslog.bindings.partitioner cimport checked_partition_count
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX
from eoslog.native.batch_filler cimport oversized_record
from eoslog.native.column cimport COLUMN_POINTERS, Column, column_get
from eoslog.native.murmur2 cimport murmur2, partition_for_hash

cdef enum:
    RECORDS_PER_CALL_MAX = 1 << 30


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

    Columns that were opened before come in the place of `values`, and are returned as they are.
    Raises TypeError for what is not a column, and ValueError for columns that differ in length or
    have more than 2**30 records.
    """
    if type(values) is ColumnSet:
        return values
    cdef ColumnSet opened = ColumnSet.__new__(ColumnSet)
    cdef ColumnHolder value_holder = open_column(values, "values")
    cdef ColumnHolder key_holder = open_column(keys, "keys")
    cdef ColumnHolder header_holder
    cdef const int64_t[::1] moments
    cdef int64_t count = value_holder.column.count
    if values is None:
        if keys is None:
            raise TypeError("values must be a column if keys is None, got None")
        count = key_holder.column.count      # All values null: a column of tombstones.
    if count > RECORDS_PER_CALL_MAX:
        raise ValueError(f"values must have at most {RECORDS_PER_CALL_MAX} items, got {count}")
    if keys is not None and key_holder.column.count != count:
        raise ValueError(
            f"keys must have {count} items, one for each value, got {key_holder.column.count}")
    header_holder = open_headers(headers, count)
    try:
        opened.timestamps = open_timestamps(timestamps, count)
    except errors.InvalidTimestampError as error:
        error.appended_record_count = 0
        raise
    if opened.timestamps is not None and count:
        moments = opened.timestamps
        opened.columns.timestamps = &moments[0]
    opened.columns.values = value_holder.column
    opened.columns.keys = key_holder.column
    opened.columns.headers = header_holder.column
    opened.columns.default_timestamp_ms = timestamp_ms
    opened.columns.count = count
    opened._holders = (value_holder, key_holder, header_holder)
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
