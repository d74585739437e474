# The page that all processes of a store share: session, counters, wake-up words, locks.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "shared_page.h" nogil:
    enum:
        SHARED_PAGE_VERSION
        SHARED_COUNTERS
        SHARED_LOCKS_OF_KEYS
        SHARED_LOCKS
        EOWNERDEAD
        ETIMEDOUT
    const uint64_t SHARED_PAGE_MAGIC
    ctypedef struct SharedPageHead:
        uint64_t magic
        uint32_t wakeup
        uint8_t session[16]
        uint32_t called
    int shared_page_init(SharedPageHead* page, const uint8_t* session) noexcept
    bint shared_page_is_made(const SharedPageHead* page) noexcept
    int shared_lock_take(
        SharedPageHead* page, int index, int64_t timeout_ns, int32_t process_id) noexcept
    int shared_lock_give(SharedPageHead* page, int index) noexcept
    int32_t shared_lock_holder(const SharedPageHead* page, int index) noexcept
    uint64_t shared_counter_load(const SharedPageHead* page, int number) noexcept
    uint64_t shared_counter_raise(SharedPageHead* page, int number) noexcept
    void shared_counter_lift(SharedPageHead* page, int number, uint64_t value) noexcept
    const int64_t SHARED_HOLD_NS
    uint64_t shared_hold_begin(SharedPageHead* page) noexcept
    void shared_hold_end(SharedPageHead* page, uint64_t begun) noexcept
    bint shared_is_held(const SharedPageHead* page) noexcept
    const uint32_t SHARED_ALL_BITS
    const uint32_t SHARED_APPEND
    void shared_word_wait(
        const uint32_t* word, uint32_t seen, uint32_t bits, int64_t timeout_ns) noexcept
    void shared_word_wake(uint32_t* word, uint32_t step, uint32_t bits) noexcept
    void shared_word_wake_one(uint32_t* word) noexcept
    ctypedef struct SharedSleep:
        pass
    void shared_sleep_on(SharedSleep* sleep, const uint32_t* word, uint32_t seen) noexcept
    bint shared_words_wait(
        const SharedSleep* sleeps, uint32_t count, int64_t timeout_ns) noexcept
    void shared_call(SharedPageHead* page) noexcept
    uint32_t shared_word_load(const uint32_t* word) noexcept
