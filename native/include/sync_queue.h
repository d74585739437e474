/* A sync of a file that the kernel makes while its caller does something else: Linux's asynchronous
   I/O, whose IOCB_CMD_FDSYNC (since 4.18) answers what fdatasync would. A queue has one at a time. */
#ifndef EOSLOG_SYNC_QUEUE_H
#define EOSLOG_SYNC_QUEUE_H

#include <linux/aio_abi.h>
#include <sys/syscall.h>

#include "mapped_io.h"

typedef struct {
    aio_context_t context; /* 0: there is none. */
    int32_t busy;          /* A thread has begun a sync; atomic. */
} SyncQueue;

/* If the system gives none, no sync can be begun. */
static inline void eos_sync_queue_open(SyncQueue *queue) {
    if (queue->context == 0 && syscall(SYS_io_setup, 1L, &queue->context) != 0) {
        queue->context = 0;
    }
}

static inline int eos_sync_queue_is_free(const SyncQueue *queue) {
    return queue->context != 0 && __atomic_load_n(&queue->busy, __ATOMIC_RELAXED) == 0;
}

/* Unless a sync has not ended: then a later call closes it. */
static inline void eos_sync_queue_close(SyncQueue *queue) {
    if (__atomic_exchange_n(&queue->busy, 1, __ATOMIC_ACQUIRE) != 0) {
        return;
    }
    if (queue->context != 0) {
        (void)syscall(SYS_io_destroy, queue->context);
        queue->context = 0;
    }
    __atomic_store_n(&queue->busy, 0, __ATOMIC_RELEASE);
}

/* 0, or an errno: it was not begun. EBUSY: another thread's has not ended. EINVAL: the queue is the
   parent's of this forked child. ENOTSUP: the file is in memory, and there is nothing to begin. */
static inline int eos_sync_queue_begin(SyncQueue *queue, int fd) {
    struct iocb request, *list = &request;
    int error = 0;
    if (__atomic_exchange_n(&queue->busy, 1, __ATOMIC_ACQUIRE) != 0) {
        return EBUSY;
    }
    memset(&request, 0, sizeof request);
    request.aio_fildes = (uint32_t)fd;
    request.aio_lio_opcode = IOCB_CMD_FDSYNC;
    if (queue->context == 0) {
        error = ENOSYS;
    } else if (eos_is_in_memory(fd)) {
        error = ENOTSUP;
    } else if (syscall(SYS_io_submit, queue->context, 1L, &list) != 1) {
        error = errno;
    }
    if (error != 0) {
        __atomic_store_n(&queue->busy, 0, __ATOMIC_RELEASE);
    }
    return error;
}

/* Wait for the sync, in the thread that began it; 0 or its errno. If its result cannot be had it is
   EIO, and the queue begins no other sync. */
static inline int eos_sync_queue_end(SyncQueue *queue) {
    struct io_event event;
    long count;
    do {
        count = syscall(SYS_io_getevents, queue->context, 1L, 1L, &event, NULL);
    } while (count < 0 && errno == EINTR);
    if (count != 1) {
        return EIO;
    }
    __atomic_store_n(&queue->busy, 0, __ATOMIC_RELEASE);
    return event.res < 0 ? (int)-event.res : 0;
}

#endif
