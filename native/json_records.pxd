# Records of JSON lines: an object of the envelope on each line.
from libc.stdint cimport uint8_t

from eoslog.native.json_text cimport TextFault
from eoslog.native.text_records cimport TextRecords

cdef TextFault json_records_parse(TextRecords* records, uint8_t* end) noexcept nogil
