# Hints about a file that is written from its beginning to its end.
from libc.stdint cimport int64_t

cdef extern from "file_space.h" nogil:
    int eos_reserve_behind(int fd, int64_t position_bytes, int64_t bytes) noexcept
    void eos_begin_writeback(int fd, int64_t position_bytes, int64_t bytes) noexcept
