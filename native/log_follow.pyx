# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Following a log that other processes append to, and repairing what a dead one left.

What was published never changes, so it is taken in without the writer's lock: headers are walked
from where this process stopped, into the indexes, the producers, the transactions. A segment that
is not the active one any more was cut to its batches before another became it; the next one begins
where it ends.

Invariants: nothing beyond the published end is looked at, no byte beyond the end of a file; what
this process knows is always that of whole batches; the log end that was published is never taken
back, whatever its writer had still to do.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from eoslog.native.atomics cimport set_mark, store_release_64
from eoslog.native.control_page cimport (
    EOWNERDEAD, ControlView, control_flag, control_load, control_load_32, control_lock,
    control_unlock, control_view, control_write_begin,
)
from eoslog.native.empty_segment cimport empty_segment_make_anew, empty_segment_renew
from eoslog.native.index_file cimport index_file_append
from eoslog.native.log_replay cimport log_replay_batch
from eoslog.native.mapped_io cimport (
    eos_file_bytes, eos_file_length, eos_identity, eos_sync_data,
)
from eoslog.native.segment_files cimport eos_remove_below
from eoslog.native.partition_log cimport (
    SegmentFile, log_active, log_add_segment, log_drop_segments, log_fail, log_load_writable,
    log_look, log_note_end, log_publish, log_unload_idle, log_use_file, pthread_mutex_lock,
    pthread_mutex_unlock, segment_retire,
)
from eoslog.native.record_batch cimport (
    BATCH_HEADER_BYTES, BatchHeader, batch_terminate,
)
from eoslog.native.segment cimport (
    Segment, batch_end_offset, batch_in_chain, segment_begin_anew, segment_index_active,
    segment_note_batch, segment_path,
)
from eoslog.native.segment_pages cimport segment_pages_follow, segment_pages_inherit
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport (
    STATUS_CORRUPT, STATUS_FAILED, STATUS_FELL_BEHIND, STATUS_IO, STATUS_LOCK_HELD, STATUS_OK,
    fault,
)

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept

cdef extern from "<errno.h>" nogil:
    int ENOENT
    int EAGAIN

cdef enum:
    ATTACH_TIMEOUT_NS = 30_000_000_000


cdef Status log_follow(PartitionLog* log, Fault* out) noexcept nogil:
    """Take in what was published since the last look. The caller holds view_lock."""
    cdef ControlView view
    cdef int64_t end = log.known_end
    cdef Status status = STATUS_OK
    if log.followed != NULL:
        log_look(log, &view)
    elif not control_view(log.page, &view):
        out.os_errno = EAGAIN
        return fault(out, STATUS_IO, "a writer holds the log's page", 0, EAGAIN)
    # After the look at the page: a file that became the segment before that is seen here.
    status = empty_segment_renew(log, out)
    while status == STATUS_OK:
        if log_active(log).base_offset == view.active_base_offset:
            log_active(log).reserved_bytes = view.active_reserved_bytes
            if log.followed != NULL:
                status = bytes_there(log, &view.active_valid_bytes, out)
            if status == STATUS_OK:
                status = take_in(log, view.active_valid_bytes, view.log_end_offset, &end, out)
            break
        status = follow_to_next(log, &view, &end, out)
    if status == STATUS_OK and end != view.log_end_offset:
        out.base_offset = log_active(log).base_offset
        status = fault(out, STATUS_CORRUPT, "the log ends elsewhere than its page says",
                       view.log_end_offset, end)
    if status == STATUS_OK:
        log_note_end(log, end)
        log_drop_segments(log, view.first_base_offset)
    return status


cdef Status bytes_there(PartitionLog* log, int64_t* bytes_out, Fault* out) noexcept nogil:
    """How far the active segment of a log that is only read here may be looked at. Its valid bytes
    need not be of the same moment as the log's end: that alone bounds the walk.
    """
    cdef Segment* active = log_active(log)
    cdef Status status = log_use_file(log, active, out)
    if status != STATUS_OK:
        return status
    out.os_errno = eos_file_length(active.fd, bytes_out)
    if out.os_errno != 0:
        return fault(out, STATUS_IO, "a segment file could not be looked at", 0, out.os_errno)
    if bytes_out[0] > active.map_bytes:
        bytes_out[0] = active.map_bytes
    return STATUS_OK


cdef Status follow_to_next(
    PartitionLog* log, const ControlView* view, int64_t* end, Fault* out
) noexcept nogil:
    """The last segment known here was ended by another process: take the rest of it in, and have
    the next one after it.
    """
    cdef Segment* ended = log_active(log)
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef Status status = log_use_file(log, ended, out)
    cdef int error
    if status != STATUS_OK:
        return status
    error = eos_file_bytes(ended.fd, &file_bytes, &modified_ms)
    if error != 0:
        out.os_errno = error
        return fault(out, STATUS_IO, "a segment file could not be looked at", 0, error)
    status = take_in(log, file_bytes, view.log_end_offset, end, out)
    if status != STATUS_OK:
        return status
    if ended.max_timestamp >= 0:
        index_file_append(&ended.time_index, ended.max_timestamp,
                          <int>(ended.max_timestamp_offset - ended.base_offset))
    # The process that ended it wrote its index files.
    ended.offset_index.stored_count = ended.offset_index.count
    ended.time_index.stored_count = ended.time_index.count
    ended.reserved_bytes = ended.used_bytes
    ended.active = False
    set_mark(&ended.unsynced)
    set_mark(&ended.indexes_unsynced)
    if end[0] > view.active_base_offset:
        return fault(out, STATUS_CORRUPT, "the active segment lies below the end of the log",
                     view.active_base_offset, end[0])
    status = add_active(log, end[0], out)
    if status == STATUS_OK:
        segment_pages_inherit(log_active(log), ended)
    return status


cdef Status add_active(PartitionLog* log, int64_t base_offset, Fault* out) noexcept nogil:
    """Have a segment that another process made as the last one, nothing of it taken in yet."""
    cdef int64_t first_base_offset
    cdef Status status = log_take_up_segment(log, base_offset, out)
    if status != STATUS_IO or out.os_errno != ENOENT:
        return status
    # Looked at now: a file goes after the page says so, and that may be later than the last look.
    log_look(log, NULL)
    first_base_offset = control_load(&log.page.first_base_offset)
    if base_offset < first_base_offset:
        status = fault(
            out, STATUS_FELL_BEHIND,
            "segments were deleted before this process had looked at them; call again",
            first_base_offset, base_offset)
    return status


cdef Status log_take_up_segment(PartitionLog* log, int64_t base_offset, Fault* out) noexcept nogil:
    """Have a segment whose file is there as the active one, nothing of it taken in yet."""
    cdef Segment* segment
    cdef Status status
    pthread_mutex_lock(&log.segments_lock)
    log_unload_idle(log)
    status = log_add_segment(log, base_offset, 0)
    if status == STATUS_OK:
        segment = log.segments[log.segment_count - 1]
        segment.active = True
        status = log_load_writable(log, segment, out)
        if status != STATUS_OK:
            log.segment_count -= 1
            free(segment)
        else:
            segment_begin_anew(segment)
    pthread_mutex_unlock(&log.segments_lock)
    set_mark(&log.directory_unsynced)
    return status


cdef Status take_in(
    PartitionLog* log, int64_t upper_bytes, int64_t upper_offset, int64_t* end, Fault* out
) noexcept nogil:
    """Walk the batches of the last segment from where it is known up to a position or an offset,
    whichever comes first.
    """
    cdef Segment* segment = log_active(log)
    cdef int64_t position = segment.used_bytes
    cdef BatchHeader header
    cdef Status status
    segment_pages_follow(segment, upper_bytes, &log.options.segment)
    while position + BATCH_HEADER_BYTES <= upper_bytes and end[0] < upper_offset:
        status = batch_in_chain(segment, position, upper_bytes, end[0], &header, out)
        if status == STATUS_OK and not log.producers_unknown:
            status = log_replay_batch(log, segment.map + position, &header)
        if status != STATUS_OK:
            return status
        segment_note_batch(segment, &header, position, &log.options.segment)
        end[0] = batch_end_offset(&header)
        position += header.batch_bytes
        set_mark(&segment.unsynced)
        store_release_64(&segment.used_bytes, position)
        # By batches, so that what was taken in is known even if a later one cannot be.
        store_release_64(&log.known_end, end[0])
    return STATUS_OK


cdef void forget_segments(PartitionLog* log) noexcept nogil:
    """Before the log is attached to again: nothing of it is known here. The caller holds view_lock
    and segments_lock.
    """
    cdef Segment* segment
    cdef int32_t index
    log.producers_unknown = True
    for index in range(log.segment_count):
        segment = log.segments[index]
        segment.retired = True
        if segment.references == 0:
            segment_retire(log, segment)
    log.segment_count = 0


cdef Status log_repair(PartitionLog* log, Fault* out) noexcept nogil:
    """A writer died with the lock: make the page and the end of the files what the published log
    end says. The caller holds the lock and view_lock.

    Whatever step it died at, every batch below the published end is whole, and the segment that
    holds it is found by walking on from what is known here. A segment that was begun and never
    published holds nothing.
    """
    cdef ControlView view
    cdef Segment* active
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int64_t end = log.known_end
    cdef int error
    cdef Status status = STATUS_OK
    # Odd until it is done: if this one dies or fails too, the next one begins again.
    control_write_begin(log.page)
    if log.closed or log.producers_unknown:
        return fault(out, STATUS_IO, "the log is closed here", 0, 0)
    view.log_end_offset = control_load(&log.page.log_end_offset)
    view.active_base_offset = control_load(&log.page.active_base_offset)
    view.first_base_offset = control_load(&log.page.first_base_offset)
    status = empty_segment_renew(log, out)
    while status == STATUS_OK:
        active = log_active(log)
        status = log_use_file(log, active, out)
        if status != STATUS_OK:
            return status
        error = eos_file_bytes(active.fd, &file_bytes, &modified_ms)
        if error != 0:
            out.os_errno = error
            return fault(out, STATUS_IO, "a segment file could not be looked at", 0, error)
        if active.base_offset == view.active_base_offset:
            status = take_in(log, file_bytes, view.log_end_offset, &end, out)
            break
        status = follow_to_next(log, &view, &end, out)
    if status == STATUS_OK and end != view.log_end_offset:
        status = fault(out, STATUS_CORRUPT, "the log ends elsewhere than its page says",
                       view.log_end_offset, end)
    if status != STATUS_OK:
        return status
    # Else what is published next would take the deletion back.
    log_drop_segments(log, view.first_base_offset)
    return end_repair(log, end, file_bytes, out)


cdef Status end_repair(
    PartitionLog* log, int64_t end, int64_t file_bytes, Fault* out
) noexcept nogil:
    """The last segment is taken in up to the log end: nothing is left after it."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* active = log_active(log)
    cdef Status status
    if active.used_bytes == 0:
        # The file may be a staged one, which was about to become the segment: not a byte of it may
        # change, and it must not come in by what is appended next.
        status = empty_segment_make_anew(log, out)
        if status != STATUS_OK:
            return status
        active = log_active(log)
        file_bytes = 0
    # It may have been cut to its batches for a roll that went no further.
    active.reserved_bytes = file_bytes
    batch_terminate(active.map + active.used_bytes, active.map + active.reserved_bytes)
    if log.options.durable:
        status = clear_behind_end(log, out)
        if status != STATUS_OK:
            return status
    if active.base_offset != end:
        segment_path(log.directory, end, b".log", path)
        if unlink(path) == 0:
            set_mark(&log.directory_unsynced)
    # Before anybody deletes the next segment: what is left of an older one would be a gap then.
    if eos_remove_below(log.directory, log.segments[0].base_offset) != 0:
        set_mark(&log.directory_unsynced)
    log_publish(log, end)
    return STATUS_OK


cdef Status clear_behind_end(PartitionLog* log, Fault* out) noexcept nogil:
    """Take what the dead writer stored, one batch at most, off the disk too: a journal's record of
    what is appended next ends with that, and does not reach over it.
    """
    cdef Segment* active = log_active(log)
    cdef int64_t bytes = active.reserved_bytes - active.used_bytes
    cdef int error
    if bytes > log.options.max_message_bytes:
        bytes = log.options.max_message_bytes
    if bytes <= 0:
        return STATUS_OK
    memset(active.map + active.used_bytes, 0, <size_t>bytes)
    error = eos_sync_data(active.fd)
    if error != 0:
        log_fail(log, error)
        out.os_errno = error
        return fault(out, STATUS_FAILED, "a sync failed", 0, error)
    return STATUS_OK


cdef Status log_attach_lock(
    PartitionLog* log, ControlView* view, Fault* out
) noexcept nogil:
    """Take the writer's lock of a log that this process has not read yet, for log_attach, which
    works on the view; where a writer died its valid bytes are -1.
    """
    cdef int taken
    if log.followed != NULL:
        log_look(log, view)
        return STATUS_OK
    taken = control_lock(log.page, ATTACH_TIMEOUT_NS, log.process_id)
    if taken != 0 and taken != EOWNERDEAD:
        return fault(out, STATUS_LOCK_HELD, "the lock of the log is held by a process that hangs",
                     0, control_load_32(&log.page.holder))
    if taken == EOWNERDEAD:
        control_write_begin(log.page)
    view.log_end_offset = control_load(&log.page.log_end_offset)
    view.active_base_offset = control_load(&log.page.active_base_offset)
    view.active_valid_bytes = control_load(&log.page.active_valid_bytes)
    view.active_reserved_bytes = control_load(&log.page.active_reserved_bytes)
    view.first_base_offset = control_load(&log.page.first_base_offset)
    if control_flag(&log.page.sequence) & 1:
        view.active_valid_bytes = -1
    return STATUS_OK


cdef void log_attach_unlock(PartitionLog* log) noexcept nogil:
    if log.followed == NULL:
        control_unlock(log.page)


cdef Status log_attach(
    PartitionLog* log, const ControlView* view, const SegmentFile* files, int32_t file_count,
    int64_t checkpoint, Fault* out,
) noexcept nogil:
    """Take up a log that other processes have open: its segments are listed, the last one is
    mapped. The caller holds the lock and view_lock; producers are restored later. If a writer died,
    what he left is repaired. Below `checkpoint` everything is synced, index files too.

    A log that is only read here is locked by none: `view` is of before its files were listed. If
    segments were deleted since it fails, and the caller looks again.

    A reader, who takes segments_lock alone, finds the segments as they were or as they are.
    """
    cdef int64_t end = 0
    cdef int64_t file_bytes = 0
    cdef Status status
    pthread_mutex_lock(&log.segments_lock)
    forget_segments(log)
    if log.next_directory != NULL:
        log.directory = log.next_directory
        log.next_directory = NULL
        log.options.segment.overlay = False
        eos_identity(log.directory, &log.device, &log.inode)
    status = attach_segments(log, view, files, file_count, checkpoint, &end, &file_bytes, out)
    log.closed = status != STATUS_OK
    log.renewed = False
    pthread_mutex_unlock(&log.segments_lock)
    if status != STATUS_OK:
        return status
    if control_flag(&log.page.sequence) & 1:
        return end_repair(log, end, file_bytes, out)
    log_note_end(log, end)
    return STATUS_OK


cdef Status attach_segments(
    PartitionLog* log, const ControlView* view, const SegmentFile* files, int32_t file_count,
    int64_t checkpoint, int64_t* end, int64_t* file_bytes, Fault* out,
) noexcept nogil:
    """List the segments that the page names, and map the last one up to the published end. The
    caller holds segments_lock.
    """
    cdef int64_t first = view.first_base_offset
    cdef int64_t active_base = view.active_base_offset
    cdef Segment* active
    cdef int32_t index
    cdef Status status = STATUS_OK
    for index in range(file_count):
        if first <= files[index].base_offset <= active_base and status == STATUS_OK:
            status = log_add_segment(log, files[index].base_offset, files[index].file_bytes)
    if status != STATUS_OK:
        return status
    if log.segment_count == 0:
        return fault(out, STATUS_CORRUPT, "the partition's segments are gone", first, 0)
    active = log_active(log)
    active.active = True
    status = log_load_writable(log, active, out)
    if status != STATUS_OK:
        return status
    if active.base_offset != active_base:
        return fault(out, STATUS_CORRUPT, "the active segment's file is gone",
                     active_base, active.base_offset)
    end[0] = active.base_offset
    file_bytes[0] = active.reserved_bytes
    if view.active_valid_bytes < 0:
        segment_begin_anew(active)
        status = take_in(log, file_bytes[0], view.log_end_offset, end, out)
    else:
        active.used_bytes = view.active_valid_bytes
        active.reserved_bytes = view.active_reserved_bytes
        status = segment_index_active(active, &log.options.segment, end, out)
    if status == STATUS_OK and active.used_bytes == 0:
        end[0] = view.log_end_offset
    if status == STATUS_OK and end[0] != view.log_end_offset:
        status = fault(out, STATUS_CORRUPT, "the log ends elsewhere than its page says",
                       view.log_end_offset, end[0])
    # Whose bytes were synced is not known here, but for those below the recovery point; whose index
    # files were, but for those below a checkpoint's.
    for index in range(log.segment_count - 1):
        log.segments[index].unsynced = (
            log.segments[index + 1].base_offset > control_load(&log.page.recovery_point))
        log.segments[index].indexes_unsynced = log.segments[index + 1].base_offset > checkpoint
    set_mark(&active.unsynced)
    set_mark(&log.directory_unsynced)
    return status
