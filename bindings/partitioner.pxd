# Checks of arguments that have a count of partitions.
from libc.stdint cimport int32_t

cdef int32_t checked_partition_count(object partitions) except -1
