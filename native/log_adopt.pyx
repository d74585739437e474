# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Staged files on their way into a log: copied batch by batch, or whole, as a segment of their own.

Invariants: every batch is checked before the first one is written; the log takes the batches of a
producer id in the order of their sequences, and none twice. A file that is adopted whole gets the
log's name only when all of its batches say where they stand: a process that finds it there, after
the death of this one, finds batches of this log. After a power cut they may say nothing of the
kind, and are cut off. Its staged name stays, and no process writes to it as long as it has both
(docs/staged-commit.md).
"""
from libc.stdint cimport int32_t
from libc.string cimport memset

from eoslog.native.atomics cimport set_mark, store_release_64
from eoslog.native.byte_order cimport store_be32, store_be64
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport control_write_begin
from eoslog.native.empty_segment cimport empty_segment_reload
from eoslog.native.log_append cimport append_whole, outcome_add
from eoslog.native.log_follow cimport log_take_up_segment
from eoslog.native.log_lock cimport log_lock, log_unlock
from eoslog.native.mapped_io cimport (
    close_fd, eos_count_names, eos_file_bytes, eos_is_at, eos_link, eos_map, eos_open_staged,
    eos_pwrite_all, eos_rename, munmap,
)
from eoslog.native.new_file cimport eos_keep_access
from eoslog.native.log_roll cimport log_end_segment, log_note_producers
from eoslog.native.partition_log cimport (
    log_active, log_check_directory, log_end, log_name_page, log_publish, pthread_mutex_lock,
    pthread_mutex_unlock,
)
from eoslog.native.producer_table cimport table_find_whole, table_insert, table_remove
from eoslog.native.record_batch cimport (
    BATCH_BASE_OFFSET, BATCH_HEADER_BYTES, BATCH_LEADER_EPOCH, BATCH_LENGTH, BATCH_LENGTH_OVERHEAD,
    BATCH_MAGIC_V2, BatchHeader, batch_check, batch_header_load, sequence_add,
)
from eoslog.native.segment cimport SEGMENT_UNNAMED_SUFFIX, Segment, segment_note_batch, segment_path
from eoslog.native.sequence_window cimport (
    NO_EPOCH, ProducerEntry, window_accept, window_last_sequence,
)
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport (
    STATUS_CORRUPT, STATUS_IO, STATUS_NO_MEMORY, STATUS_OK,
    STATUS_PRODUCER_NOT_CACHED, STATUS_SEQUENCE_GAP, fault,
)

cdef extern from "<unistd.h>" nogil:
    int unlink(const char* path) noexcept

cdef enum:
    OFFSET_SPAN_MAX = 0x7FFFFFFF     # Offsets of a segment are kept as 32-bit distances.
    STAMP_BYTES = 16                 # Base offset, length and leader epoch: outside the checksum.
    INDEX_ENTRIES_SPARE = 2          # The last entry of a sealing, and one for rounding.
    UNNOTED_BYTES_MAX = 64 << 20     # Replayed at most because adoptions wrote no snapshot.

# A staged file that may become a segment: open, mapped, and so far known to no other process.
cdef struct StagedFile:
    const char* path
    const uint8_t* data
    int64_t bytes
    int64_t producer_id
    int64_t record_count
    int64_t batch_count
    int64_t base_offset              # In its batches; -1 before they are stamped.
    int fd


cdef Status check_batches(
    const uint8_t* data, int64_t data_bytes, int64_t producer_id, bint checksums,
    StagedFile* counts, Fault* out,
) noexcept nogil:
    """Staged batches are whole, of one producer, and their sequences count from 0.

    Without `checksums` the headers alone are looked at.
    """
    cdef int64_t position = 0
    cdef int32_t expected = 0
    cdef BatchHeader header
    cdef Status status
    counts.record_count = 0
    counts.batch_count = 0
    while position < data_bytes:
        out.position_bytes = position
        if checksums or data_bytes - position < BATCH_HEADER_BYTES:
            status = batch_check(data + position, data_bytes - position, &header, out)
            out.position_bytes = position
            if status != STATUS_OK:
                return status
        else:
            batch_header_load(data + position, &header)
        if header.batch_bytes < BATCH_HEADER_BYTES or header.batch_bytes > (
                data_bytes - position) or header.magic != BATCH_MAGIC_V2:
            return fault(out, STATUS_CORRUPT, "the chain of staged batches breaks",
                         data_bytes - position, header.batch_bytes)
        if header.producer_id != producer_id or header.base_sequence != expected or (
                header.record_count <= 0 or header.last_offset_delta != header.record_count - 1):
            return fault(out, STATUS_CORRUPT, "a staged batch is not its producer's next one",
                         expected, header.base_sequence)
        expected = sequence_add(expected, header.record_count)
        counts.record_count += header.record_count
        counts.batch_count += 1
        position += header.batch_bytes
    return STATUS_OK


cdef Status log_adopt(
    PartitionLog* log, const uint8_t* data, int64_t data_bytes, int64_t producer_id,
    AppendOutcome* outcome, Fault* out,
) noexcept nogil:
    """Append the staged batches of one producer, whose sequences count from 0; go on after the
    last one that the partition holds. All are checked before the first is written."""
    cdef StagedFile counts
    cdef Status status = check_batches(data, data_bytes, producer_id, True, &counts, out)
    if status == STATUS_OK:
        status = log_lock(log, out)
    if status != STATUS_OK:
        return status
    status = adopt_locked(log, data, data_bytes, producer_id, outcome, out)
    log_unlock(log)
    return status


cdef Status adopt_locked(
    PartitionLog* log, const uint8_t* data, int64_t data_bytes, int64_t producer_id,
    AppendOutcome* outcome, Fault* out,
) noexcept nogil:
    cdef int64_t position = 0
    cdef int64_t held_count = 0
    cdef BatchHeader header
    cdef Status status = count_held(log, producer_id, &held_count, out)
    while status == STATUS_OK and position < data_bytes:
        batch_header_load(data + position, &header)
        if <int64_t>header.base_sequence + header.record_count > held_count:
            if header.base_sequence < held_count:
                return fault(out, STATUS_SEQUENCE_GAP, "the partition holds part of a staged batch",
                             held_count, header.base_sequence)
            status = append_whole(log, data + position, &header, False, outcome, out)
        position += header.batch_bytes
    return status


cdef Status count_held(
    PartitionLog* log, int64_t producer_id, int64_t* held_count, Fault* out
) noexcept nogil:
    """Find how many records of a staged producer id the log holds."""
    cdef bint row_needed = False
    cdef ProducerEntry* entry = table_find_whole(&log.producers, producer_id, &row_needed)
    held_count[0] = 0
    if row_needed:
        return fault(
            out, STATUS_PRODUCER_NOT_CACHED, "the producer is not in memory", 0, producer_id)
    if entry != NULL and entry.producer_epoch != NO_EPOCH:
        held_count[0] = <int64_t>window_last_sequence(entry) + 1
    return STATUS_OK


cdef Status log_adopt_file(
    PartitionLog* log, const char* path, int64_t file_bytes, int64_t producer_id, bint checked,
    bint* adopted, AppendOutcome* outcome, Fault* out,
) noexcept nogil:
    """Make a staged file a segment of the log, under a second name, without a copy.

    `adopted` is False where that is not possible: some of it is in the log already, it does not fit
    a segment, it cannot be linked or written to; nothing was changed in the log then. `checked`:
    the checksums were looked at just now. That it is in the log, and where, is on disk when the log
    is synced next.
    """
    cdef StagedFile staged
    cdef Status status
    adopted[0] = False
    staged.path = path
    staged.bytes = file_bytes
    staged.producer_id = producer_id
    staged.base_offset = -1
    if not open_staged(&staged):
        return STATUS_OK
    status = check_batches(staged.data, file_bytes, producer_id, not checked, &staged, out)
    if status == STATUS_OK and fits_a_segment(log, &staged):
        # First without the lock; again with it if the log's end has moved on.
        status = stamp(log, &staged, log_end(log), out)
        if status == STATUS_OK:
            status = log_lock(log, out)
        if status == STATUS_OK:
            status = stamp(log, &staged, log_end(log), out)
            if status == STATUS_OK:
                status = adopt_file_locked(log, &staged, adopted, outcome, out)
            log_unlock(log)
    munmap(<void*>staged.data, <size_t>file_bytes)
    close_fd(staged.fd)
    return status


cdef bint open_staged(StagedFile* staged) noexcept nogil:
    """Open and map a staged file; False if it is not what a segment can be made of."""
    cdef uint8_t* map = NULL
    cdef int64_t found_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int64_t names = 0
    if staged.bytes <= 0 or eos_open_staged(staged.path, &staged.fd) != 0:
        return False
    if eos_file_bytes(staged.fd, &found_bytes, &modified_ms) == 0 and (
            found_bytes == staged.bytes
            # A second name is one that an earlier attempt gave it, wherever that is now.
            and eos_count_names(staged.fd, &names) == 0 and names == 1
            and eos_keep_access(staged.fd, staged.path) == 0   # No other user writes to it.
            and eos_map(staged.fd, <size_t>found_bytes, False, &map) == 0):
        staged.data = map
        return True
    close_fd(staged.fd)
    return False


cdef bint fits_a_segment(PartitionLog* log, const StagedFile* staged) noexcept nogil:
    cdef int64_t entries = staged.bytes // log.options.segment.index_interval_bytes + 1
    cdef int64_t entries_max
    if entries > staged.batch_count:
        entries = staged.batch_count
    pthread_mutex_lock(&log.segments_lock)
    entries_max = log_active(log).offset_index.capacity_count
    if log_active(log).time_index.capacity_count < entries_max:
        entries_max = log_active(log).time_index.capacity_count
    pthread_mutex_unlock(&log.segments_lock)
    return (staged.bytes <= log.options.segment.segment_bytes
            and staged.record_count <= OFFSET_SPAN_MAX
            and entries + INDEX_ENTRIES_SPARE <= entries_max)


cdef Status stamp(
    PartitionLog* log, StagedFile* staged, int64_t base_offset, Fault* out
) noexcept nogil:
    """Tell each batch of a staged file where it will stand, if that is at `base_offset`.

    By writes of a few bytes: a store through a map would make whole folios dirty.
    """
    cdef uint8_t head[STAMP_BYTES]
    cdef int64_t position = 0
    cdef int64_t offset = base_offset
    cdef BatchHeader header
    cdef int error = 0
    if staged.base_offset == base_offset:
        return STATUS_OK
    staged.base_offset = -1
    while error == 0 and position < staged.bytes:
        batch_header_load(staged.data + position, &header)
        store_be64(&head[BATCH_BASE_OFFSET], offset)
        store_be32(&head[BATCH_LENGTH], <int32_t>(header.batch_bytes - BATCH_LENGTH_OVERHEAD))
        store_be32(&head[BATCH_LEADER_EPOCH], log.options.leader_epoch)
        error = eos_pwrite_all(staged.fd, head, STAMP_BYTES, position)
        offset += header.last_offset_delta + 1
        position += header.batch_bytes
    if error != 0:
        out.os_errno = error
        return fault(out, STATUS_IO, "a staged file could not be written to", 0, error)
    staged.base_offset = base_offset
    return STATUS_OK


cdef Status adopt_file_locked(
    PartitionLog* log, StagedFile* staged, bint* adopted, AppendOutcome* outcome, Fault* out
) noexcept nogil:
    cdef int64_t held_count = 0
    cdef bint was_empty = log_active(log).used_bytes == 0
    cdef ProducerEntry* entry
    cdef Status status = count_held(log, staged.producer_id, &held_count, out)
    if status != STATUS_OK or held_count > 0:
        return status
    entry = table_insert(&log.producers, staged.producer_id)
    if entry == NULL:
        return fault(out, STATUS_NO_MEMORY, "no memory for another producer", 0, 0)
    if was_empty:
        status = take_name(log, staged, adopted, out)
    else:
        status = add_behind(log, staged, adopted, out)
    if status == STATUS_OK and adopted[0]:
        take_in(log, staged, entry, outcome)
    elif entry.producer_epoch == NO_EPOCH:
        table_remove(&log.producers, staged.producer_id)
    return status


cdef Status take_name(
    PartitionLog* log, StagedFile* staged, bint* adopted, Fault* out
) noexcept nogil:
    """The staged file becomes the active segment in the place of an empty one."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef char unnamed[SEGMENT_PATH_BYTES_MAX]
    cdef Segment* active = log_active(log)
    cdef Status status = log_check_directory(log, out)
    if status != STATUS_OK:
        return status
    segment_path(log.directory, active.base_offset, b".log", path)
    segment_path(log.directory, active.base_offset, SEGMENT_UNNAMED_SUFFIX, unnamed)
    unlink(unnamed)
    if eos_link(staged.path, unnamed) != 0:
        return STATUS_OK
    if eos_is_at(staged.fd, unnamed) != 0 or eos_rename(unnamed, path) != 0:
        unlink(unnamed)
        return STATUS_OK
    eos_keep_access(staged.fd, path)
    status = empty_segment_reload(log, out)
    if status != STATUS_OK:
        # The name is taken, and nothing was published: the next holder of the lock repairs that.
        control_write_begin(log.page)
        return status
    set_mark(&log.directory_unsynced)
    adopted[0] = True
    return STATUS_OK


cdef Status add_behind(
    PartitionLog* log, StagedFile* staged, bint* adopted, Fault* out
) noexcept nogil:
    """The staged file becomes the active segment, and the one before it is sealed."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t end = log_end(log)
    cdef Segment* sealed = log_active(log)
    cdef Status status = log_check_directory(log, out)
    if status == STATUS_OK:
        status = log_name_page(log, out)
    if status != STATUS_OK:
        return status
    segment_path(log.directory, end, b".log", path)
    unlink(path)                     # Of a roll or an adoption that was cut short.
    if eos_link(staged.path, path) != 0:
        return STATUS_OK
    if eos_is_at(staged.fd, path) != 0:
        unlink(path)
        return STATUS_OK
    eos_keep_access(staged.fd, path)
    status = log_take_up_segment(log, end, out)
    if status != STATUS_OK:
        unlink(path)
        return status
    status = log_end_segment(log, sealed, out)
    if status != STATUS_OK:
        return status
    # Of the producers as they are here, before the file; as at a roll, but not for each file
    # of a job that brings many.
    if unnoted_bytes(log) >= UNNOTED_BYTES_MAX:
        log_note_producers(log, end)
    adopted[0] = True
    return STATUS_OK


cdef int64_t unnoted_bytes(PartitionLog* log) noexcept nogil:
    """Return how many bytes of the log lie after the newest snapshot, or after its beginning."""
    cdef int64_t found = 0
    cdef int32_t index = log.segment_count - 1
    while index >= 0 and found < UNNOTED_BYTES_MAX and (
            log.segments[index].base_offset >= log.snapshot_offset):
        found += log.segments[index].used_bytes
        index -= 1
    return found


cdef void take_in(
    PartitionLog* log, const StagedFile* staged, ProducerEntry* entry, AppendOutcome* outcome
) noexcept nogil:
    """Index the file's batches, remember them, publish them. Nothing here can fail."""
    cdef Segment* active = log_active(log)
    cdef int64_t end = staged.base_offset
    cdef int64_t position = 0
    cdef BatchHeader header
    memset(&header, 0, sizeof(BatchHeader))
    EOS_CHECK(active.base_offset == end, "adopt: the file is the segment at the log end")
    EOS_CHECK(active.reserved_bytes == staged.bytes, "adopt: the segment is the whole file")
    while position < staged.bytes:
        batch_header_load(active.map + position, &header)
        EOS_CHECK(header.base_offset == end, "adopt: each batch stands where the last one ends")
        segment_note_batch(active, &header, position, &log.options.segment)
        end += header.last_offset_delta + 1
        window_accept(
            entry, header.producer_epoch,
            sequence_add(header.base_sequence, header.last_offset_delta),
            header.last_offset_delta, end - 1, header.max_timestamp)
        position += header.batch_bytes
    entry.changed_at_offset = end
    set_mark(&active.unsynced)
    store_release_64(&active.used_bytes, position)
    log_publish(log, end)
    if log.own_end == staged.base_offset:
        store_release_64(&log.own_end, end)
    outcome_add(outcome, staged.base_offset, end - 1, header.max_timestamp, False)
