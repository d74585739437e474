# The end of a log in this process: closed cleanly, or let go of as it is.
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef Status log_close(PartitionLog* log, bint clean, Fault* out) noexcept nogil
cdef void log_detach(PartitionLog* log) noexcept nogil
