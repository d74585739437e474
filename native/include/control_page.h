/* The shared page of a partition: what readers need to know of the log's end, the writer's lock, the
   wake-up word. Laid out for several processes: fixed offsets, a robust process-shared mutex, atomics.

   Writers change the fields between control_write_begin and control_write_end, under the lock; a reader
   repeats control_read_* until it saw one even sequence throughout. log_end_offset alone may be read
   without that: it is published with release order after the bytes it promises are in place. */
#ifndef EOSLOG_CONTROL_PAGE_H
#define EOSLOG_CONTROL_PAGE_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define CONTROL_PAGE_BYTES 4096
#define CONTROL_PAGE_MAGIC UINT64_C(0x31304c5443534f45) /* "EOSCTL01", little-endian. */

typedef struct ControlPage {
    uint64_t magic;
    uint32_t version;
    uint32_t dirty;                  /* Set while a writer is between its first byte and the publish. */
    uint8_t boot_id[16];             /* A page from before a reboot is never trusted. */
    uint64_t generation;             /* Counts the times the page was made anew. */
    uint32_t sequence;               /* Odd while the fields below are being changed. */
    uint32_t wakeup;                 /* Futex word: raised with each publish. */
    int64_t log_start_offset;
    int64_t log_end_offset;
    int64_t high_watermark;
    int64_t last_stable_offset;
    int64_t active_base_offset;
    int64_t active_valid_bytes;
    int64_t offset_index_bytes;
    int64_t time_index_bytes;
    _Alignas(64) pthread_mutex_t lock;
} ControlPage;

_Static_assert(sizeof(ControlPage) <= CONTROL_PAGE_BYTES, "control page: fits in one page");

static inline int control_init(ControlPage *page, const uint8_t *boot_id) {
    pthread_mutexattr_t attributes;
    uint64_t generation = page->magic == CONTROL_PAGE_MAGIC ? page->generation + 1 : 1;
    int result;
    memset(page, 0, sizeof *page);
    result = pthread_mutexattr_init(&attributes);
    if (result != 0) {
        return result;
    }
    result = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    if (result == 0) {
        result = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    }
    if (result == 0) {
        result = pthread_mutex_init(&page->lock, &attributes);
    }
    pthread_mutexattr_destroy(&attributes);
    if (result != 0) {
        return result;
    }
    memcpy(page->boot_id, boot_id, sizeof page->boot_id);
    page->version = 1;
    page->generation = generation;
    __atomic_store_n(&page->magic, CONTROL_PAGE_MAGIC, __ATOMIC_RELEASE);
    return 0;
}

/* 0, or EOWNERDEAD when the holder died: the lock is held all the same and the log must be repaired. */
static inline int control_lock(ControlPage *page) {
    int result = pthread_mutex_lock(&page->lock);
    if (result == EOWNERDEAD) {
        pthread_mutex_consistent(&page->lock);
    }
    return result;
}

static inline void control_unlock(ControlPage *page) { pthread_mutex_unlock(&page->lock); }

static inline void control_write_begin(ControlPage *page) {
    __atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void control_write_end(ControlPage *page) {
    __atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELEASE);
    __atomic_add_fetch(&page->wakeup, 1, __ATOMIC_RELEASE);
}

static inline void control_set_dirty(ControlPage *page, uint32_t dirty) {
    __atomic_store_n(&page->dirty, dirty, __ATOMIC_RELEASE);
}

static inline int64_t control_load(const int64_t *field) {
    return __atomic_load_n(field, __ATOMIC_ACQUIRE);
}

static inline void control_store(int64_t *field, int64_t value) {
    __atomic_store_n(field, value, __ATOMIC_RELEASE);
}

#endif
