# One partition's log for Python.
from libc.stdint cimport int64_t

from eoslog.bindings.column_set cimport ColumnSet
from eoslog.bindings.log_transactions cimport LogTransactions
from eoslog.native.log_append cimport AppendOutcome, ProducerStamp


cdef class AppendResult:
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset        # Inclusive.
    cdef readonly int64_t record_count
    cdef readonly int64_t timestamp_ms
    cdef readonly bint duplicate             # Every record was in the log before the call.


cdef AppendResult make_result(const AppendOutcome* outcome)


cdef class PartitionLog(LogTransactions):
    cdef AppendResult append_stamped(
        self, ColumnSet opened, ProducerStamp* stamp, int64_t batch_records_max,
        int64_t batch_bytes_max)
