# The lock of a log, and a view of it: what was published by then is known.
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef enum:
    LOCK_TIMEOUT_NS = 30_000_000_000  # A lock is held for one append; who has it for longer hangs.

cdef Status log_lock(PartitionLog* log, Fault* out) noexcept nogil
cdef void log_unlock(PartitionLog* log) noexcept nogil
cdef Status log_view(PartitionLog* log, Fault* out) noexcept nogil
cdef void log_view_end(PartitionLog* log) noexcept nogil
cdef Status log_refresh(PartitionLog* log, Fault* out) noexcept nogil
