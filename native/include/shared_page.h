/* The page that all processes of a store share: its session, counters, the word that readers sleep on, and locks for whatever
   belongs to no partition. Fixed offsets, atomics, robust process-shared mutexes: the lock of a dead holder passes to the next, with
   EOWNERDEAD. */
#ifndef EOSLOG_SHARED_PAGE_H
#define EOSLOG_SHARED_PAGE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "crash_point.h"

#define SHARED_PAGE_MAGIC UINT64_C(0x31305248534f45) /* "EOSHR01", little-endian. */
#define SHARED_PAGE_VERSION 6
#define SHARED_COUNTERS 32
#define SHARED_ALL_BITS FUTEX_BITSET_MATCH_ANY
/* The wake-up word counts appends in steps of this, and calls, which wake all readers, in steps of 1. */
#define SHARED_APPEND 256
#define SHARED_LOCKS_OF_KEYS 1024
#define SHARED_LOCKS_NAMED 64
/* Each look comes twice as long after the one before, up to a few microseconds: between them the holder may take the lock again
   and again with all it needs in its cache, which two that take turns would carry to and fro. */
#define SHARED_LOOKS 16
#define SHARED_PAUSES 4
#define SHARED_PAUSES_MAX 256
#define SHARED_LOCKS (SHARED_LOCKS_OF_KEYS + SHARED_LOCKS_NAMED)

typedef struct SharedLock {
    _Alignas(64) pthread_mutex_t mutex;
    int32_t holder; /* For people: the process that took it last. */
} SharedLock;

typedef struct SharedPageHead {
    uint64_t magic; /* Stored last: before it nothing else counts. */
    uint32_t version;
    uint32_t wakeup; /* Futex word of readers of many logs; a log has one of 32 bits, and a call has all. */
    uint8_t session[16];
    uint64_t counters[SHARED_COUNTERS];
    uint32_t called; /* Futex word of readers that sleep on the words of their logs: rises with calls alone. */
    SharedLock locks[SHARED_LOCKS];
} SharedPageHead;

static inline struct timespec shared_until(clockid_t clock, int64_t timeout_ns) {
    struct timespec until;
    clock_gettime(clock, &until);
    until.tv_sec += timeout_ns / 1000000000;
    until.tv_nsec += timeout_ns % 1000000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec += 1;
    }
    return until;
}

/* How long to wait for a mutex, on the clock that does not jump. */
static inline int shared_mutex_wait(pthread_mutex_t *mutex, int64_t timeout_ns) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
    const struct timespec until = shared_until(CLOCK_MONOTONIC, timeout_ns);
    return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
#else
    const struct timespec until = shared_until(CLOCK_REALTIME, timeout_ns);
    return pthread_mutex_timedlock(mutex, &until);
#endif
}

/* A robust mutex for several processes; 0 or an errno. */
static inline int shared_mutex_init(pthread_mutex_t *mutex, int type) {
    pthread_mutexattr_t attributes;
    int result = pthread_mutexattr_init(&attributes);
    if (result != 0)
        return result;
    result = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    if (result == 0)
        result = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    if (result == 0)
        result = pthread_mutexattr_settype(&attributes, type);
    if (result == 0)
        result = pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return result;
}

static inline void shared_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* As pthread_mutex_trylock, but a lock is held for some microseconds, less than it takes to sleep and be woken: so it looks a few
   times. */
static inline int shared_mutex_look(pthread_mutex_t *mutex) {
    int result = pthread_mutex_trylock(mutex);
    int look, pause, pauses = SHARED_PAUSES;
    for (look = 0; result == EBUSY && look < SHARED_LOOKS; look++) {
        for (pause = 0; pause < pauses; pause++)
            shared_pause();
        if (pauses < SHARED_PAUSES_MAX)
            pauses *= 2;
        result = pthread_mutex_trylock(mutex);
    }
    return result;
}

/* 0; EOWNERDEAD: held all the same, and usable; ETIMEDOUT or another errno: not held. */
static inline int shared_mutex_take(pthread_mutex_t *mutex, int64_t timeout_ns) {
    int result = timeout_ns > 0 ? shared_mutex_look(mutex) : pthread_mutex_trylock(mutex);
    if (result == EBUSY && timeout_ns > 0)
        result = shared_mutex_wait(mutex, timeout_ns);
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    return result == EBUSY ? ETIMEDOUT : result;
}

/* Sleep while the word is the given one, until one of these bits is woken; at most so long; may return early. */
static inline void shared_word_wait(const uint32_t *word, uint32_t seen, uint32_t bits, int64_t timeout_ns) {
    const struct timespec until = shared_until(CLOCK_MONOTONIC, timeout_ns);
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &until, NULL, bits);
}

/* One of the words of a sleep for several: the kernel's struct futex_waitv, which older headers do not have. */
typedef struct SharedSleep {
    uint64_t seen; /* The word's value, of 32 bits, with which the sleep begins. */
    uint64_t word; /* Its address. */
    uint32_t flags;
    uint32_t reserved;
} SharedSleep;

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#define SHARED_SLEEP_32_BITS 2 /* FUTEX_32, and not of one process alone. */

static inline void shared_sleep_on(SharedSleep *sleep, const uint32_t *word, uint32_t seen) {
    sleep->seen = seen;
    sleep->word = (uint64_t)(uintptr_t)word;
    sleep->flags = SHARED_SLEEP_32_BITS;
    sleep->reserved = 0;
}

/* Sleep while all of 1 to 128 words are as they were seen, until one of them is woken; at most so long; may return early. 0 if the
   kernel has no such sleep (it came with Linux 5.16), or forbids it. */
static inline int shared_words_wait(const SharedSleep *sleeps, uint32_t count, int64_t timeout_ns) {
    const struct timespec until = shared_until(CLOCK_MONOTONIC, timeout_ns);
    return syscall(SYS_futex_waitv, sleeps, count, 0, &until, CLOCK_MONOTONIC) >= 0 || errno == EAGAIN || errno == ETIMEDOUT ||
           errno == EINTR;
}

/* Wake who sleeps for one of these bits; who is about to sleep looks again, whatever it wants. The word rises by a step. */
static inline void shared_word_wake(uint32_t *word, uint32_t step, uint32_t bits) {
    CRASH_POINT("shared page: word");
    __atomic_add_fetch(word, step, __ATOMIC_SEQ_CST);
    CRASH_POINT("shared page: wake");
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}

/* Wake one who sleeps on a word. */
static inline void shared_word_wake_one(uint32_t *word) {
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Wake all sleepers, whatever they sleep on. */
static inline void shared_call(SharedPageHead *page) {
    shared_word_wake(&page->wakeup, 1, SHARED_ALL_BITS);
    shared_word_wake(&page->called, 1, SHARED_ALL_BITS);
}

static inline uint32_t shared_word_load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

/* Lay the page out for a session that no other process is in yet; 0 or an errno. */
static inline int shared_page_init(SharedPageHead *page, const uint8_t *session) {
    int result = 0;
    int index;
    CRASH_POINT("shared page: cleared");
    memset(page, 0, sizeof *page);
    for (index = 0; index < SHARED_LOCKS && result == 0; index++)
        result = shared_mutex_init(&page->locks[index].mutex, PTHREAD_MUTEX_RECURSIVE);
    if (result != 0)
        return result;
    CRASH_POINT("shared page: session");
    memcpy(page->session, session, sizeof page->session);
    page->version = SHARED_PAGE_VERSION;
    CRASH_POINT("shared page: magic");
    __atomic_store_n(&page->magic, SHARED_PAGE_MAGIC, __ATOMIC_RELEASE);
    return 0;
}

static inline int shared_page_is_made(const SharedPageHead *page) {
    return __atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) == SHARED_PAGE_MAGIC && page->version == SHARED_PAGE_VERSION;
}

/* 0, EOWNERDEAD (held all the same), ETIMEDOUT or another errno. A thread may take what it holds once more. */
static inline int shared_lock_take(SharedPageHead *page, int index, int64_t timeout_ns, int32_t process_id) {
    int result = shared_mutex_take(&page->locks[index].mutex, timeout_ns);
    if (result == 0 || result == EOWNERDEAD)
        __atomic_store_n(&page->locks[index].holder, process_id, __ATOMIC_RELAXED);
    return result;
}

static inline int shared_lock_give(SharedPageHead *page, int index) {
    return pthread_mutex_unlock(&page->locks[index].mutex);
}

static inline int32_t shared_lock_holder(const SharedPageHead *page, int index) {
    return __atomic_load_n(&page->locks[index].holder, __ATOMIC_RELAXED);
}

static inline uint64_t shared_counter_load(const SharedPageHead *page, int number) {
    return __atomic_load_n(&page->counters[number], __ATOMIC_SEQ_CST);
}

static inline uint64_t shared_counter_raise(SharedPageHead *page, int number) {
    CRASH_POINT("shared page: counter");
    return __atomic_add_fetch(&page->counters[number], 1, __ATOMIC_SEQ_CST);
}

/* A counter that several processes raise, each to a value of its own: the highest stays. */
static inline void shared_counter_lift(SharedPageHead *page, int number, uint64_t value) {
    uint64_t known = shared_counter_load(page, number);
    while (known < value &&
           !__atomic_compare_exchange_n(&page->counters[number], &known, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
}

/* Beginnings of transactions are held so that those which are open end, and an instant comes at which all are decided. One hold
   is so long at most, should its process die too, and the next begins so much later at the earliest. The counters are the times
   when the newest began, and when that one had begun which ended last. */
#define SHARED_HOLD_NS 100000000
#define SHARED_HOLD_APART_NS 1000000000
#define SHARED_HOLD_BEGUN 9
#define SHARED_HOLD_ENDED 10

static inline int64_t shared_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* When the hold began, which is to be ended with that; 0 if the last one is not long enough ago. */
static inline uint64_t shared_hold_begin(SharedPageHead *page) {
    uint64_t last = shared_counter_load(page, SHARED_HOLD_BEGUN);
    const uint64_t now = (uint64_t)shared_now_ns();
    if ((last != 0 && now < last + SHARED_HOLD_APART_NS) ||
        !__atomic_compare_exchange_n(&page->counters[SHARED_HOLD_BEGUN], &last, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 0;
    return now;
}

static inline void shared_hold_end(SharedPageHead *page, uint64_t begun) { shared_counter_lift(page, SHARED_HOLD_ENDED, begun); }

static inline int shared_is_held(const SharedPageHead *page) {
    const uint64_t begun = shared_counter_load(page, SHARED_HOLD_BEGUN);
    return begun != shared_counter_load(page, SHARED_HOLD_ENDED) && (uint64_t)shared_now_ns() < begun + SHARED_HOLD_NS;
}

#endif
