# In which run of the kernel a partition's page was laid out, and in which file.
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.native.control_page cimport ControlPage

cdef extern from "control_boot.h" nogil:
    ctypedef struct ControlBoot:
        pass
    bint control_boot_here(ControlBoot* here, const uint8_t* boot_id, int fd) noexcept
    int64_t control_synced_this_boot(
        ControlPage* page, const uint8_t* topic_id, int32_t partition,
        const ControlBoot* here) noexcept
    void control_keep_synced_this_boot(ControlPage* page, int64_t offset) noexcept
    void control_note_boot(ControlPage* page, const ControlBoot* here) noexcept
