# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The end of a log in this process: closed cleanly by the last process, or let go of as it is.

Invariants: the page says that the log is sealed only after a sync of all its files, so the next
opening need not verify them; what was not changed since a clean close is not written or synced
again; a closed log takes no appends and no new readers, and the segments
that a reader still holds are unloaded when it releases them.
"""
from libc.stdint cimport int32_t

from eoslog.native.atomics cimport set_mark
from eoslog.native.control_page cimport (
    control_is_as_opened, control_set_flag, control_sync_end, control_sync_holder,
    control_sync_take,
)
from eoslog.native.empty_segment cimport empty_segment_for_close
from eoslog.native.log_lock cimport LOCK_TIMEOUT_NS, log_lock, log_unlock
from eoslog.native.log_sync cimport log_sync_segments, log_synced
from eoslog.native.partition_log cimport (
    deleted_segments_free, log_active, log_end, log_failure, log_use_file, pthread_mutex_lock,
    pthread_mutex_unlock,
)
from eoslog.native.segment cimport Segment, segment_seal, segment_unload
from eoslog.native.snapshot cimport snapshot_write
from eoslog.native.status cimport STATUS_LOCK_HELD, STATUS_OK, fault


cdef Status log_close(PartitionLog* log, bint clean, Fault* out) noexcept nogil:
    """Take no more appends. With `clean`: indexes, snapshot and file lengths as Kafka leaves them,
    and all of it synced, since the next opening does not verify these bytes. No other process
    has the log open then.
    """
    cdef Status status = STATUS_OK
    cdef bint closed_now = False
    if clean:
        if control_sync_take(log.page, LOCK_TIMEOUT_NS, log.process_id) != 0:
            return fault(out, STATUS_LOCK_HELD, "a sync by another process hangs",
                         0, control_sync_holder(log.page))
        pthread_mutex_lock(&log.flush_lock)
        status = log_lock(log, out)
        if status == STATUS_OK:
            closed_now = True
            status = close_cleanly(log, out)
            log.closed = True
            log_unlock(log)
        elif log_failure(log) != 0 or log.closed:
            status = STATUS_OK
        if closed_now and status == STATUS_OK:
            status = log_synced(
                log, log_end(log), log_sync_segments(log, log_end(log) + 1, True), out)
        if closed_now and status == STATUS_OK:
            control_set_flag(&log.page.sealed, 1)
        pthread_mutex_unlock(&log.flush_lock)
        control_sync_end(log.page)
    log_detach(log)
    return status


cdef void log_detach(PartitionLog* log) noexcept nogil:
    """Let go of the log as it is; other processes go on with it."""
    pthread_mutex_lock(&log.view_lock)
    log.closed = True
    pthread_mutex_unlock(&log.view_lock)
    unload_unheld(log)


cdef void unload_unheld(PartitionLog* log) noexcept nogil:
    """Give back all files and mappings; those that a reader holds go when it lets go of them."""
    cdef int32_t index
    pthread_mutex_lock(&log.segments_lock)
    for index in range(log.segment_count):
        if log.segments[index].references == 0:
            segment_unload(log.segments[index])
    pthread_mutex_unlock(&log.segments_lock)
    deleted_segments_free(log)


cdef Status close_cleanly(PartitionLog* log, Fault* out) noexcept nogil:
    cdef Segment* active
    cdef Status status = empty_segment_for_close(log, out)
    if status != STATUS_OK:
        return status
    active = log_active(log)
    # The files are, too, if none was made, removed or written ahead of the close.
    if control_is_as_opened(log.page) and not (log.directory_unsynced or active.indexes_unsynced):
        return STATUS_OK
    status = log_use_file(log, active, out)
    if status == STATUS_OK:
        status = segment_seal(active, log.directory, out)
    set_mark(&active.unsynced)
    if status == STATUS_OK and log.producers.evicted_count == 0:
        # That of a roll is not synced.
        if log_end(log) > 0 and (
                log.snapshot_offset != log_end(log) or active.base_offset == log_end(log)):
            status = snapshot_write(log.directory, log_end(log), &log.producers, True, out)
            set_mark(&log.directory_unsynced)
    return status
