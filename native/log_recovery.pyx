# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Opening a partition's log, repairing its tail, cutting it back.

Invariants: after a clean stop no record is scanned, only the headers past the last index entry;
after an unclean one every batch at or above the recovery point has had its checksum verified; what
is cut off is kept in the cut directory, unless it is zeros or stands after a terminator. A whole
batch that does not follow on is kept as well: of a recycled file no old one is whole, so its base
offset is damaged, or the file's name. Of a file that is a staged one too nothing is lost by a cut.

Of a file little more is read than what is verified: a segment may be long, and be reserved to its
end.
"""
from libc.stdio cimport rename, snprintf
from libc.stdint cimport uint8_t
from libc.stdlib cimport free

from eoslog.native.abort_index cimport abort_index_truncate
from eoslog.native.atomics cimport set_mark
from eoslog.native.byte_order cimport store_be64
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport (
    control_keep_synced, control_load, control_store, control_synced_before,
)
from eoslog.native.deleted_segments cimport derived_files_remove
from eoslog.native.empty_segment cimport empty_segment_make_anew
from eoslog.native.index_file cimport index_file_lookup
from eoslog.native.io_fault cimport io_fault
from eoslog.native.log_lock cimport log_lock, log_unlock
from eoslog.native.mapped_io cimport (
    close_fd, eos_bytes_before_zeros, eos_copy_bytes, eos_dirty_again, eos_end_apart,
    eos_first_hole, eos_is_link, eos_now_ms, eos_open, eos_page_end, eos_page_start, eos_pwrite_all,
    eos_read_apart, eos_read_pages, eos_read_pages_alone, eos_sync_data, eos_sync_directory,
)
from eoslog.native.offset_index cimport offset_index_position, offset_index_truncate
from eoslog.native.partition_log cimport (
    log_active, log_add_segment, log_end, log_fail, log_load_writable, log_publish,
    log_start_segment, pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.log_roll cimport log_end_segment
from eoslog.native.record_batch cimport (
    BATCH_BASE_OFFSET, BATCH_HEADER_BYTES, BATCH_MAGIC_V2, BATCH_TERMINATOR_BYTES, BatchHeader,
    batch_check, batch_frame_check, batch_header_load,
)
from eoslog.native.segment cimport (
    Segment, batch_end_offset, batch_in_chain, index_entry_holds, segment_clear_indexes,
    segment_cut, segment_end_times, segment_find, segment_index_active, segment_note_batch,
    segment_path, segment_rebuild_indexes, segment_seal, segment_store_indexes,
    segment_times_before, segment_unload,
)
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport (
    STATUS_IO, STATUS_NO_SPACE, STATUS_OFFSET_OUT_OF_RANGE, STATUS_OK, fault,
)

cdef extern from "<unistd.h>" nogil:
    int access(const char* path, int mode) noexcept
    int unlink(const char* path) noexcept
    int F_OK

cdef enum:
    # A recovery reads so much at once, or an eighth of what it has read of the file before. Of what
    # is longer the kernel reads ahead: it knows larger pages.
    READ_BYTES_MIN = 65536
    READ_BYTES_MAX = 8388608
    READ_ALONE_BYTES_MAX = 134217728


cdef Status log_open(
    PartitionLog* log, const SegmentFile* files, int32_t file_count, bint clean,
    int64_t recovery_point, int64_t checkpoint, int64_t log_start_offset, Fault* out,
) noexcept nogil:
    """Take up the segments that the directory holds (in order), find the log end, publish it.

    Below `recovery_point` all batches are known to be synced, below `checkpoint` index files too.
    The page's recovery_point is then what is known to be synced.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int32_t index
    cdef int64_t end = log_start_offset
    cdef Status status = STATUS_OK
    for index in range(file_count):
        status = log_add_segment(log, files[index].base_offset, files[index].file_bytes)
        if status != STATUS_OK:
            return status
        if log.options.segment.overlay:
            segment_path(log.directory, files[index].base_offset, b".log", path)
            log.segments[index].foreign = eos_is_link(path)
    if file_count == 0:
        status = log_start_segment(log, log_start_offset, out)
        clean = True
        if status == STATUS_OK:
            # A power cut must not take the first file and leave a later one, whose base would pass
            # for the log's start.
            status = sync_only_name(log, out)
    elif clean:
        status = open_active(log, recovery_point, &end, out)
    else:
        status = recover(log, recovery_point, checkpoint, &end, out)
    if status == STATUS_OK and end < log_start_offset:
        status = begin_at_start(log, log_start_offset, out)
        end = log_start_offset
    if status != STATUS_OK:
        return status
    control_store(&log.page.recovery_point, end)
    if not clean and recovery_point < end:
        control_store(&log.page.recovery_point, recovery_point)
    control_store(&log.page.log_start_offset, log_start_offset)
    if log.segments[0].base_offset > log_start_offset:
        control_store(&log.page.log_start_offset, log.segments[0].base_offset)
    if log_active(log).foreign:
        status = go_on_beside(log, clean, end, out)
        if status != STATUS_OK:
            return status
    control_store(&log.page.active_capacity_bytes, log_active(log).map_bytes)
    log_publish(log, end)
    return STATUS_OK


cdef Status go_on_beside(
    PartitionLog* log, bint clean, int64_t end, Fault* out
) noexcept nogil:
    """In an overlay: have an active segment of the log's own after the last one of the store, or
    in the place of an empty one. After a clean close the files of its indexes are right.
    """
    cdef Segment* last = log_active(log)
    cdef Status status
    if last.used_bytes == 0:
        control_store(
            &log.page.active_capacity_bytes, log.options.segment.segment_bytes)
        return empty_segment_make_anew(log, out)
    status = log_start_segment(log, end, out)
    if status != STATUS_OK or not clean:
        return status if status != STATUS_OK else log_end_segment(log, last, out)
    segment_end_times(last)
    last.active = False
    return STATUS_OK


cdef Status sync_only_name(PartitionLog* log, Fault* out) noexcept nogil:
    """Sync the name of the log's only file, which was just made; in an overlay it is of no use
    after a power cut. If that fails, the file goes: the next opening would take its name for
    synced.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    if log.options.segment.overlay:
        return STATUS_OK
    out.os_errno = eos_sync_directory(log.directory)
    if out.os_errno == 0:
        return STATUS_OK
    segment_path(log.directory, log_active(log).base_offset, b".log", path)
    unlink(path)
    return fault(out, STATUS_IO, "the log's directory could not be synced", 0, out.os_errno)


cdef Status begin_at_start(
    PartitionLog* log, int64_t log_start_offset, Fault* out
) noexcept nogil:
    """The log ends below its start: all that is there was deleted before. The segments are set
    aside, and an empty one at the start takes their place, so that each begins where the one before
    it ends.
    """
    cdef Status status = drop_segments_behind(log, -1, out)
    if status == STATUS_OK:
        status = log_start_segment(log, log_start_offset, out)
    return sync_only_name(log, out) if status == STATUS_OK else status


cdef Status open_active(
    PartitionLog* log, int64_t recovery_point, int64_t* end, Fault* out
) noexcept nogil:
    """Map the last segment for appends and walk the headers after its last index entry.

    A clean close synced everything: its recovery point is where the log ends.
    """
    cdef Segment* active = log_active(log)
    cdef Status status
    active.active = True
    status = log_load_writable(log, active, out)
    if status != STATUS_OK:
        return status
    status = segment_index_active(active, &log.options.segment, end, out)
    if status != STATUS_OK or recovery_point <= 0 or end[0] == recovery_point:
        return status
    if end[0] < recovery_point or not mend_last_base(active, recovery_point):
        status = check_batches(active, out)
        if status != STATUS_OK:
            return status
    segment_clear_indexes(active)
    status = segment_index_active(active, &log.options.segment, end, out)
    if status != STATUS_OK:
        return status
    # The files of its indexes may tell of batches that are gone.
    set_mark(&active.indexes_unsynced)
    return segment_store_indexes(active, log.directory, False, out)


cdef Status check_batches(const Segment* segment, Fault* out) noexcept nogil:
    """Verify the checksums of all batches: by a header that is damaged the log ends elsewhere.

    Where all are right, it is the recovery point that is not.
    """
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef Status status
    while segment.used_bytes - position >= BATCH_HEADER_BYTES:
        status = batch_check(segment.map + position, segment.used_bytes - position, &header, out)
        if status != STATUS_OK:
            out.base_offset = segment.base_offset
            out.position_bytes = position
            return status
        position += header.batch_bytes
    return STATUS_OK


cdef bint mend_last_base(Segment* segment, int64_t log_end_offset) noexcept nogil:
    """Put the base offset of the last batch right, if it alone is why the log ends elsewhere.

    No checksum covers it. A batch before another one shows by that one that its base offset rose;
    the last one would be read at offsets that it never had.
    """
    cdef int64_t position = indexed_before(segment, log_end_offset)
    cdef int64_t last_position = -1
    cdef int64_t next_offset = segment.base_offset
    cdef int64_t before = segment.base_offset
    cdef BatchHeader header
    cdef Fault ignored
    if position > 0:
        batch_header_load(segment.map + position, &header)
        next_offset = header.base_offset
    while segment.used_bytes - position >= BATCH_HEADER_BYTES:
        if batch_in_chain(segment, position, segment.used_bytes, next_offset, &header,
                          &ignored) != STATUS_OK:
            return False
        last_position = position
        before = next_offset
        next_offset = batch_end_offset(&header)
        position += header.batch_bytes
    if last_position < 0 or header.base_offset == before or (
            before + header.last_offset_delta + 1 != log_end_offset):
        return False
    if batch_check(segment.map + last_position, header.batch_bytes, &header, &ignored) != STATUS_OK:
        return False
    store_be64(segment.map + last_position + BATCH_BASE_OFFSET, before)
    segment.mended = segment.foreign
    segment.unsynced = not segment.foreign
    return True


cdef Status recover(
    PartitionLog* log, int64_t recovery_point, int64_t checkpoint, int64_t* end, Fault* out
) noexcept nogil:
    """Verify every batch from the recovery point on; cut at the first bad one, and all after
    it.
    """
    cdef int32_t index
    cdef int64_t known_end
    cdef int64_t next_base
    cdef Segment* segment
    cdef bint cut = False
    cdef bint last
    cdef Status status
    # The process that died may have been about to sync the name of a segment.
    set_mark(&log.directory_unsynced)
    for index in range(log.segment_count):
        last = index == log.segment_count - 1
        segment = log.segments[index]
        # At the base of the next one the roll may have been cut short: then this one still has its
        # zeros after the last batch. A sync beyond that base has covered its new length.
        if not last and log.segments[index + 1].base_offset < recovery_point:
            segment.indexes_unsynced = log.segments[index + 1].base_offset >= checkpoint
            continue
        segment.active = True
        status = log_load_writable(log, segment, out)
        if segment.map != NULL:
            eos_read_pages_alone(segment.map, <size_t>segment.map_bytes, True)
        known_end = recovery_point if last else log.segments[index + 1].base_offset
        if status == STATUS_OK:
            status = recover_segment(log, segment, recovery_point, end, &cut, out)
        if status == STATUS_OK and 0 < known_end < end[0] and mend_last_base(segment, known_end):
            status = recover_segment(log, segment, recovery_point, end, &cut, out)
        if status != STATUS_OK:
            return status
        if not last:
            # Each segment begins where the one before it ended. Otherwise a power cut took whole
            # batches from the end of this one, and what stands after the hole goes too, or it
            # would never be noticed. A hole that compaction left comes after a file that is whole.
            next_base = log.segments[index + 1].base_offset
            if end[0] == next_base or (
                    end[0] < next_base <= log.options.holes_below and not cut):
                cut = False
            else:
                cut = True
        if cut and not last:
            status = drop_segments_behind(log, index, out)
            if status != STATUS_OK:
                return status
            last = True
        if last:
            if segment.map != NULL:
                eos_read_pages_alone(segment.map, <size_t>segment.map_bytes, False)
            # The files of its indexes may tell of batches that are gone, or may not be synced.
            set_mark(&segment.indexes_unsynced)
            return segment_store_indexes(segment, log.directory, False, out)
        # Sealed again, with the last time entry, and synced here: no process holds its file open
        # for the next flush.
        status = segment_seal(segment, log.directory, out)
        if status == STATUS_OK:
            status = segment_store_indexes(
                segment, log.directory, not segment.foreign, out)
        if status != STATUS_OK:
            return status
        out.os_errno = 0 if segment.foreign else eos_sync_data(segment.fd)
        if out.os_errno != 0:
            return fault(
                out, STATUS_IO, "a recovered segment could not be synced", 0, out.os_errno)
        segment.unsynced = False
        segment.indexes_unsynced = False
        if not segment.mended:
            segment_unload(segment)
    return STATUS_OK


cdef int64_t indexed_before(const Segment* segment, int64_t offset) noexcept nogil:
    """Return where the last indexed batch stands that ends below an offset; 0 if there is none."""
    cdef int32_t entry = index_file_lookup(&segment.offset_index, offset - 1 - segment.base_offset)
    if entry < 0 or not index_entry_holds(segment, entry):
        return 0
    return offset_index_position(&segment.offset_index, entry)


cdef int64_t scan_start(Segment* segment, int64_t recovery_point) noexcept nogil:
    """Return where to begin: at the last indexed batch that ends below the recovery point, else at
    0.

    Index entries from there on are dropped; the scan makes them again. What the batches before it
    say of time has to be in the time index.
    """
    cdef int64_t position = indexed_before(segment, recovery_point)
    return position if position > 0 and segment_times_before(segment, position) else 0


cdef int64_t read_upto(
    Segment* segment, int64_t read_from, int64_t upto, int64_t wanted, int64_t hole, int* error
) noexcept nogil:
    """Read the file from `upto` to `wanted` and a little further, and have the next sync write it;
    return where that ends, at the first hole at the latest. Its beginning was at `read_from`.

    What is verified the next sync has to write. Before the first look: see eos_dirty_again. Of a
    foreign segment it is read into memory of this process: another process may cut the file's end.
    """
    cdef int64_t apart_from
    cdef int64_t step = (upto - read_from) // 8
    if wanted <= upto or upto >= hole:
        return upto
    step = min(max(step, <int64_t>READ_BYTES_MIN), <int64_t>READ_BYTES_MAX)
    # Each piece begins with a page, and is written page by page.
    wanted = eos_page_end(max(wanted, upto + step))
    wanted = min(wanted, hole)
    if segment.foreign:
        apart_from = max(upto, segment.apart_upto)
        if apart_from < wanted and error[0] == 0:
            error[0] = eos_read_apart(segment.fd, segment.map, apart_from, wanted)
            segment.apart_upto = wanted
        return wanted
    if upto - read_from < READ_ALONE_BYTES_MAX:
        eos_read_pages(segment.map + upto, <size_t>(wanted - upto))
    else:
        eos_read_pages_alone(segment.map, <size_t>segment.map_bytes, False)
    eos_dirty_again(segment.map + upto, <size_t>(wanted - upto))
    return wanted


cdef bint ends_below(
    const Segment* segment, int64_t position, int64_t limit, int64_t recovery_point,
    BatchHeader* header,
) noexcept nogil:
    """True if a batch stands at `position`, by its header, that ends below the recovery point."""
    cdef Fault ignored
    return limit - position >= BATCH_HEADER_BYTES and (
        batch_frame_check(segment.map + position, limit - position, header, &ignored) == STATUS_OK
        and header.last_offset_delta >= 0 and batch_end_offset(header) <= recovery_point)


cdef int64_t read_batch(
    Segment* segment, int64_t read_from, int64_t upto, int64_t position, int64_t hole, int* error
) noexcept nogil:
    """Do as read_upto for the batch at `position`, if one may stand there."""
    cdef BatchHeader header
    upto = read_upto(segment, read_from, upto, position + BATCH_HEADER_BYTES, hole, error)
    if position + BATCH_HEADER_BYTES <= segment.used_bytes:
        batch_header_load(segment.map + position, &header)
        if header.magic == BATCH_MAGIC_V2:
            upto = read_upto(segment, read_from, upto, position + header.batch_bytes, hole, error)
    return upto


cdef Status recover_segment(
    PartitionLog* log, Segment* segment, int64_t recovery_point, int64_t* end, bint* cut,
    Fault* out,
) noexcept nogil:
    """Verify a segment from the recovery point on; `end` becomes the offset after it."""
    cdef int64_t position = scan_start(segment, recovery_point)
    cdef int64_t next_offset = segment.base_offset
    cdef int64_t limit = segment.used_bytes
    cdef int64_t before_position = -1
    cdef int64_t before_offset = 0   # Where the batch there was to begin, if it begins later.
    cdef bint rose = False
    cdef bint keep = True
    cdef bint known
    cdef int64_t relative_offset
    cdef BatchHeader header
    cdef int64_t read_from = eos_page_start(position)
    cdef int64_t dirty_upto = read_from
    cdef int64_t hole = segment.used_bytes if segment.foreign else read_from
    cdef int64_t apart_from = read_from
    cdef int error = 0
    if segment.used_bytes > position and not segment.foreign:
        hole = eos_first_hole(segment.fd, read_from, segment.used_bytes)
    if position > 0:
        batch_header_load(segment.map + position, &header)
        relative_offset = header.base_offset + header.last_offset_delta - segment.base_offset
        offset_index_truncate(&segment.offset_index, relative_offset)
        segment.bytes_since_index_entry = log.options.segment.index_interval_bytes + 1
        next_offset = header.base_offset
    else:
        segment_clear_indexes(segment)
        segment.max_timestamp = -1
        header.batch_bytes = READ_BYTES_MIN
    while True:
        # Of batches below the recovery point the headers do. Those of large ones are read alone.
        known = next_offset < recovery_point
        if known:
            if header.batch_bytes < READ_BYTES_MIN or segment.foreign:
                dirty_upto = read_upto(
                    segment, read_from, dirty_upto, position + BATCH_HEADER_BYTES, hole, &error)
            known = ends_below(segment, position, limit, recovery_point, &header)
        if not known:
            dirty_upto = read_batch(segment, read_from, dirty_upto, position, hole, &error)
        if error != 0:
            return io_fault(out, error, "a segment could not be read")
        if known or (limit - position >= BATCH_HEADER_BYTES and (
                batch_check(segment.map + position, limit - position, &header, out) == STATUS_OK)):
            if header.base_offset >= next_offset:
                if header.base_offset + header.last_offset_delta - segment.base_offset > (
                        0x7FFFFFFF):
                    break
                before_position = position if header.base_offset > next_offset else -1
                before_offset = next_offset
                segment_note_batch(segment, &header, position, &log.options.segment)
                next_offset = header.base_offset + header.last_offset_delta + 1
                if segment.foreign and not segment.mended and (
                        position - apart_from >= READ_BYTES_MAX):
                    # Of what is whole nothing is cut. The last batch may have to be mended.
                    eos_end_apart(segment.fd, segment.map, apart_from, eos_page_start(position))
                    apart_from = eos_page_start(position)
                position += header.batch_bytes
                if known and dirty_upto < position:
                    read_from = eos_page_start(position)
                    dirty_upto = read_from
                continue
            rose = before_position >= 0 and header.base_offset >= before_offset
            # The other name of an adopted file keeps them, and the adoption is done again.
            keep = not segment.linked
        if not rose:
            break
        # No checksum covers the base offset of the batch before, and it rose: all once more, up to
        # that one. After the last batch nothing shows it, but that the end is known by something
        # else.
        rose = False
        keep = True
        limit = before_position
        before_position = -1
        position = 0
        next_offset = segment.base_offset
        segment_clear_indexes(segment)
        segment.max_timestamp = -1
    end[0] = next_offset
    cut[0] = position < segment.used_bytes
    if position > 0:
        batch_header_load(segment.map, &header)
        segment.first_max_timestamp = header.max_timestamp
    segment.unsynced = not segment.foreign
    if position > dirty_upto and not segment.foreign:
        eos_dirty_again(segment.map + dirty_upto, <size_t>(position - dirty_upto))
    if cut[0]:
        return cut_tail(log, segment, position, keep, out)
    return STATUS_OK


cdef bint zeros_only(const uint8_t* at, int64_t count) noexcept nogil:
    cdef int64_t index
    for index in range(count):
        if at[index] != 0:
            return False
    return True


cdef void kept_path(
    PartitionLog* log, int64_t base_offset, int64_t position, char* path
) noexcept nogil:
    """Write the path under which bytes cut from `position` on are kept.

    No file has it: one that was kept in the same millisecond is not replaced.
    """
    cdef int64_t number = eos_now_ms()
    while True:
        snprintf(path, SEGMENT_PATH_BYTES_MAX, "%s/%020lld.log.%lld.%lld", log.cut_directory,
                 <long long>base_offset, <long long>position, <long long>number)
        if access(path, F_OK) != 0:
            return
        number += 1


cdef Status cut_tail(
    PartitionLog* log, Segment* segment, int64_t position, bint keep, Fault* out
) noexcept nogil:
    """Cut the file at `position`; with `keep`, the bytes go aside unless a terminator stands
    there.

    Where there is no room for them they stay in the file. Until a recovery that has room, the log
    is read up to them, and takes no appends.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t tail_bytes = segment.used_bytes - position
    cdef int64_t probe = tail_bytes
    cdef int fd = -1
    cdef int error = 0
    cdef Status status
    if probe > BATCH_TERMINATOR_BYTES:
        probe = BATCH_TERMINATOR_BYTES
    if keep and not zeros_only(segment.map + position, probe):
        eos_read_pages_alone(segment.map, <size_t>segment.map_bytes, False)
        if segment.foreign:
            error = eos_bytes_before_zeros(segment.fd, position, tail_bytes, &tail_bytes)
        else:
            while tail_bytes > 0 and segment.map[position + tail_bytes - 1] == 0:
                tail_bytes -= 1
        kept_path(log, segment.base_offset, position, path)
        if error == 0:
            error = eos_open(path, True, False, &fd)
        if error == 0:
            if segment.foreign:
                error = eos_copy_bytes(segment.fd, position, tail_bytes, fd)
            else:
                error = eos_pwrite_all(fd, segment.map + position, <size_t>tail_bytes, 0)
                if error == 0:
                    error = eos_sync_data(fd)
            close_fd(fd)
        if error != 0:
            unlink(path)
            status = io_fault(out, error, "a torn tail could not be set aside")
            if status != STATUS_NO_SPACE:
                return status
            log_fail(log, error)
            segment.used_bytes = position
            return STATUS_OK
        log.cut_bytes += tail_bytes
    log.directory_unsynced = log.directory_unsynced or segment.linked
    return segment_cut(segment, log.directory, position, out)


cdef Status drop_segments_behind(PartitionLog* log, int32_t index, Fault* out) noexcept nogil:
    """Make segment `index` the last one, or none with -1; the files after it go to the cut
    directory.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef char kept[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* segment
    while log.segment_count - 1 > index:
        segment = log.segments[log.segment_count - 1]
        segment_path(log.directory, segment.base_offset, b".log", path)
        kept_path(log, segment.base_offset, 0, kept)
        if rename(path, kept) != 0:
            return fault(out, STATUS_IO, "a segment could not be set aside",
                         segment.base_offset, 0)
        log.cut_bytes += segment.used_bytes
        derived_files_remove(log, segment.base_offset)
        segment_unload(segment)
        free(segment)
        log.segment_count -= 1
    set_mark(&log.directory_unsynced)
    return STATUS_OK


cdef Status log_truncate(PartitionLog* log, int64_t offset, Fault* out) noexcept nogil:
    """Cut the log back so that it ends at `offset`; a batch that straddles it goes whole.

    The log then ends at that batch's base offset: no offsets are left out between two batches.
    Producers are the caller's to rebuild. Files above are deleted, and the log is published again.
    """
    cdef Status status = log_lock(log, out)
    if status != STATUS_OK:
        return status
    status = truncate_locked(log, offset, out)
    log_unlock(log)
    return status


cdef Status truncate_locked(PartitionLog* log, int64_t offset, Fault* out) noexcept nogil:
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* active
    cdef int error
    cdef Status status = STATUS_OK
    if offset >= log_end(log):
        return STATUS_OK
    pthread_mutex_lock(&log.segments_lock)
    for error in range(log.segment_count):
        if log.segments[error].references > 0:
            pthread_mutex_unlock(&log.segments_lock)
            return fault(out, STATUS_OFFSET_OUT_OF_RANGE, "a reader holds a segment", 0, offset)
    while log.segment_count > 0 and log_active(log).base_offset > offset:
        active = log_active(log)
        derived_files_remove(log, active.base_offset)
        segment_path(log.directory, active.base_offset, b".log", path)
        unlink(path)
        segment_unload(active)
        free(active)
        log.segment_count -= 1
    pthread_mutex_unlock(&log.segments_lock)
    set_mark(&log.directory_unsynced)
    if log.segment_count == 0:
        control_store(&log.page.log_start_offset, offset)
        status = log_start_segment(log, offset, out)
    else:
        active = log_active(log)
        segment_unload(active)
        active.active = True
        status = log_load_writable(log, active, out)
        if status == STATUS_OK:
            status = rebuild_below(log, active, &offset, out)
    if status != STATUS_OK:
        log_fail(log, out.os_errno)
        return status
    if control_load(&log.page.recovery_point) > offset:
        control_store(&log.page.recovery_point, offset)
    if control_synced_before(log.page, log.page.topic_id, log.page.partition) > offset:
        control_keep_synced(log.page, log.page.topic_id, log.page.partition, offset)
    if control_load(&log.page.log_start_offset) > offset:
        control_store(&log.page.log_start_offset, offset)
    log.snapshot_offset = -1
    abort_index_truncate(&log.aborts, offset)
    # A marker may be gone: until the producers are known again, nothing counts as decided.
    log.stable_unknown = True
    log_publish(log, offset)
    return STATUS_OK


cdef Status rebuild_below(
    PartitionLog* log, Segment* active, int64_t* offset, Fault* out
) noexcept nogil:
    """Cut the active file at the first batch that reaches `offset` and rebuild its indexes.

    `offset` becomes that batch's base offset if it is lower.
    """
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef Status status
    if active.used_bytes > active.reserved_bytes:
        active.used_bytes = active.reserved_bytes
    status = segment_find(active, offset[0], active.used_bytes, &position, out)
    if status != STATUS_OK:
        return status
    if position < active.used_bytes:
        batch_header_load(active.map + position, &header)
        if header.base_offset < offset[0]:
            offset[0] = header.base_offset
    status = segment_cut(active, log.directory, position, out)
    if status != STATUS_OK:
        return status
    active.first_max_timestamp = -1
    set_mark(&active.unsynced)
    status = segment_rebuild_indexes(active, &log.options.segment, out)
    if status == STATUS_OK:
        status = segment_store_indexes(active, log.directory, False, out)
    EOS_CHECK(active.used_bytes <= active.reserved_bytes, "truncate: used within reserved")
    return status
