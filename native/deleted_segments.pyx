# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Deletion of a log's oldest segments: they leave the list at once, their files go after that.

The file of a segment is held open while it loses its name, so that the file system frees no blocks
under the log's lock: partition_log has the list of what is freed later.

Invariants: the log's start is raised before a segment leaves the list; the oldest file goes first,
and its removal is synced before the next file goes, so the log never has a hole; a file that a
reader has mapped is not used again.
"""
from eoslog.native.abort_index cimport abort_index_drop_below
from eoslog.native.atomics cimport before_files, set_mark
from eoslog.native.log_lock cimport log_lock, log_unlock, log_view, log_view_end
from eoslog.native.log_sync cimport log_sync_directory
from eoslog.native.mapped_io cimport eos_open
from eoslog.native.open_files cimport open_files_count
from eoslog.native.partition_log cimport (
    log_active, log_end, log_fail, log_publish, log_use_file, pthread_mutex_lock,
    pthread_mutex_unlock, segment_retire, take_first,
)
from eoslog.native.segment cimport Segment, segment_path, segment_unload
from eoslog.native.segment_files cimport eos_is_missing, eos_remove_logs_below
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX, spare_keep
from eoslog.native.status cimport STATUS_FAILED, STATUS_IO, STATUS_OK, fault

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept


cdef int64_t log_first_to_stay(PartitionLog* log, int64_t upto_offset) noexcept nogil:
    """Return where the first segment begins that stays if the oldest ones that end at or below
    upto_offset go.
    """
    cdef int64_t base_offset
    cdef int32_t index
    pthread_mutex_lock(&log.segments_lock)
    base_offset = log.segments[0].base_offset
    for index in range(1, log.segment_count):
        if log.segments[index].base_offset > upto_offset:
            break
        base_offset = log.segments[index].base_offset
    pthread_mutex_unlock(&log.segments_lock)
    return base_offset


cdef Status log_delete_segments(
    PartitionLog* log, int64_t upto_offset, int32_t* deleted, Fault* out
) noexcept nogil:
    """Delete the oldest segments that end at or below upto_offset, never the active one; `deleted`
    counts them, also if it fails.

    A file that a reader has mapped is unlinked and not recycled: its bytes must not change under
    it. One that could not be removed ends it, this time and the next: with a younger one gone it
    would stand before a hole. The caller does not have the log's lock, and frees what was
    deleted.
    """
    cdef Status status
    cdef int64_t first_base_offset
    cdef int64_t swept_below = -1        # No file of batches is left below this offset.
    cdef int error
    deleted[0] = 0
    while may_delete(log, upto_offset, &first_base_offset):
        if first_base_offset != swept_below:
            # For the first one too: the one before it may just be gone. Appends go on during this.
            error = eos_remove_logs_below(log.directory, first_base_offset)
            if error != 0:
                out.os_errno = error
                return fault(out, STATUS_IO, "the file of a deleted segment could not be removed",
                             first_base_offset, error)
            swept_below = first_base_offset
        status = log_view(log, out)
        if status == STATUS_OK:
            # A sync goes by it if nothing more may be opened.
            status = log_use_file(log, log_active(log), out)
            log_view_end(log)
        if status != STATUS_OK:
            return status
        error = log_sync_directory(log)
        if error != 0:
            log_fail(log, error)
            out.os_errno = error
            return fault(out, STATUS_FAILED, "a sync failed", 0, error)
        status = log_lock(log, out)
        if status != STATUS_OK:
            return status
        deleted[0] += delete_oldest(log, upto_offset, &swept_below)
        log_unlock(log)
    return STATUS_OK


cdef bint may_delete(
    PartitionLog* log, int64_t upto_offset, int64_t* first_base_offset
) noexcept nogil:
    """Return True if the first segment may go, and where it begins."""
    cdef bint may
    pthread_mutex_lock(&log.segments_lock)
    may = log.segment_count >= 2 and log.segments[1].base_offset <= upto_offset
    first_base_offset[0] = log.segments[0].base_offset if may else -1
    pthread_mutex_unlock(&log.segments_lock)
    return may


cdef bint delete_oldest(
    PartitionLog* log, int64_t upto_offset, int64_t* swept_below
) noexcept nogil:
    """Delete the first segment, if all before it is swept, and synced.

    `swept_below` is its end then, or -1 if its file may be there yet. False if it is to stay:
    another process may have deleted some. The caller has the lock.
    """
    cdef Segment* segment = NULL
    cdef bint held = False
    pthread_mutex_lock(&log.segments_lock)
    if log.segments[0].base_offset == swept_below[0]:
        segment = take_first(log, upto_offset, True)
        held = segment != NULL and segment.references > 0
    pthread_mutex_unlock(&log.segments_lock)
    if segment == NULL:
        return False
    log_publish(log, log_end(log))
    before_files()
    swept_below[0] = log.segments[0].base_offset if remove_files(log, segment, held) else -1
    set_mark(&log.directory_unsynced)
    return True


cdef void derived_files_remove(PartitionLog* log, int64_t base_offset) noexcept nogil:
    """Remove what is made from a segment's batches: its indexes, the snapshot at its begin."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    segment_path(log.directory, base_offset, b".index", path)
    unlink(path)
    segment_path(log.directory, base_offset, b".timeindex", path)
    unlink(path)
    segment_path(log.directory, base_offset, b".snapshot", path)
    unlink(path)
    segment_path(log.directory, base_offset, b".txnindex", path)
    unlink(path)


cdef bint remove_files(PartitionLog* log, Segment* segment, bint held) noexcept nogil:
    """Remove the files of a segment that has left the list, the one of its batches last; whether
    that has lost its name.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t base_offset = segment.base_offset
    cdef int fd = -1
    derived_files_remove(log, base_offset)
    abort_index_drop_below(&log.aborts, log.segments[0].base_offset)
    segment_path(log.directory, base_offset, b".log", path)
    if held:
        unlink(path)                     # His map keeps the file.
        return eos_is_missing(path)
    if not segment.foreign and eos_open(path, False, True, &fd) == 0:
        # Without a map of ours it is free to be used again, and without a name not yet freed.
        segment_unload(segment)
        fd = spare_keep(log.spare_directory, log.options.spare_segments, path, fd)
    else:
        segment_unload(segment)
        unlink(path)
    open_files_count(fd >= 0)
    pthread_mutex_lock(&log.segments_lock)
    segment.fd = fd
    segment_retire(log, segment)
    pthread_mutex_unlock(&log.segments_lock)
    return eos_is_missing(path)
