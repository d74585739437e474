# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The active segment while it is empty: another file may take its name.

A staged file that is adopted whole becomes the active segment under the name of an empty one, and a
repair puts a new file there. Invariant: a process stores the first batch of a segment, or takes it
in, only after it made sure that the file it has open is the one under the segment's name. The
callers hold the log's lock or, to follow, its view_lock.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from eoslog.native.atomics cimport set_mark
from eoslog.native.control_page cimport control_load, control_raise
from eoslog.native.mapped_io cimport (
    ENOENT, close_fd, eos_file_length, eos_is_at, eos_open, eos_rename,
)
from eoslog.native.partition_log cimport (
    log_active, log_add_segment, log_load_writable, log_look, pthread_mutex_lock,
    pthread_mutex_unlock,
)
from eoslog.native.segment cimport (
    SEGMENT_UNNAMED_SUFFIX, Segment, segment_begin_anew, segment_path, segment_unload,
)
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport STATUS_FELL_BEHIND, STATUS_IO, STATUS_OK, fault

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept


cdef Status empty_segment_renew(PartitionLog* log, Fault* out) noexcept nogil:
    """If the active segment is empty here, have the file that is under its name by now, mapped as
    far as it may grow by now, or did before another process ended it.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* active = log_active(log)
    cdef int64_t capacity_bytes = control_load(&log.page.active_capacity_bytes)
    cdef int64_t file_bytes = 0
    if active.used_bytes > 0:
        return STATUS_OK
    segment_path(log.directory, active.base_offset, b".log", path)
    # The capacity first: if it is that of a later segment, this one's file grows no more.
    if (eos_is_at(active.fd, path) == 0 and active.map_bytes >= capacity_bytes
            and eos_file_length(active.fd, &file_bytes) == 0 and active.map_bytes >= file_bytes):
        return STATUS_OK
    return empty_segment_reload(log, out)


cdef Status empty_segment_enlarge(
    PartitionLog* log, int64_t capacity_bytes, Fault* out
) noexcept nogil:
    """Let the active segment, which is empty, grow up to a size. Who has it mapped less far renews
    it before it stores or takes in the first batch.
    """
    control_raise(&log.page.active_capacity_bytes, capacity_bytes)
    return empty_segment_renew(log, out)


cdef Status empty_segment_reload(PartitionLog* log, Fault* out) noexcept nogil:
    """Have the file under the active segment's name in its place, nothing of it taken in yet."""
    cdef Segment* former = log_active(log)
    cdef Segment* segment
    cdef int64_t first_base_offset
    cdef Status status
    pthread_mutex_lock(&log.segments_lock)
    status = log_add_segment(log, former.base_offset, 0)
    if status == STATUS_OK:
        log.segment_count -= 1
        segment = log.segments[log.segment_count]
        segment.active = True
        status = log_load_writable(log, segment, out)
        if status != STATUS_OK:
            free(segment)
        else:
            segment_begin_anew(segment)
            log.segments[log.segment_count - 1] = segment
            former.retired = True
            if former.references == 0:
                segment_unload(former)
                free(former)
    pthread_mutex_unlock(&log.segments_lock)
    set_mark(&log.directory_unsynced)
    if status != STATUS_IO or out.os_errno != ENOENT:
        return status
    # Looked at now: a file goes after the page says so.
    log_look(log, NULL)
    first_base_offset = control_load(&log.page.first_base_offset)
    if log_active(log).base_offset < first_base_offset:
        return fault(
            out, STATUS_FELL_BEHIND,
            "segments were deleted before this process had looked at them; call again",
            first_base_offset, log_active(log).base_offset)
    return status


cdef Status empty_segment_for_close(PartitionLog* log, Fault* out) noexcept nogil:
    """If the active segment is empty and lost its name, have a new file under it.

    The one that is there may be a staged one, and must not be cut to what this log has of it.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* active = log_active(log)
    segment_path(log.directory, active.base_offset, b".log", path)
    if active.used_bytes > 0 or eos_is_at(active.fd, path) == 0:
        return STATUS_OK
    return empty_segment_make_anew(log, out)


cdef Status empty_segment_make_anew(PartitionLog* log, Fault* out) noexcept nogil:
    """Put a new file under the name of the active segment, which holds nothing.

    Whatever was under the name stays as it is: it may have another one.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef char fresh[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* active = log_active(log)
    cdef int fd = -1
    segment_path(log.directory, active.base_offset, b".log", path)
    segment_path(log.directory, active.base_offset, SEGMENT_UNNAMED_SUFFIX, fresh)
    unlink(fresh)
    out.os_errno = eos_open(fresh, True, False, &fd)
    if fd >= 0:
        close_fd(fd)
        out.os_errno = eos_rename(fresh, path)
    if out.os_errno != 0:
        return fault(out, STATUS_IO, "a new segment file could not be made", 0, out.os_errno)
    return empty_segment_reload(log, out)
