# cython: language_level=3
"""Reading an opened log: whole batches, records as columns, records as objects, offsets by time.

No lock is taken: a read holds the mapping of its segment, and sees what was published before it. A
committed one waits while another thread takes the log up again, and what is decided is not known.
"""

from typing import NamedTuple

from eoslog import errors

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from eoslog.bindings.record_batch cimport decode_headers, make_record
from eoslog.native.abort_index cimport filter_rewind, filter_takes_out
from eoslog.native.log_read cimport (
    FetchCells, FetchColumns, fetch_copy, fetch_decode, fetch_measure, fetch_records_max, find_hole,
    range_copy, range_end_at_compressed, read_close, read_open, scan_headers,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, BatchHeader, Record as NativeRecord,
    RecordCursor, batch_check, batch_header_load, cursor_next, cursor_open,
)
from eoslog.native.status cimport STATUS_OK
from eoslog.native.time_search cimport offset_for_timestamp


cdef enum:
    OFFSETS_AHEAD = 64               # So many batches are looked at, whatever is asked for.
    WITH_OFFSETS = 1
    WITH_TIMESTAMPS = 2
    WITH_KEYS = 4
    WITH_VALUES = 8
    WITH_HEADERS = 16
    WITH_ALL = 31

# The parts of records that a fetch may be asked for, as a sum.
PART_OFFSETS = WITH_OFFSETS
PART_TIMESTAMPS = WITH_TIMESTAMPS
PART_KEYS = WITH_KEYS
PART_VALUES = WITH_VALUES
PART_HEADERS = WITH_HEADERS
ALL_PARTS = WITH_ALL


class Holes(NamedTuple):
    """Offsets that no batch of a log holds."""

    first: list                              # Of (first offset, the one after the last).
    hole_count: int
    offset_count: int
    below: int                               # None is missing from here on.


class KeyedRecords(NamedTuple):
    """Records of one fetch for one who wants the newest of some keys."""

    newest: dict                             # By key: (value, offset).
    others: list                             # Of (key, value, offset), in order.


@cython.final
cdef class Columns:
    """Records of one fetch as columns, copied out of the log; None: not asked for."""

    cdef readonly int64_t record_count
    cdef readonly int64_t next_offset
    cdef readonly object offsets             # int64
    cdef readonly object timestamps          # int64, milliseconds
    cdef readonly object timestamp_types     # int32, 1 for LogAppendTime; None where none has it
    cdef readonly object key_data            # uint8
    cdef readonly object key_offsets         # int32, record_count + 1
    cdef readonly object key_validity        # uint8 bitmap (bit set = not null), None without nulls
    cdef readonly object value_data
    cdef readonly object value_offsets
    cdef readonly object value_validity
    cdef readonly object header_data         # As records have them, past their count.
    cdef readonly object header_offsets      # int32; None if no record has headers

    @property
    def headers(self):
        """Headers of each record, a tuple of (str, bytes | None); None if no record has any."""
        cdef const uint8_t[::1] data = self.header_data
        cdef const int32_t[::1] ends = self.header_offsets
        cdef int64_t row
        if ends is None:
            return None
        return [decode_headers(&data[0] + ends[row], &data[0] + ends[row + 1])
                for row in range(self.record_count)]


cdef int note_record(
    const NativeRecord* native, bytes prefix, dict newest, list others
) except -1:
    """Put a record where fetch_newest has it."""
    cdef Py_ssize_t prefix_bytes = PyBytes_GET_SIZE(prefix)
    cdef bytes key
    cdef bytes value = None
    if native.key_bytes < 0:
        return 0
    key = PyBytes_FromStringAndSize(<const char*>native.key, native.key_bytes)
    if native.value_bytes >= 0:
        value = PyBytes_FromStringAndSize(<const char*>native.value, native.value_bytes)
    if native.key_bytes >= prefix_bytes and (
            memcmp(native.key, PyBytes_AS_STRING(prefix), <size_t>prefix_bytes) == 0):
        newest[key] = (value, native.offset)
    else:
        others.append((key, value, native.offset))
    return 0


cdef class LogReader(OpenedLog):
    """An opened log that can be read."""

    cdef int _open_range(
        self, int64_t offset, int64_t bound, int64_t max_bytes, bint committed, ReadRange* found
    ) except -1:
        """Hold batches in [offset, bound); no segment if there are none."""
        cdef Fault fault
        cdef Status status
        while True:
            self._fault_init(&fault)
            with nogil:
                status = read_open(
                    &self._log, offset, bound, max_bytes, committed, found, &fault)
            if status == STATUS_OK:
                return 0
            self._before_read_again(status, &fault, offset)

    def read(self, Py_ssize_t offset, Py_ssize_t max_bytes=1 << 20, Py_ssize_t upper_bound=-1,
             bint committed=False, *, bint compressed=True):
        """Whole batches from the one that holds `offset` on: at least one, at most max_bytes.

        The first may begin below `offset`. Empty at the end of the log. `committed`: only what is
        decided, and without the batches of aborted transactions; their markers stay. Without
        `compressed` they end before the first compressed batch; as the first one it raises
        UnsupportedCompressionTypeError.
        """
        cdef ReadRange found
        cdef Fault fault
        cdef Status status
        cdef int64_t bound
        cdef bytearray batches
        cdef uint8_t[::1] target
        cdef int64_t copied = 0
        self._check_open()
        bound = self._bound(upper_bound, committed)
        while True:
            self._open_range(offset, bound, max_bytes, committed, &found)
            self._fault_init(&fault)
            if found.segment == NULL:
                return b""
            try:
                if not compressed:
                    status = range_end_at_compressed(&found, &fault)
                    if status != STATUS_OK:
                        self._raise_read(status, &fault, offset)
                if found.filter.count == 0:
                    return PyBytes_FromStringAndSize(<const char*>found.data, found.data_bytes)
                batches = bytearray(found.data_bytes)
                target = batches
                with nogil:
                    copied = range_copy(&found, &target[0])
            finally:
                read_close(&self._log, &found)
            if copied > 0:
                return bytes(memoryview(batches)[:copied])
            offset = found.next_offset

    def fetch_columns(self, Py_ssize_t offset, Py_ssize_t max_bytes=1 << 23,
                      Py_ssize_t upper_bound=-1, Py_ssize_t max_records=-1,
                      bint committed=False, int parts=WITH_ALL):
        """Records from `offset` on as Columns, checksums verified; None where there are none.

        Control records are passed over, and with `committed` those of aborted transactions:
        `next_offset` is where to go on, also after offsets that compaction left out. A single
        batch may exceed max_bytes. `parts` is the sum of those that are copied out of the log.
        """
        cdef ReadRange found
        cdef FetchSizes sizes
        cdef Fault fault
        cdef Status status
        cdef Columns columns
        cdef int64_t bound
        self._check_open()
        bound = self._bound(upper_bound, committed)
        self._open_range(offset, bound, max_bytes, committed, &found)
        self._fault_init(&fault)
        if found.segment == NULL and found.next_offset == offset:
            return None
        try:
            columns = Columns.__new__(Columns)
            status = self._decode(
                &found, offset, bound, max_records, parts, &sizes, columns, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            if found.segment == NULL:
                columns.next_offset = found.next_offset
            if sizes.header_count and parts & WITH_HEADERS:
                self._copy_headers(&found, offset, bound, columns)
            if found.attributes & ATTRIBUTE_LOG_APPEND_TIME and parts & WITH_OFFSETS:
                columns.timestamp_types = self._timestamp_types(&found, columns.offsets)
            return columns
        finally:
            read_close(&self._log, &found)

    cdef Status _decode(
        self, ReadRange* found, int64_t offset, int64_t bound, int64_t max_records, int parts,
        FetchSizes* sizes, object into, Fault* fault,
    ) except *:
        import numpy
        cdef Columns columns = into
        cdef FetchColumns target
        cdef int64_t records_max = fetch_records_max(found, max_records)
        cdef int64_t[::1] offsets = (
            numpy.empty(records_max, numpy.int64) if parts & WITH_OFFSETS else None)
        cdef int64_t[::1] timestamps = (
            numpy.empty(records_max, numpy.int64) if parts & WITH_TIMESTAMPS else None)
        cdef int32_t[::1] key_ends = (
            numpy.empty(records_max + 1, numpy.int32) if parts & WITH_KEYS else None)
        cdef int32_t[::1] value_ends = (
            numpy.empty(records_max + 1, numpy.int32) if parts & WITH_VALUES else None)
        cdef const uint8_t** sources = <const uint8_t**>malloc(
            <size_t>(2 * records_max + 1) * sizeof(uint8_t*))
        cdef Status status
        cdef int64_t count
        if sources == NULL:
            raise errors.OutOfMemoryError(f"{records_max} records")
        target.records_max = records_max
        target.offsets = &offsets[0] if records_max and parts & WITH_OFFSETS else NULL
        target.timestamps = &timestamps[0] if records_max and parts & WITH_TIMESTAMPS else NULL
        target.keys.sources = sources
        target.keys.ends = &key_ends[0] if parts & WITH_KEYS else NULL
        target.values.sources = sources + records_max
        target.values.ends = &value_ends[0] if parts & WITH_VALUES else NULL
        target.headers.ends = NULL
        try:
            with nogil:
                status = fetch_decode(found, offset, bound, &target, sizes, fault)
            if status != STATUS_OK:
                return status
            count = sizes.record_count
            columns.record_count = count
            columns.next_offset = sizes.next_offset
            if parts & WITH_OFFSETS:
                columns.offsets = offsets.base[:count]
            if parts & WITH_TIMESTAMPS:
                columns.timestamps = timestamps.base[:count]
            if parts & WITH_KEYS:
                columns.key_offsets = key_ends.base[:count + 1]
                columns.key_data, columns.key_validity = copied_cells(
                    &target.keys, count, sizes.key_bytes, sizes.null_key_count)
            if parts & WITH_VALUES:
                columns.value_offsets = value_ends.base[:count + 1]
                columns.value_data, columns.value_validity = copied_cells(
                    &target.values, count, sizes.value_bytes, sizes.null_value_count)
            return status
        finally:
            free(sources)

    cdef object _timestamp_types(self, ReadRange* found, object offsets):
        """Timestamp type of each record that fetch_decode took, by the headers of their batches."""
        cdef int64_t position = 0
        cdef int64_t taken = 0
        cdef BatchHeader header
        import numpy
        types = numpy.zeros(len(offsets), numpy.int32)
        while taken < len(offsets):
            batch_header_load(found.data + position, &header)
            first = taken
            taken = offsets.searchsorted(header.base_offset + header.last_offset_delta, "right")
            types[first:taken] = 1 if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
            position += header.batch_bytes
        return types

    cdef int _copy_headers(
        self, ReadRange* found, int64_t offset, int64_t bound, object into
    ) except -1:
        """Copy the headers of the records that fetch_decode took: where some record has any."""
        import numpy
        cdef Columns columns = into
        cdef int64_t count = columns.record_count
        cdef int32_t[::1] ends = numpy.empty(count + 1, numpy.int32)
        cdef const uint8_t** sources = <const uint8_t**>malloc(
            <size_t>(count + 1) * sizeof(uint8_t*))
        cdef FetchColumns target
        cdef FetchSizes sizes
        cdef Fault fault
        cdef Status status
        if sources == NULL:
            raise errors.OutOfMemoryError(f"{count} records")
        memset(&target, 0, sizeof(FetchColumns))
        target.records_max = count
        target.headers.sources = sources
        target.headers.ends = &ends[0]
        self._fault_init(&fault)
        try:
            with nogil:
                status = fetch_decode(found, offset, bound, &target, &sizes, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            columns.header_offsets = ends.base
            columns.header_data, _ = copied_cells(&target.headers, count, ends[count], 0)
        finally:
            free(sources)
        return 0

    cdef list _records(
        self, ReadRange* found, int64_t offset, int64_t record_count, bytes prefix, dict newest
    ):
        """Records of a range that was verified, from `offset` on; with `newest` as fetch_newest
        gives them.
        """
        cdef list records = []
        cdef int64_t taken = 0
        cdef int64_t position = 0
        cdef BatchHeader header
        cdef RecordCursor cursor
        cdef NativeRecord native
        cdef Fault fault
        cdef int32_t _index
        cdef int timestamp_type
        filter_rewind(&found.filter)
        while position < found.data_bytes and taken < record_count:
            batch_header_load(found.data + position, &header)
            if filter_takes_out(&found.filter, &header):
                position += header.batch_bytes
                continue
            if batch_check(found.data + position, found.data_bytes - position, &header, &fault) < 0:
                break
            timestamp_type = 1 if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
            if not header.attributes & ATTRIBUTE_CONTROL:
                cursor_open(&cursor, found.data + position, &header)
                for _index in range(header.record_count):
                    if taken == record_count:
                        break
                    if cursor_next(&cursor, &native, &fault) != STATUS_OK:
                        break
                    if native.offset < offset:
                        continue
                    taken += 1
                    if newest is None:
                        records.append(
                            make_record(&native, self.topic, self.partition, timestamp_type))
                    else:
                        note_record(&native, prefix, newest, records)
            position += header.batch_bytes
        return records

    def fetch_records(self, Py_ssize_t offset, Py_ssize_t max_records=500,
                      Py_ssize_t max_bytes=1 << 20, Py_ssize_t upper_bound=-1,
                      bint committed=False):
        """Records from `offset` on as (list of Record, offset to go on from)."""
        self._check_open()
        return self._fetch(
            offset, max_records, max_bytes, self._bound(upper_bound, committed), committed,
            None, None)

    def fetch_newest(self, bytes prefix not None, Py_ssize_t offset, Py_ssize_t max_bytes,
                     Py_ssize_t upper_bound):
        """Records from `offset` on as (KeyedRecords, offset to go on from), checksums verified.

        Of the keys that begin with `prefix` only the newest record is there; records without a key
        are left out.
        """
        cdef dict newest = {}
        self._check_open()
        others, following = self._fetch(
            offset, -1, max_bytes, self._bound(upper_bound, False), False, prefix, newest)
        return KeyedRecords(newest, others), following

    cdef tuple _fetch(self, int64_t offset, int64_t max_records, int64_t max_bytes, int64_t bound,
                      bint committed, bytes prefix, dict newest):
        cdef ReadRange found
        cdef FetchSizes sizes
        cdef Fault fault
        cdef Status status
        cdef int64_t near = bound        # Batches beyond it are not even looked at.
        if 0 <= max_records < (bound - offset) // 4:
            near = min(bound, offset + 2 * max_records + OFFSETS_AHEAD)
        self._open_range(offset, near, max_bytes, committed, &found)
        if found.segment == NULL and near < bound:
            # Compaction has left a hole.
            self._open_range(offset, bound, max_bytes, committed, &found)
        self._fault_init(&fault)
        if found.segment == NULL:
            return [], found.next_offset
        try:
            with nogil:
                status = fetch_measure(&found, offset, bound, max_records, &sizes, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            records = self._records(&found, offset, sizes.record_count, prefix, newest)
            return records, sizes.next_offset
        finally:
            read_close(&self._log, &found)

    def fetch_next(self, Py_ssize_t offset, Py_ssize_t max_records, Py_ssize_t max_bytes,
                   bint committed):
        """Read what a consumer at `offset` reads next: (list of Record, offset to go on from, up to
        where there is something to read).

        `committed`: up to where all is decided. Raises OffsetOutOfRangeError.
        """
        cdef int64_t end
        self._check_open()
        end = self._readable_end(committed)
        if offset == end:
            return [], offset, end
        return self._fetch(offset, max_records, max_bytes, end, committed, None, None) + (end,)

    def scan_headers(self, Py_ssize_t offset=0, Py_ssize_t upper_bound=-1):
        """Walk the batch headers from `offset` on: (batches, records, offset after the last)."""
        return scan(self, offset, upper_bound)[:3]

    def highest_leader_epoch(self):
        """The highest leader epoch of a batch: 0 of eoslog's own, -1 if there is no batch. Reads
        all headers.
        """
        return scan(self, self.log_start_offset, -1)[3]

    def holes(self, Py_ssize_t shown_max):
        """The Holes of the log from its beginning on, the first `shown_max` by themselves."""
        cdef int64_t first = 0
        cdef int64_t upper_bound = 0
        cdef int64_t below = 0
        cdef int64_t count = 0
        cdef int64_t offset_count = 0
        cdef Fault fault
        cdef Status status
        cdef list shown = []
        self._check_open()
        first = self.log_start_offset
        while True:
            self._fault_init(&fault)
            with nogil:
                status = find_hole(&self._log, first, &first, &upper_bound, &fault)
            if status != STATUS_OK:
                self._before_read_again(status, &fault, first)
                continue
            if upper_bound < 0:
                break
            offset_count += upper_bound - first
            if count == 0 or first > below:
                count += 1
                if count <= shown_max:
                    shown.append((first, upper_bound))
            elif count <= shown_max:
                shown[-1] = (shown[-1][0], upper_bound)    # It goes on in the next segment.
            first = below = upper_bound
        return Holes(shown, count, offset_count, below)

    @property
    def holes_below(self):
        """Missing offsets from here on are damage; compaction may have left out some below."""
        return self._log.options.holes_below

    @holes_below.setter
    def holes_below(self, Py_ssize_t offset):
        self._log.options.holes_below = offset

    def offset_for_timestamp(self, Py_ssize_t timestamp_ms, Py_ssize_t upper_bound=-1):
        """First record with a timestamp >= timestamp_ms as (offset, timestamp), or None."""
        cdef int64_t offset = -1
        cdef int64_t timestamp = -1
        cdef int64_t bound
        cdef Fault fault
        cdef Status status
        self._check_open()
        bound = self._bound(upper_bound, False)
        while True:
            self._fault_init(&fault)
            with nogil:
                status = offset_for_timestamp(
                    &self._log, timestamp_ms, bound, &offset, &timestamp, &fault)
            if status == STATUS_OK:
                return None if offset < 0 else (offset, timestamp)
            self._before_read_again(status, &fault, offset)


cdef tuple copied_cells(
    const FetchCells* cells, int64_t count, int64_t data_bytes, int64_t null_count
):
    """Return the bytes of the cells one after the other, and the bitmap of the cells that are not
    null, if any is null.
    """
    import numpy
    cdef uint8_t[::1] data = numpy.empty(data_bytes, numpy.uint8)
    cdef uint8_t[::1] validity = None
    cdef uint8_t* data_at = &data[0] if data_bytes else NULL
    cdef uint8_t* validity_at = NULL
    if null_count:
        validity = numpy.zeros((count + 7) // 8, numpy.uint8)
        validity_at = &validity[0]
    if null_count < count:
        with nogil:
            fetch_copy(cells, count, data_at, validity_at)
    return data.base, None if validity is None else validity.base


cdef tuple scan(LogReader reader, int64_t offset, Py_ssize_t upper_bound):
    """Return how many batches and records there are, the offset after them, and the highest leader
    epoch.
    """
    cdef int64_t batch_count = 0
    cdef int64_t record_count = 0
    cdef int64_t next_offset = offset
    cdef int32_t leader_epoch = -1
    cdef int64_t bound
    cdef Fault fault
    cdef Status status
    reader._check_open()
    bound = reader._bound(upper_bound, False)
    while True:
        reader._fault_init(&fault)
        with nogil:
            status = scan_headers(
                &reader._log, offset, bound, &batch_count, &record_count, &next_offset,
                &leader_epoch, &fault)
        if status == STATUS_OK:
            return batch_count, record_count, next_offset, leader_epoch
        reader._before_read_again(status, &fault, next_offset)
