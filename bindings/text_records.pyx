# cython: language_level=3
"""Records of a text that lies in memory: lines, JSON lines of the envelope, CSV.

The columns point into the text, which is changed: strings and quoted cells become their bytes in
place.
"""

from eoslog import errors

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from eoslog.bindings.column_set cimport ColumnSet
from eoslog.native.column cimport COLUMN_OFFSETS_64, COLUMN_POINTERS
from eoslog.native.crc32c cimport crc32c
from eoslog.native.csv_records cimport (
    CsvCell, CsvColumns, csv_records_parse, csv_row_end, csv_row_load,
)
from eoslog.native.json_records cimport json_records_parse
from eoslog.native.json_text cimport (
    TEXT_CELL_COUNT, TEXT_FIELD_TWICE, TEXT_HALF_SURROGATE, TEXT_NO_MEMORY, TEXT_NO_VALUE,
    TEXT_NOT_A_FIELD, TEXT_NOT_A_TEXT, TEXT_NOT_A_TIME, TEXT_NOT_AN_INTEGER, TEXT_NOT_BASE64,
    TEXT_NOT_HEADERS, TEXT_NOT_JSON, TEXT_NOT_UTF8, TEXT_OK, TEXT_STRAY_QUOTE, TEXT_STRAY_RETURN,
    TEXT_TIME_OUTSIDE, TEXT_TOO_LARGE, TextFault, json_bytes_bound, json_bytes_store,
)
from eoslog.native.text_records cimport (
    TextRecords, lines_parse, records_close, records_open,
)

cdef enum:
    RECORDS_MAX = 1 << 15
    PIECE_BYTES = 1 << 20            # A piece and its batches stay in a cache of a core.

_FAULTS = {
    TEXT_NOT_JSON: "it is not JSON",
    TEXT_NOT_UTF8: "it is not UTF-8",
    TEXT_HALF_SURROGATE: "half of a surrogate pair, which UTF-8 cannot express",
    TEXT_NOT_A_FIELD: "a field that the envelope does not have",
    TEXT_FIELD_TWICE: "a field that is there twice",
    TEXT_NO_VALUE: "it has no field `value`",
    TEXT_NOT_A_TEXT: 'it must be a string, null or {"base64": "..."}',
    TEXT_NOT_BASE64: "it is not base64",
    TEXT_NOT_AN_INTEGER: "it is not an integer of 64 bits",
    TEXT_NOT_HEADERS: "headers must be a list of pairs of name and value",
    TEXT_NOT_A_TIME: (
        "a timestamp must be milliseconds since 1970, or a time like 2026-01-31T12:00:00.000Z"),
    TEXT_STRAY_QUOTE: (
        "a quote that does not end the cell: a cell with quotes stands in quotes, each of its own "
        "doubled"),
    TEXT_STRAY_RETURN: "a carriage return that is not in quotes and ends no line",
}


def checksum(const uint8_t[::1] data not None, uint32_t crc=0):
    """Continue the CRC-32C of a text (0 at its beginning) over more of it."""
    cdef uint32_t found
    cdef const uint8_t* first = &data[0] if data.shape[0] else NULL
    with nogil:
        found = crc32c(crc, first, <size_t>data.shape[0])
    return found


@cython.final
cdef class CsvHeader:
    """Columns of a CSV file: which of them are fields of records, or the names of a row's object.
    """

    cdef readonly tuple names
    cdef CsvColumns _columns
    cdef object _memory              # Bytes that the pointers of `_columns` point at.
    cdef object _cells

    def __cinit__(self, tuple names not None):
        cdef uint8_t[::1] cells
        cdef Py_ssize_t index
        cdef list memory = []
        memset(&self._columns, 0, sizeof(CsvColumns))
        self.names = names
        self._columns.count = len(names)
        self._columns.value = names.index("value") if "value" in names else -1
        self._columns.key = names.index("key") if "key" in names else -1
        self._columns.timestamp = names.index("timestamp") if "timestamp" in names else -1
        self._columns.headers = names.index("headers") if "headers" in names else -1
        # Of each column its cell, the pointer to its name, and the name's size.
        cells = bytearray((len(names) + 1) * (sizeof(CsvCell) + 16))
        self._cells = cells
        self._columns.cells = <CsvCell*>&cells[0]
        self._columns.names = <const uint8_t**>(self._columns.cells + len(names))
        cdef int64_t* sizes = <int64_t*>(self._columns.names + len(names))
        self._columns.name_bytes = sizes
        for index, name in enumerate(names):
            text = json_text(name.encode()) + b":"
            memory.append(text)
            self._columns.names[index] = <const uint8_t*>PyBytes_AS_STRING(text)
            sizes[index] = PyBytes_GET_SIZE(text)
        self._memory = memory


def json_text(bytes data):
    """Return bytes as JSON has them: a string, null for None, base64 if they are not UTF-8."""
    cdef const uint8_t* first = NULL
    cdef int64_t size = -1
    if data is not None:
        first = <const uint8_t*>PyBytes_AS_STRING(data)
        size = PyBytes_GET_SIZE(data)
    cdef bytearray out = bytearray(json_bytes_bound(size))
    cdef uint8_t[::1] room = out
    cdef uint8_t* end = json_bytes_store(&room[0], first, size)
    return PyBytes_FromStringAndSize(<char*>&room[0], end - &room[0])


def csv_row(uint8_t[::1] text not None, Py_ssize_t begin, bint is_whole):
    """Return the cells of the row at `begin`, None for those that are empty without quotes, where
    the next row begins, and how many lines that is on; None if the row is not whole.

    Raises InvalidRecordError.
    """
    cdef int64_t line_count = 0
    cdef int64_t count = 0
    cdef uint8_t* fault_at = NULL
    cdef uint8_t* at
    cdef uint8_t* end
    cdef uint8_t* stop
    cdef TextFault fault
    cdef list found = []
    if begin == text.shape[0]:
        return None
    at = &text[begin]
    end = csv_row_end(at, &text[0] + text.shape[0], is_whole, &line_count)
    if end == NULL:
        return None
    stop = end
    if stop[-1] == c'\n':
        stop -= 1
        if stop > at and stop[-1] == c'\r':
            stop -= 1
    # There are fewer cells than bytes and one.
    cdef bytearray memory = bytearray((stop - at + 1) * <Py_ssize_t>sizeof(CsvCell))
    cdef uint8_t[::1] room = memory
    cdef CsvCell* cells = <CsvCell*>&room[0]
    fault = csv_row_load(at, stop, cells, stop - at + 1, &count, &fault_at)
    if fault != TEXT_OK:
        raise errors.InvalidRecordError(f"byte {fault_at - at + 1}: {_FAULTS[fault]}")
    for index in range(count):
        found.append(
            None if cells[index].text_bytes < 0
            else (<char*>cells[index].text)[:cells[index].text_bytes].decode())
    return found, end - &text[0], line_count


@cython.final
cdef class TextMemory:
    """What the columns of parsed records point into."""

    cdef TextRecords records
    cdef object text

    def __cinit__(self):
        memset(&self.records, 0, sizeof(TextRecords))

    def __dealloc__(self):
        records_close(&self.records)


@cython.final
cdef class ParsedRecords:
    """Records of a piece of a text, and how far they reach in it."""

    cdef TextMemory _memory
    cdef readonly Py_ssize_t record_count
    cdef readonly Py_ssize_t next    # Where the text goes on.
    cdef readonly Py_ssize_t line    # The number of the line that begins there.
    cdef readonly object crc         # CRC-32C of the text up to there.
    cdef readonly object fault       # Why the record that begins there is refused, or None.
    cdef readonly ColumnSet columns


def parse_records(
    str form not None, uint8_t[::1] text not None, Py_ssize_t begin, Py_ssize_t end, *,
    Py_ssize_t line, uint32_t crc, Py_ssize_t timestamp_ms, bint is_whole, CsvHeader header=None,
    Py_ssize_t batch_bytes_max, Py_ssize_t timestamp_ms_min, Py_ssize_t timestamp_ms_max,
):
    """Take the records at `begin` of a text that ends at `end`: about a mebibyte of them.

    `form` is "lines", "jsonl" or "csv". A last line without its end is one all the same; of CSV
    only if `is_whole`. Records without a timestamp get `timestamp_ms`. Those before a record that
    is refused, by its form or by the topic's limits, are taken.
    """
    cdef ParsedRecords parsed = ParsedRecords.__new__(ParsedRecords)
    cdef TextMemory memory = TextMemory.__new__(TextMemory)
    cdef TextRecords* records = &memory.records
    cdef TextFault fault
    cdef uint8_t* first
    cdef uint8_t* stop
    if not 0 <= begin < end <= text.shape[0]:
        raise ValueError(f"[{begin}, {end}) of {text.shape[0]} bytes")
    if records_open(records, RECORDS_MAX) != TEXT_OK:
        raise errors.OutOfMemoryError(f"{RECORDS_MAX} records")
    first = &text[0]
    stop = first + end
    records.next = first + begin
    records.stop_after = records.next + PIECE_BYTES
    records.line = line
    records.crc = crc
    records.default_timestamp_ms = timestamp_ms
    records.batch_bytes_max = batch_bytes_max
    records.timestamp_ms_min = timestamp_ms_min
    records.timestamp_ms_max = timestamp_ms_max
    memory.text = text
    parsed._memory = memory
    if form == "lines":
        with nogil:
            fault = lines_parse(records, stop)
    elif form == "jsonl":
        with nogil:
            fault = json_records_parse(records, stop)
    elif header is not None:
        with nogil:
            fault = csv_records_parse(records, &header._columns, stop, is_whole)
    else:
        raise ValueError(f"form {form!r}, header {header!r}")
    if fault == TEXT_NO_MEMORY:
        raise errors.OutOfMemoryError(f"records of {end - begin} bytes")
    if fault != TEXT_OK:
        parsed.fault = error_of(fault, records, header)
    parsed.record_count = records.count
    parsed.next = records.next - first
    parsed.line = records.line
    parsed.crc = records.crc
    parsed.columns = columns_of(memory)
    return parsed


cdef object error_of(TextFault fault, const TextRecords* records, CsvHeader header):
    """The error of a record that is refused, without its place."""
    if fault == TEXT_TOO_LARGE:
        return errors.RecordTooLargeError(
            f"it makes a batch of {records.fault_number} bytes; limit {records.batch_bytes_max}")
    if fault == TEXT_TIME_OUTSIDE:
        return errors.InvalidTimestampError(
            f"timestamp {records.fault_number} is outside the topic's limits "
            f"[{records.timestamp_ms_min}, {records.timestamp_ms_max}]")
    if fault == TEXT_CELL_COUNT:
        return errors.InvalidRecordError(
            f"the row has {header._columns.cell_count} cells, and the header {len(header.names)}")
    return errors.InvalidRecordError(f"byte {records.fault_byte + 1}: {_FAULTS[fault]}")


cdef ColumnSet columns_of(TextMemory memory):
    cdef ColumnSet found = ColumnSet.__new__(ColumnSet)
    cdef TextRecords* records = &memory.records
    cdef int64_t count = records.count
    cdef int64_t index
    cdef bint has_keys = False
    cdef bint has_timestamps = False
    cdef int64_t[::1] timestamps
    for index in range(count):
        has_keys |= records.key_bytes[index] >= 0
        has_timestamps |= records.timestamps[index] != records.default_timestamp_ms
    found.columns.count = count
    found.columns.default_timestamp_ms = records.default_timestamp_ms
    found.columns.values.kind = COLUMN_POINTERS
    found.columns.values.count = count
    found.columns.values.pointers = records.values
    found.columns.values.lengths = records.value_bytes
    if has_keys:
        found.columns.keys.kind = COLUMN_POINTERS
        found.columns.keys.count = count
        found.columns.keys.pointers = records.keys
        found.columns.keys.lengths = records.key_bytes
    if records.has_headers:
        found.columns.headers.kind = COLUMN_OFFSETS_64
        found.columns.headers.count = count
        found.columns.headers.data = records.headers.data
        found.columns.headers.offsets_64 = records.header_ends
    if has_timestamps:
        import numpy
        timestamps = numpy.empty(count, numpy.int64)
        memcpy(&timestamps[0], records.timestamps, <size_t>count * sizeof(int64_t))
        found.timestamps = timestamps.base
        found.columns.timestamps = &timestamps[0]
    found._holders = memory
    return found
