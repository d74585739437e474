# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The states of a transactional id: which moves there are, and what each does to the fields.

Invariants: a move is allowed by the one table, and by what must hold between the fields before and
after it, or it is not made; every end of a transaction raises the epoch by one, or changes to a new
producer id with epoch 0 when the last epoch that a client may hold was used up.
"""
from libc.string cimport memset

from eoslog.native.status cimport STATUS_INVALID_TXN_STATE, STATUS_OK, fault


cdef void state_clear(TransactionState* state) noexcept nogil:
    """An id that was never initialized."""
    state.producer_id = NO_PRODUCER_ID
    state.previous_producer_id = NO_PRODUCER_ID
    state.next_producer_id = NO_PRODUCER_ID
    state.last_update_ms = -1
    state.start_ms = -1
    state.timeout_ms = 0
    state.partition_count = 0
    state.status = TRANSACTION_EMPTY
    state.producer_epoch = -1
    state.next_producer_epoch = -1
    state.last_producer_epoch = -1
    state.client_version = 0
    state.prepared = False
    state.named = False
    memset(state.owner, 0, OWNER_BYTES)


cdef int32_t possible_sources(int32_t target) noexcept nogil:
    """The table of moves: one bit for each state from which `target` can be reached."""
    cdef int32_t idle = (
        1 << TRANSACTION_EMPTY | 1 << TRANSACTION_COMPLETE_COMMIT | 1 << TRANSACTION_COMPLETE_ABORT)
    cdef int32_t ongoing = 1 << TRANSACTION_ONGOING
    if target == TRANSACTION_EMPTY or target == TRANSACTION_DEAD:
        return idle
    if target == TRANSACTION_ONGOING:
        return idle | ongoing
    if target == TRANSACTION_PREPARE_COMMIT or target == TRANSACTION_PREPARE_EPOCH_FENCE:
        return ongoing
    if target == TRANSACTION_PREPARE_ABORT:
        return idle | ongoing | 1 << TRANSACTION_PREPARE_EPOCH_FENCE
    if target == TRANSACTION_COMPLETE_COMMIT:
        return 1 << TRANSACTION_PREPARE_COMMIT
    if target == TRANSACTION_COMPLETE_ABORT:
        return 1 << TRANSACTION_PREPARE_ABORT
    return 0


cdef bint transition_possible(int32_t target, int32_t source) noexcept nogil:
    if not 0 <= source < TRANSACTION_STATUS_COUNT:
        return False
    return possible_sources(target) >> source & 1


cdef Status transition_check(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    """Judge a move before its record is written. Timestamps may go back: clocks do."""
    if now.named and now.status == TRANSACTION_PREPARE_COMMIT and (
            next.status == TRANSACTION_PREPARE_ABORT):
        return check_revoked(now, next, out)
    if not transition_possible(next.status, now.status):
        return fault(out, STATUS_INVALID_TXN_STATE, "there is no such move between states",
                     now.status, next.status)
    if next.status == TRANSACTION_EMPTY:
        return check_empty(now, next, out)
    if next.status == TRANSACTION_ONGOING:
        return check_ongoing(now, next, out)
    if is_prepare(next.status):
        return check_prepare(now, next, out)
    if next.status == TRANSACTION_COMPLETE_COMMIT or next.status == TRANSACTION_COMPLETE_ABORT:
        return check_complete(now, next, out)
    return STATUS_OK


cdef Status check_empty(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    cdef bint rotated = next.producer_epoch == 0 and next.producer_id != now.producer_id
    if (next.producer_epoch != now.producer_epoch
            and next.producer_epoch != <int32_t>now.producer_epoch + 1 and not rotated):
        return fault(out, STATUS_INVALID_TXN_STATE, "the epoch moves by one, or a new id has 0",
                     now.producer_epoch, next.producer_epoch)
    if next.partition_count != 0:
        return fault(out, STATUS_INVALID_TXN_STATE, "Empty lists no partitions",
                     0, next.partition_count)
    if next.start_ms != -1:
        return fault(out, STATUS_INVALID_TXN_STATE, "Empty has no start", -1, next.start_ms)
    return STATUS_OK


cdef Status check_producer(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    if next.producer_id != now.producer_id:
        return fault(out, STATUS_INVALID_TXN_STATE, "the producer id changed",
                     now.producer_id, next.producer_id)
    if next.timeout_ms != now.timeout_ms:
        return fault(out, STATUS_INVALID_TXN_STATE, "the timeout changed",
                     now.timeout_ms, next.timeout_ms)
    return STATUS_OK


cdef Status check_ongoing(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    if next.producer_epoch != now.producer_epoch:
        return fault(out, STATUS_INVALID_TXN_STATE, "the epoch changed",
                     now.producer_epoch, next.producer_epoch)
    if next.partition_count < now.partition_count:
        return fault(out, STATUS_INVALID_TXN_STATE, "a transaction lost partitions",
                     now.partition_count, next.partition_count)
    if now.status == TRANSACTION_ONGOING and next.start_ms != now.start_ms:
        return fault(out, STATUS_INVALID_TXN_STATE, "the start changed",
                     now.start_ms, next.start_ms)
    return check_producer(now, next, out)


cdef Status check_prepare(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    cdef int64_t start_ms = now.start_ms
    if now.status != TRANSACTION_ONGOING:
        start_ms = next.last_update_ms
    if next.last_producer_epoch != now.producer_epoch:
        return fault(out, STATUS_INVALID_TXN_STATE, "the last epoch is not the one before",
                     now.producer_epoch, next.last_producer_epoch)
    if next.producer_epoch != bumped_epoch(now.producer_epoch):
        return fault(out, STATUS_INVALID_TXN_STATE, "the end of a transaction raises the epoch",
                     bumped_epoch(now.producer_epoch), next.producer_epoch)
    if next.partition_count != now.partition_count:
        return fault(out, STATUS_INVALID_TXN_STATE, "the partitions changed",
                     now.partition_count, next.partition_count)
    if next.start_ms != start_ms:
        return fault(out, STATUS_INVALID_TXN_STATE, "the start changed", start_ms, next.start_ms)
    return check_producer(now, next, out)


cdef Status check_revoked(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    """A commit whose data did not reach the disk becomes an abort, and nothing else."""
    if next.producer_epoch != now.producer_epoch:
        return fault(out, STATUS_INVALID_TXN_STATE, "the epoch changed",
                     now.producer_epoch, next.producer_epoch)
    if next.partition_count != now.partition_count:
        return fault(out, STATUS_INVALID_TXN_STATE, "the partitions changed",
                     now.partition_count, next.partition_count)
    return check_producer(now, next, out)


cdef Status check_complete(
    const TransactionState* now, const TransactionState* next, Fault* out
) noexcept nogil:
    if now.next_producer_id == NO_PRODUCER_ID:
        if next.producer_epoch != now.producer_epoch:
            return fault(out, STATUS_INVALID_TXN_STATE, "the epoch changed",
                         now.producer_epoch, next.producer_epoch)
        if next.producer_id != now.producer_id:
            return fault(out, STATUS_INVALID_TXN_STATE, "the producer id changed",
                         now.producer_id, next.producer_id)
    else:
        if next.producer_id != now.next_producer_id or next.producer_epoch != 0:
            return fault(out, STATUS_INVALID_TXN_STATE, "not the next producer id with epoch 0",
                         now.next_producer_id, next.producer_id)
        if next.previous_producer_id != now.producer_id:
            return fault(out, STATUS_INVALID_TXN_STATE, "the previous producer id is another",
                         now.producer_id, next.previous_producer_id)
        if next.last_producer_epoch != now.last_producer_epoch:
            return fault(out, STATUS_INVALID_TXN_STATE, "the last epoch changed",
                         now.last_producer_epoch, next.last_producer_epoch)
    if next.start_ms == -1:
        return fault(out, STATUS_INVALID_TXN_STATE, "a transaction has a start", 0, -1)
    return STATUS_OK


cdef int16_t bumped_epoch(int16_t producer_epoch) noexcept nogil:
    """Return the next number; after the last one there is none, and no producer holds it."""
    return producer_epoch if producer_epoch == EPOCH_MAX else <int16_t>(producer_epoch + 1)


cdef EndVerdict end_verdict(
    const TransactionState* now, int64_t producer_id, int16_t producer_epoch, bint commit
) noexcept nogil:
    """Find what a client's commit or abort comes to, in each state, now or as a repeated call."""
    cdef bint rotated = (
        now.previous_producer_id == producer_id and producer_epoch == EPOCH_EXHAUSTED
        and now.producer_epoch == 0)
    cdef bint current = producer_epoch == now.producer_epoch and producer_id == now.producer_id
    cdef bint repeated = rotated or now.producer_epoch == <int32_t>producer_epoch + 1
    if is_rotated_client(now, producer_id, producer_epoch):
        return END_CONCURRENT
    if (producer_id != now.producer_id and not rotated) or now.status == TRANSACTION_DEAD:
        return END_OTHER_PRODUCER
    if not current and not repeated:
        return END_FENCED
    if now.status == TRANSACTION_ONGOING:
        return END_DECIDE if current else END_FENCED
    if is_prepare(now.status):
        if current:
            return END_FENCED
        if commit == (now.status == TRANSACTION_PREPARE_COMMIT):
            return END_CONCURRENT
        return END_INVALID_STATE
    if current:
        return END_INVALID_STATE if commit else END_EMPTY_ABORT
    if now.status == TRANSACTION_EMPTY:
        return END_FENCED
    if commit == (now.status == TRANSACTION_COMPLETE_COMMIT):
        return END_REPEATED
    return END_INVALID_STATE


cdef void state_to_ongoing(
    TransactionState* next, const TransactionState* now, int32_t partition_count, int64_t now_ms
) noexcept nogil:
    """The transaction begins, or gets more partitions."""
    next[0] = now[0]
    next.status = TRANSACTION_ONGOING
    next.partition_count = partition_count
    next.last_update_ms = now_ms
    next.client_version = EPOCH_BUMPING_VERSION
    if now.status != TRANSACTION_ONGOING:
        next.start_ms = now_ms
        next.prepared = False


cdef void state_to_prepare(
    TransactionState* next, const TransactionState* now, bint commit, int64_t next_producer_id,
    int64_t now_ms,
) noexcept nogil:
    """The decision. `next_producer_id` is -1 unless the epochs of this one are used up."""
    next[0] = now[0]
    next.status = TRANSACTION_PREPARE_COMMIT if commit else TRANSACTION_PREPARE_ABORT
    next.last_producer_epoch = now.producer_epoch
    next.producer_epoch = bumped_epoch(now.producer_epoch)
    next.next_producer_id = next_producer_id
    next.next_producer_epoch = -1
    next.last_update_ms = now_ms
    next.client_version = EPOCH_BUMPING_VERSION
    next.prepared = False
    next.named = False
    if now.status != TRANSACTION_ONGOING:
        next.start_ms = now_ms


cdef void state_to_complete(
    TransactionState* next, const TransactionState* now, int64_t now_ms
) noexcept nogil:
    """Every marker is written: nothing is open, and a rotation takes place."""
    next[0] = now[0]
    next.status = TRANSACTION_COMPLETE_ABORT
    if now.status == TRANSACTION_PREPARE_COMMIT:
        next.status = TRANSACTION_COMPLETE_COMMIT
    next.partition_count = 0
    next.named = False
    next.last_update_ms = now_ms
    if now.next_producer_id != NO_PRODUCER_ID:
        next.previous_producer_id = now.producer_id
        next.producer_id = now.next_producer_id
        next.producer_epoch = 0
        next.next_producer_id = NO_PRODUCER_ID
    next.next_producer_epoch = -1
