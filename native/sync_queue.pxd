# A sync that the kernel makes while its caller does something else.

cdef extern from "sync_queue.h" nogil:
    ctypedef struct SyncQueue:
        pass
    void eos_sync_queue_open(SyncQueue* queue) noexcept
    bint eos_sync_queue_is_free(const SyncQueue* queue) noexcept
    void eos_sync_queue_close(SyncQueue* queue) noexcept
    int eos_sync_queue_begin(SyncQueue* queue, int fd) noexcept
    int eos_sync_queue_end(SyncQueue* queue) noexcept
