# The page of a partition that all processes share: published offsets, the writer's lock, the turn
# to sync.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "control_page.h" nogil:
    enum:
        CONTROL_PAGE_BYTES
        CONTROL_NO_HOLD
        EOWNERDEAD
    const uint64_t CONTROL_PAGE_MAGIC
    const uint32_t CONTROL_WANT_OWN
    const uint32_t CONTROL_WANT_SHARED
    ctypedef struct ControlPage:
        uint64_t magic
        uint32_t ready
        uint32_t sealed
        uint8_t session[16]
        uint32_t deleted
        uint32_t sequence
        int64_t log_start_offset
        int64_t log_end_offset
        int64_t active_base_offset
        int64_t active_valid_bytes
        int64_t active_reserved_bytes
        int64_t first_base_offset
        int64_t recovery_point
        int64_t hold_offset
        int32_t failed_errno
        int32_t holder
        uint32_t wanted
        uint32_t wakeup
        int64_t durable
        uint8_t topic_id[16]
        int32_t partition
        uint32_t opened_sequence
        int64_t opened_end_offset
        int64_t active_capacity_bytes
    ctypedef struct ControlView:
        int64_t log_end_offset
        int64_t active_base_offset
        int64_t active_valid_bytes
        int64_t active_reserved_bytes
        int64_t first_base_offset
    ctypedef union ControlFile:
        ControlPage page
        uint8_t bytes[CONTROL_PAGE_BYTES]
    int control_init(ControlPage* page, const uint8_t* session) noexcept
    bint control_is_ready(const ControlPage* page, const uint8_t* session) noexcept
    bint control_is_of(
        const ControlPage* page, const uint8_t* topic_id, int32_t partition) noexcept
    int64_t control_synced_before(
        ControlPage* page, const uint8_t* topic_id, int32_t partition) noexcept
    int64_t control_start_before(
        const ControlPage* page, const uint8_t* topic_id, int32_t partition) noexcept
    void control_keep_synced(
        ControlPage* page, const uint8_t* topic_id, int32_t partition, int64_t offset) noexcept
    int control_lock(ControlPage* page, int64_t timeout_ns, int32_t process_id) noexcept
    void control_unlock(ControlPage* page) noexcept
    void control_unlock_at_once(ControlPage* page) noexcept
    int64_t control_load(const int64_t* field) noexcept
    int64_t control_durable(const ControlPage* page) noexcept
    int64_t control_now_ns() noexcept
    void control_store(int64_t* field, int64_t value) noexcept
    void control_raise(int64_t* field, int64_t value) noexcept
    int32_t control_load_32(const int32_t* field) noexcept
    void control_store_32(int32_t* field, int32_t value) noexcept
    uint32_t control_flag(const uint32_t* field) noexcept
    void control_set_flag(uint32_t* field, uint32_t value) noexcept
    void control_write_begin(ControlPage* page) noexcept
    void control_write_end(ControlPage* page) noexcept
    bint control_view(const ControlPage* page, ControlView* view) noexcept
    bint control_follow(ControlPage* own, const ControlPage* page) noexcept
    void control_note_opened(ControlPage* page) noexcept
    bint control_is_as_opened(const ControlPage* page) noexcept
    void control_want(ControlPage* page, uint32_t who) noexcept
    uint32_t control_take_wanted(ControlPage* page) noexcept
    void control_wake(ControlPage* page) noexcept
    int control_sync_take(ControlPage* page, int64_t timeout_ns, int32_t process_id) noexcept
    int32_t control_sync_holder(const ControlPage* page) noexcept
    uint32_t control_sync_round(const ControlPage* page) noexcept
    void control_sync_end(ControlPage* page) noexcept
    void control_sync_wait(ControlPage* page, uint32_t round) noexcept
