# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""One partition's log: its segments, its producers, its published offsets.

Invariants: segments are in the order of their base offsets and only the last takes appends; readers
see nothing at or above the published log end, and every byte below it was in place before it was
published; a log whose sync failed takes nothing more. What a process knows of the log is what the
batches below known_end say, whoever wrote them; a writer knows all of it before it writes. Lock
order: the turn to sync, flush_lock, the page's lock (writers of all processes), view_lock,
segments_lock.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc

from eoslog.native.abort_index cimport abort_index_free, abort_index_init
from eoslog.native.atomics cimport load_acquire_64, store_release_64
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport (
    EOWNERDEAD, control_flag, control_load, control_load_32, control_lock, control_raise,
    control_set_flag, control_store, control_store_32, control_sync_end, control_sync_holder,
    control_sync_take, control_take_wanted, control_unlock, control_write_begin, control_write_end,
)
from eoslog.native.deleted_segments cimport deleted_segments_free, segment_retire
from eoslog.native.empty_segment cimport empty_segment_for_close
from eoslog.native.log_follow cimport log_follow, log_repair, log_unload_idle
from eoslog.native.log_sync cimport log_sync_segments
from eoslog.native.mapped_io cimport eos_file_bytes, eos_identity
from eoslog.native.ongoing_transactions cimport ongoing_first, ongoing_free, ongoing_init
from eoslog.native.producer_table cimport table_free, table_init
from eoslog.native.segment cimport (
    segment_create, segment_indexes_hold, segment_init, segment_load, segment_rebuild_indexes,
    segment_seal, segment_store_indexes, segment_unload,
)
from eoslog.native.shared_page cimport shared_word_wake
from eoslog.native.snapshot cimport snapshot_write
from eoslog.native.status cimport (
    STATUS_CLOSED, STATUS_CORRUPT, STATUS_FAILED, STATUS_FELL_BEHIND, STATUS_IO, STATUS_LOCK_HELD,
    STATUS_NO_MEMORY, STATUS_OFFSET_OUT_OF_RANGE, STATUS_OK, fault,
)

cdef extern from "<errno.h>" nogil:
    int EAGAIN
    int ENOENT
    int ESTALE

cdef enum:
    LOCK_TIMEOUT_NS = 30_000_000_000  # A lock is held for one append; who has it for longer hangs.


cdef Status log_init(PartitionLog* log) noexcept nogil:
    """Prepare the parts that need it; directories, options and page are the caller's."""
    eos_identity(log.directory, &log.device, &log.inode)
    table_init(&log.producers)
    ongoing_init(&log.ongoing)
    abort_index_init(&log.aborts)
    log.segments = NULL
    log.segment_count = 0
    log.segment_capacity = 0
    log.deleted = NULL
    log.snapshot_offset = -1
    pthread_mutex_init(&log.segments_lock, NULL)
    pthread_mutex_init(&log.view_lock, NULL)
    pthread_mutex_init(&log.flush_lock, NULL)
    log.passed_round = -1
    log.opened = True
    return STATUS_OK


cdef void log_free(PartitionLog* log) noexcept nogil:
    """Give all memory and files back; what was not written stays unwritten."""
    cdef int32_t index
    if not log.opened:
        return
    deleted_segments_free(log)
    for index in range(log.segment_count):
        segment_unload(log.segments[index])
        free(log.segments[index])
    free(log.segments)
    log.segments = NULL
    log.segment_count = 0
    table_free(&log.producers)
    ongoing_free(&log.ongoing)
    abort_index_free(&log.aborts)
    pthread_mutex_destroy(&log.segments_lock)
    pthread_mutex_destroy(&log.view_lock)
    pthread_mutex_destroy(&log.flush_lock)
    log.opened = False


cdef Status log_add_segment(
    PartitionLog* log, int64_t base_offset, int64_t file_bytes
) noexcept nogil:
    """Append an unloaded segment to the list; base offsets rise."""
    cdef Segment* segment
    cdef Segment** segments
    if log.segment_count == log.segment_capacity:
        # Readers bisect the list under the same lock that guards this change.
        segments = <Segment**>realloc(
            log.segments, <size_t>(log.segment_capacity * 2 + 8) * sizeof(Segment*))
        if segments == NULL:
            return STATUS_NO_MEMORY
        log.segments = segments
        log.segment_capacity = log.segment_capacity * 2 + 8
    segment = <Segment*>malloc(sizeof(Segment))
    if segment == NULL:
        return STATUS_NO_MEMORY
    segment_init(segment, base_offset)
    segment.used_bytes = file_bytes
    segment.reserved_bytes = file_bytes
    log.segments[log.segment_count] = segment
    log.segment_count += 1
    return STATUS_OK


cdef Status log_load_segment(
    PartitionLog* log, Segment* segment, bint writable, Fault* out
) noexcept nogil:
    """Map a segment and have its indexes in memory, rebuilt from the log where the files do not
    do.
    """
    cdef Fault ignored
    cdef Status status
    if segment.loaded:
        return STATUS_OK
    log_unload_idle(log)
    status = segment_load(segment, log.directory, writable, &log.options.segment, out)
    if status != STATUS_OK:
        return status
    if not writable and (
            not segment_indexes_hold(segment)
            or (segment.offset_index.count == 0
                and segment.used_bytes > 2 * log.options.segment.index_interval_bytes)):
        status = segment_rebuild_indexes(segment, &log.options.segment, out)
        if status == STATUS_OK:
            # For the next opening; where it cannot be written it is made anew each time.
            segment_store_indexes(segment, log.directory, False, &ignored)
    return status


cdef Segment* log_active(PartitionLog* log) noexcept nogil:
    EOS_CHECK(log.segment_count > 0, "partition log: there is an active segment")
    return log.segments[log.segment_count - 1]


cdef int64_t log_end(PartitionLog* log) noexcept nogil:
    """Log end offset as far as this process looked: every record below it may be read. For a
    writer, who has the lock, it is the end.
    """
    return load_acquire_64(&log.known_end)


cdef int64_t log_stable_end(PartitionLog* log) noexcept nogil:
    """Last stable offset as far as this process looked; never below the log's start."""
    cdef int64_t stable = load_acquire_64(&log.stable_end)
    cdef int64_t start = control_load(&log.page.log_start_offset)
    return stable if stable > start else start


cdef void log_fail(PartitionLog* log, int error) noexcept nogil:
    """From now on nobody, in no process, appends: what the disk holds is not known."""
    control_store_32(&log.page.failed_errno, error if error != 0 else 5)


cdef int log_failure(PartitionLog* log) noexcept nogil:
    """Why nothing is appended any more, as an errno; 0 if all is well."""
    return control_load_32(&log.page.failed_errno)


cdef Status check_usable(PartitionLog* log, Fault* out) noexcept nogil:
    if log.closed:
        return fault(out, STATUS_CLOSED, "the log is closed", 0, 0)
    if control_flag(&log.page.deleted):
        return fault(out, STATUS_CLOSED, "the topic was deleted", 0, 0)
    return STATUS_OK


cdef inline bint is_behind(PartitionLog* log) noexcept nogil:
    """Whether another process published something that is not known here. The caller holds
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
    cdef int taken = control_lock(log.page, LOCK_TIMEOUT_NS, log.process_id)
    cdef Status repaired
    cdef Status status = STATUS_OK
    if taken != 0 and taken != EOWNERDEAD:
        return fault(out, STATUS_LOCK_HELD, "the lock of the log is held by a process that hangs",
                     0, control_load_32(&log.page.holder))
    pthread_mutex_lock(&log.view_lock)
    status = check_usable(log, out)
    failed = log_failure(log)
    if status == STATUS_OK and failed != 0:
        out.os_errno = failed
        status = fault(out, STATUS_FAILED, "an earlier sync of this log failed", 0, failed)
    if status == STATUS_OK and log.producers_unknown:
        status = fault(out, STATUS_FELL_BEHIND, "the log is being taken up anew; call again", 0, 0)
    if taken == EOWNERDEAD or control_flag(&log.page.sequence) & 1:
        # Also where this one is of no use to the caller: nobody else will be told of it.
        repaired = log_repair(log, out)
        if repaired == STATUS_FELL_BEHIND and status == STATUS_OK:
            # Whoever attaches anew repairs it.
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
    pthread_mutex_unlock(&log.view_lock)
    control_unlock(log.page)
    if control_take_wanted(log.page) and log.wake_word != NULL:
        shared_word_wake(log.wake_word)


cdef Status log_view(PartitionLog* log, Fault* out) noexcept nogil:
    """Know what was published by now, and keep it so until log_view_end; writers of this process
    wait.
    """
    cdef Status status = check_usable(log, out)
    if status != STATUS_OK:
        return status
    if control_flag(&log.page.sequence) & 1 and control_load(
            &log.page.log_end_offset) != load_acquire_64(&log.known_end):
        # A writer is at it, or died there: its lock tells.
        status = log_lock(log, out)
        if status == STATUS_OK:
            log_unlock(log)
        elif status == STATUS_FELL_BEHIND and not log.producers_unknown:
            return status            # Else it is being taken up just now, by the caller.
    pthread_mutex_lock(&log.view_lock)
    status = check_usable(log, out)
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
    if load_acquire_64(&log.known_end) == control_load(&log.page.log_end_offset):
        return STATUS_OK
    status = log_view(log, out)
    if status == STATUS_OK:
        log_view_end(log)
    return status


cdef void log_note_end(PartitionLog* log, int64_t log_end_offset) noexcept nogil:
    """Everything below an offset is known here now. The caller holds view_lock."""
    cdef int64_t stable = ongoing_first(&log.ongoing)
    if stable < 0 or stable > log_end_offset:
        stable = log_end_offset
    if log.stable_unknown or log.producers_unknown:
        stable = control_load(&log.page.log_start_offset)
    # First what is lower: a reader may take one before and the other after.
    if stable < log.stable_end:
        store_release_64(&log.stable_end, stable)
        store_release_64(&log.known_end, log_end_offset)
    else:
        store_release_64(&log.known_end, log_end_offset)
        store_release_64(&log.stable_end, stable)


cdef void log_publish(PartitionLog* log, int64_t log_end_offset) noexcept nogil:
    """Let readers see everything below log_end_offset; its bytes are in place, and the open and
    the aborted transactions are known. The caller holds the lock.
    """
    cdef Segment* active = log_active(log)
    control_write_begin(log.page)
    control_store(&log.page.active_base_offset, active.base_offset)
    control_store(&log.page.active_valid_bytes, active.used_bytes)
    control_store(&log.page.active_reserved_bytes, active.reserved_bytes)
    control_store(&log.page.first_base_offset, log.segments[0].base_offset)
    control_store(&log.page.log_end_offset, log_end_offset)
    control_write_end(log.page)
    log_note_end(log, log_end_offset)


cdef Status log_check_directory(PartitionLog* log, Fault* out) noexcept nogil:
    """What was opened is still there, before a file is made in it: else that would go to another
    log.
    """
    cdef uint64_t device = 0
    cdef uint64_t inode = 0
    if eos_identity(log.directory, &device, &inode) == 0 and (
            device == log.device and inode == log.inode):
        return STATUS_OK
    out.os_errno = ESTALE
    return fault(out, STATUS_IO, "the log's directory was replaced while it was open", 0, ESTALE)


cdef Status log_start_segment(PartitionLog* log, int64_t base_offset, Fault* out) noexcept nogil:
    """Make a new, empty active segment at the end of the list."""
    cdef Segment* segment
    cdef Status status = log_check_directory(log, out)
    if status != STATUS_OK:
        return status
    pthread_mutex_lock(&log.segments_lock)
    log_unload_idle(log)
    status = log_add_segment(log, base_offset, 0)
    if status == STATUS_OK:
        segment = log.segments[log.segment_count - 1]
        status = segment_create(
            segment, log.directory, log.spare_directory, log.options.spare_segments,
            &log.options.segment, out)
        if status != STATUS_OK:
            log.segment_count -= 1
            free(segment)
    log.directory_unsynced = True
    pthread_mutex_unlock(&log.segments_lock)
    return status


cdef Status log_close(PartitionLog* log, bint clean, Fault* out) noexcept nogil:
    """Take no more appends. With `clean`: indexes, snapshot and file lengths as Kafka leaves them,
    and all of it synced, since nobody will verify these bytes on the next opening. So is nobody
    else at the log then.
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
            status = log_sync_segments(log, log_end(log) + 1, True, out)
        if closed_now and status == STATUS_OK:
            control_raise(&log.page.recovery_point, log_end(log))
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
    status = segment_seal(active, log.directory, out)
    active.unsynced = True
    if status == STATUS_OK and log.producers.evicted_count == 0:
        if log_end(log) > 0 and log.snapshot_offset != log_end(log):
            status = snapshot_write(log.directory, log_end(log), &log.producers, True, out)
            log.directory_unsynced = True
    return status


cdef int32_t segment_index_for(PartitionLog* log, int64_t offset) noexcept nogil:
    """Greatest segment whose base is <= offset, or -1. The caller holds segments_lock."""
    cdef int32_t low = 0
    cdef int32_t high = log.segment_count
    cdef int32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if log.segments[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef Status log_acquire(
    PartitionLog* log, int64_t offset, Segment** segment_out, Fault* out
) noexcept nogil:
    """The segment that may hold `offset`, loaded, held for a reader until log_release."""
    cdef Segment* segment
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int64_t used_bytes
    cdef int32_t index
    cdef Status status
    pthread_mutex_lock(&log.segments_lock)
    index = segment_index_for(log, offset)
    if index < 0:
        index = 0
    if log.closed:
        # Its files were let go of: others may have their names by now.
        pthread_mutex_unlock(&log.segments_lock)
        return fault(out, STATUS_CLOSED, "the log is closed", 0, 0)
    if log.segment_count == 0:
        pthread_mutex_unlock(&log.segments_lock)
        return fault(out, STATUS_OFFSET_OUT_OF_RANGE, "the log has no segment", 0, offset)
    segment = log.segments[index]
    status = log_load_segment(log, segment, False, out)
    if control_flag(&log.page.deleted):
        # The topic, by any process, and perhaps made anew: the files could be those of the new one.
        pthread_mutex_unlock(&log.segments_lock)
        return fault(out, STATUS_CLOSED, "the topic was deleted", 0, 0)
    if status == STATUS_IO and out.os_errno == ENOENT and (
            offset < control_load(&log.page.log_start_offset)):
        # Another process deleted it.
        status = fault(out, STATUS_OFFSET_OUT_OF_RANGE, "the offset is not in the log any more",
                       control_load(&log.page.log_start_offset), offset)
    # A file cut short by somebody else is noticed before it is touched: a store or load through the
    # map beyond its end would be a SIGBUS. What was written is asked first: an append lets both
    # grow.
    if status == STATUS_OK and segment.fd >= 0:
        used_bytes = load_acquire_64(&segment.used_bytes)
        if (eos_file_bytes(segment.fd, &file_bytes, &modified_ms) != 0
                or file_bytes < used_bytes):
            out.base_offset = segment.base_offset
            out.position_bytes = file_bytes
            status = fault(
                out, STATUS_CORRUPT, "a segment file is shorter than what was written to it",
                used_bytes, file_bytes)
    if status == STATUS_OK:
        segment.references += 1
        segment_out[0] = segment
    pthread_mutex_unlock(&log.segments_lock)
    return status


cdef void log_release(PartitionLog* log, Segment* segment) noexcept nogil:
    """Give back a segment from log_acquire."""
    pthread_mutex_lock(&log.segments_lock)
    EOS_CHECK(segment.references > 0, "partition log: a held segment has a holder")
    segment.references -= 1
    if segment.references == 0 and segment.retired:
        segment_retire(log, segment)
    elif segment.references == 0 and log.closed:
        segment_unload(segment)
    pthread_mutex_unlock(&log.segments_lock)
    if log.closed:
        deleted_segments_free(log)       # Nobody comes after.


cdef int64_t log_next_base(PartitionLog* log, const Segment* segment) noexcept nogil:
    """Base offset of the segment behind this one, -1 if it is the last."""
    cdef int64_t base = -1
    cdef int32_t low = 0
    cdef int32_t high
    cdef int32_t middle
    pthread_mutex_lock(&log.segments_lock)
    high = log.segment_count
    while low < high:
        middle = low + (high - low) // 2
        if log.segments[middle].base_offset <= segment.base_offset:
            low = middle + 1
        else:
            high = middle
    if low < log.segment_count:
        base = log.segments[low].base_offset
    pthread_mutex_unlock(&log.segments_lock)
    return base
