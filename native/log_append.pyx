# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Appending to a partition's log: verdict, room, bytes in place, publish, remember.

Invariants: an append with a producer id is written once, answered with the offsets of the first
write, or refused, and a refused one has changed nothing; nothing is published before its last byte
stands. A call that was split into several batches may stop between two of them: the outcome counts
the records that are in.
"""
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from eoslog.native.atomics cimport set_mark, store_release_64
from eoslog.native.batch_encode cimport (
    RecordColumns, batch_bytes_bound, batch_encode, batch_stream, newest_timestamp, record_bytes,
)
from eoslog.native.batch_write cimport batch_write_columns, batch_write_whole
from eoslog.native.byte_order cimport load_be64, store_be32, store_be64
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport control_store
from eoslog.native.counters cimport (
    COUNTER_DUPLICATE_BATCHES, COUNTER_DUPLICATE_RECORDS, COUNTER_REFUSED_EPOCHS,
    COUNTER_REFUSED_SEQUENCES, counter_add,
)
from eoslog.native.crash_point cimport CRASH_POINT, CRASH_POINTS_TORN
from eoslog.native.empty_segment cimport empty_segment_enlarge, empty_segment_renew
from eoslog.native.log_lock cimport log_lock, log_unlock
from eoslog.native.mapped_io cimport eos_now_ms
from eoslog.native.ongoing_transactions cimport ongoing_add
from eoslog.native.log_roll cimport log_roll
from eoslog.native.partition_log cimport log_active, log_end, log_publish, log_use_file
from eoslog.native.producer_table cimport table_find_whole, table_insert
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, BATCH_BASE_OFFSET,
    BATCH_HEADER_BYTES, BATCH_LEADER_EPOCH, BatchHeader, BatchIdentity, Record, RecordCursor,
    batch_check, batch_header_load, batch_terminate, check_uncompressed, cursor_next, cursor_open,
    sequence_add,
)
from eoslog.native.segment cimport (
    Segment, segment_begin_sync, segment_note_batch, segment_reserve,
)
from eoslog.native.segment_pages cimport segment_pages_written
from eoslog.native.sequence_window cimport (
    NO_SEQUENCE, OFFSETS_SEQUENCE, BatchMetadata, ProducerEntry, entry_clear, window_accept,
    window_verdict,
)
from eoslog.native.status cimport (
    STATUS_BATCH_TOO_LARGE, STATUS_DUPLICATE, STATUS_FENCED, STATUS_INVALID_RECORD,
    STATUS_INVALID_TIMESTAMP, STATUS_NO_MEMORY, STATUS_OK, STATUS_PRODUCER_NOT_CACHED,
    STATUS_RECORD_TOO_LARGE, STATUS_SEQUENCE_GAP, fault,
)
from eoslog.native.time_index cimport time_index_full

cdef enum:
    OFFSET_SPAN_MAX = 0x7FFFFFFF     # Offsets of a segment are kept as 32-bit distances.
    # From here on a batch would push most else out of a core's own cache.
    STREAMED_BATCH_BYTES_MIN = 262144


# One batch on its way in: either columns still to be encoded, or bytes that are whole already.
cdef struct Incoming:
    const RecordColumns* columns
    int64_t first
    const uint8_t* bytes
    int64_t batch_bytes              # Exact for bytes; for columns an upper bound, then exact.
    int64_t max_timestamp
    int32_t record_count
    int32_t last_offset_delta
    int16_t attributes


cdef Status check_sizes(
    PartitionLog* log, const RecordColumns* columns, int64_t bytes_max, Fault* out
) noexcept nogil:
    """Refuse the whole call, before anything is written, if one record can never fit in a batch."""
    cdef int64_t index, batch_bytes
    if batch_bytes_bound(columns, 0, columns.count) <= bytes_max:
        return STATUS_OK
    for index in range(columns.count):
        batch_bytes = BATCH_HEADER_BYTES + record_bytes(columns, index, index)
        if batch_bytes > bytes_max:
            out.position_bytes = index
            return fault(out, STATUS_RECORD_TOO_LARGE,
                         "a record alone is larger than max.message.bytes", bytes_max, batch_bytes)
    return STATUS_OK


cdef Status check_timestamps(
    PartitionLog* log, const RecordColumns* columns, Fault* out
) noexcept nogil:
    cdef int64_t now_ms = eos_now_ms()
    cdef int64_t index
    cdef int64_t timestamp = columns.default_timestamp_ms
    for index in range(columns.count if columns.timestamps != NULL else 1):
        if columns.timestamps != NULL:
            timestamp = columns.timestamps[index]
        if not timestamp_allowed(log, timestamp, now_ms):
            out.position_bytes = index
            return fault(out, STATUS_INVALID_TIMESTAMP,
                         "a record's timestamp is outside the topic's limits around now",
                         now_ms, timestamp)
    return STATUS_OK


cdef inline bint timestamp_allowed(
    PartitionLog* log, int64_t timestamp, int64_t now_ms
) noexcept nogil:
    if timestamp < 0:
        return timestamp == -1
    return (now_ms - timestamp <= log.options.timestamp_before_max_ms
            and timestamp - now_ms <= log.options.timestamp_after_max_ms)


cdef int64_t batch_record_count(
    const RecordColumns* columns, int64_t first, int64_t records_max, int64_t bytes_max,
    int64_t* batch_bytes,
) noexcept nogil:
    """Return how many records from `first` on go into the next batch; its size, or an upper bound
    of it.
    """
    cdef int64_t count = columns.count - first
    cdef int64_t index, next_bytes
    if records_max > 0 and count > records_max:
        count = records_max
    if count > OFFSET_SPAN_MAX:
        count = OFFSET_SPAN_MAX
    batch_bytes[0] = batch_bytes_bound(columns, first, count)
    if batch_bytes[0] <= bytes_max:
        return count
    batch_bytes[0] = BATCH_HEADER_BYTES
    for index in range(first, first + count):
        next_bytes = record_bytes(columns, index, first)
        if batch_bytes[0] + next_bytes > bytes_max and index > first:
            return index - first
        batch_bytes[0] += next_bytes
    return count


cdef int64_t exact_bytes(const Incoming* incoming) noexcept nogil:
    cdef int64_t total = BATCH_HEADER_BYTES
    cdef int64_t index
    for index in range(incoming.first, incoming.first + incoming.record_count):
        total += record_bytes(incoming.columns, index, incoming.first)
    return total


cdef bint roll_is_due(PartitionLog* log, const Incoming* incoming) noexcept nogil:
    """Kafka's roll rules, for a batch whose size is known."""
    cdef Segment* active = log_active(log)
    cdef int64_t waited_ms
    if active.used_bytes + incoming.batch_bytes > min(log.options.roll_bytes, active.map_bytes):
        return active.used_bytes > 0
    if active.linked:
        return active.used_bytes > 0  # A staged file takes nothing more under either name.
    if active.used_bytes > 0:
        if active.first_max_timestamp >= 0:
            waited_ms = incoming.max_timestamp - active.first_max_timestamp
        else:
            waited_ms = eos_now_ms() - active.created_ms
        if waited_ms > log.options.segment_ms:
            return True
    if active.offset_index.count >= active.offset_index.capacity_count:
        return True
    if time_index_full(&active.time_index):
        return True
    return log_end(log) + incoming.last_offset_delta - active.base_offset > OFFSET_SPAN_MAX


cdef Status make_room(PartitionLog* log, Incoming* incoming, Fault* out) noexcept nogil:
    """Have batch_bytes reserved at the end of an active segment that may take them."""
    cdef int64_t segment_bytes = log.options.segment.segment_bytes
    cdef int64_t upto_bytes
    cdef bint written
    cdef Segment* active
    cdef Status status = empty_segment_renew(log, out)
    if status != STATUS_OK:
        return status
    active = log_active(log)
    if incoming.columns != NULL and active.used_bytes + incoming.batch_bytes > segment_bytes:
        incoming.batch_bytes = exact_bytes(incoming)
    if incoming.columns != NULL and incoming.batch_bytes > segment_bytes:
        return fault(out, STATUS_BATCH_TOO_LARGE, "a batch is larger than segment.bytes",
                     segment_bytes, incoming.batch_bytes)
    if roll_is_due(log, incoming):
        status = log_roll(log, out)
        if status != STATUS_OK:
            return status
        active = log_active(log)
    if incoming.batch_bytes > active.map_bytes:
        # It is empty, and of the time before segment.bytes was raised; or the batch was staged
        # before that was lowered.
        status = empty_segment_enlarge(log, max(segment_bytes, incoming.batch_bytes), out)
        if status != STATUS_OK:
            return status
        active = log_active(log)
    upto_bytes = active.used_bytes + incoming.batch_bytes
    written = is_written(log, incoming)
    if written or upto_bytes > active.reserved_bytes:
        status = log_use_file(log, active, out)
        if status == STATUS_OK:
            status = segment_reserve(active, upto_bytes, written, &log.options.segment, out)
    # At once: the next holder of the lock stores up to there, and no further.
    control_store(&log.page.active_reserved_bytes, active.reserved_bytes)
    return status


cdef inline bint is_written(const PartitionLog* log, const Incoming* incoming) noexcept nogil:
    """True if the batch goes into the file by calls, and not through the map."""
    return incoming.batch_bytes >= log.options.written_bytes_min


cdef int64_t store_batch(
    PartitionLog* log, const Incoming* incoming, const ProducerStamp* stamp, uint8_t* at
) noexcept nogil:
    """Store a batch through the map, at `at`: records, zeros after, then the header. Its bytes."""
    cdef uint8_t header[BATCH_HEADER_BYTES]
    cdef BatchIdentity identity
    cdef Segment* active = log_active(log)
    cdef uint8_t* limit = active.map + active.reserved_bytes
    if incoming.columns != NULL:
        identify(log, incoming, stamp, &identity)
        if incoming.batch_bytes < STREAMED_BATCH_BYTES_MIN:
            return batch_encode(
                at, incoming.columns, incoming.first, incoming.record_count, &identity, limit,
                incoming.max_timestamp)
        return batch_stream(
            at, incoming.columns, incoming.first, incoming.record_count, &identity, limit,
            incoming.max_timestamp)
    fill_header(log, incoming, header)
    CRASH_POINT("batch: records")
    memcpy(at + BATCH_HEADER_BYTES, incoming.bytes + BATCH_HEADER_BYTES,
           <size_t>(incoming.batch_bytes - BATCH_HEADER_BYTES))
    batch_terminate(at + incoming.batch_bytes, limit)
    CRASH_POINT("batch: header")
    memcpy(at, header, BATCH_HEADER_BYTES)
    return incoming.batch_bytes


cdef int64_t write_batch(
    PartitionLog* log, const Incoming* incoming, const ProducerStamp* stamp
) noexcept nogil:
    """Write a batch by calls; its bytes, 0 if that failed. A transaction's is synced at its end."""
    cdef uint8_t header[BATCH_HEADER_BYTES]
    cdef BatchIdentity identity
    cdef Segment* active = log_active(log)
    cdef bint synced_soon = incoming.attributes & ATTRIBUTE_TRANSACTIONAL
    cdef int64_t batch_bytes
    if incoming.columns == NULL:
        fill_header(log, incoming, header)
        batch_bytes = batch_write_whole(active, header, incoming.bytes, incoming.batch_bytes)
    else:
        identify(log, incoming, stamp, &identity)
        batch_bytes = batch_write_columns(
            active, incoming.columns, incoming.first, incoming.record_count, &identity,
            incoming.max_timestamp, synced_soon)
    if batch_bytes > 0 and synced_soon:
        segment_begin_sync(active, 0, active.used_bytes + batch_bytes)
    return batch_bytes


cdef inline void identify(
    PartitionLog* log, const Incoming* incoming, const ProducerStamp* stamp,
    BatchIdentity* identity,
) noexcept nogil:
    """Say what the header of a batch of columns has to say, at the log end."""
    identity.base_offset = log_end(log)
    identity.producer_id = stamp.producer_id
    identity.producer_epoch = stamp.producer_epoch
    identity.base_sequence = written_sequence(stamp)
    identity.partition_leader_epoch = log.options.leader_epoch
    identity.attributes = incoming.attributes


cdef inline void fill_header(
    PartitionLog* log, const Incoming* incoming, uint8_t* header
) noexcept nogil:
    """The header of a whole batch, at the log end. Both fields stand before the checksummed
    part.
    """
    memcpy(header, incoming.bytes, BATCH_HEADER_BYTES)
    store_be64(&header[BATCH_BASE_OFFSET], log_end(log))
    store_be32(&header[BATCH_LEADER_EPOCH], log.options.leader_epoch)


cdef inline int32_t written_sequence(const ProducerStamp* stamp) noexcept nogil:
    """The base sequence in a batch's header: that of a group coordinator's is 0, as in Kafka."""
    return 0 if stamp.base_sequence == OFFSETS_SEQUENCE else stamp.base_sequence


cdef void place(
    PartitionLog* log, const Incoming* incoming, const ProducerStamp* stamp
) noexcept nogil:
    """Put the batch after the last one and publish it. There is room, and nothing can fail: what
    cannot be written by a call is stored through the map.
    """
    cdef Segment* active = log_active(log)
    cdef uint8_t* at = active.map + active.used_bytes
    cdef int64_t base_offset = log_end(log)
    cdef BatchHeader header
    cdef int64_t batch_bytes = 0
    if is_written(log, incoming):
        batch_bytes = write_batch(log, incoming, stamp)
    if batch_bytes == 0:
        batch_bytes = store_batch(log, incoming, stamp, at)
    else:
        store_release_64(&log.written_end, base_offset + incoming.last_offset_delta + 1)
    CRASH_POINTS_TORN("batch: torn header", at, BATCH_HEADER_BYTES)
    EOS_CHECK(batch_bytes <= incoming.batch_bytes, "append: the batch fits its room")
    EOS_CHECK(load_be64(at) == base_offset, "append: the batch stands at the log end")
    batch_header_load(at, &header)
    segment_note_batch(active, &header, active.used_bytes, &log.options.segment)
    set_mark(&active.unsynced)           # After the bytes: a sync that takes the mark has them.
    store_release_64(&active.used_bytes, active.used_bytes + batch_bytes)
    if not is_written(log, incoming):
        segment_pages_written(active, active.used_bytes, &log.options.segment)
    log_publish(log, base_offset + header.last_offset_delta + 1)
    if log.own_end == base_offset:
        store_release_64(&log.own_end, base_offset + header.last_offset_delta + 1)


cdef Status log_room_for(
    PartitionLog* log, int64_t batch_bytes, int64_t timestamp, Fault* out
) noexcept nogil:
    """Have room for a whole batch of one record at the log end. The caller holds the lock."""
    cdef Incoming incoming
    incoming.columns = NULL
    incoming.batch_bytes = batch_bytes
    incoming.max_timestamp = timestamp
    incoming.record_count = 1
    incoming.last_offset_delta = 0
    return make_room(log, &incoming, out)


cdef void log_place(PartitionLog* log, const uint8_t* batch, int64_t batch_bytes) noexcept nogil:
    """Put a whole batch at the log end and publish it, after log_room_for under the same lock."""
    cdef Incoming incoming
    incoming.columns = NULL
    incoming.bytes = batch
    incoming.batch_bytes = batch_bytes
    place(log, &incoming, NULL)


cdef Status append_locked(
    PartitionLog* log, Incoming* incoming, ProducerStamp* stamp, AppendOutcome* outcome, Fault* out
) noexcept nogil:
    """Judge one batch, write it, remember it. The caller holds the lock."""
    cdef ProducerEntry* entry = NULL
    cdef ProducerEntry unknown
    cdef BatchMetadata first_write
    cdef int64_t base_offset = log_end(log)
    cdef int32_t last_sequence = NO_SEQUENCE
    cdef bint known = True
    cdef bint row_needed = False
    cdef Status status
    if stamp.producer_id >= 0:
        entry = table_find_whole(&log.producers, stamp.producer_id, &row_needed)
        if row_needed:
            return fault(out, STATUS_PRODUCER_NOT_CACHED, "the producer is not in memory", 0,
                         stamp.producer_id)
        if entry == NULL:
            known = False
            entry_clear(&unknown, stamp.producer_id)
            entry = &unknown
        status = window_verdict(
            entry, stamp.producer_epoch, stamp.base_sequence, incoming.last_offset_delta + 1,
            incoming.attributes & ATTRIBUTE_TRANSACTIONAL, stamp.transactional, &first_write, out)
        if status == STATUS_DUPLICATE:
            outcome_add(outcome, first_write.last_offset - first_write.offset_delta,
                        first_write.last_offset, first_write.timestamp, True)
            counter_add(log.counts, COUNTER_DUPLICATE_BATCHES, 1)
            counter_add(
                log.counts, COUNTER_DUPLICATE_RECORDS, <uint64_t>first_write.offset_delta + 1)
            return STATUS_DUPLICATE
        if status != STATUS_OK:
            count_refusal(log, status)
            return status
    status = make_room(log, incoming, out)
    if status != STATUS_OK:
        return status
    if stamp.producer_id >= 0 and not known:
        # Before the bytes: memory that runs out later could not be answered with "nothing changed".
        entry = table_insert(&log.producers, stamp.producer_id)
        if entry == NULL:
            return fault(out, STATUS_NO_MEMORY, "no memory for another producer", 0, 0)
    if incoming.attributes & ATTRIBUTE_TRANSACTIONAL and entry.current_txn_first_offset < 0:
        # Before the batch is published: readers of decided data must not pass it.
        if ongoing_add(&log.ongoing, base_offset, stamp.producer_id) != STATUS_OK:
            return fault(out, STATUS_NO_MEMORY, "no memory for another transaction", 0, 0)
        entry.current_txn_first_offset = base_offset
    place(log, incoming, stamp)
    if entry != NULL:
        if written_sequence(stamp) >= 0:
            last_sequence = sequence_add(written_sequence(stamp), incoming.last_offset_delta)
        window_accept(
            entry, stamp.producer_epoch, last_sequence, incoming.last_offset_delta,
            log_end(log) - 1, incoming.max_timestamp)
        entry.changed_at_offset = log_end(log)
    outcome_add(outcome, base_offset, log_end(log) - 1, incoming.max_timestamp, False)
    return STATUS_OK


cdef void count_refusal(PartitionLog* log, Status status) noexcept nogil:
    if status == STATUS_FENCED:
        counter_add(log.counts, COUNTER_REFUSED_EPOCHS, 1)
    elif status == STATUS_SEQUENCE_GAP:
        counter_add(log.counts, COUNTER_REFUSED_SEQUENCES, 1)


cdef void outcome_add(
    AppendOutcome* outcome, int64_t base_offset, int64_t last_offset, int64_t timestamp,
    bint duplicate,
) noexcept nogil:
    if outcome.record_count == 0:
        outcome.base_offset = base_offset
    outcome.last_offset = last_offset
    outcome.timestamp = timestamp
    outcome.record_count += last_offset - base_offset + 1
    if duplicate:
        outcome.duplicate_count += last_offset - base_offset + 1


cdef Status log_append_columns(
    PartitionLog* log, const RecordColumns* columns, ProducerStamp* stamp,
    int64_t batch_records_max, int64_t batch_bytes_max, AppendOutcome* outcome, Fault* out,
) noexcept nogil:
    """Append all records of the columns, in batches of at most the given records and bytes (0: no
    limit but max.message.bytes). Sizes and timestamps of all are checked before the first is
    written. An outcome that has records already is that of a call which stopped between two
    batches: this one goes on after them; the stamp is that of the first record."""
    cdef Incoming incoming
    cdef int64_t first = outcome.record_count
    cdef int64_t count = 0
    cdef int64_t bytes_max = log.options.max_message_bytes
    cdef Status status = STATUS_OK
    if first == 0:
        status = check_sizes(log, columns, bytes_max, out)
        if status == STATUS_OK:
            status = check_timestamps(log, columns, out)
        if status != STATUS_OK:
            return status
    elif stamp.producer_id >= 0 and stamp.base_sequence >= 0:
        stamp.base_sequence = sequence_add(stamp.base_sequence, <int32_t>(first & 0x7FFFFFFF))
    if 0 < batch_bytes_max < bytes_max:
        bytes_max = batch_bytes_max
    while first < columns.count:
        incoming.columns = columns
        incoming.first = first
        incoming.bytes = NULL
        incoming.attributes = ATTRIBUTE_TRANSACTIONAL if stamp.transactional else 0
        count = batch_record_count(
            columns, first, batch_records_max, bytes_max, &incoming.batch_bytes)
        incoming.record_count = <int32_t>count
        incoming.last_offset_delta = <int32_t>(count - 1)
        incoming.max_timestamp = newest_timestamp(columns, first, count)
        status = log_lock(log, out)
        if status != STATUS_OK:
            return status
        status = append_locked(log, &incoming, stamp, outcome, out)
        log_unlock(log)
        if status < 0:
            return status
        if stamp.producer_id >= 0 and stamp.base_sequence >= 0:
            stamp.base_sequence = sequence_add(stamp.base_sequence, <int32_t>count)
        first += count
    return STATUS_OK


cdef Status check_client_batch(
    PartitionLog* log, const uint8_t* batch, int64_t batch_bytes, BatchHeader* header,
    int64_t* max_timestamp, Fault* out,
) noexcept nogil:
    """Refuse what a leader must refuse of a batch that a client built."""
    cdef Status status = batch_check(batch, batch_bytes, header, out)
    if status != STATUS_OK:
        return status
    if header.batch_bytes != batch_bytes:
        return fault(out, STATUS_INVALID_RECORD, "an append takes exactly one batch",
                     header.batch_bytes, batch_bytes)
    if batch_bytes > log.options.max_message_bytes:
        return fault(out, STATUS_RECORD_TOO_LARGE, "the batch is larger than max.message.bytes",
                     log.options.max_message_bytes, batch_bytes)
    if batch_bytes > log.options.segment.segment_bytes:
        return fault(out, STATUS_BATCH_TOO_LARGE, "a batch is larger than segment.bytes",
                     log.options.segment.segment_bytes, batch_bytes)
    if header.base_offset != 0:
        return fault(out, STATUS_INVALID_RECORD, "a client's batch has base offset 0",
                     0, header.base_offset)
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        return fault(out, STATUS_INVALID_RECORD, "record count and last offset delta differ",
                     header.last_offset_delta + 1, header.record_count)
    if header.attributes & ATTRIBUTE_CONTROL:
        return fault(out, STATUS_INVALID_RECORD, "clients cannot write control batches", 0, 1)
    if header.attributes & ATTRIBUTE_TRANSACTIONAL and header.producer_id < 0:
        return fault(out, STATUS_INVALID_RECORD, "a transactional batch has a producer",
                     0, header.producer_id)
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return fault(out, STATUS_INVALID_TIMESTAMP, "clients cannot set log append time", 0, 1)
    status = check_uncompressed(header, out)
    if status != STATUS_OK:
        return status
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return fault(out, STATUS_INVALID_RECORD, "a producer's batch has an epoch and a sequence",
                     0, header.base_sequence)
    return check_client_records(log, batch, header, max_timestamp, out)


cdef Status check_client_records(
    PartitionLog* log, const uint8_t* batch, const BatchHeader* header, int64_t* max_timestamp,
    Fault* out,
) noexcept nogil:
    cdef RecordCursor cursor
    cdef Record record
    cdef int64_t now_ms = eos_now_ms()
    cdef int32_t index
    cdef Status status
    max_timestamp[0] = -1
    cursor_open(&cursor, batch, header)
    for index in range(header.record_count):
        status = cursor_next(&cursor, &record, out)
        if status != STATUS_OK:
            return STATUS_INVALID_RECORD
        if record.offset != index:
            return fault(out, STATUS_INVALID_RECORD, "offset deltas do not count from 0",
                         index, record.offset)
        if not timestamp_allowed(log, record.timestamp, now_ms):
            return fault(out, STATUS_INVALID_TIMESTAMP,
                         "a record's timestamp is outside the topic's limits around now",
                         now_ms, record.timestamp)
        if record.timestamp > max_timestamp[0]:
            max_timestamp[0] = record.timestamp
    if max_timestamp[0] != header.max_timestamp:
        return fault(out, STATUS_INVALID_TIMESTAMP,
                     "the header's max timestamp is not the records'",
                     max_timestamp[0], header.max_timestamp)
    return STATUS_OK


cdef Status log_append_batch(
    PartitionLog* log, const uint8_t* batch, int64_t batch_bytes, bint verified,
    AppendOutcome* outcome, Fault* out,
) noexcept nogil:
    """Append one whole v2 batch as a client built it (base offset 0), after a leader's checks.

    A transactional one is taken if a transaction of its producer is open here, or if it is
    `verified`: the coordinator has the partition in the producer's transaction.
    """
    cdef BatchHeader header
    cdef int64_t max_timestamp = 0
    cdef Status status = check_client_batch(log, batch, batch_bytes, &header, &max_timestamp, out)
    if status != STATUS_OK:
        return status
    status = log_lock(log, out)
    if status != STATUS_OK:
        return status
    status = append_whole(log, batch, &header, verified, outcome, out)
    log_unlock(log)
    return status


cdef Status append_whole(
    PartitionLog* log, const uint8_t* batch, const BatchHeader* header, bint verified,
    AppendOutcome* outcome, Fault* out,
) noexcept nogil:
    """Append one whole batch that was checked. The caller holds the lock."""
    cdef Incoming incoming
    cdef ProducerStamp stamp
    stamp.transactional = verified
    incoming.columns = NULL
    incoming.first = 0
    incoming.bytes = batch
    incoming.batch_bytes = header.batch_bytes
    incoming.max_timestamp = header.max_timestamp
    incoming.record_count = header.record_count
    incoming.last_offset_delta = header.last_offset_delta
    incoming.attributes = header.attributes
    stamp.producer_id = header.producer_id
    stamp.producer_epoch = header.producer_epoch
    stamp.base_sequence = header.base_sequence
    return append_locked(log, &incoming, &stamp, outcome, out)
