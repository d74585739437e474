# Records of CSV, as RFC 4180 has it.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.json_text cimport TextFault
from eoslog.native.text_records cimport TextRecords

# A cell; -1 bytes for an empty one without quotes.
cdef struct CsvCell:
    uint8_t* text
    int64_t text_bytes

# Which columns a file has. Indexes of columns are -1 where there is no such column. Without a value
# column a row is a JSON object: `names` are its names, with quotes and colon.
cdef struct CsvColumns:
    int64_t count
    int64_t value
    int64_t key
    int64_t timestamp
    int64_t headers
    const uint8_t** names
    const int64_t* name_bytes
    CsvCell* cells                   # Of the row that is read.
    int64_t cell_count               # How many the row of a TEXT_CELL_COUNT has.

cdef uint8_t* csv_row_end(
    uint8_t* at, uint8_t* end, bint is_whole, int64_t* line_count
) noexcept nogil
cdef TextFault csv_row_load(
    uint8_t* at, uint8_t* end, CsvCell* cells, int64_t cells_max, int64_t* count, uint8_t** fault_at
) noexcept nogil
cdef TextFault csv_records_parse(
    TextRecords* records, CsvColumns* columns, uint8_t* end, bint is_whole
) noexcept nogil
