# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The .txnindex files of a log: written later than its abort index, read and rebuilt on opening.

Invariants: a file belongs to the segment that holds the markers of its entries; it is only ever
appended to, but for a log that is cut back, and on opening, where it loses what the log does not
confirm. The files carry no checksum: the caller that opens a log has kept one beside what else it
knows of the log's producers; where that does not match, the whole index is rebuilt from the log.
"""
from libc.stdint cimport int16_t, int32_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from eoslog.native.abort_index cimport (
    ABORT_ENTRY_BYTES, AbortedTransaction, abort_entry_load, abort_entry_store, abort_index_append,
    abort_index_lower, abort_index_truncate,
)
from eoslog.native.atomics cimport set_mark
from eoslog.native.control_page cimport control_load
from eoslog.native.crc32c cimport crc32c
from eoslog.native.io_fault cimport io_fault
from eoslog.native.log_replay cimport MARKER_COMMIT, log_end_transaction, marker_load
from eoslog.native.mapped_io cimport (
    ENOMEM, close_fd, eos_file_bytes, eos_open, eos_own_link, eos_pread_all, eos_pwrite_all,
    eos_truncate,
)
from eoslog.native.ongoing_transactions cimport (
    OngoingTransactions, ongoing_add, ongoing_free, ongoing_init,
)
from eoslog.native.partition_log cimport (
    log_acquire, log_next_base, log_release, pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.producer_table cimport (
    ProducerTable, table_find, table_free, table_init, table_insert,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES, BatchHeader,
)
from eoslog.native.segment cimport Segment, batch_end_offset, batch_in_chain, segment_path
from eoslog.native.sequence_window cimport ProducerEntry
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport (
    STATUS_IO, STATUS_NO_MEMORY, STATUS_OFFSET_OUT_OF_RANGE, STATUS_OK, fault,
)

cdef int64_t segment_base_of(PartitionLog* log, int64_t offset, int64_t* next_base) noexcept nogil:
    """Return the base offset of the segment that holds an offset, and of the one after it."""
    cdef int64_t base = -1
    cdef int32_t index
    next_base[0] = 0x7FFFFFFFFFFFFFFF
    pthread_mutex_lock(&log.segments_lock)
    index = log.segment_count
    while index > 0:
        index -= 1
        base = log.segments[index].base_offset
        if base <= offset or index == 0:
            break
        next_base[0] = base
    pthread_mutex_unlock(&log.segments_lock)
    return base


cdef int64_t encoded_entries(
    PartitionLog* log, int64_t first, int64_t upper, uint8_t** encoded
) noexcept nogil:
    """Entries [first, upper) as they stand in a file; `encoded` is the caller's to free."""
    cdef int64_t index
    encoded[0] = <uint8_t*>malloc(<size_t>(upper - first) * ABORT_ENTRY_BYTES + 1)
    if encoded[0] == NULL:
        return -1
    pthread_mutex_lock(&log.aborts.lock)
    for index in range(first, upper):
        abort_entry_store(
            encoded[0] + (index - first) * ABORT_ENTRY_BYTES, &log.aborts.entries[index])
    pthread_mutex_unlock(&log.aborts.lock)
    return (upper - first) * ABORT_ENTRY_BYTES


cdef Status abort_files_store(PartitionLog* log, Fault* out) noexcept nogil:
    """Write what the files do not hold yet, unsynced; the caller keeps the log's appends out."""
    cdef int64_t base_offset, next_base, first, upper
    cdef Status status = STATUS_OK
    while status == STATUS_OK and log.aborts.stored_count < log.aborts.count:
        first = log.aborts.stored_count
        base_offset = segment_base_of(log, log.aborts.entries[first].last_offset, &next_base)
        upper = abort_index_lower(&log.aborts, next_base)
        status = store_of_segment(log, base_offset, first, upper, out)
        if status == STATUS_OK:
            log.aborts.stored_count = upper
    return status


cdef Status store_of_segment(
    PartitionLog* log, int64_t base_offset, int64_t first, int64_t upper, Fault* out
) noexcept nogil:
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef uint8_t* encoded = NULL
    cdef int64_t segment_first = abort_index_lower(&log.aborts, base_offset)
    cdef int64_t position = (first - segment_first) * ABORT_ENTRY_BYTES
    cdef int64_t encoded_bytes = encoded_entries(log, first, upper, &encoded)
    cdef int fd = -1
    cdef int error
    out.base_offset = base_offset
    if encoded_bytes < 0:
        return fault(out, STATUS_NO_MEMORY, "no memory for entries of an abort index", 0, 0)
    segment_path(log.directory, base_offset, b".txnindex", path)
    error = eos_own_link(path) if log.options.segment.overlay else 0
    if error == 0:
        error = eos_open(path, True, False, &fd)
    if error == 0:
        error = eos_truncate(fd, position)
        if error == 0:
            error = eos_pwrite_all(fd, encoded, <size_t>encoded_bytes, position)
        close_fd(fd)
        set_mark(&log.directory_unsynced)
    free(encoded)
    if error != 0:
        return io_fault(out, error, "an abort index could not be written")
    return STATUS_OK


cdef Status abort_file_describe(
    PartitionLog* log, int64_t base_offset, int64_t next_base_offset, AbortFile* found, Fault* out
) noexcept nogil:
    """Describe what a segment's file holds now; an entry count of 0 stands for no file."""
    cdef uint8_t* encoded = NULL
    cdef int64_t first = abort_index_lower(&log.aborts, base_offset)
    cdef int64_t upper = abort_index_lower(&log.aborts, next_base_offset)
    cdef int64_t encoded_bytes
    if upper > log.aborts.stored_count:
        upper = log.aborts.stored_count
    if upper < first:
        upper = first
    encoded_bytes = encoded_entries(log, first, upper, &encoded)
    if encoded_bytes < 0:
        return fault(out, STATUS_NO_MEMORY, "no memory for entries of an abort index", 0, 0)
    found.base_offset = base_offset
    found.entry_count = upper - first
    found.checksum = crc32c(0, encoded, <size_t>encoded_bytes)
    free(encoded)
    return STATUS_OK


cdef Status abort_file_load(
    PartitionLog* log, const AbortFile* described, int64_t below_offset, bint* whole, Fault* out
) noexcept nogil:
    """Take a file's entries with markers below an offset; `whole` says whether it is the one that
    was described. Files are loaded in the order of their segments.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t wanted_bytes = described.entry_count * ABORT_ENTRY_BYTES
    cdef int64_t file_bytes = 0
    cdef int64_t modified_ms = 0
    cdef int64_t index
    cdef AbortedTransaction aborted
    cdef uint8_t* data
    cdef int fd = -1
    cdef int error
    cdef Status status = STATUS_OK
    whole[0] = False
    segment_path(log.directory, described.base_offset, b".txnindex", path)
    if eos_open(path, False, True, &fd) != 0:
        return STATUS_OK
    error = eos_file_bytes(fd, &file_bytes, &modified_ms)
    if error != 0 or file_bytes < wanted_bytes:
        close_fd(fd)
        return STATUS_OK
    data = <uint8_t*>malloc(<size_t>wanted_bytes + 1)
    if data == NULL:
        close_fd(fd)
        return fault(out, STATUS_NO_MEMORY, "no memory for an abort index", wanted_bytes, 0)
    error = eos_pread_all(fd, data, <size_t>wanted_bytes, 0)
    close_fd(fd)
    if error == 0 and crc32c(0, data, <size_t>wanted_bytes) == described.checksum:
        whole[0] = True
        for index in range(described.entry_count):
            if not abort_entry_load(data + index * ABORT_ENTRY_BYTES, &aborted):
                whole[0] = False
            elif aborted.last_offset < below_offset and status == STATUS_OK:
                status = abort_index_append(&log.aborts, &aborted)
        log.aborts.stored_count = log.aborts.count
    free(data)
    return status


cdef Status abort_file_trim(
    PartitionLog* log, int64_t base_offset, int64_t next_base_offset, Fault* out
) noexcept nogil:
    """Cut a segment's file where it says anything but the index: entries of markers that did not
    survive, or of an older log. What the index has beyond it is written in its time.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef uint8_t* encoded = NULL
    cdef int64_t first = abort_index_lower(&log.aborts, base_offset)
    cdef int64_t encoded_bytes = encoded_entries(
        log, first, abort_index_lower(&log.aborts, next_base_offset), &encoded)
    cdef int64_t file_bytes = 0
    cdef int64_t kept_bytes = 0
    cdef int fd = -1
    cdef int error = 0
    if encoded_bytes < 0:
        return fault(out, STATUS_NO_MEMORY, "no memory for entries of an abort index", 0, 0)
    segment_path(log.directory, base_offset, b".txnindex", path)
    if log.options.segment.overlay:
        error = eos_own_link(path)
    if error == 0 and eos_open(path, False, False, &fd) == 0:
        error = equal_bytes(fd, encoded, encoded_bytes, &kept_bytes, &file_bytes)
        if error == 0 and kept_bytes < file_bytes:
            error = eos_truncate(fd, kept_bytes)
        close_fd(fd)
    free(encoded)
    if error != 0:
        out.os_errno = error
        return fault(out, STATUS_IO, "an abort index could not be cut", base_offset, error)
    return STATUS_OK


cdef int equal_bytes(
    int fd, const uint8_t* encoded, int64_t encoded_bytes, int64_t* equal, int64_t* file_bytes
) noexcept nogil:
    """Find the size of a file, and up to which entry it says what is encoded; 0 or an errno."""
    cdef int64_t modified_ms = 0
    cdef int64_t shared_bytes
    cdef uint8_t* data
    cdef int error = eos_file_bytes(fd, file_bytes, &modified_ms)
    if error != 0:
        return error
    shared_bytes = file_bytes[0] if file_bytes[0] < encoded_bytes else encoded_bytes
    shared_bytes -= shared_bytes % ABORT_ENTRY_BYTES
    data = <uint8_t*>malloc(<size_t>shared_bytes + 1)
    if data == NULL:
        return ENOMEM
    error = eos_pread_all(fd, data, <size_t>shared_bytes, 0)
    equal[0] = 0
    while error == 0 and equal[0] < shared_bytes and memcmp(
            data + equal[0], encoded + equal[0], ABORT_ENTRY_BYTES) == 0:
        equal[0] += ABORT_ENTRY_BYTES
    free(data)
    return error


cdef Status abort_index_rebuild(
    PartitionLog* log, int64_t below_offset, Fault* out
) noexcept nogil:
    """Rebuild the index of all markers below an offset from the log; nothing counts as stored.

    Of a transaction whose first batches were deleted with their segment, what is left of it counts.
    """
    cdef ProducerTable producers
    cdef OngoingTransactions ongoing
    cdef Segment* segment = NULL
    cdef int64_t offset = log.segments[0].base_offset
    cdef int64_t log_start
    cdef Status status = STATUS_OK
    abort_index_truncate(&log.aborts, -1)
    table_init(&producers)
    ongoing_init(&ongoing)
    while status == STATUS_OK and 0 <= offset < below_offset:
        status = log_acquire(log, offset, &segment, out)
        log_start = control_load(&log.page.log_start_offset)
        if status == STATUS_OFFSET_OUT_OF_RANGE and offset < log_start:
            # Another process deletes segments just now.
            offset = log_start
            status = STATUS_OK
        elif status == STATUS_OK:
            status = rebuild_segment(log, segment, below_offset, &producers, &ongoing, out)
            offset = log_next_base(log, segment)
            log_release(log, segment)
    table_free(&producers)
    ongoing_free(&ongoing)
    return status


cdef Status rebuild_segment(
    PartitionLog* log, Segment* segment, int64_t below_offset, ProducerTable* producers,
    OngoingTransactions* ongoing, Fault* out,
) noexcept nogil:
    cdef int64_t position = 0
    cdef int64_t used_bytes = segment.used_bytes
    cdef int64_t base_offset_min = segment.base_offset
    cdef BatchHeader header
    cdef Status status = STATUS_OK
    while status == STATUS_OK and position + BATCH_HEADER_BYTES <= used_bytes:
        status = batch_in_chain(segment, position, used_bytes, base_offset_min, &header, out)
        if status != STATUS_OK or header.base_offset >= below_offset:
            return status
        if header.attributes & ATTRIBUTE_TRANSACTIONAL and header.producer_id >= 0:
            status = rebuild_batch(
                log, segment.map + position, &header, producers, ongoing, out)
        base_offset_min = batch_end_offset(&header)
        position += header.batch_bytes
    return status


cdef Status rebuild_batch(
    PartitionLog* log, const uint8_t* batch, const BatchHeader* header, ProducerTable* producers,
    OngoingTransactions* ongoing, Fault* out,
) noexcept nogil:
    """Follow one transactional batch: a transaction begins, goes on, or ends."""
    cdef ProducerEntry* entry = table_find(producers, header.producer_id)
    cdef int64_t timestamp = 0
    cdef int32_t coordinator_epoch = 0
    cdef int16_t marker_type = 0
    cdef Status status = STATUS_OK
    if not header.attributes & ATTRIBUTE_CONTROL:
        if entry == NULL:
            entry = table_insert(producers, header.producer_id)
            if entry == NULL:
                return fault(out, STATUS_NO_MEMORY, "no memory to rebuild an abort index", 0, 0)
        if entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = header.base_offset
            status = ongoing_add(ongoing, header.base_offset, header.producer_id)
        return status
    if entry == NULL or entry.current_txn_first_offset < 0 or not marker_load(
            batch, header, &marker_type, &coordinator_epoch, &timestamp):
        return STATUS_OK
    status = log_end_transaction(
        ongoing, &log.aborts, entry, marker_type == MARKER_COMMIT, header.base_offset)
    entry.current_txn_first_offset = -1
    return status
