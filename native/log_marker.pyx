# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The end of a transaction at one partition, as a control batch in its log.

Invariants: a marker is written once it is judged, under the same lock; when it is published the
transaction counts as decided, and if it was aborted, the abort index has it. Rules: Kafka's, with
those of transaction version 2 where a marker says so.
"""
from libc.stdint cimport uint8_t

from eoslog.native.abort_index cimport abort_index_reserve
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX, record_encode
from eoslog.native.byte_order cimport store_be16, store_be32
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.log_append cimport log_place, log_room_for
from eoslog.native.log_lock cimport log_lock, log_unlock
from eoslog.native.log_replay cimport (
    MARKER_ABORT, MARKER_COMMIT, MARKER_KEY_BYTES, MARKER_VALUE_BYTES, log_end_transaction,
)
from eoslog.native.partition_log cimport log_end
from eoslog.native.producer_table cimport table_find_whole, table_insert
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES, BatchIdentity,
    batch_header_store,
)
from eoslog.native.sequence_window cimport NO_SEQUENCE, ProducerEntry, entry_marker
from eoslog.native.status cimport (
    STATUS_COORDINATOR_FENCED, STATUS_DUPLICATE, STATUS_FENCED, STATUS_NO_MEMORY, STATUS_OK,
    STATUS_PRODUCER_NOT_CACHED, fault,
)

cdef enum:
    MARKER_VERSION = 0
    MARKER_BATCH_BYTES_MAX = (
        BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES_MAX + MARKER_KEY_BYTES + MARKER_VALUE_BYTES)


cdef int64_t marker_encode(
    uint8_t* batch, const Marker* marker, int32_t coordinator_epoch
) noexcept nogil:
    """Write the control batch, its base offset aside; its size."""
    cdef uint8_t key[MARKER_KEY_BYTES]
    cdef uint8_t value[MARKER_VALUE_BYTES]
    cdef BatchIdentity identity
    cdef uint8_t* end
    store_be16(key, MARKER_VERSION)
    store_be16(&key[2], MARKER_COMMIT if marker.commit else MARKER_ABORT)
    store_be16(value, MARKER_VERSION)
    store_be32(&value[2], coordinator_epoch)
    end = record_encode(
        batch + BATCH_HEADER_BYTES, 0, 0, key, MARKER_KEY_BYTES, value, MARKER_VALUE_BYTES, NULL, 0)
    identity.base_offset = 0
    identity.producer_id = marker.producer_id
    identity.partition_leader_epoch = 0
    identity.base_sequence = NO_SEQUENCE
    identity.producer_epoch = marker.producer_epoch
    identity.attributes = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    batch_header_store(
        batch, end - batch, 1, marker.timestamp_ms, marker.timestamp_ms, &identity)
    return end - batch


cdef Status marker_verdict(
    const ProducerEntry* entry, const Marker* marker, Fault* out
) noexcept nogil:
    """STATUS_OK to write it, STATUS_DUPLICATE if it did its work before; `entry` may be NULL."""
    if entry == NULL:
        return STATUS_OK
    if marker.producer_epoch < entry.producer_epoch:
        return fault(out, STATUS_FENCED, "the marker's epoch is older than the newest seen",
                     entry.producer_epoch, marker.producer_epoch)
    if (marker.coordinator_epoch != LOCAL_COORDINATOR
            and marker.coordinator_epoch < entry.coordinator_epoch):
        return fault(out, STATUS_COORDINATOR_FENCED, "a newer coordinator has written a marker",
                     entry.coordinator_epoch, marker.coordinator_epoch)
    if marker.newer_epoch and marker.producer_epoch == entry.producer_epoch:
        if entry.current_txn_first_offset < 0:
            return STATUS_DUPLICATE
        return fault(out, STATUS_FENCED, "the marker's epoch is not above the transaction's",
                     entry.producer_epoch + 1, marker.producer_epoch)
    return STATUS_OK


cdef Status log_append_marker(
    PartitionLog* log, const Marker* marker, AppendOutcome* outcome, Fault* out
) noexcept nogil:
    """End the producer's transaction here, and let nothing more of an older epoch in.

    STATUS_DUPLICATE: it was ended by this marker before, and nothing is written.
    """
    cdef Status status = log_lock(log, out)
    if status != STATUS_OK:
        return status
    status = marker_locked(log, marker, outcome, out)
    log_unlock(log)
    return status


cdef int32_t epoch_to_write(const ProducerEntry* entry, const Marker* marker) noexcept nogil:
    """The coordinator's epoch in the marker; `entry` may be NULL."""
    if marker.coordinator_epoch != LOCAL_COORDINATOR:
        return marker.coordinator_epoch
    return entry.coordinator_epoch if entry != NULL and entry.coordinator_epoch > 0 else 0


cdef Status marker_locked(
    PartitionLog* log, const Marker* marker, AppendOutcome* outcome, Fault* out
) noexcept nogil:
    cdef uint8_t batch[MARKER_BATCH_BYTES_MAX]
    cdef bint row_needed = False
    cdef ProducerEntry* entry = table_find_whole(&log.producers, marker.producer_id, &row_needed)
    cdef int32_t coordinator_epoch = epoch_to_write(entry, marker)
    cdef int64_t batch_bytes = marker_encode(batch, marker, coordinator_epoch)
    cdef int64_t offset = log_end(log)
    cdef Status status
    if row_needed:
        return fault(
            out, STATUS_PRODUCER_NOT_CACHED, "the producer is not in memory", 0, marker.producer_id)
    status = marker_verdict(entry, marker, out)
    if status != STATUS_OK:
        return status
    status = log_room_for(log, batch_bytes, marker.timestamp_ms, out)
    if status != STATUS_OK:
        return status
    # Whatever can fail comes before the bytes.
    if entry == NULL:
        entry = table_insert(&log.producers, marker.producer_id)
    if entry == NULL or abort_index_reserve(&log.aborts) != STATUS_OK:
        return fault(out, STATUS_NO_MEMORY, "no memory for the end of a transaction", 0, 0)
    if entry.current_txn_first_offset >= 0:
        status = log_end_transaction(
            &log.ongoing, &log.aborts, entry, marker.commit, offset)
        EOS_CHECK(status == STATUS_OK, "marker: there is room in the abort index")
    entry_marker(entry, marker.producer_epoch, coordinator_epoch, marker.timestamp_ms)
    log_place(log, batch, batch_bytes)
    entry.changed_at_offset = log_end(log)
    outcome.base_offset = offset
    outcome.last_offset = offset
    outcome.timestamp = marker.timestamp_ms
    outcome.record_count = 1
    return STATUS_OK
