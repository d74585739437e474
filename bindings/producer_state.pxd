# What a partition knows of one producer id, as an object and as a stored row.
from eoslog.native.producer_table cimport ProducerTable
from eoslog.native.sequence_window cimport ProducerEntry
from eoslog.native.status cimport Fault, Status


cdef object make_state(ProducerEntry* entry)
cdef int load_rows(ProducerTable* table, bytes rows) except -1
cdef int check_row(const ProducerEntry* row) except -1
cdef Status copy_entries(
    ProducerTable* target, const ProducerTable* source, Fault* out) noexcept nogil
