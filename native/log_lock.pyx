# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The lock of a log among all processes, and a view of the log for readers.

Both take in first what other processes published, so that a caller works on all of it. The lock is
the page's: one writer of all processes has it. A view takes view_lock alone, which keeps what this
process knows as it is. The process that takes the lock after a writer died repairs what it left.
Of a log that is only read here no lock of other processes is taken, and nothing repaired.

Invariants: what a process knows of the log is what the batches below known_end say, whichever
process wrote them; a writer knows all of it before it writes; no writer has the lock of a log that
is closed, deleted or failed. The page's lock comes before view_lock.
"""
from libc.stdint cimport uint32_t

from eoslog.native.atomics cimport load_acquire_64
from eoslog.native.control_page cimport (
    CONTROL_WANT_OWN, CONTROL_WANT_SHARED, EOWNERDEAD, control_flag, control_load, control_load_32,
    control_lock, control_take_wanted, control_unlock, control_wake,
)
from eoslog.native.log_follow cimport log_follow, log_repair
from eoslog.native.partition_log cimport (
    log_active, log_failure, log_look, log_use_active, pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.shared_page cimport SHARED_APPEND, shared_word_wake
from eoslog.native.status cimport (
    STATUS_CLOSED, STATUS_FAILED, STATUS_FELL_BEHIND, STATUS_IO, STATUS_LOCK_HELD, STATUS_OK,
    STATUS_READ_ONLY, fault,
)

cdef extern from "<errno.h>" nogil:
    int EAGAIN
    int EROFS


cdef Status check_usable(PartitionLog* log, Fault* out) noexcept nogil:
    if log.closed:
        return fault(out, STATUS_CLOSED, "the log is closed", 0, 0)
    if control_flag(&log.page.deleted):
        return fault(out, STATUS_CLOSED, "the topic was deleted", 0, 0)
    return STATUS_OK


cdef inline bint is_behind(PartitionLog* log) noexcept nogil:
    """True if another process published something that is not known here. The caller holds
    view_lock.
    """
    return (log.known_end != control_load(&log.page.log_end_offset)
            or log_active(log).base_offset != control_load(&log.page.active_base_offset)
            or log.segments[0].base_offset < control_load(&log.page.first_base_offset))


cdef Status log_lock(PartitionLog* log, Fault* out) noexcept nogil:
    """Take the writer's lock of a log that is open and sound, and know all of it; otherwise it is
    not held.
    """
    cdef int failed
    cdef int taken
    cdef Status repaired
    cdef Status status = STATUS_OK
    if log.followed != NULL:
        out.os_errno = EROFS
        return fault(out, STATUS_READ_ONLY, "the log is open for reading alone", 0, EROFS)
    taken = control_lock(log.page, LOCK_TIMEOUT_NS, log.process_id)
    if taken != 0 and taken != EOWNERDEAD:
        return fault(out, STATUS_LOCK_HELD, "the lock of the log is held by a process that hangs",
                     0, control_load_32(&log.page.holder))
    pthread_mutex_lock(&log.view_lock)
    status = check_usable(log, out)
    if status == STATUS_OK:
        status = log_use_active(log, out)
    failed = log_failure(log)
    if status == STATUS_OK and failed != 0:
        out.os_errno = failed
        status = fault(
            out, STATUS_FAILED, "an earlier sync of this log failed, or its recovery", 0, failed)
    if status == STATUS_OK and log.producers_unknown:
        status = fault(out, STATUS_FELL_BEHIND, "the log is being reattached; call again", 0, 0)
    if taken == EOWNERDEAD or control_flag(&log.page.sequence) & 1:
        # Also where this one is of no use to the caller: no other caller gets it.
        repaired = log_repair(log, out)
        if repaired == STATUS_FELL_BEHIND and status == STATUS_OK:
            # The process that attaches next repairs it.
            status = repaired
        elif repaired != STATUS_OK and status == STATUS_OK:
            status = fault(out, STATUS_FAILED, "the log could not be repaired after a writer died",
                           0, out.os_errno)
    elif status == STATUS_OK and is_behind(log):
        status = log_follow(log, out)
    if status != STATUS_OK:
        pthread_mutex_unlock(&log.view_lock)
        control_unlock(log.page)
    else:
        # Another process may have reserved more, or given some back.
        log_active(log).reserved_bytes = control_load(&log.page.active_reserved_bytes)
    return status


cdef void log_unlock(PartitionLog* log) noexcept nogil:
    """Give the lock back, and wake readers who wait for what was published."""
    cdef uint32_t wanted
    pthread_mutex_unlock(&log.view_lock)
    control_unlock(log.page)
    wanted = control_take_wanted(log.page)
    if wanted & CONTROL_WANT_OWN:
        control_wake(log.page)
    if wanted & CONTROL_WANT_SHARED and log.wake_word != NULL:
        shared_word_wake(log.wake_word, SHARED_APPEND, log.wake_bit)


cdef Status log_view(PartitionLog* log, Fault* out) noexcept nogil:
    """Know what was published by now, and keep it so until log_view_end; writers of this process
    wait.
    """
    cdef Status status
    log_look(log, NULL)
    status = check_usable(log, out)
    if status != STATUS_OK:
        return status
    if control_flag(&log.page.sequence) & 1 and control_load(
            &log.page.log_end_offset) != load_acquire_64(&log.known_end):
        # A writer is at it, or died there: its lock says which.
        status = log_lock(log, out)
        if status == STATUS_OK:
            log_unlock(log)
        elif status == STATUS_FELL_BEHIND and not log.producers_unknown:
            return status            # Else it is being taken up just now, by the caller.
    pthread_mutex_lock(&log.view_lock)
    status = check_usable(log, out)
    if status == STATUS_OK and log.renewed:
        status = fault(out, STATUS_FELL_BEHIND, "a later session has the log open", 0, 0)
    if status == STATUS_OK:
        status = log_use_active(log, out)
    if status == STATUS_OK and is_behind(log):
        status = log_follow(log, out)
        if status == STATUS_IO and out.os_errno == EAGAIN:
            # Who died there had stored no new log end: of a roll, or a deletion.
            pthread_mutex_unlock(&log.view_lock)
            status = log_lock(log, out)
            if status == STATUS_OK:
                control_unlock(log.page)
                return STATUS_OK
            pthread_mutex_lock(&log.view_lock)
    if status != STATUS_OK:
        pthread_mutex_unlock(&log.view_lock)
    return status


cdef void log_view_end(PartitionLog* log) noexcept nogil:
    pthread_mutex_unlock(&log.view_lock)


cdef Status log_refresh(PartitionLog* log, Fault* out) noexcept nogil:
    """Know what was published by now."""
    cdef Status status
    log_look(log, NULL)
    if load_acquire_64(&log.known_end) == control_load(&log.page.log_end_offset):
        return STATUS_OK
    status = log_view(log, out)
    if status == STATUS_OK:
        log_view_end(log)
    return status
