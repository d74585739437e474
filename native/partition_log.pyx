# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""One partition's log as this process knows it: its list of segments, its published offsets.

This module prepares and frees the struct; lists, loads, holds, unloads, retires and frees segments;
starts a segment; and publishes the log end. The other log modules build on it and never the other
way round: log_follow takes in what other processes wrote, log_lock locks the log, and log_append,
log_read, log_sync, log_close and the rest use these.

A segment that leaves the log goes into the list `deleted` once no reader holds it. When a file
without a name is closed for the last time, its blocks are freed within that call: a quarter of a
second for 1 GiB, where they are discarded on the way. Under the log's lock every writer of every
process would wait for that. So the list is emptied without the lock: by the thread that deleted,
and by the background thread of each process.

Invariants: segments are in the order of their base offsets and only the last takes appends; readers
see nothing at or above the published log end, and every byte below it was in place before it was
published; a log whose sync failed takes nothing more; a segment in the list `deleted` is not in
`segments`, and no reader holds it; the file of the active segment is closed only while none has
view_lock or holds the segment, where calls wait for the disk only while it is synced, and it is
opened again before it is used; its map may stay, with the file's lock, and takes appends. Lock
order: the turn to sync, flush_lock, the page's lock (writers of all processes), view_lock,
segments_lock.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove

from eoslog.native.abort_index cimport (
    abort_index_drop_below, abort_index_free, abort_index_init,
)
from eoslog.native.atomics cimport (
    add_64, after_files, load_acquire_64, set_mark, store_release_64,
)
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport (
    control_flag, control_follow, control_load, control_raise, control_store, control_store_32,
    control_write_begin, control_write_end,
)
from eoslog.native.mapped_io cimport (
    eos_file_length, eos_identity, eos_sync_data, eos_sync_directory,
)
from eoslog.native.open_files cimport (
    file_owner_enter, file_owner_leave, file_owner_unlink, mapped_files_now, open_files_make_room,
    open_files_most, open_files_now,
)
from eoslog.native.ongoing_transactions cimport ongoing_first, ongoing_free, ongoing_init
from eoslog.native.producer_table cimport table_free, table_init
from eoslog.native.segment cimport (
    segment_close_file, segment_create, segment_indexes_hold, segment_init, segment_load,
    segment_rebuild_indexes, segment_reopen_file, segment_store_indexes, segment_unload,
)
from eoslog.native.status cimport (
    STATUS_CLOSED, STATUS_CORRUPT, STATUS_FELL_BEHIND, STATUS_IO, STATUS_NO_MEMORY,
    STATUS_OFFSET_OUT_OF_RANGE, STATUS_OK, fault,
)

cdef extern from "<errno.h>" nogil:
    int ENOENT
    int ESTALE

cdef enum:
    LOADED_SEGMENTS_MAX = 32         # Of one log.

cdef int64_t waiting_count = 0       # Of segments in the lists `deleted` of all logs.


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
    pthread_mutex_init(&log.follow_lock, NULL)
    log.files.owner = log
    log.files.close_files = close_files
    log.passed_round = -1
    log.opened = True
    return STATUS_OK


cdef void log_free(PartitionLog* log) noexcept nogil:
    """Give all memory and files back; what was not written stays unwritten."""
    cdef int32_t index
    if not log.opened:
        return
    file_owner_leave(&log.files)
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
    pthread_mutex_destroy(&log.follow_lock)
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
    segment.read_only = log.followed != NULL
    segment.used_bytes = file_bytes
    segment.reserved_bytes = file_bytes
    log.segments[log.segment_count] = segment
    log.segment_count += 1
    return STATUS_OK


cdef Status log_load_writable(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil:
    """Map a segment that is, or was, the active one: as far as all processes do."""
    return segment_load(
        segment, log.directory, control_load(&log.page.active_capacity_bytes),
        &log.options.segment, out)


cdef Status log_load_segment(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil:
    """Map a segment to be read, with its indexes in memory, rebuilt from the log where the files
    do not do.
    """
    cdef Fault ignored
    cdef Status status
    if segment.loaded and segment.fd < 0:
        return reopen_active(log, segment, out)
    if segment.loaded:
        return STATUS_OK
    log_unload_idle(log)
    status = segment_load(segment, log.directory, 0, &log.options.segment, out)
    if status != STATUS_OK:
        return status
    if not segment_indexes_hold(segment) or (
            segment.offset_index.count == 0
            and segment.used_bytes > 2 * log.options.segment.index_interval_bytes):
        status = segment_rebuild_indexes(segment, &log.options.segment, out)
        if status == STATUS_OK and not segment.read_only:
            # For the next opening; where it cannot be written it is rebuilt each time.
            segment_store_indexes(segment, log.directory, False, &ignored)
    return status


cdef void log_unload_idle(PartitionLog* log) noexcept nogil:
    """Before another segment is opened: give back files and maps of some that have no reader now.

    Else a log of many segments would take a process all the files that it may have open. The caller
    holds segments_lock.
    """
    cdef Segment* segment
    cdef int32_t index
    cdef int32_t loaded_count = 0
    open_files_make_room()
    file_owner_enter(&log.files)
    for index in range(log.segment_count):
        loaded_count += log.segments[index].loaded
    if loaded_count < LOADED_SEGMENTS_MAX:
        return
    for index in range(log.segment_count - 1):
        segment = log.segments[index]
        if segment.loaded and not segment.active and not segment.mended and (
                segment.references == 0) and (
                loaded_count > LOADED_SEGMENTS_MAX // 2):
            segment_unload(segment)
            loaded_count -= 1


cdef void log_enter_files(PartitionLog* log) noexcept nogil:
    """The log was opened, or attached to again: from here on its files may be closed."""
    pthread_mutex_lock(&log.segments_lock)
    log.closes_files = True
    file_owner_enter(&log.files)
    pthread_mutex_unlock(&log.segments_lock)


cdef Status log_reopen(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil:
    """Open the file of a loaded segment again. The caller holds view_lock."""
    cdef Status status = STATUS_OK
    pthread_mutex_lock(&log.segments_lock)
    if segment.fd < 0:
        status = reopen_active(log, segment, out)
    pthread_mutex_unlock(&log.segments_lock)
    return status


cdef Status reopen_active(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil:
    cdef int64_t first_base_offset
    cdef uint64_t inode = segment.inode
    cdef Status status
    open_files_make_room()
    file_owner_enter(&log.files)
    status = segment_reopen_file(segment, log.directory, &log.options.segment, out)
    if status == STATUS_OK and segment.inode != inode:
        # Who put it there may have died before it synced the name.
        set_mark(&log.directory_unsynced)
    if status != STATUS_IO or out.os_errno != ENOENT:
        return status
    # Looked at now: a file goes after the page says so.
    log_look(log, NULL)
    first_base_offset = control_load(&log.page.first_base_offset)
    if segment.base_offset < first_base_offset:
        status = fault(
            out, STATUS_FELL_BEHIND,
            "segments were deleted before this process had looked at them; call again",
            first_base_offset, segment.base_offset)
    return status


cdef void close_files(void* owner, bint unsynced) noexcept nogil:
    """Close the files that are not in use, of a log that was not used of late.

    Where calls wait for the disk a sync comes first, with a descriptor that was open as the bytes
    were written: a later one might not get the error. Else the next sync opens the file.
    """
    cdef PartitionLog* log = <PartitionLog*>owner
    cdef Segment* segment
    cdef int32_t index
    cdef bint all_closed = log.closes_files
    if pthread_mutex_trylock(&log.view_lock) != 0:
        return
    if pthread_mutex_trylock(&log.segments_lock) != 0:
        pthread_mutex_unlock(&log.view_lock)
        return
    for index in range(log.segment_count if log.closes_files and not log.closed else 0):
        segment = log.segments[index]
        if segment.fd >= 0 and not close_segment(log, segment, unsynced):
            all_closed = False
    if all_closed:
        file_owner_unlink(&log.files)
    pthread_mutex_unlock(&log.segments_lock)
    pthread_mutex_unlock(&log.view_lock)


cdef bint close_segment(PartitionLog* log, Segment* segment, bint unsynced) noexcept nogil:
    cdef int error
    if segment.references > 0:
        return False
    if segment.unsynced and log.options.durable:
        if not unsynced or log_failure(log) != 0:
            return False
        error = eos_sync_data(segment.fd)
        if error != 0:
            log_fail(log, error)
            return False
        segment.unsynced = False
    # Also one that another process ended, while the one after it could not be opened here.
    if segment.active or segment == log_active(log):
        return segment_close_file(segment, mapped_files_now() <= log.options.mapped_max)
    if not segment.mended:
        segment_unload(segment)
    return True


cdef void log_fail(PartitionLog* log, int error) noexcept nogil:
    """Refuse appends from now on, in every process: what the disk holds is not known."""
    control_store_32(&log.page.failed_errno, error if error != 0 else 5)


cdef bint log_look(PartitionLog* log, ControlView* view) noexcept nogil:
    """Of a log that is only read here, have in `page`, and in a view, what the page of those who
    write says. False if that is of another session, or being laid out for one. Of any other log it
    is the page itself. What the caller found of files before stands on the page by now.
    """
    cdef bint followed = True
    after_files()
    if log.followed == NULL:
        return True
    pthread_mutex_lock(&log.follow_lock)
    followed = control_follow(log.page, log.followed)
    if view != NULL:
        view.log_end_offset = log.page.log_end_offset
        view.active_base_offset = log.page.active_base_offset
        view.active_valid_bytes = log.page.active_valid_bytes
        view.active_reserved_bytes = log.page.active_reserved_bytes
        view.first_base_offset = log.page.first_base_offset
    pthread_mutex_unlock(&log.follow_lock)
    return followed


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
    cdef bint is_next = control_load(&log.page.active_base_offset) != active.base_offset
    control_write_begin(log.page)
    control_store(&log.page.active_base_offset, active.base_offset)
    if is_next:
        # In this order: who dies in between leaves the capacity of the one before, which is as good
        # for a segment that no other process has mapped.
        control_store(&log.page.active_capacity_bytes, active.map_bytes)
    control_store(&log.page.active_valid_bytes, active.used_bytes)
    control_store(&log.page.active_reserved_bytes, active.reserved_bytes)
    control_store(&log.page.first_base_offset, log.segments[0].base_offset)
    control_store(&log.page.log_end_offset, log_end_offset)
    control_write_end(log.page)
    log_note_end(log, log_end_offset)


cdef Status log_check_directory(PartitionLog* log, Fault* out) noexcept nogil:
    """Check that what was opened is still there, before a file is made in it: else that would go to
    another log.
    """
    cdef uint64_t device = 0
    cdef uint64_t inode = 0
    if eos_identity(log.directory, &device, &inode) == 0 and (
            device == log.device and inode == log.inode):
        return STATUS_OK
    out.os_errno = ESTALE
    return fault(out, STATUS_IO, "the log's directory was replaced while it was open", 0, ESTALE)


cdef Status log_name_page(PartitionLog* log, Fault* out) noexcept nogil:
    """Have the page's name on the disk before a second segment: a log that nothing knows passes for
    one that was moved here, in which a power cut's hole between two segments would be legal.
    """
    cdef int error
    if log.page_directory == NULL or log.segment_count == 0:
        return STATUS_OK
    error = eos_sync_directory(log.page_directory)
    if error != 0:
        out.os_errno = error
        return fault(
            out, STATUS_IO, "the directory of the control pages could not be synced", 0, error)
    log.page_directory = NULL
    return STATUS_OK


cdef Status log_start_segment(PartitionLog* log, int64_t base_offset, Fault* out) noexcept nogil:
    """Make a new, empty active segment at the end of the list."""
    cdef Segment* segment
    cdef Status status = log_check_directory(log, out)
    if status == STATUS_OK:
        status = log_name_page(log, out)
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
    set_mark(&log.directory_unsynced)
    pthread_mutex_unlock(&log.segments_lock)
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
    log.files.used = True
    status = log_load_segment(log, segment, out)
    # What deletes files says so first.
    log_look(log, NULL)
    if control_flag(&log.page.deleted):
        # The topic, by any process. If it was created again, the files may be those of the new one.
        pthread_mutex_unlock(&log.segments_lock)
        return fault(out, STATUS_CLOSED, "the topic was deleted", 0, 0)
    if (status == STATUS_FELL_BEHIND or status == STATUS_IO and out.os_errno == ENOENT) and (
            offset < control_load(&log.page.log_start_offset)):
        # Another process deleted it.
        status = fault(out, STATUS_OFFSET_OUT_OF_RANGE, "the offset is not in the log any more",
                       control_load(&log.page.log_start_offset), offset)
    # A file that was truncated is noticed before it is touched: a store or load through the
    # map beyond its end would be a SIGBUS. What was written is asked first: an append lets both
    # grow.
    if status == STATUS_OK and segment.fd >= 0:
        used_bytes = load_acquire_64(&segment.used_bytes)
        if eos_file_length(segment.fd, &file_bytes) != 0 or file_bytes < used_bytes:
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
        deleted_segments_free(log)       # No caller comes after.


cdef int64_t log_next_base(PartitionLog* log, const Segment* segment) noexcept nogil:
    """Return the base offset of the segment after this one, -1 if it is the last."""
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


cdef void segment_retire(PartitionLog* log, Segment* segment) noexcept nogil:
    """A deleted segment without holders is to be freed. The caller holds segments_lock.

    Its file is closed at once where many are open: what waits here is not closed to make room.
    """
    if open_files_now() >= open_files_most():
        segment_unload(segment)
    segment.next_deleted = log.deleted
    log.deleted = segment
    add_64(&waiting_count, 1)


cdef int32_t deleted_segments_free(PartitionLog* log) noexcept nogil:
    """Give back mappings and files of deleted segments; how many. It may take long: the caller
    holds no lock.
    """
    cdef Segment* segment
    cdef Segment* following
    cdef int32_t freed = 0
    pthread_mutex_lock(&log.segments_lock)
    segment = log.deleted
    log.deleted = NULL
    pthread_mutex_unlock(&log.segments_lock)
    while segment != NULL:
        following = segment.next_deleted
        segment_unload(segment)
        free(segment)
        segment = following
        freed += 1
    if freed > 0:
        add_64(&waiting_count, -freed)
    return freed


cdef int64_t deleted_segments_waiting() noexcept nogil:
    """Count of deleted segments, of all logs of this process, that are to be freed."""
    return load_acquire_64(&waiting_count)


cdef Segment* take_first(PartitionLog* log, int64_t upto_offset, bint ends) noexcept nogil:
    """Take the first segment out of the list, NULL if it is to stay: the last one always is. It
    goes if it begins below an offset, or, with `ends`, if it ends at or below. The caller holds
    segments_lock.
    """
    cdef Segment* segment
    if log.segment_count < 2 or (
            log.segments[1].base_offset > upto_offset if ends
            else log.segments[0].base_offset >= upto_offset):
        return NULL
    segment = log.segments[0]
    if ends:
        # Before it leaves the list: a reader of any process who finds a later segment in its place
        # looks here for the reason.
        control_raise(&log.page.log_start_offset, log.segments[1].base_offset)
    log.segment_count -= 1
    memmove(log.segments, log.segments + 1, <size_t>log.segment_count * sizeof(Segment*))
    segment.retired = True
    return segment


cdef void log_drop_segments(PartitionLog* log, int64_t first_base_offset) noexcept nogil:
    """Segments that another process deleted go here too; those that a reader holds, after him."""
    cdef Segment* segment
    while True:
        pthread_mutex_lock(&log.segments_lock)
        segment = take_first(log, first_base_offset, False)
        if segment != NULL and segment.references == 0:
            segment_retire(log, segment)
        pthread_mutex_unlock(&log.segments_lock)
        if segment == NULL:
            return
        abort_index_drop_below(&log.aborts, log.segments[0].base_offset)
