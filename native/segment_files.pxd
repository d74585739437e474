# The files of a partition's segments, as their directory lists them.
from libc.stdint cimport int64_t

cdef extern from "segment_files.h" nogil:
    int64_t eos_remove_below(const char* directory, int64_t base_offset) noexcept
    int eos_remove_logs_below(const char* directory, int64_t base_offset) noexcept
    bint eos_is_missing(const char* path) noexcept
