# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Ending the active segment, with the next one in its place.

Invariant: the next segment's file is there before the active one is ended, and where that fails,
because there is no room or no file may be opened, it is gone again: the log goes on as it was.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free

from eoslog.native.index_file cimport index_file_truncate
from eoslog.native.mapped_io cimport EMFILE, ENFILE
from eoslog.native.partition_log cimport (
    log_active, log_end, log_fail, log_publish, log_start_segment, log_use_file,
    pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.segment cimport Segment, segment_path, segment_seal, segment_unload
from eoslog.native.segment_files cimport eos_is_missing
from eoslog.native.snapshot cimport snapshot_write
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport STATUS_IO, STATUS_NO_MEMORY, STATUS_NO_SPACE, STATUS_OK

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept


cdef Status log_roll(PartitionLog* log, Fault* out) noexcept nogil:
    """Seal the active segment and start the next at the log end. The caller holds the lock.

    When there is no room for the new file or for the index files, nothing has changed. An active
    segment without records is kept as it is.
    """
    cdef Segment* ended = log_active(log)
    cdef int64_t end = log_end(log)
    cdef Status status
    if ended.used_bytes == 0:
        return STATUS_OK
    status = log_start_segment(log, end, out)
    if status == STATUS_OK:
        status = log_end_segment(log, ended, out)
    if status != STATUS_OK:
        return status
    log_publish(log, end)
    log_note_producers(log, end)
    return STATUS_OK


cdef void log_note_producers(PartitionLog* log, int64_t base_offset) noexcept nogil:
    """Write the snapshot at the base offset of a new segment, unsynced: it is a help, and no copy
    that a deletion may rely on. One that is there stays, and may be such a copy.

    Only where it is complete: entries that LMDB alone remembers are not in memory.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef Fault ignored
    segment_path(log.directory, base_offset, b".snapshot", path)
    if log.producers.evicted_count == 0 and eos_is_missing(path):
        if snapshot_write(
                log.directory, base_offset, &log.producers, False, &ignored) == STATUS_OK:
            log.snapshot_offset = base_offset


cdef Status log_end_segment(PartitionLog* log, Segment* ended, Fault* out) noexcept nogil:
    """Seal what was the active segment; the next one is in the list, and no reader knows of it.

    If it fails the next one is gone again. Unless that was for want of something that may come
    back, no process appends any longer.
    """
    cdef int32_t time_entries = ended.time_index.count
    cdef Status status = log_use_file(log, ended, out)
    if status == STATUS_OK:
        status = segment_seal(ended, log.directory, out)
    if status == STATUS_OK:
        return status
    # The last entry is for the end of the segment; it has not come.
    index_file_truncate(&ended.time_index, time_entries)
    if not take_back_last(log) or not is_for_want(status, out):
        log_fail(log, out.os_errno)
    return status


cdef bint is_for_want(Status status, const Fault* out) noexcept nogil:
    """True if a call failed for want of room, of memory or of files that may be open: nothing is
    known to be wrong with the disk.
    """
    return status == STATUS_NO_SPACE or status == STATUS_NO_MEMORY or (
        status == STATUS_IO and (out.os_errno == EMFILE or out.os_errno == ENFILE))


cdef bint take_back_last(PartitionLog* log) noexcept nogil:
    """Remove the last segment, which only this process knows; False if it has a holder."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* segment
    pthread_mutex_lock(&log.segments_lock)
    segment = log.segments[log.segment_count - 1]
    if segment.references > 0:
        pthread_mutex_unlock(&log.segments_lock)
        return False
    log.segment_count -= 1
    pthread_mutex_unlock(&log.segments_lock)
    segment_path(log.directory, segment.base_offset, b".log", path)
    segment_unload(segment)
    unlink(path)
    free(segment)
    return True
