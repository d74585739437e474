/* The page of a partition that all processes share: what readers need to know of the log's end, the writer's lock, the turn to
   sync, whether a reader sleeps. Fixed offsets, robust process-shared mutexes, atomics; docs/processes.md has the protocol.

   Writers change the published fields between control_write_begin and control_write_end, under the lock; a reader takes them
   together by control_view. log_end_offset alone may be read without that: it is stored with release order after the bytes it
   promises are in place. A page counts for one session of its store only, and once it is ready. */
#ifndef EOSLOG_CONTROL_PAGE_H
#define EOSLOG_CONTROL_PAGE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <sched.h>

#include "crash_point.h"
#include "shared_page.h"

#define CONTROL_PAGE_BYTES 4096
#define CONTROL_PAGE_MAGIC UINT64_C(0x35304c5443534f45) /* "EOSCTL05", little-endian. */
#define CONTROL_VIEW_TRIES 1000
#define CONTROL_NO_HOLD INT64_C(-1)
/* Who sleeps for the next publish: on the page's own word, or for its bit on the word of all logs. */
#define CONTROL_WANT_OWN 1u
#define CONTROL_WANT_SHARED 2u
/* A thread that waits for a turn to sync looks again after so long: its holder may have died. */
#define CONTROL_SYNC_LOOK_NS INT64_C(50000000)
/* How long a process sleeps for the writer's lock before it says again that it does; for how long those that run may keep the lock
   from those that sleep; and for how long they then make way. */
#define CONTROL_SLEEP_NS INT64_C(5000000)
#define CONTROL_PATIENCE_NS INT64_C(2000000)
#define CONTROL_MOMENT_NS 50000

typedef struct ControlPage {
    uint64_t magic;
    uint32_t ready;                  /* The log is recovered and its open transactions are known: others may attach. */
    uint32_t sealed;                 /* Closed cleanly; no process appends any more. */
    uint8_t session[16];
    uint32_t deleted;                /* The topic is gone. */
    uint32_t sequence;               /* Odd while the published fields are being changed. */
    /* The published fields. */
    int64_t log_start_offset;
    int64_t log_end_offset;
    int64_t active_base_offset;
    int64_t active_valid_bytes;
    int64_t active_reserved_bytes;   /* Nothing is stored beyond; the file is at least as long. */
    int64_t first_base_offset;       /* Of the oldest segment that was not deleted. */
    /* Each by itself. */
    int64_t recovery_point;          /* Everything below is synced. */
    int64_t hold_offset;             /* Readers stop here; CONTROL_NO_HOLD if they need not. */
    int32_t failed_errno;            /* A sync failed: no append is taken until the log is recovered. */
    int32_t holder;                  /* For people: the process that took the lock last. */
    uint32_t wanted;                 /* CONTROL_WANT_...: readers sleep, or are about to: to be woken with the next publish. */
    uint32_t wakeup;                 /* The page's own futex word: rises with each publish that wakes its sleepers. */
    int64_t durable;                 /* Everything below is on the disk, in files or journals; or below the recovery point. */
    _Alignas(64) pthread_mutex_t lock;
    _Alignas(64) pthread_mutex_t sync_lock;
    uint32_t sync_round;             /* Rises after each turn. */
    int32_t sync_holder;             /* The process that took the turn last. */
    uint32_t sync_waiting;           /* Threads that sleep on it, or are about to; too many after one has died. */
    int64_t lock_wanted_ns;          /* When a process that sleeps for the lock said so last, on the monotonic clock; 0: none does. */
    int64_t lock_passed_ns;          /* When one of those had it last, or others made way. */
    uint8_t topic_id[16];            /* A page may outlive the topic that it was made for. */
    int32_t partition;               /* The file may be a copy of another one. */
    uint32_t opened_sequence;        /* As they were when the page of a log that was closed cleanly became ready; else 0. */
    int64_t opened_end_offset;
    int64_t active_capacity_bytes;   /* How far every process maps the active segment. Of an empty one it may be raised. */
} ControlPage;

/* How far the log had been synced when the page was laid out again, by the pages before: each keeps it, in a sector of its own. So
   a log whose newest records are lost is known however often its openers died. */
typedef struct ControlSynced {
    uint8_t topic_id[16];
    int64_t offset;                  /* Everything below had been synced. */
    int64_t inverted;                /* ~offset; else nothing is said. */
    int32_t partition;
} ControlSynced;

#define CONTROL_SYNCED_AT 3584

_Static_assert(sizeof(ControlPage) <= CONTROL_SYNCED_AT, "control page: its own fields end before what is kept");
/* A page's file as a reader that does not open the partition sees it. */
typedef union ControlFile {
    ControlPage page;
    uint8_t bytes[CONTROL_PAGE_BYTES];
} ControlFile;

_Static_assert(CONTROL_SYNCED_AT + sizeof(ControlSynced) <= CONTROL_PAGE_BYTES, "control page: fits in one page");

/* The published fields as they were at one moment. */
typedef struct ControlView {
    int64_t log_end_offset;
    int64_t active_base_offset;
    int64_t active_valid_bytes;
    int64_t active_reserved_bytes;
    int64_t first_base_offset;
} ControlView;

static inline int control_init(ControlPage *page, const uint8_t *session) {
    int result;
    /* First: a process that only reads the log, with a page of an earlier session, looks here after all other fields. */
    __atomic_store_n(&page->ready, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    CRASH_POINT("control page: cleared");
    memset(page, 0, sizeof *page);
    result = shared_mutex_init(&page->lock, PTHREAD_MUTEX_DEFAULT);
    if (result == 0)
        result = shared_mutex_init(&page->sync_lock, PTHREAD_MUTEX_DEFAULT);
    if (result != 0)
        return result;
    CRASH_POINT("control page: session");
    memcpy(page->session, session, sizeof page->session);
    page->hold_offset = CONTROL_NO_HOLD;
    CRASH_POINT("control page: magic");
    __atomic_store_n(&page->magic, CONTROL_PAGE_MAGIC, __ATOMIC_RELEASE);
    return 0;
}

static inline int control_is_ready(const ControlPage *page, const uint8_t *session) {
    if (__atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) != CONTROL_PAGE_MAGIC ||
        memcmp(page->session, session, sizeof page->session) != 0)
        return 0;
    /* After the session: a page that is laid out for it is not ready first of all, and ready last. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&page->ready, __ATOMIC_ACQUIRE) != 0;
}

static inline int64_t control_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* 0; EOWNERDEAD: held, and the log has to be repaired; ETIMEDOUT: not held. A process that sleeps for it says so again and again. */
static inline int control_lock(ControlPage *page, int64_t timeout_ns, int32_t process_id) {
    int result = shared_mutex_look(&page->lock);
    if (result == EBUSY) {
        int64_t slept_ns = 0;
        for (result = ETIMEDOUT; result == ETIMEDOUT && slept_ns < timeout_ns; slept_ns += CONTROL_SLEEP_NS) {
            __atomic_store_n(&page->lock_wanted_ns, control_now_ns(), __ATOMIC_RELAXED);
            result = shared_mutex_wait(
                &page->lock, timeout_ns - slept_ns < CONTROL_SLEEP_NS ? timeout_ns - slept_ns : CONTROL_SLEEP_NS);
        }
        if (result == 0 || result == EOWNERDEAD)
            __atomic_store_n(&page->lock_passed_ns, control_now_ns(), __ATOMIC_RELAXED);
    }
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(&page->lock);
    if (result == 0 || result == EOWNERDEAD)
        __atomic_store_n(&page->holder, process_id, __ATOMIC_RELAXED);
    return result;
}

/* The mutex goes to the quickest process, never to one that has to be woken first: those that run could keep it among themselves
   for ever. So a process that finds others asleep for it, if none of them has had it for a while, makes way for a moment. A process
   that died in its sleep does not count. */
static inline void control_make_way(ControlPage *page, int64_t wanted_ns) {
    const struct timespec moment = {0, CONTROL_MOMENT_NS};
    int64_t now_ns = control_now_ns();
    if (now_ns - wanted_ns > 2 * CONTROL_SLEEP_NS) {
        __atomic_compare_exchange_n(&page->lock_wanted_ns, &wanted_ns, 0, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    } else if (now_ns - __atomic_load_n(&page->lock_passed_ns, __ATOMIC_RELAXED) > CONTROL_PATIENCE_NS) {
        __atomic_store_n(&page->lock_passed_ns, now_ns, __ATOMIC_RELAXED);
        nanosleep(&moment, NULL);
    }
}

static inline void control_unlock(ControlPage *page) {
    int64_t wanted_ns = __atomic_load_n(&page->lock_wanted_ns, __ATOMIC_RELAXED);
    CRASH_POINT("control page: unlock");
    pthread_mutex_unlock(&page->lock);
    if (wanted_ns != 0)
        control_make_way(page, wanted_ns);
}

/* The same for a caller that holds the locks of other pages, which does not make way before it has given all of them back. */
static inline void control_unlock_at_once(ControlPage *page) {
    CRASH_POINT("control page: unlock");
    pthread_mutex_unlock(&page->lock);
}

static inline ControlSynced *control_synced(ControlPage *page) {
    return (ControlSynced *)((uint8_t *)page + CONTROL_SYNCED_AT);
}

static inline int control_is_of(const ControlPage *page, const uint8_t *topic_id, int32_t partition) {
    return memcmp(page->topic_id, topic_id, sizeof page->topic_id) == 0 && page->partition == partition;
}

static inline int control_synced_is_of(const ControlSynced *kept, const uint8_t *topic_id, int32_t partition) {
    return memcmp(kept->topic_id, topic_id, sizeof kept->topic_id) == 0 && kept->partition == partition;
}

/* Synced end of the same log by the page of an earlier opener, before it is laid out again: its field, which is raised after each
   sync, and what it kept of the pages before. 0 if it has nothing that can be believed. */
static inline int64_t control_synced_before(ControlPage *page, const uint8_t *topic_id, int32_t partition) {
    const ControlSynced *kept = control_synced(page);
    int64_t offset = 0;
    if (control_synced_is_of(kept, topic_id, partition) && kept->inverted == ~kept->offset)
        offset = kept->offset;
    if (control_is_ready(page, page->session) && control_is_of(page, topic_id, partition) &&
        page->recovery_point <= page->log_end_offset && page->recovery_point > offset)
        offset = page->recovery_point;
    return offset > 0 ? offset : 0;
}

/* Where the same log began by the page of an earlier opener; -1 if the page does not say. The next layout of the page keeps it. */
static inline int64_t control_start_before(const ControlPage *page, const uint8_t *topic_id, int32_t partition) {
    return page->magic == CONTROL_PAGE_MAGIC && control_is_of(page, topic_id, partition) ? page->log_start_offset : -1;
}

/* Keep that. Who dies in the middle leaves what the page's field says, which is what is kept here. */
static inline void control_keep_synced(ControlPage *page, const uint8_t *topic_id, int32_t partition, int64_t offset) {
    ControlSynced *kept = control_synced(page);
    if (control_synced_is_of(kept, topic_id, partition) && kept->inverted == ~offset && kept->offset == offset)
        return;
    CRASH_POINT("control page: synced, inverted");
    kept->inverted = offset;
    CRASH_POINT("control page: synced, of which log");
    memcpy(kept->topic_id, topic_id, sizeof kept->topic_id);
    kept->partition = partition;
    __atomic_store_n(&kept->offset, offset, __ATOMIC_RELEASE);
    CRASH_POINT("control page: synced");
    __atomic_store_n(&kept->inverted, ~offset, __ATOMIC_RELEASE);
}

static inline int64_t control_load(const int64_t *field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }

static inline void control_store(int64_t *field, int64_t value) {
    CRASH_POINT("control page: field");
    __atomic_store_n(field, value, __ATOMIC_RELEASE);
}

/* Up to where the log is on the disk, by its files or by journals. */
static inline int64_t control_durable(const ControlPage *page) {
    int64_t durable = control_load(&page->durable);
    int64_t synced = control_load(&page->recovery_point);
    return durable > synced ? durable : synced;
}

/* Raise a field that only grows. */
static inline void control_raise(int64_t *field, int64_t value) {
    int64_t seen = __atomic_load_n(field, __ATOMIC_ACQUIRE);
    if (seen < value)
        CRASH_POINT("control page: raise");
    while (seen < value && !__atomic_compare_exchange_n(field, &seen, value, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
    }
}

static inline int32_t control_load_32(const int32_t *field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }

static inline void control_store_32(int32_t *field, int32_t value) {
    CRASH_POINT("control page: field");
    __atomic_store_n(field, value, __ATOMIC_RELEASE);
}

static inline uint32_t control_flag(const uint32_t *field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }

static inline void control_set_flag(uint32_t *field, uint32_t value) {
    CRASH_POINT("control page: flag");
    __atomic_store_n(field, value, __ATOMIC_RELEASE);
}

/* After a holder died in the middle the sequence is odd already, and stays so until the repair has published. */
static inline void control_write_begin(ControlPage *page) {
    CRASH_POINT("control page: sequence odd");
    __atomic_store_n(&page->sequence, page->sequence | 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void control_write_end(ControlPage *page) {
    CRASH_POINT("control page: sequence even");
    __atomic_store_n(&page->sequence, page->sequence + 1, __ATOMIC_RELEASE);
}

/* Whether the fields were taken together; else a writer is at them, or died there. */
static inline int control_view(const ControlPage *page, ControlView *view) {
    int tries;
    for (tries = 0; tries < CONTROL_VIEW_TRIES; tries++) {
        uint32_t before = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        if ((before & 1) == 0) {
            view->log_end_offset = __atomic_load_n(&page->log_end_offset, __ATOMIC_RELAXED);
            view->active_base_offset = __atomic_load_n(&page->active_base_offset, __ATOMIC_RELAXED);
            view->active_valid_bytes = __atomic_load_n(&page->active_valid_bytes, __ATOMIC_RELAXED);
            view->active_reserved_bytes = __atomic_load_n(&page->active_reserved_bytes, __ATOMIC_RELAXED);
            view->first_base_offset = __atomic_load_n(&page->first_base_offset, __ATOMIC_RELAXED);
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) == before)
                return 1;
        }
        if (tries > CONTROL_VIEW_TRIES / 2)
            sched_yield();
    }
    return 0;
}

/* Take over what the page of those who write says into the page of a process that only reads the log, and has the first one mapped
   without the right to store to it; 0 if that is not of the other one's session any more, or changes too fast: nothing was taken
   over then, and what was published before holds.

   The fields need not be of one moment, since a writer may be stopped in the middle of a change, or dead: the log's start is not
   above its end in this order, and each of the others is at least as new as the end, which was stored after what it promises. Where
   the valid bytes are not of the same moment they are -1. The caller keeps other threads from it: the end and the offset where
   readers are held belong together. */
static inline int control_follow(ControlPage *own, const ControlPage *page) {
    int tries;
    for (tries = 0; tries < CONTROL_VIEW_TRIES; tries++) {
        uint32_t sequence = __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
        int64_t first_base = control_load(&page->first_base_offset);
        int64_t start = control_load(&page->log_start_offset);
        int64_t end = control_load(&page->log_end_offset);
        int64_t active_base = control_load(&page->active_base_offset);
        int64_t capacity = control_load(&page->active_capacity_bytes);
        int64_t valid = control_load(&page->active_valid_bytes);
        int64_t reserved = control_load(&page->active_reserved_bytes);
        int64_t hold = control_load(&page->hold_offset);
        int64_t recovery_point = control_load(&page->recovery_point);
        int64_t durable = control_load(&page->durable);
        int32_t failed_errno = control_load_32(&page->failed_errno);
        uint32_t deleted = control_flag(&page->deleted);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&page->sequence, __ATOMIC_RELAXED) != sequence || (sequence & 1) != 0)
            valid = -1;
        /* In this order: a page that is laid out for another session is not ready first of all, and ready last. */
        if (control_flag(&page->ready) == 0 || memcmp(page->session, own->session, sizeof own->session) != 0)
            return 0;
        if (active_base > end)
            continue; /* It was rolled in between. */
        __atomic_store_n(&own->log_start_offset, start, __ATOMIC_RELEASE);
        __atomic_store_n(&own->first_base_offset, first_base, __ATOMIC_RELEASE);
        __atomic_store_n(&own->log_end_offset, end, __ATOMIC_RELEASE);
        __atomic_store_n(&own->active_base_offset, active_base, __ATOMIC_RELEASE);
        __atomic_store_n(&own->active_capacity_bytes, capacity, __ATOMIC_RELEASE);
        __atomic_store_n(&own->active_valid_bytes, valid, __ATOMIC_RELEASE);
        __atomic_store_n(&own->active_reserved_bytes, reserved, __ATOMIC_RELEASE);
        __atomic_store_n(&own->hold_offset, hold, __ATOMIC_RELEASE);
        __atomic_store_n(&own->recovery_point, recovery_point, __ATOMIC_RELEASE);
        __atomic_store_n(&own->durable, durable, __ATOMIC_RELEASE);
        __atomic_store_n(&own->failed_errno, failed_errno, __ATOMIC_RELEASE);
        __atomic_store_n(&own->deleted, deleted, __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

/* The log is as its last close, a clean one, left it. */
static inline void control_note_opened(ControlPage *page) {
    CRASH_POINT("control page: as opened");
    page->opened_end_offset = page->log_end_offset;
    page->opened_sequence = page->sequence;
}

/* 1 if it still is, for any process. The log's end shows it where the sequence has wrapped; an append that failed may have left
   space reserved. The caller holds the lock. */
static inline int control_is_as_opened(const ControlPage *page) {
    return page->sequence == page->opened_sequence && page->log_end_offset == page->opened_end_offset &&
           page->active_reserved_bytes == page->active_valid_bytes;
}

/* A reader is about to look for records, and to sleep if there are none: in this order. `who` is a CONTROL_WANT_... */
static inline void control_want(ControlPage *page, uint32_t who) {
    CRASH_POINT("control page: wanted");
    __atomic_fetch_or(&page->wanted, who, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* After a publish: who is to be woken, of CONTROL_WANT_... */
static inline uint32_t control_take_wanted(ControlPage *page) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->wanted, __ATOMIC_RELAXED) == 0)
        return 0;
    CRASH_POINT("control page: wanted");
    return __atomic_exchange_n(&page->wanted, 0, __ATOMIC_SEQ_CST);
}

/* Wake those who sleep on the page's own word; who is about to sleep on it looks again. */
static inline void control_wake(ControlPage *page) {
    CRASH_POINT("control page: wakeup");
    shared_word_wake(&page->wakeup, 1, SHARED_ALL_BITS);
}

/* The turn to sync: one thread at a time, of all processes. Those who wait for the result of the turn under way are woken
   together when it has ended; a thread whose bytes it covered takes no lock at all. */

/* 0 (held), or ETIMEDOUT. */
static inline int control_sync_take(ControlPage *page, int64_t timeout_ns, int32_t process_id) {
    int result = shared_mutex_take(&page->sync_lock, timeout_ns);
    if (result == EOWNERDEAD)
        result = 0;
    if (result == 0)
        __atomic_store_n(&page->sync_holder, process_id, __ATOMIC_RELAXED);
    return result;
}

static inline int32_t control_sync_holder(const ControlPage *page) { return __atomic_load_n(&page->sync_holder, __ATOMIC_RELAXED); }

static inline uint32_t control_sync_round(const ControlPage *page) { return __atomic_load_n(&page->sync_round, __ATOMIC_SEQ_CST); }

/* The round rises after the lock is free: who looked at the round, and then found the lock taken, will see it rise. */
static inline void control_sync_end(ControlPage *page) {
    CRASH_POINT("control page: turn to sync");
    pthread_mutex_unlock(&page->sync_lock);
    CRASH_POINT("control page: turn to sync");
    __atomic_add_fetch(&page->sync_round, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->sync_waiting, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &page->sync_round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleep until the round is another one than the given. May return early. */
static inline void control_sync_wait(ControlPage *page, uint32_t round) {
    CRASH_POINT("control page: turn to sync");
    __atomic_add_fetch(&page->sync_waiting, 1, __ATOMIC_SEQ_CST);
    shared_word_wait(&page->sync_round, round, SHARED_ALL_BITS, CONTROL_SYNC_LOOK_NS);
    CRASH_POINT("control page: turn to sync");
    __atomic_sub_fetch(&page->sync_waiting, 1, __ATOMIC_SEQ_CST);
}

#endif
