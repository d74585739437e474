# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Batches that stand in a log, taken into what it knows of producers and transactions.

Invariants: no verdict is passed here, the log is the truth; a transaction is open from its first
batch to the marker after it; an aborted one is in the abort index before readers may pass it.
"""
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc, qsort

from eoslog.native.abort_index cimport AbortedTransaction, abort_index_append
from eoslog.native.byte_order cimport load_be16, load_be32
from eoslog.native.ongoing_transactions cimport (
    OngoingTransaction, ongoing_add, ongoing_clear, ongoing_end, ongoing_first,
)
from eoslog.native.partition_log cimport log_acquire, log_end, log_next_base, log_release
from eoslog.native.producer_table cimport (
    table_at, table_find, table_insert, table_note_incomplete,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_COMPRESSION_MASK, ATTRIBUTE_CONTROL, BATCH_HEADER_BYTES, Record, RecordCursor,
    cursor_next, cursor_open,
)
from eoslog.native.segment cimport Segment, batch_end_offset, batch_in_chain, segment_find
from eoslog.native.sequence_window cimport entry_marker, entry_replay
from eoslog.native.status cimport STATUS_NO_MEMORY, STATUS_OK


cdef Status log_replay(PartitionLog* log, int64_t from_offset, Fault* out) noexcept nogil:
    """Take every batch with records at or above from_offset into the producer table."""
    cdef int64_t upper_bound = log_end(log)
    cdef int64_t offset = from_offset
    cdef int64_t after
    cdef Segment* segment = NULL
    cdef Status status
    if offset < log.segments[0].base_offset:
        offset = log.segments[0].base_offset
    while offset < upper_bound:
        status = log_acquire(log, offset, &segment, out)
        if status != STATUS_OK:
            return status
        after = log_next_base(log, segment)
        status = replay_segment(log, segment, offset, out)
        log_release(log, segment)
        if status != STATUS_OK or after < 0:
            return status
        # Also where the segment's last batch ends below: what was between was cut off.
        offset = after
    return STATUS_OK


cdef Status replay_segment(
    PartitionLog* log, Segment* segment, int64_t from_offset, Fault* out
) noexcept nogil:
    cdef int64_t position = 0
    cdef int64_t used_bytes = segment.used_bytes
    cdef int64_t base_offset_min = segment.base_offset
    cdef BatchHeader header
    cdef Status status = segment_find(segment, from_offset, used_bytes, &position, out)
    while status == STATUS_OK and position + BATCH_HEADER_BYTES <= used_bytes:
        status = batch_in_chain(segment, position, used_bytes, base_offset_min, &header, out)
        if status == STATUS_OK:
            status = log_replay_batch(log, segment.map + position, &header)
            base_offset_min = batch_end_offset(&header)
            position += header.batch_bytes
    return status


cdef Status log_replay_batch(
    PartitionLog* log, const uint8_t* batch, const BatchHeader* header
) noexcept nogil:
    """Take a batch that stands in the log into the producer table."""
    cdef ProducerEntry* entry
    cdef int64_t open_before
    cdef Status status = STATUS_OK
    if header.producer_id < 0:
        return STATUS_OK
    entry = table_find(&log.producers, header.producer_id)
    if entry == NULL:
        entry = table_insert(&log.producers, header.producer_id)
        if entry != NULL and log.producers.evicted_count > 0 and (
                header.base_offset >= log.whole_end):
            if not table_note_incomplete(&log.producers, header.producer_id):
                return STATUS_NO_MEMORY
    if entry == NULL:
        return STATUS_NO_MEMORY
    open_before = entry.current_txn_first_offset
    if header.attributes & ATTRIBUTE_CONTROL:
        status = replay_marker(log, entry, batch, header)
    else:
        entry_replay(entry, header)
        if open_before < 0 <= entry.current_txn_first_offset:
            status = ongoing_add(&log.ongoing, header.base_offset, header.producer_id)
    entry.changed_at_offset = header.base_offset + header.last_offset_delta + 1
    return status


cdef bint marker_load(
    const uint8_t* batch, const BatchHeader* header, int16_t* marker_type,
    int32_t* coordinator_epoch, int64_t* timestamp,
) noexcept nogil:
    """Read the one record of a control batch; False if it ends no transaction."""
    cdef RecordCursor cursor
    cdef Record record
    cdef Fault ignored
    if header.record_count <= 0 or header.attributes & ATTRIBUTE_COMPRESSION_MASK:
        return False
    cursor_open(&cursor, batch, header)
    if cursor_next(&cursor, &record, &ignored) != STATUS_OK or (
            record.key_bytes < MARKER_KEY_BYTES or record.value_bytes < MARKER_VALUE_BYTES):
        return False
    marker_type[0] = load_be16(record.key + 2)
    coordinator_epoch[0] = load_be32(record.value + 2)
    timestamp[0] = record.timestamp
    return marker_type[0] in (MARKER_ABORT, MARKER_COMMIT)


cdef Status replay_marker(
    PartitionLog* log, ProducerEntry* entry, const uint8_t* batch, const BatchHeader* header
) noexcept nogil:
    cdef int16_t marker_type = 0
    cdef int32_t coordinator_epoch = 0
    cdef int64_t timestamp = 0
    cdef Status status = STATUS_OK
    if not marker_load(batch, header, &marker_type, &coordinator_epoch, &timestamp):
        return STATUS_OK
    if entry.current_txn_first_offset >= 0:
        status = log_end_transaction(
            &log.ongoing, &log.aborts, entry, marker_type == MARKER_COMMIT, header.base_offset)
    entry_marker(entry, header.producer_epoch, coordinator_epoch, timestamp)
    return status


cdef Status log_end_transaction(
    OngoingTransactions* ongoing, AbortIndex* aborts, const ProducerEntry* entry, bint commit,
    int64_t marker_offset,
) noexcept nogil:
    """The producer's open transaction ends with the marker at an offset: readers may pass it once
    the log is published.
    """
    cdef AbortedTransaction aborted
    cdef int64_t stable
    ongoing_end(ongoing, entry.current_txn_first_offset)
    if commit:
        return STATUS_OK
    stable = ongoing_first(ongoing)
    aborted.producer_id = entry.producer_id
    aborted.first_offset = entry.current_txn_first_offset
    aborted.last_offset = marker_offset
    aborted.last_stable_offset = stable if stable >= 0 else marker_offset + 1
    return abort_index_append(aborts, &aborted)


cdef int by_first_offset(const void* left, const void* right) noexcept nogil:
    cdef int64_t one = (<const OngoingTransaction*>left).first_offset
    cdef int64_t other = (<const OngoingTransaction*>right).first_offset
    return (one > other) - (one < other)


cdef Status log_restore_ongoing(PartitionLog* log) noexcept nogil:
    """The producer table was filled from elsewhere: take the open transactions from it."""
    cdef OngoingTransaction* found
    cdef int64_t count = 0
    cdef int64_t index
    cdef Status status = STATUS_OK
    ongoing_clear(&log.ongoing)
    found = <OngoingTransaction*>malloc(
        (<size_t>log.producers.entry_count + 1) * sizeof(OngoingTransaction))
    if found == NULL:
        return STATUS_NO_MEMORY
    for index in range(log.producers.entry_count):
        if table_at(&log.producers, <uint32_t>index).current_txn_first_offset >= 0:
            found[count].first_offset = table_at(
                &log.producers, <uint32_t>index).current_txn_first_offset
            found[count].producer_id = table_at(&log.producers, <uint32_t>index).producer_id
            count += 1
    qsort(found, <size_t>count, sizeof(OngoingTransaction), by_first_offset)
    for index in range(count):
        if status == STATUS_OK and (
                index == 0 or found[index].first_offset > found[index - 1].first_offset):
            status = ongoing_add(
                &log.ongoing, found[index].first_offset, found[index].producer_id)
    free(found)
    return status
