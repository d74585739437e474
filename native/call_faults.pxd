# Faults of calls to the kernel, for tests: only the binding of that name includes it.
from libc.stdint cimport int64_t

cdef extern from "call_faults.h" nogil:
    enum:
        CALL_FAULT_SYNC
        CALL_FAULT_DELAY
        CALL_FAULT_FULL
        CALL_FAULT_PLACE_BYTES
    int call_module_take(
        const char* path, const void* address, bint with_clock, void* source, void* target) noexcept
    int call_slots_give_back() noexcept
    void* call_die_function() noexcept
    int call_fault_arm(
        int kind, const char* root, const char* place, bint of_topic, int64_t number, int error,
        int64_t delay_ns) noexcept
    void call_fault_disarm(int number) noexcept
    int64_t call_fault_seen(int number) noexcept
    int64_t call_fault_hits(int number) noexcept
    const char* call_fault_last(int number) noexcept
    void call_clock_move(int64_t ahead_ns) noexcept
