# The .txnindex files of a log: written later than its abort index, read on opening, rebuilt.
from libc.stdint cimport int64_t, uint32_t

from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

# What is known of one segment's file: its keeper can tell later whether the file is whole.
cdef struct AbortFile:
    int64_t base_offset
    int64_t entry_count
    uint32_t checksum                # CRC-32C of its entries.

cdef Status abort_files_store(PartitionLog* log, Fault* out) noexcept nogil
cdef Status abort_file_describe(
    PartitionLog* log, int64_t base_offset, int64_t next_base_offset, AbortFile* found, Fault* out
) noexcept nogil
cdef Status abort_file_load(
    PartitionLog* log, const AbortFile* described, int64_t below_offset, bint* whole, Fault* out
) noexcept nogil
cdef Status abort_file_trim(
    PartitionLog* log, int64_t base_offset, int64_t next_base_offset, Fault* out) noexcept nogil
cdef Status abort_index_rebuild(
    PartitionLog* log, int64_t below_offset, Fault* out) noexcept nogil
