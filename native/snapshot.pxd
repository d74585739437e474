# Producer state as a file: Kafka's .snapshot, version 1.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.producer_table cimport ProducerTable
from eoslog.native.status cimport Fault, Status

cdef enum:
    SNAPSHOT_COUNT = 6                   # Where the number of entries stands, and where they begin.
    SNAPSHOT_ENTRIES = 10
    SNAPSHOT_ENTRY_BYTES = 46

cdef Status snapshot_write(
    const char* directory, int64_t offset, ProducerTable* producers, bint sync, Fault* out
) noexcept nogil
cdef Status snapshot_check(
    const uint8_t* data, int64_t data_bytes, Fault* out) noexcept nogil
cdef Status snapshot_load(
    const uint8_t* data, int64_t data_bytes, int64_t offset, ProducerTable* producers, Fault* out
) noexcept nogil
