# Stores past the caches: a window of bytes that go to memory as whole cache lines.
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef extern from "store_window.h" nogil:
    enum:
        STORE_LINE_BYTES
        STORE_WINDOW_BYTES
    ctypedef struct StoreWindow "store_window_t":
        uint8_t* bytes
        uint8_t* line
        size_t begin
        size_t used
    void store_window_open(StoreWindow* window, uint8_t* to) noexcept
    void store_window_drain(StoreWindow* window) noexcept
    void store_window_close(StoreWindow* window) noexcept
