# Where a process of the test build may die (see include/crash_point.h).
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef extern from "crash_point.h" nogil:
    void CRASH_POINT(const char* what) noexcept
    void CRASH_POINTS_TORN(const char* what, uint8_t* at, size_t bytes) noexcept
