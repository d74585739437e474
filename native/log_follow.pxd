# Knowing what other processes appended, and repairing what a dead one left.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.control_page cimport ControlView
from eoslog.native.partition_log cimport PartitionLog, SegmentFile
from eoslog.native.status cimport Fault, Status

cdef Status log_follow(PartitionLog* log, Fault* out) noexcept nogil
cdef Status log_repair(PartitionLog* log, Fault* out) noexcept nogil
cdef Status log_attach(
    PartitionLog* log, const ControlView* view, const SegmentFile* files, int32_t file_count,
    int64_t checkpoint, Fault* out) noexcept nogil
cdef Status log_attach_lock(PartitionLog* log, ControlView* view, Fault* out) noexcept nogil
cdef void log_attach_unlock(PartitionLog* log) noexcept nogil
cdef Status log_take_up_segment(
    PartitionLog* log, int64_t base_offset, Fault* out) noexcept nogil
