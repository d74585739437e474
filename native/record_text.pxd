# Records as text: JSON lines of the envelope, and CSV.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.json_text cimport TextFault
from eoslog.native.text_records cimport TextBuffer

# Records of one fetch. `prefix` is what each line begins with, up to the offset. The headers are
# JSON already, and header_ends NULL if no record has any.
cdef struct RecordCells:
    const uint8_t* prefix
    int64_t prefix_bytes
    const int64_t* offsets
    const int64_t* timestamps
    const uint8_t* key_data
    const int32_t* key_ends
    const uint8_t* key_validity
    const uint8_t* value_data
    const int32_t* value_ends
    const uint8_t* value_validity
    const uint8_t* header_data
    const int64_t* header_ends

cdef TextFault records_store(
    TextBuffer* buffer, const RecordCells* cells, int64_t count, bint as_csv, int64_t* stored,
) noexcept nogil
