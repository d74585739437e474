# The active segment while it is empty: another file may take its name.
from eoslog.native.partition_log cimport PartitionLog
from eoslog.native.status cimport Fault, Status

cdef Status empty_segment_renew(PartitionLog* log, Fault* out) noexcept nogil
cdef Status empty_segment_reload(PartitionLog* log, Fault* out) noexcept nogil
cdef Status empty_segment_make_anew(PartitionLog* log, Fault* out) noexcept nogil
cdef Status empty_segment_for_close(PartitionLog* log, Fault* out) noexcept nogil
