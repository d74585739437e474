# Acquire loads and release stores of counts that readers follow without a lock, and of marks that
# say what is to be done.
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "atomics.h" nogil:
    int32_t load_acquire_32(const int32_t* at) noexcept
    void store_release_32(int32_t* at, int32_t value) noexcept
    void before_files() noexcept
    void after_files() noexcept
    bint take_mark(bint* mark) noexcept
    void set_mark(bint* mark) noexcept
    int64_t load_acquire_64(const int64_t* at) noexcept
    void store_release_64(int64_t* at, int64_t value) noexcept
    uint8_t* load_acquire_map(uint8_t** at) noexcept
    void store_release_map(uint8_t** at, uint8_t* map) noexcept
    void add_64(int64_t* at, int64_t change) noexcept
