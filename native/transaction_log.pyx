# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""A transactional id at work: its moves as records of the state log, its batches and its markers.

Invariants: the state in memory is that of the newest record in the state log, and changes only when
a record stands there; a partition is listed by a record before a batch of the transaction goes to
it; no marker is written before the decision is as durable as the store's durability says. A call
that fails leaves what it found, or what a repetition of the call goes on from.
"""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from eoslog.native.batch_encode cimport RecordColumns
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.column cimport COLUMN_FIXED, COLUMN_NULL
from eoslog.native.commit_journal cimport (
    CommitJournal, DurableWish, journal_takes, make_durable,
)
from eoslog.native.control_page cimport control_durable, control_flag
from eoslog.native.counters cimport (
    COUNTER_TRANSACTIONS_ABORTED, COUNTER_TRANSACTIONS_COMMITTED, counter_add,
)
from eoslog.native.log_append cimport ProducerStamp, log_append_batch, log_append_columns
from eoslog.native.log_marker cimport LOCAL_COORDINATOR, Marker, log_append_marker
from eoslog.native.mapped_io cimport eos_now_ms
from eoslog.native.record_batch cimport (
    ATTRIBUTE_TRANSACTIONAL, BatchIdentity, batch_header_store, sequence_add,
)
from eoslog.native.status cimport (
    STATUS_CLOSED, STATUS_DUPLICATE, STATUS_FAILED, STATUS_FENCED, STATUS_NO_MEMORY, STATUS_OK,
    fault,
)
from eoslog.native.transaction_record cimport (
    TRANSACTION_VALUE_FLEXIBLE, transaction_value_bound, transaction_value_encode,
)
from eoslog.native.transaction_state cimport (
    OWNER_BYTES, TRANSACTION_DEAD, TRANSACTION_ONGOING, TRANSACTION_PREPARE_ABORT,
    TRANSACTION_PREPARE_COMMIT, is_prepare, state_clear, state_data_epoch, state_to_complete,
    state_to_ongoing, state_to_prepare, transition_check,
)


cdef enum:
    NAMED_PARTS_MAX = 4096           # What a decision names of more would make its record large.


cdef void transaction_init(Transaction* txn) noexcept nogil:
    memset(txn, 0, sizeof(Transaction))
    state_clear(&txn.state)
    txn.record_offset = -1
    txn.prepare_offset = -1
    txn.durable_prepare = -1
    txn.failed_part = FAILED_STATE_LOG


cdef void transaction_free(Transaction* txn) noexcept nogil:
    free(txn.parts)
    free(txn.value)
    free(txn.spare)
    txn.parts = NULL
    txn.value = NULL
    txn.spare = NULL


# Parts.

cdef int compare_part(
    const TransactionPart* part, const uint8_t* topic, int32_t topic_bytes, int32_t partition
) noexcept nogil:
    cdef int32_t common = topic_bytes if topic_bytes < part.topic_bytes else part.topic_bytes
    cdef int order = memcmp(part.topic, topic, <size_t>common)
    if order != 0:
        return order
    if part.topic_bytes != topic_bytes:
        return -1 if part.topic_bytes < topic_bytes else 1
    if part.partition != partition:
        return -1 if part.partition < partition else 1
    return 0


cdef int32_t lower_bound(
    const Transaction* txn, const uint8_t* topic, int32_t topic_bytes, int32_t partition
) noexcept nogil:
    """Index of the first part that does not come before this one."""
    cdef int32_t low = 0
    cdef int32_t high = txn.part_count
    cdef int32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if compare_part(&txn.parts[middle], topic, topic_bytes, partition) < 0:
            low = middle + 1
        else:
            high = middle
    return low


cdef int32_t transaction_find_part(
    const Transaction* txn, const uint8_t* topic, int32_t topic_bytes, int32_t partition
) noexcept nogil:
    """Index of a part, -1 if the transaction does not have it."""
    cdef int32_t index = lower_bound(txn, topic, topic_bytes, partition)
    if (index < txn.part_count
            and compare_part(&txn.parts[index], topic, topic_bytes, partition) == 0):
        return index
    return -1


cdef int32_t transaction_add_part(
    Transaction* txn, const uint8_t* topic, int32_t topic_bytes, int32_t partition,
    PartitionLog* log,
) noexcept nogil:
    """Index of the part, new or found, with this log from now on; -1 if memory ran out.

    A new one is registered by transaction_register, or withdrawn; the indexes of others change.
    """
    cdef int32_t index = lower_bound(txn, topic, topic_bytes, partition)
    cdef int32_t capacity = 2 * txn.part_capacity + 4
    cdef TransactionPart* part
    cdef TransactionPart* grown
    if (index < txn.part_count
            and compare_part(&txn.parts[index], topic, topic_bytes, partition) == 0):
        part = &txn.parts[index]
        part.topic = topic
        part.log = log
        return index
    if txn.part_count == txn.part_capacity:
        grown = <TransactionPart*>realloc(
            txn.parts, <size_t>capacity * sizeof(TransactionPart))
        if grown == NULL:
            return -1
        txn.parts = grown
        txn.part_capacity = capacity
    part = &txn.parts[index]
    memmove(part + 1, part, <size_t>(txn.part_count - index) * sizeof(TransactionPart))
    memset(part, 0, sizeof(TransactionPart))
    part.topic = topic
    part.topic_bytes = topic_bytes
    part.partition = partition
    part.log = log
    part.registration = txn.registration + 1
    txn.part_count += 1
    return index


cdef void transaction_remove_part(Transaction* txn, int32_t index) noexcept nogil:
    """Forget a part; if a record lists it, the next record will not."""
    cdef TransactionPart* part = &txn.parts[index]
    if part_listed(txn, part):
        txn.state.partition_count -= 1
    txn.part_count -= 1
    memmove(part, part + 1, <size_t>(txn.part_count - index) * sizeof(TransactionPart))


cdef void transaction_withdraw(Transaction* txn) noexcept nogil:
    """Forget the parts that no record lists."""
    cdef int32_t kept = 0
    cdef int32_t index
    for index in range(txn.part_count):
        if part_listed(txn, &txn.parts[index]):
            txn.parts[kept] = txn.parts[index]
            kept += 1
    txn.part_count = kept


# Records.

cdef Status reserve_spare(Transaction* txn, Fault* out) noexcept nogil:
    cdef int64_t wanted = transaction_value_bound(txn.parts, txn.part_count)
    cdef uint8_t* grown
    if wanted <= txn.spare_capacity:
        return STATUS_OK
    grown = <uint8_t*>realloc(txn.spare, <size_t>(2 * wanted))
    if grown == NULL:
        return fault(out, STATUS_NO_MEMORY, "no memory for a transaction's record", 2 * wanted, 0)
    txn.spare = grown
    txn.spare_capacity = 2 * wanted
    return STATUS_OK


cdef Status append_record(
    Transaction* txn, const uint8_t* value, int64_t value_bytes, int64_t timestamp_ms, Fault* out
) noexcept nogil:
    """Append one record of this id to the state log, as the only one of its batch."""
    cdef RecordColumns columns
    cdef ProducerStamp stamp
    cdef AppendOutcome outcome
    cdef Status status
    memset(&columns, 0, sizeof(RecordColumns))
    columns.count = 1
    columns.default_timestamp_ms = timestamp_ms
    columns.keys.kind = COLUMN_FIXED
    columns.keys.count = 1
    columns.keys.data = txn.key
    columns.keys.fixed_bytes = txn.key_bytes
    columns.values.kind = COLUMN_NULL
    if value != NULL:
        columns.values.kind = COLUMN_FIXED
        columns.values.count = 1
        columns.values.data = value
        columns.values.fixed_bytes = value_bytes
    stamp.producer_id = -1
    stamp.producer_epoch = -1
    stamp.base_sequence = -1
    stamp.transactional = False
    memset(&outcome, 0, sizeof(AppendOutcome))
    txn.failed_part = FAILED_STATE_LOG
    status = log_append_columns(txn.state_log, &columns, &stamp, 1, 0, &outcome, out)
    if status == STATUS_OK:
        txn.record_offset = outcome.last_offset
        txn.changed = True
    return status


cdef Status transaction_write(
    Transaction* txn, const TransactionState* next, Fault* out
) noexcept nogil:
    """Append the record of a move, then be in that state. Its parts are the first ones held."""
    cdef uint8_t* value
    cdef int64_t value_bytes
    cdef int64_t value_capacity
    cdef Status status
    txn.failed_part = FAILED_STATE_LOG
    status = transition_check(&txn.state, next, out)
    if status == STATUS_OK:
        status = reserve_spare(txn, out)
    if status != STATUS_OK:
        return status
    EOS_CHECK(next.partition_count <= txn.part_count, "transaction: the listed parts are held")
    value_bytes = transaction_value_encode(
        txn.spare, next, txn.parts, TRANSACTION_VALUE_FLEXIBLE)
    EOS_CHECK(value_bytes <= txn.spare_capacity, "transaction: the value fits its room")
    status = append_record(txn, txn.spare, value_bytes, next.last_update_ms, out)
    if status != STATUS_OK:
        return status
    value = txn.spare
    value_capacity = txn.spare_capacity
    txn.spare = txn.value
    txn.spare_capacity = txn.value_capacity
    txn.value = value
    txn.value_capacity = value_capacity
    txn.value_bytes = value_bytes
    txn.state = next[0]
    if next.status != TRANSACTION_PREPARE_ABORT:
        txn.taken_over = False       # An abort of what was taken over is only that.
    txn.prepare_offset = txn.record_offset if is_prepare(next.status) else -1
    return STATUS_OK


cdef Status transaction_write_tombstone(Transaction* txn, Fault* out) noexcept nogil:
    """The id has expired: its last record has no value."""
    cdef TransactionState dead = txn.state
    cdef Status status
    txn.failed_part = FAILED_STATE_LOG
    dead.status = TRANSACTION_DEAD
    status = transition_check(&txn.state, &dead, out)
    if status == STATUS_OK:
        status = append_record(txn, NULL, 0, eos_now_ms(), out)
    if status == STATUS_OK:
        txn.state = dead
        txn.value_bytes = 0
    return status


cdef Status transaction_register(Transaction* txn, Fault* out) noexcept nogil:
    """List all parts held in one Ongoing record; nothing is written if the newest has them.

    After an error the caller withdraws the new ones.
    """
    cdef TransactionState next
    cdef Status status
    if txn.state.status == TRANSACTION_ONGOING and txn.state.partition_count == txn.part_count:
        return STATUS_OK
    state_to_ongoing(&next, &txn.state, txn.part_count, eos_now_ms())
    status = transaction_write(txn, &next, out)
    if status == STATUS_OK:
        txn.registration += 1
    return status


# Data.

cdef Status transaction_append(
    Transaction* txn, TransactionBatch* batches, int32_t batch_count, Fault* out
) noexcept nogil:
    """Append each batch that is not in its log yet, with the next sequences of its part."""
    cdef BatchIdentity identity
    cdef AppendOutcome outcome
    cdef TransactionBatch* batch
    cdef TransactionPart* part
    cdef Status status
    cdef int32_t index
    identity.base_offset = 0
    identity.producer_id = txn.state.producer_id
    identity.partition_leader_epoch = 0
    identity.producer_epoch = txn.state.producer_epoch
    identity.attributes = ATTRIBUTE_TRANSACTIONAL
    for index in range(batch_count):
        batch = &batches[index]
        if batch.appended:
            continue
        part = &txn.parts[batch.part]
        EOS_CHECK(part_listed(txn, part), "transaction: a record lists the part")
        identity.base_sequence = part.next_sequence
        batch_header_store(batch.buffer, batch.used_bytes, batch.record_count,
                           batch.base_timestamp, batch.max_timestamp, &identity)
        memset(&outcome, 0, sizeof(AppendOutcome))
        txn.failed_part = batch.part
        status = log_append_batch(
            part.log, batch.buffer, batch.used_bytes, True, &outcome, out)
        if status < 0:
            return status
        part.next_sequence = sequence_add(part.next_sequence, batch.record_count)
        part.end_offset = outcome.last_offset + 1
        batch.base_offset = outcome.base_offset
        batch.appended = True
    return STATUS_OK


# The end.

cdef Status transaction_sync_parts(Transaction* txn, Fault* out) noexcept nogil:
    """Make durable what the transaction wrote to its partitions."""
    return make_parts_durable(txn, 0, out)


cdef Status make_parts_durable(Transaction* txn, int64_t state_end, Fault* out) noexcept nogil:
    """Make durable what the transaction wrote to its partitions, together with the state log up to
    `state_end`, if that is above 0. After an error `failed_part` is where it could not be.
    """
    cdef TransactionPart* part
    cdef DurableWish* wishes = <DurableWish*>malloc(
        <size_t>(txn.part_count + 1) * (sizeof(DurableWish) + sizeof(int32_t)))
    cdef int32_t* parts
    cdef Status status = STATUS_OK
    cdef int32_t count = 0
    cdef int32_t failed = 0
    cdef int32_t index
    txn.failed_part = FAILED_STATE_LOG
    if wishes == NULL:
        return fault(out, STATUS_NO_MEMORY, "no memory for the partitions", 0, 0)
    parts = <int32_t*>(wishes + txn.part_count + 1)
    for index in range(txn.part_count):
        part = &txn.parts[index]
        if part.end_offset <= 0 or (txn.state.named and is_gone(part)):
            continue
        if part.log == NULL and status == STATUS_OK:
            txn.failed_part = index
            status = fault(out, STATUS_CLOSED, "the partition is not open", 0, 0)
        wishes[count].log = part.log
        wishes[count].offset = part.end_offset
        parts[count] = index
        count += 1
    if state_end > 0:
        wishes[count].log = txn.state_log
        wishes[count].offset = state_end
        parts[count] = FAILED_STATE_LOG
        count += 1
    if status == STATUS_OK and count > 0:
        status = make_durable(<CommitJournal*>txn.state_log.journal, wishes, count, &failed, out)
        for index in range(count):
            if status == STATUS_OK and (
                    control_durable(wishes[index].log.page) < wishes[index].offset):
                failed = index
                status = fault(out, STATUS_FAILED, "the log ends below what a decision names",
                               wishes[index].offset, control_durable(wishes[index].log.page))
        if status != STATUS_OK:
            txn.failed_part = parts[failed]
    free(wishes)
    return status


cdef Status make_state_durable(Transaction* txn, int64_t offset, Fault* out) noexcept nogil:
    cdef DurableWish wish
    cdef int32_t failed = 0
    wish.log = txn.state_log
    wish.offset = offset
    return make_durable(<CommitJournal*>txn.state_log.journal, &wish, 1, &failed, out)


cdef Status transaction_sync_state(Transaction* txn, Fault* out) noexcept nogil:
    """Make the newest record of this id durable."""
    txn.failed_part = FAILED_STATE_LOG
    return make_state_durable(txn, txn.record_offset + 1, out)


cdef Status transaction_decide(
    Transaction* txn, bint commit, bint fencing, int64_t next_producer_id, Fault* out
) noexcept nogil:
    """Write the decision. In a durable store it is on the disk before it is known: after the data,
    or, where a journal takes both together, with it; then it names where the logs have to end.

    With `fencing` no process has the id any longer. After an error a decision may be written, and
    not be on the disk with its data; this call, repeated, goes on there, and so does complete().

    An abort is synced too. Otherwise the next transaction's batches could reach the disk without
    it, and after a power cut a partition would have seen a later epoch than this id's next one.
    """
    cdef Status status = STATUS_OK
    if not is_prepare(txn.state.status):
        status = write_decision(txn, commit, fencing, next_producer_id, out)
        if status == STATUS_OK:
            counter_add(
                txn.state_log.counts,
                COUNTER_TRANSACTIONS_COMMITTED if commit else COUNTER_TRANSACTIONS_ABORTED, 1)
    if status == STATUS_OK and txn.durable:
        status = make_decision_durable(txn, out)
    return status


cdef Status write_decision(
    Transaction* txn, bint commit, bint fencing, int64_t next_producer_id, Fault* out
) noexcept nogil:
    cdef TransactionState next
    cdef Status status
    cdef bint together = txn.durable and commit and txn.part_count <= NAMED_PARTS_MAX and (
        journal_takes(<CommitJournal*>txn.state_log.journal))
    if txn.durable and commit and not together:
        status = transaction_sync_parts(txn, out)
        if status != STATUS_OK:
            return status
    state_to_prepare(&next, &txn.state, commit, next_producer_id, eos_now_ms())
    if together:
        next.named = True
        name_ends(txn)
    if fencing:
        memset(next.owner, 0, OWNER_BYTES)
    return transaction_write(txn, &next, out)


cdef void name_ends(Transaction* txn) noexcept nogil:
    """Name the log of each part's end in the part."""
    cdef TransactionPart* part
    cdef int32_t index
    for index in range(txn.part_count):
        part = &txn.parts[index]
        memset(part.topic_id, 0, sizeof(part.topic_id))
        if part.log == NULL:
            part.end_offset = 0      # Nothing was written there by this process.
        else:
            memcpy(part.topic_id, part.log.page.topic_id, sizeof(part.topic_id))


cdef bint is_gone(const TransactionPart* part) noexcept nogil:
    """True if the topic that a decision names was deleted; there may be another of its name."""
    return part.log != NULL and (control_flag(&part.log.page.deleted) != 0 or memcmp(
        part.topic_id, part.log.page.topic_id, sizeof(part.topic_id)) != 0)


cdef Status make_decision_durable(Transaction* txn, Fault* out) noexcept nogil:
    """Sync the decision and all the data that it names, of every process.

    A decision that names where its logs end was made while the store was durable. Whatever the
    durability is now, a recovery that finds less would abort it, beside markers of a commit.
    """
    cdef Status status
    if not (txn.durable or txn.state.named) or txn.durable_prepare == txn.prepare_offset:
        return STATUS_OK
    if txn.state.named:
        status = make_parts_durable(txn, txn.prepare_offset + 1, out)
        while status == STATUS_CLOSED and txn.failed_part >= 0 and (
                is_gone(&txn.parts[txn.failed_part])):
            # Its topic has been deleted.
            status = make_parts_durable(txn, txn.prepare_offset + 1, out)
    else:
        txn.failed_part = FAILED_STATE_LOG
        status = make_state_durable(txn, txn.prepare_offset + 1, out)
    if status == STATUS_OK:
        txn.durable_prepare = txn.prepare_offset
    return status


cdef Status transaction_revoke(Transaction* txn, Fault* out) noexcept nogil:
    """A recovery found that the data of a commit did not all reach the disk: it is an abort, which
    is on the disk on return, whatever the durability. What is appended to the logs from then on
    would otherwise pass for that data, with the next recovery.
    """
    cdef TransactionState next = txn.state
    cdef Status status
    next.status = TRANSACTION_PREPARE_ABORT
    next.named = False
    next.last_update_ms = eos_now_ms()
    status = transaction_write(txn, &next, out)
    if status == STATUS_OK:
        status = make_state_durable(txn, txn.record_offset + 1, out)
    return status


cdef Status write_markers(Transaction* txn, Fault* out) noexcept nogil:
    """Write the marker of each part that has none; one that fails does not hold up the others.

    A refusal is answered, which stays; else the first failure.
    """
    cdef Marker marker
    cdef AppendOutcome outcome
    cdef Fault later
    cdef TransactionPart* part
    cdef Status first = STATUS_OK
    cdef Status status
    cdef int32_t index
    marker.producer_id = txn.state.producer_id
    marker.timestamp_ms = eos_now_ms()
    marker.coordinator_epoch = LOCAL_COORDINATOR
    marker.producer_epoch = txn.state.producer_epoch
    marker.commit = txn.state.status == TRANSACTION_PREPARE_COMMIT
    marker.newer_epoch = state_data_epoch(&txn.state) < txn.state.producer_epoch
    for index in range(txn.part_count):
        part = &txn.parts[index]
        if part.marked:
            continue
        later = out[0]
        if part.log == NULL:
            status = fault(&later, STATUS_CLOSED, "the partition is not open", 0, 0)
        else:
            status = log_append_marker(part.log, &marker, &outcome, &later)
        if status == STATUS_FENCED and txn.taken_over:
            # Later epochs are given out when all markers of this one are written: it was there, and
            # what came after it reached the disk before the record that all is done.
            status = STATUS_DUPLICATE
        if status >= 0:
            part.marked = True
        elif first == STATUS_OK or (status == STATUS_FENCED and first != STATUS_FENCED):
            first = status
            txn.failed_part = index
            out[0] = later
    return first


cdef Status transaction_complete(Transaction* txn, Fault* out) noexcept nogil:
    """Carry out the decision: a marker for each partition, then the record that all is done.

    In a durable store, or where it names its data, the decision and its data are on the disk first,
    also when an earlier call failed to sync them, or another process made it.
    """
    cdef TransactionState next
    cdef Status status = STATUS_OK
    txn.failed_part = FAILED_STATE_LOG
    status = make_decision_durable(txn, out)
    if status == STATUS_OK:
        status = write_markers(txn, out)
    if status != STATUS_OK:
        return status
    state_to_complete(&next, &txn.state, eos_now_ms())
    status = transaction_write(txn, &next, out)
    if status == STATUS_OK:
        txn.part_count = 0
        txn.registration = 0
    return status
