# One thread works at a time; those who wait for the turn under way are woken together.
from libc.stdint cimport uint32_t

cdef extern from "turn.h" nogil:
    ctypedef struct Turn:
        pass
    void turn_init(Turn* turn) noexcept
    void turn_destroy(Turn* turn) noexcept
    void turn_take(Turn* turn) noexcept
    bint turn_try(Turn* turn) noexcept
    uint32_t turn_round(const Turn* turn) noexcept
    void turn_end(Turn* turn) noexcept
    void turn_wait(Turn* turn, uint32_t round) noexcept
