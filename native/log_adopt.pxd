# Staged files on their way into a log.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.log_append cimport AppendOutcome
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef Status log_adopt(
    PartitionLog* log, const uint8_t* data, int64_t data_bytes, int64_t producer_id,
    AppendOutcome* outcome, Fault* out,
) noexcept nogil
cdef Status log_adopt_file(
    PartitionLog* log, const char* path, int64_t file_bytes, int64_t producer_id, bint checked,
    bint* adopted, AppendOutcome* outcome, Fault* out,
) noexcept nogil
