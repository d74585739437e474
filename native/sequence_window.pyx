# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The last five batches of one producer on one partition, and the verdict on its next one.

Invariants: batch_count <= 5; the remembered batches are in the order of their offsets; all belong
to producer_epoch. The rules are Kafka's: duplicate first, then epoch, then sequence.
"""
from eoslog.native.record_batch cimport ATTRIBUTE_TRANSACTIONAL, sequence_add
from eoslog.native.status cimport (
    STATUS_DUPLICATE, STATUS_FENCED, STATUS_INVALID_TXN_STATE, STATUS_OK, STATUS_SEQUENCE_GAP,
    fault,
)


cdef void entry_clear(ProducerEntry* entry, int64_t producer_id) noexcept nogil:
    """Make the entry of an unknown producer."""
    entry.producer_id = producer_id
    entry.last_timestamp = -1
    entry.current_txn_first_offset = -1
    entry.changed_at_offset = -1
    entry.coordinator_epoch = -1
    entry.producer_epoch = NO_EPOCH
    entry.batch_count = 0
    entry.batch_first = 0


cdef Status window_verdict(
    ProducerEntry* entry, int16_t producer_epoch, int32_t base_sequence, int32_t record_count,
    bint transactional, bint verified, BatchMetadata* first_write, Fault* out,
) noexcept nogil:
    """Judge a batch: STATUS_OK to write it, STATUS_DUPLICATE with the first write's place.

    Nothing is changed. A duplicate is known by epoch, first and last sequence alone. A
    transactional batch needs an open transaction, or `verified`: its coordinator knows of the
    partition. One without a sequence is a group coordinator's: only its epoch is judged.
    """
    cdef int32_t last_sequence = sequence_add(base_sequence, record_count - 1)
    cdef BatchMetadata* batch
    cdef int index
    if producer_epoch == entry.producer_epoch and base_sequence >= 0:
        for index in range(entry.batch_count):
            batch = window_at(entry, index)
            if batch.last_sequence == last_sequence and batch.offset_delta == record_count - 1:
                first_write[0] = batch[0]
                return STATUS_DUPLICATE
    if producer_epoch < entry.producer_epoch:
        return fault(out, STATUS_FENCED, "the producer's epoch is older than the newest seen",
                     entry.producer_epoch, producer_epoch)
    if transactional:
        if entry.current_txn_first_offset >= 0 and producer_epoch != entry.producer_epoch:
            return fault(out, STATUS_INVALID_TXN_STATE,
                         "a transaction of an older epoch is still open here",
                         entry.producer_epoch, producer_epoch)
        if entry.current_txn_first_offset < 0 and not verified:
            return fault(out, STATUS_INVALID_TXN_STATE,
                         "the batch is transactional, and no transaction is open", 0, 1)
        if base_sequence < 0:
            return STATUS_OK
    elif entry.current_txn_first_offset >= 0:
        return fault(out, STATUS_INVALID_TXN_STATE,
                     "a plain batch inside an open transaction of the same producer", 1, 0)
    return sequence_verdict(entry, producer_epoch, base_sequence, transactional, out)


cdef Status sequence_verdict(
    ProducerEntry* entry, int16_t producer_epoch, int32_t base_sequence, bint transactional,
    Fault* out,
) noexcept nogil:
    cdef int32_t expected = 0
    if producer_epoch != entry.producer_epoch:
        # An unknown producer may start anywhere, but not in a transaction; a new epoch starts at 0.
        if base_sequence != 0 and (transactional or entry.producer_epoch != NO_EPOCH):
            return fault(out, STATUS_SEQUENCE_GAP, "a new epoch starts at sequence 0",
                         0, base_sequence)
        return STATUS_OK
    if entry.batch_count > 0:
        expected = sequence_add(window_last_sequence(entry), 1)
    if base_sequence != expected:
        return fault(out, STATUS_SEQUENCE_GAP, "the sequence does not follow the last one",
                     expected, base_sequence)
    return STATUS_OK


cdef void window_accept(
    ProducerEntry* entry, int16_t producer_epoch, int32_t last_sequence, int32_t offset_delta,
    int64_t last_offset, int64_t timestamp,
) noexcept nogil:
    """Remember a batch that was written; the oldest of six is forgotten."""
    cdef BatchMetadata* batch
    if producer_epoch != entry.producer_epoch:
        entry.batch_count = 0
        entry.batch_first = 0
        entry.producer_epoch = producer_epoch
    if entry.batch_count == WINDOW_BATCHES_MAX:
        entry.batch_first = <uint8_t>((entry.batch_first + 1) % WINDOW_BATCHES_MAX)
        entry.batch_count -= 1
    batch = window_at(entry, entry.batch_count)
    batch.last_sequence = last_sequence
    batch.offset_delta = offset_delta
    batch.last_offset = last_offset
    batch.timestamp = timestamp
    entry.batch_count += 1
    entry.last_timestamp = timestamp


cdef void entry_replay(ProducerEntry* entry, const BatchHeader* header) noexcept nogil:
    """Take in a data batch that stands in the log: no verdict, the log is the truth.

    A lower epoch sets the entry's epoch back, as Kafka's replication does.
    """
    cdef int64_t last_offset = header.base_offset + header.last_offset_delta
    cdef int32_t last_sequence = NO_SEQUENCE
    if header.base_sequence >= 0:
        last_sequence = sequence_add(header.base_sequence, header.last_offset_delta)
    window_accept(entry, header.producer_epoch, last_sequence, header.last_offset_delta,
                  last_offset, header.max_timestamp)
    if header.attributes & ATTRIBUTE_TRANSACTIONAL:
        if entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = header.base_offset


cdef void entry_marker(
    ProducerEntry* entry, int16_t producer_epoch, int32_t coordinator_epoch, int64_t timestamp
) noexcept nogil:
    """Take in the end of a transaction: a higher epoch forgets the batches of the one before."""
    if producer_epoch != entry.producer_epoch:
        entry.batch_count = 0
        entry.batch_first = 0
        entry.producer_epoch = producer_epoch
    if coordinator_epoch > entry.coordinator_epoch:
        entry.coordinator_epoch = coordinator_epoch
    entry.current_txn_first_offset = -1
    entry.last_timestamp = timestamp
