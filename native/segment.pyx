# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""One segment: batches back to back in one mapping, zeros after them, and two sparse indexes.

Invariants: used_bytes <= reserved_bytes <= segment.bytes while active, and the file is
reserved_bytes long, so no store through the map can fault; BATCH_TERMINATOR_BYTES zeros follow the
last batch (or the reserved end does), so a scan ends there whatever a recycled file held before; a
sealed segment's file ends at used_bytes. Files are recycled within one partition only: whatever
stands in them has lower offsets.
"""
from libc.stdio cimport snprintf
from libc.string cimport memset

from eoslog.native.atomics cimport load_acquire_64, set_mark, store_release_32, store_release_map
from eoslog.native.byte_order cimport load_be32, load_be64
from eoslog.native.file_space cimport eos_begin_writeback
from eoslog.native.index_file cimport (
    index_file_append, index_file_close, index_file_lookup, index_file_open, index_file_pack,
    index_file_store, index_file_truncate, index_file_unpack,
)
from eoslog.native.io_fault cimport io_fault
from eoslog.native.mapped_io cimport (
    EFBIG, ENODATA, ENOENT, ENOMEM, ENOSPC, EOS_FILE_LOST, EWOULDBLOCK, WatchedFile, close_fd,
    eos_count_names, eos_file_bytes, eos_identity_of, eos_is_at, eos_is_unchanged, eos_map,
    eos_map_apart, eos_now_ms, eos_open, eos_own_link, eos_page_start, eos_pwrite_all, eos_rename,
    eos_reserve, eos_share, eos_still_holds, eos_sync_file, eos_truncate, munmap,
)
from eoslog.native.offset_index cimport (
    OFFSET_INDEX_ENTRY_BYTES, offset_index_load, offset_index_offset, offset_index_position,
    offset_index_truncate,
)
from eoslog.native.open_files cimport mapped_alone_count, open_files_count
from eoslog.native.record_batch cimport (
    BATCH_BASE_OFFSET, BATCH_HEADER_BYTES, BATCH_LAST_OFFSET_DELTA, BATCH_MAGIC, BATCH_MAGIC_V2,
    batch_header_load, batch_terminate,
)
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX, spare_take
from eoslog.native.status cimport (
    STATUS_CORRUPT, STATUS_FAILED, STATUS_IO, STATUS_OK, STATUS_REOPENED, fault,
)
from eoslog.native.time_index cimport (
    TIME_INDEX_ENTRY_BYTES, time_index_full, time_index_load, time_index_offset,
    time_index_timestamp, time_index_truncate,
)

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept

cdef enum:
    RESERVE_STEP_BYTES_MIN = 65536
    # Filled with the lock held: in less than a millisecond, and larger steps cost no less a byte.
    RESERVE_STEP_BYTES_MAX = 1048576
    FILLS_OF_STEP = 4                # Where fills are small a sync soon writes all the zeros ahead.
    UNFILLED_STEP_BYTES_MAX = 8388608
    BEGUN_BYTES_MIN = 393216         # The disk is asked for no less at a time.


cdef void segment_init(Segment* segment, int64_t base_offset) noexcept nogil:
    memset(segment, 0, sizeof(Segment))
    segment.base_offset = base_offset
    segment.journaled_offset = base_offset
    segment.fd = -1
    segment.max_timestamp = -1
    segment.max_timestamp_offset = base_offset
    segment.first_max_timestamp = -1
    segment.own_bytes = -1
    segment.created_ms = eos_now_ms()


cdef void segment_path(
    const char* directory, int64_t base_offset, const char* suffix, char* path
) noexcept nogil:
    """<directory>/<base offset, 20 digits><suffix> into `path` (SEGMENT_PATH_BYTES_MAX bytes)."""
    snprintf(path, SEGMENT_PATH_BYTES_MAX, "%s/%020lld%s",
             directory, <long long>base_offset, suffix)


cdef int open_file(
    Segment* segment, const char* path, bint create, bint read_only
) noexcept nogil:
    cdef int error = eos_open(path, create, read_only, &segment.fd)
    if error == 0:
        open_files_count(1)
    return error


cdef Status segment_create(
    Segment* segment, const char* directory, const char* spare_directory, int32_t spare_max,
    const SegmentOptions* options, Fault* out,
) noexcept nogil:
    """Make the file of a new active segment, from a spare one if there is any, and map it."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef bint made
    cdef int error
    segment_path(directory, segment.base_offset, b".log", path)
    out.base_offset = segment.base_offset
    made = spare_take(spare_directory, spare_max, path)
    error = open_file(segment, path, True, False)
    made = made or error == 0
    if error == 0:
        error = eos_share(segment.fd)
    if error == 0:
        error = eos_file_bytes(segment.fd, &file_bytes, &modified_ms)
    if error == 0 and file_bytes > options.segment_bytes:
        file_bytes = options.segment_bytes
        error = eos_truncate(segment.fd, file_bytes)
    if error == 0:
        error = eos_map(segment.fd, <size_t>options.segment_bytes, True, &segment.map)
    if error != 0:
        if made:
            # The next opening would take it for a segment that was damaged.
            unlink(path)
        segment_unload(segment)
        return io_fault(out, error, "a new segment file could not be made")
    segment.map_bytes = options.segment_bytes
    segment.reserved_bytes = file_bytes
    segment.active = True
    if file_bytes > 0:
        batch_terminate(segment.map, segment.map + file_bytes)
    if not index_file_open(
            &segment.offset_index, OFFSET_INDEX_ENTRY_BYTES, options.segment_index_bytes) or (
            not index_file_open(
                &segment.time_index, TIME_INDEX_ENTRY_BYTES, options.segment_index_bytes)):
        if made:
            # The next opening would take it for a segment that was damaged.
            unlink(path)
        segment_unload(segment)
        return io_fault(out, ENOMEM, "no memory for a segment's indexes")
    segment.loaded = True
    return STATUS_OK


cdef Status segment_load(
    Segment* segment, const char* directory, int64_t writable_bytes, const SegmentOptions* options,
    Fault* out,
) noexcept nogil:
    """Open and map an existing file and read its indexes; missing or senseless ones are left empty.

    `writable_bytes`: so much of it may be written at least, by processes that may write; 0: nothing
    is. used_bytes is the file's length until the caller knows better; `unsynced` is left alone.
    What is stored to the map of a foreign one its file does not get.
    """
    cdef Status status = load_file(segment, directory, writable_bytes, options, out)
    # Looked at last: what was read is the log's if what is watched is unchanged by then.
    if is_replaced(segment, &options.watched):
        segment_unload(segment)
        return fault(out, STATUS_REOPENED, SEGMENT_REOPENED, 0, 0)
    return status


cdef bint is_replaced(const Segment* segment, const WatchedFile* watched) noexcept nogil:
    """The file of a segment that is only read may be that of another log."""
    return watched.path != NULL and (segment.foreign or segment.read_only) and (
        not eos_is_unchanged(watched))


cdef Status load_file(
    Segment* segment, const char* directory, int64_t writable_bytes, const SegmentOptions* options,
    Fault* out,
) noexcept nogil:
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t modified_ms = 0
    cdef int64_t map_bytes
    cdef int64_t names = 1
    cdef int error
    segment_path(directory, segment.base_offset, b".log", path)
    out.base_offset = segment.base_offset
    error = open_file(
        segment, path, False, segment.foreign or segment.read_only or writable_bytes == 0)
    # As long as it is mapped here no process makes another segment of the file.
    if error == 0:
        error = eos_share(segment.fd)
    if error == EWOULDBLOCK:
        error = ENOENT                   # It was deleted, and is just being put aside for reuse.
    if error == 0:
        error = eos_is_at(segment.fd, path)
    if error == 0:
        error = eos_file_bytes(segment.fd, &segment.reserved_bytes, &modified_ms)
    if error == 0:
        error = eos_count_names(segment.fd, &names)
    if error != 0:
        segment_unload(segment)
        return io_fault(out, error, "a segment file could not be opened")
    segment.linked = names > 1
    if segment.active or (segment.used_bytes == 0 and not segment.foreign):
        segment.used_bytes = segment.reserved_bytes
    elif segment.used_bytes > segment.reserved_bytes:
        out.position_bytes = segment.reserved_bytes
        segment_unload(segment)
        return fault(out, STATUS_CORRUPT, "a segment file is shorter than it was",
                     segment.used_bytes, segment.reserved_bytes)
    segment.created_ms = modified_ms
    map_bytes = segment.reserved_bytes
    if map_bytes < writable_bytes and not segment.foreign:
        map_bytes = writable_bytes
    if map_bytes > 0:
        error = (
            eos_map_apart(segment.fd, <size_t>map_bytes, &segment.map)
            if segment.foreign and writable_bytes > 0
            else eos_map(segment.fd, <size_t>map_bytes,
                         writable_bytes > 0 and not segment.read_only, &segment.map))
        if error != 0:
            segment_unload(segment)
            return io_fault(out, error, "a segment file could not be mapped")
        segment.map_bytes = map_bytes
    return load_indexes(segment, directory, options, out)


cdef Status load_indexes(
    Segment* segment, const char* directory, const SegmentOptions* options, Fault* out
) noexcept nogil:
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t capacity_bytes = options.segment_index_bytes
    cdef int64_t offset_index_bytes
    cdef int32_t last
    segment_path(directory, segment.base_offset, b".index", path)
    if not offset_index_load(&segment.offset_index, path, capacity_bytes, segment.used_bytes):
        segment_unload(segment)
        return io_fault(out, ENOMEM, "no memory for a segment's indexes")
    # Of a segment that was made when more was allowed: its time index may have to be made again.
    offset_index_bytes = (
        <int64_t>segment.offset_index.capacity_count * OFFSET_INDEX_ENTRY_BYTES)
    if offset_index_bytes > capacity_bytes:
        capacity_bytes = offset_index_bytes
    segment_path(directory, segment.base_offset, b".timeindex", path)
    if not time_index_load(&segment.time_index, path, capacity_bytes):
        segment_unload(segment)
        return io_fault(out, ENOMEM, "no memory for a segment's indexes")
    last = segment.time_index.count - 1
    if last >= 0:
        segment.max_timestamp = time_index_timestamp(&segment.time_index, last)
        segment.max_timestamp_offset = (
            segment.base_offset + time_index_offset(&segment.time_index, last))
    segment.loaded = True
    return STATUS_OK


cdef void segment_begin_anew(Segment* segment) noexcept nogil:
    """Begin the segment as empty: its batches are noted one after the other from here on."""
    segment.used_bytes = 0
    segment.max_timestamp = -1
    segment.max_timestamp_offset = segment.base_offset
    segment.first_max_timestamp = -1
    segment.bytes_since_index_entry = 0
    set_mark(&segment.unsynced)
    segment_clear_indexes(segment)


cdef void segment_clear_indexes(Segment* segment) noexcept nogil:
    """Drop all entries of both indexes."""
    index_file_truncate(&segment.offset_index, 0)
    index_file_truncate(&segment.time_index, 0)


cdef Status segment_cut(
    Segment* segment, const char* directory, int64_t bytes, Fault* out
) noexcept nogil:
    """Make the file of a loaded, writable segment end at `bytes`.

    One that has another name keeps its content under that: it is a staged file, and what is cut off
    here may have to be adopted from there once more. The segment gets a file of its own then. The
    file of a foreign one stays as it is, and is read so far.
    """
    cdef int error = 0
    out.base_offset = segment.base_offset
    if segment.foreign:
        pass
    elif segment.linked:
        error = own_copy(segment, directory, bytes)
    else:
        error = eos_truncate(segment.fd, bytes)
    if error != 0:
        return io_fault(out, error, "a segment file could not be cut")
    segment.used_bytes = bytes
    segment.reserved_bytes = bytes
    # What is appended from here on may have the offsets of what went, and stand elsewhere.
    segment.journaled_offset = segment.base_offset
    segment.journaled_bytes = 0
    return STATUS_OK


cdef int own_copy(Segment* segment, const char* directory, int64_t bytes) noexcept nogil:
    """Put a copy of the first bytes, on disk, in the file's place and map it instead."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef char fresh[SEGMENT_PATH_BYTES_MAX]
    cdef uint8_t* map = NULL
    cdef int fd = -1
    cdef int error
    segment_path(directory, segment.base_offset, b".log", path)
    segment_path(directory, segment.base_offset, SEGMENT_UNNAMED_SUFFIX, fresh)
    error = eos_open(fresh, True, False, &fd)
    if error == 0:
        error = eos_truncate(fd, 0)
    if error == 0:
        error = eos_pwrite_all(fd, segment.map, <size_t>bytes, 0)
    if error == 0:
        error = eos_sync_file(fd)
    if error == 0:
        error = eos_share(fd)
    if error == 0:
        error = eos_map(fd, <size_t>segment.map_bytes, True, &map)
    if error == 0:
        error = eos_rename(fresh, path)
    if error != 0:
        if map != NULL:
            munmap(map, <size_t>segment.map_bytes)
        if fd >= 0:
            close_fd(fd)
        unlink(fresh)
        return error
    munmap(segment.map, <size_t>segment.map_bytes)
    close_fd(segment.fd)
    segment.map = map
    segment.fd = fd
    segment.linked = False
    return 0


cdef Status segment_reserve(
    Segment* segment, int64_t bytes_wanted, bint unfilled, const SegmentOptions* options, Fault* out
) noexcept nogil:
    """Make sure that [0, bytes_wanted) of the file exists on disk. Steps grow with the segment.

    `unfilled`: what is wanted is written whole, and synced soon. Zeros would go to the disk first.
    """
    cdef int64_t fill_bytes = 0 if unfilled else options.fill_bytes
    cdef int64_t step_max = UNFILLED_STEP_BYTES_MAX if unfilled else min(
        <int64_t>RESERVE_STEP_BYTES_MAX, FILLS_OF_STEP * options.fill_bytes)
    cdef int64_t upto
    cdef int error
    if bytes_wanted <= segment.reserved_bytes:
        return STATUS_OK
    upto = segment.reserved_bytes * 2
    if upto > segment.reserved_bytes + step_max:
        upto = segment.reserved_bytes + step_max
    if upto < RESERVE_STEP_BYTES_MIN:
        upto = RESERVE_STEP_BYTES_MIN
    if upto < bytes_wanted:
        upto = bytes_wanted
    if upto > segment.map_bytes:
        upto = segment.map_bytes
    error = eos_reserve(segment.fd, segment.reserved_bytes, upto, fill_bytes)
    if (error == ENOSPC or error == EFBIG) and upto > bytes_wanted:
        upto = bytes_wanted
        error = eos_reserve(segment.fd, segment.reserved_bytes, upto, fill_bytes)
    if error != 0:
        eos_truncate(segment.fd, segment.reserved_bytes)
        out.base_offset = segment.base_offset
        return io_fault(out, error, "no space could be reserved for the batch")
    segment.reserved_bytes = upto
    return STATUS_OK


cdef void segment_begin_sync(
    Segment* segment, int64_t begin_bytes, int64_t end_bytes
) noexcept nogil:
    """Have the disk begin with what was written between two positions, if it is much. It will be
    synced, and the sync has less to wait for.
    """
    cdef int64_t upto = eos_page_start(end_bytes)
    cdef int64_t begin = max(
        begin_bytes, segment.begun_bytes, load_acquire_64(&segment.journaled_bytes))
    if upto - begin >= BEGUN_BYTES_MIN:
        eos_begin_writeback(segment.fd, begin, upto - begin)
        segment.begun_bytes = upto


cdef void segment_note_batch(
    Segment* segment, const BatchHeader* header, int64_t position_bytes,
    const SegmentOptions* options,
) noexcept nogil:
    """Enter a whole batch at `position_bytes` into the indexes, by Kafka's rule, and into the
    clocks.
    """
    cdef int64_t last_offset = header.base_offset + header.last_offset_delta
    cdef int32_t relative_offset = <int32_t>(last_offset - segment.base_offset)
    if position_bytes == 0:
        segment.first_max_timestamp = header.max_timestamp
    if header.max_timestamp > segment.max_timestamp:
        segment.max_timestamp = header.max_timestamp
        segment.max_timestamp_offset = last_offset
    if segment.bytes_since_index_entry > options.index_interval_bytes:
        index_file_append(&segment.offset_index, relative_offset, <int32_t>position_bytes)
        if segment.max_timestamp >= 0 and not time_index_full(&segment.time_index):
            index_file_append(&segment.time_index, segment.max_timestamp,
                              <int32_t>(segment.max_timestamp_offset - segment.base_offset))
        segment.bytes_since_index_entry = 0
    segment.bytes_since_index_entry += header.batch_bytes


cdef bint index_entry_holds(const Segment* segment, int32_t entry) noexcept nogil:
    """True if an offset index entry points at the batch it names."""
    cdef int64_t position = offset_index_position(&segment.offset_index, entry)
    cdef const uint8_t* batch = segment.map + position
    # A reader may find an entry whose batch is not published: its bytes count from there on.
    if position + BATCH_HEADER_BYTES > load_acquire_64(&segment.used_bytes) or (
            batch[BATCH_MAGIC] != BATCH_MAGIC_V2):
        return False
    return load_be64(batch + BATCH_BASE_OFFSET) + load_be32(batch + BATCH_LAST_OFFSET_DELTA) == (
        segment.base_offset + offset_index_offset(&segment.offset_index, entry))


cdef Status segment_find(
    const Segment* segment, int64_t offset, int64_t upper_bytes, int64_t* position_bytes,
    Fault* out,
) noexcept nogil:
    """Position of the first batch below upper_bytes with a last offset >= `offset`, else
    upper_bytes.
    """
    cdef int64_t position = 0
    cdef int64_t base_offset_min = segment.base_offset
    cdef int32_t entry = index_file_lookup(&segment.offset_index, offset - segment.base_offset)
    cdef BatchHeader header
    cdef Status status
    # An index that lies is ignored: the log is the truth.
    if entry >= 0 and index_entry_holds(segment, entry):
        position = offset_index_position(&segment.offset_index, entry)
    while position + BATCH_HEADER_BYTES <= upper_bytes:
        status = batch_in_chain(segment, position, upper_bytes, base_offset_min, &header, out)
        if status != STATUS_OK:
            return status
        if header.base_offset + header.last_offset_delta >= offset:
            position_bytes[0] = position
            return STATUS_OK
        base_offset_min = batch_end_offset(&header)
        position += header.batch_bytes
    position_bytes[0] = upper_bytes
    return STATUS_OK


cdef bint time_entry_holds(const Segment* segment, int32_t entry) noexcept nogil:
    """True if a time index entry names the last offset of a batch, and that batch's timestamp."""
    cdef int64_t offset = segment.base_offset + time_index_offset(&segment.time_index, entry)
    cdef int64_t position = 0
    cdef BatchHeader header
    cdef Fault ignored
    if segment_find(segment, offset, segment.used_bytes, &position, &ignored) != STATUS_OK or (
            position + BATCH_HEADER_BYTES > segment.used_bytes):
        return False
    batch_header_load(segment.map + position, &header)
    return header.max_timestamp == time_index_timestamp(&segment.time_index, entry) and (
        header.base_offset + header.last_offset_delta == offset)


cdef bint segment_times_before(Segment* segment, int64_t position) noexcept nogil:
    """Note the newest time of all batches before the one at `position`, a batch of the index.

    Entries of that batch and later ones are dropped: they are for the walk to make again. What the
    last one left does not tell, the headers after it do: its own may be gone, since one that was
    made when a segment was closed stood for it. False if no entry is left that can be believed.
    """
    cdef int64_t at = 0
    cdef int64_t base_offset_min
    cdef int32_t last
    cdef BatchHeader header
    cdef Fault ignored
    batch_header_load(segment.map + position, &header)
    time_index_truncate(&segment.time_index, header.base_offset - segment.base_offset)
    last = segment.time_index.count - 1
    if last < 0 or not time_entry_holds(segment, last):
        return False
    segment.max_timestamp = time_index_timestamp(&segment.time_index, last)
    segment.max_timestamp_offset = (
        segment.base_offset + time_index_offset(&segment.time_index, last))
    base_offset_min = segment.max_timestamp_offset + 1
    if segment_find(segment, base_offset_min, position, &at, &ignored) != STATUS_OK:
        return True
    while at < position and (
            batch_in_chain(segment, at, position, base_offset_min, &header, &ignored) == STATUS_OK):
        base_offset_min = batch_end_offset(&header)
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp = header.max_timestamp
            segment.max_timestamp_offset = base_offset_min - 1
        at += header.batch_bytes
    return True


cdef bint segment_indexes_hold(const Segment* segment) noexcept nogil:
    """True if the indexes of a segment that was ended agree with its batches, as far as a short
    look shows.

    The last entries name what stands there, no later batch is newer than the last time entry, and
    there are not more batches without an entry than there may be.
    """
    cdef int64_t position = 0
    cdef int64_t base_offset_min = segment.base_offset
    cdef int32_t last = segment.offset_index.count - 1
    cdef BatchHeader header
    cdef Fault ignored
    if segment.used_bytes == 0:
        return True
    if segment.time_index.count == 0 or not time_entry_holds(segment, segment.time_index.count - 1):
        return False
    if last >= 0:
        if not index_entry_holds(segment, last):
            return False
        position = offset_index_position(&segment.offset_index, last)
    while position + BATCH_HEADER_BYTES <= segment.used_bytes:
        if batch_in_chain(segment, position, segment.used_bytes, base_offset_min, &header,
                          &ignored) != STATUS_OK:
            return False
        if header.max_timestamp > (
                time_index_timestamp(&segment.time_index, segment.time_index.count - 1)):
            return False
        base_offset_min = batch_end_offset(&header)
        position += header.batch_bytes
    return True


cdef Status segment_rebuild_indexes(
    Segment* segment, const SegmentOptions* options, Fault* out
) noexcept nogil:
    """Rebuild both indexes from the batch headers in [0, used_bytes)."""
    cdef int64_t position = 0
    cdef int64_t base_offset_min = segment.base_offset
    cdef BatchHeader header
    cdef Status status
    segment_clear_indexes(segment)
    segment.bytes_since_index_entry = 0
    segment.max_timestamp = -1
    while position + BATCH_HEADER_BYTES <= segment.used_bytes:
        status = batch_in_chain(
            segment, position, segment.used_bytes, base_offset_min, &header, out)
        if status != STATUS_OK:
            return status
        base_offset_min = batch_end_offset(&header)
        segment_note_batch(segment, &header, position, options)
        position += header.batch_bytes
    return STATUS_OK


cdef Status segment_index_active(
    Segment* segment, const SegmentOptions* options, int64_t* end, Fault* out
) noexcept nogil:
    """Walk the headers after the last index entry, up to used_bytes: the indexes are whole then.

    `end` becomes the offset after the last batch.
    """
    cdef int64_t position = 0
    cdef int64_t next_offset = segment.base_offset
    cdef BatchHeader header
    if segment.offset_index.count > 0 and segment_indexes_hold(segment):
        position = offset_index_position(&segment.offset_index, segment.offset_index.count - 1)
    if position > 0 and segment_times_before(segment, position):
        # The last entry itself is made again by the walk: so many bytes lie before it.
        offset_index_truncate(
            &segment.offset_index,
            offset_index_offset(&segment.offset_index, segment.offset_index.count - 1))
        segment.bytes_since_index_entry = options.index_interval_bytes + 1
    else:
        position = 0
        segment.max_timestamp = -1
        segment.bytes_since_index_entry = 0
        segment_clear_indexes(segment)
    while position + BATCH_HEADER_BYTES <= segment.used_bytes:
        if batch_in_chain(
                segment, position, segment.used_bytes, next_offset, &header, out) != STATUS_OK:
            break
        segment_note_batch(segment, &header, position, options)
        next_offset = batch_end_offset(&header)
        position += header.batch_bytes
    if position != segment.used_bytes:
        out.base_offset = segment.base_offset
        out.position_bytes = position
        return fault(out, STATUS_CORRUPT,
                     "the log was closed cleanly, and its batches break off here",
                     segment.used_bytes, position)
    if segment.used_bytes > 0:
        batch_header_load(segment.map, &header)
        segment.first_max_timestamp = header.max_timestamp
    end[0] = next_offset
    return STATUS_OK


cdef Status segment_store_indexes(
    Segment* segment, const char* directory, bint sync, Fault* out
) noexcept nogil:
    """Write both index files up to the entries in memory; with `sync`, to the disk."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int error
    out.base_offset = segment.base_offset
    segment_path(directory, segment.base_offset, b".index", path)
    error = eos_own_link(path) if segment.foreign else 0
    if error == 0:
        error = index_file_store(&segment.offset_index, path, sync)
    segment_path(directory, segment.base_offset, b".timeindex", path)
    if error == 0 and segment.foreign:
        error = eos_own_link(path)
    if error == 0:
        error = index_file_store(&segment.time_index, path, sync)
    if error != 0:
        return io_fault(out, error, "an index file could not be written")
    return STATUS_OK


cdef void segment_end_times(Segment* segment) noexcept nogil:
    """Have the newest time of all batches in the time index: the last entry of a segment that ends.
    """
    if segment.max_timestamp >= 0:
        index_file_append(&segment.time_index, segment.max_timestamp,
                          <int32_t>(segment.max_timestamp_offset - segment.base_offset))


cdef Status segment_seal(Segment* segment, const char* directory, Fault* out) noexcept nogil:
    """End a segment: last time index entry, index files, file cut to its batches. Not synced.

    The mapping stays, for readers; no writer stores through it any longer.
    """
    cdef Status status
    cdef int error
    segment_end_times(segment)
    status = segment_store_indexes(segment, directory, False, out)
    if status != STATUS_OK:
        return status
    if segment.foreign:
        segment.active = False
        return STATUS_OK
    error = eos_still_holds(segment.fd, segment.used_bytes)
    if error != 0:
        # Cutting it would fill up with zeros what is missing.
        out.os_errno = error
        return fault(out, STATUS_FAILED, EOS_FILE_LOST, 0, error)
    error = eos_truncate(segment.fd, segment.used_bytes)
    if error != 0:
        return io_fault(out, error, "a segment file could not be cut to its batches")
    segment.reserved_bytes = segment.used_bytes
    segment.active = False
    set_mark(&segment.indexes_unsynced)
    # Its new length, though every batch may be synced.
    set_mark(&segment.unsynced)
    return STATUS_OK


cdef void segment_unload(Segment* segment) noexcept nogil:
    """Give back the mapping, the file and the indexes; the fields that describe the file stay."""
    close_file(segment)
    index_file_close(&segment.offset_index)
    index_file_close(&segment.time_index)
    segment.loaded = False


cdef void close_file(Segment* segment) noexcept nogil:
    if segment.map != NULL:
        munmap(segment.map, <size_t>segment.map_bytes)
        mapped_alone_count(-(segment.fd < 0))
    segment.map = NULL
    segment.apart_upto = 0
    if segment.fd >= 0:
        close_fd(segment.fd)
        open_files_count(-1)
    segment.fd = -1


cdef bint segment_close_file(Segment* segment, bint keep_map) noexcept nogil:
    """Give back the descriptor of a segment that stays loaded, until it is reopened, and without
    `keep_map` the mappings; False if a resource was lacking. No caller holds it.

    A map that is kept keeps the lock of its file too. So if the segment has a batch, only another
    program can put another file under its name.
    """
    if eos_identity_of(segment.fd, &segment.device, &segment.inode) != 0:
        return False
    if keep_map and segment.used_bytes > 0:
        close_fd(segment.fd)
        open_files_count(-1)
        mapped_alone_count(1)
        segment.fd = -1
        return True
    if not index_file_pack(&segment.offset_index) or not index_file_pack(&segment.time_index):
        index_file_unpack(&segment.offset_index)
        return False
    close_file(segment)
    segment.touched_bytes = 0
    return True


cdef Status segment_reopen_file(
    Segment* segment, const char* directory, const SegmentOptions* options, Fault* out
) noexcept nogil:
    """Have the file of a segment whose file was closed, and its mappings, as they were.

    While it held no batch another file may have taken its name, which becomes the segment's: a
    staged one, mostly. The map is set after the indexes, and the descriptor last: who finds one,
    without the log's segments_lock, has the rest.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int64_t names = 1
    cdef uint64_t device = 0
    cdef uint64_t inode = 0
    cdef int fd = -1
    cdef bint mapped = segment.map != NULL
    cdef int error
    segment_path(directory, segment.base_offset, b".log", path)
    out.base_offset = segment.base_offset
    error = eos_open(path, False, segment.read_only, &fd)
    if error == 0 and not mapped:
        error = eos_share(fd)
    if error == EWOULDBLOCK:
        error = ENOENT                   # It was deleted, and is just being put aside for reuse.
    if error == 0 and not mapped:
        error = eos_is_at(fd, path)
    if error == 0:
        error = eos_file_bytes(fd, &file_bytes, &modified_ms)
    if error == 0:
        error = eos_identity_of(fd, &device, &inode)
    if error == 0:
        error = eos_count_names(fd, &names)
    if is_replaced(segment, &options.watched):
        if fd >= 0:
            close_fd(fd)
        return fault(out, STATUS_REOPENED, SEGMENT_REOPENED, 0, 0)
    if error == 0 and segment.used_bytes > 0 and (
            device != segment.device or inode != segment.inode or file_bytes < segment.used_bytes):
        close_fd(fd)
        out.os_errno = ENODATA
        return fault(out, STATUS_IO, EOS_FILE_LOST, segment.used_bytes, file_bytes)
    if error == 0 and not mapped:
        error = map_again(segment, fd)
    if error != 0:
        if fd >= 0:
            close_fd(fd)
        return io_fault(out, error, "a segment file could not be opened again")
    segment.linked = names > 1
    segment.device = device
    segment.inode = inode
    open_files_count(1)
    mapped_alone_count(-mapped)
    store_release_32(<int32_t*>&segment.fd, fd)
    return STATUS_OK


cdef int map_again(Segment* segment, int fd) noexcept nogil:
    """Have the mappings of a segment that gave them back; 0 or an errno."""
    cdef uint8_t* map = NULL
    cdef int error
    if not (index_file_unpack(&segment.offset_index) and index_file_unpack(&segment.time_index)):
        return ENOMEM
    error = eos_map(fd, <size_t>segment.map_bytes, not segment.read_only, &map)
    if error == 0:
        store_release_map(&segment.map, map)
    return error
