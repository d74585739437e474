# The shared page of a partition: its published offsets, its writer's lock, its wake-up word.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "control_page.h" nogil:
    enum:
        CONTROL_PAGE_BYTES
    ctypedef struct ControlPage:
        uint32_t dirty
        uint64_t generation
        uint32_t wakeup
        int64_t log_start_offset
        int64_t log_end_offset
        int64_t high_watermark
        int64_t last_stable_offset
        int64_t active_base_offset
        int64_t active_valid_bytes
        int64_t offset_index_bytes
        int64_t time_index_bytes
    int control_init(ControlPage* page, const uint8_t* boot_id) noexcept
    int control_lock(ControlPage* page) noexcept
    void control_unlock(ControlPage* page) noexcept
    void control_write_begin(ControlPage* page) noexcept
    void control_write_end(ControlPage* page) noexcept
    void control_set_dirty(ControlPage* page, uint32_t dirty) noexcept
    int64_t control_load(const int64_t* field) noexcept
    void control_store(int64_t* field, int64_t value) noexcept
