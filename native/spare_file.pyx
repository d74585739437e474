# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Segment files kept for reuse: deleted ones, and new ones filled ahead of need.

Invariants: a slot holds one file, `<slot>.spare` if it may be used, `<slot>.stale` if it still
holds whole batches. Of a usable file no old batch passes for a batch, on disk either: base offset
and length lie outside of a batch's checksum, so a power cut that kept only the first sector of a
new header could otherwise lend them to the old batch after it.
"""
from libc.stdio cimport rename, snprintf
from libc.stdint cimport uint8_t
from libc.string cimport memset

from eoslog.native.crash_point cimport CRASH_POINT
from eoslog.native.mapped_io cimport (
    EDQUOT, EFBIG, ENOENT, ENOSPC, close_fd, eos_count_names, eos_file_bytes, eos_have_alone,
    eos_map, eos_open, eos_reserve, eos_sync_data, eos_sync_directory, munmap,
)
from eoslog.native.new_file cimport eos_keep_access
from eoslog.native.record_batch cimport (
    BATCH_ATTRIBUTES, BATCH_HEADER_BYTES, BATCH_MAGIC, BATCH_MAGIC_V2, BatchHeader,
    batch_header_load,
)
from eoslog.native.status cimport STATUS_IO, STATUS_NO_SPACE, STATUS_OK, fault

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept
    int access(const char* path, int mode) noexcept
    int F_OK

cdef enum:
    SYNCED_BYTES = 4 << 20           # Of a file of zeros, at a time.


cdef void slot_path(
    const char* spare_directory, int32_t slot, const char* suffix, char* path
) noexcept nogil:
    snprintf(path, SEGMENT_PATH_BYTES_MAX, "%s/%d%s", spare_directory, slot, suffix)


cdef bint spare_take(
    const char* spare_directory, int32_t spare_max, const char* path
) noexcept nogil:
    """Move a usable file to `path`; False if there is none."""
    cdef char spare[SEGMENT_PATH_BYTES_MAX]
    cdef int32_t slot
    for slot in range(spare_max):
        slot_path(spare_directory, slot, b".spare", spare)
        if rename(spare, path) == 0:
            return True
    return False


cdef int spare_keep(
    const char* spare_directory, int32_t spare_max, const char* path, int fd
) noexcept nogil:
    """Move a deleted segment's file, opened as fd, to a free slot and close it, -1; or remove its
    name, and give fd back: until it is closed the file system need not free the file.

    It loses its name too if anybody, in whatever process, has it mapped, or if it has another one:
    its bytes must stay as they are.
    """
    cdef char spare[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t names = 0
    cdef int32_t slot
    for slot in range(spare_max):
        slot_path(spare_directory, slot, b".spare", spare)
        if access(spare, F_OK) == 0:
            continue
        slot_path(spare_directory, slot, b".stale", spare)
        if access(spare, F_OK) == 0:
            continue
        if eos_count_names(fd, &names) == 0 and names == 1 and eos_have_alone(fd) == 0 and (
                rename(path, spare) == 0):
            eos_keep_access(fd, spare)
            close_fd(fd)
            return -1
        break
    unlink(path)
    return fd


cdef Status spare_prepare(
    const char* directory, const char* spare_directory, int32_t spare_max, int64_t bytes,
    int64_t fill_bytes, bint synced, int32_t* made, Fault* out,
) noexcept nogil:
    """Have a usable file in each slot: old ones made unreadable, missing ones filled with zeros.

    `made` counts the files that became usable; `directory` is where old ones were a segment. Takes
    long; no caller waits for it, and no lock is held. `synced`: the zeros are on the disk, which a
    sync of the first batch would have to wait for otherwise.
    """
    cdef char usable[SEGMENT_PATH_BYTES_MAX]
    cdef char stale[SEGMENT_PATH_BYTES_MAX]
    cdef char building[SEGMENT_PATH_BYTES_MAX]
    cdef int32_t slot
    cdef int error
    made[0] = 0
    for slot in range(spare_max):
        slot_path(spare_directory, slot, b".spare", usable)
        if access(usable, F_OK) == 0:
            continue
        slot_path(spare_directory, slot, b".stale", stale)
        if access(stale, F_OK) == 0:
            # A power cut could give it its name of a segment back: not with other bytes.
            error = eos_sync_directory(directory)
            if error == 0:
                error = spoil_batches(stale)
            if error == 0 and rename(stale, usable) != 0:
                error = ENOENT
        else:
            slot_path(spare_directory, slot, b".building", building)
            error = fill_zeros(building, bytes, fill_bytes, synced)
            if error == 0 and rename(building, usable) != 0:
                error = ENOENT
            if error != 0:
                unlink(building)
        if error != 0:
            out.os_errno = error
            return fault(
                out,
                STATUS_NO_SPACE if error == ENOSPC or error == EDQUOT or error == EFBIG
                else STATUS_IO,
                "a spare segment file could not be prepared", 0, error)
        made[0] += 1
    return STATUS_OK


cdef int fill_zeros(
    const char* path, int64_t bytes, int64_t fill_bytes, bint synced
) noexcept nogil:
    """Make a file of zeros; 0 or an errno. It is synced by pieces, so that the syncs of others do
    not wait for all of it.
    """
    cdef int64_t filled_bytes = 0
    cdef int64_t upto
    cdef int fd = -1
    cdef int error
    unlink(path)
    error = eos_open(path, True, False, &fd)
    if error != 0:
        return error
    while error == 0 and filled_bytes < bytes:
        upto = min(bytes, filled_bytes + SYNCED_BYTES) if synced else bytes
        error = eos_reserve(fd, filled_bytes, upto, fill_bytes)
        if error == 0 and synced:
            error = eos_sync_data(fd)
        filled_bytes = upto
    close_fd(fd)
    return error


cdef int spoil_batches(const char* path) noexcept nogil:
    """Zero magic and checksum of every batch of a file, on disk too; 0 or an errno."""
    cdef uint8_t* map = NULL
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int fd = -1
    cdef int error = eos_open(path, False, False, &fd)
    if error != 0:
        return error
    error = eos_file_bytes(fd, &file_bytes, &modified_ms)
    if error == 0 and file_bytes > 0:
        error = eos_map(fd, <size_t>file_bytes, True, &map)
        if error == 0:
            spoil_chain(map, file_bytes)
            munmap(map, <size_t>file_bytes)
            error = eos_sync_data(fd)
    close_fd(fd)
    return error


cdef void spoil_chain(uint8_t* batches, int64_t bytes) noexcept nogil:
    cdef int64_t position = 0
    cdef BatchHeader header
    while position + BATCH_HEADER_BYTES <= bytes:
        batch_header_load(batches + position, &header)
        # One that was spoiled before, by a process that died here, still leads to the next.
        if header.batch_bytes < BATCH_HEADER_BYTES or header.batch_bytes > bytes - position or (
                header.magic != BATCH_MAGIC_V2 and header.magic != 0):
            return
        CRASH_POINT("spare file: batch")
        memset(batches + position + BATCH_MAGIC, 0, BATCH_ATTRIBUTES - BATCH_MAGIC)
        position += header.batch_bytes
