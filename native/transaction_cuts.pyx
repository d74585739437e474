# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Offsets of several logs, moved down until they cut no transaction in two.

The headers of each log are walked once, from an offset below which no transaction lies that is cut.
A transaction that has a batch at or beyond the cut of one log is left out of all: their cuts move
to where it begins, which may leave out others.

Invariants: cuts only move down; each run of batches is looked at once, when a cut passes it. So the
search takes time in proportion to what was walked, however long the chain of transactions is that
overlap.
"""
from libc.stdlib cimport calloc, free, realloc
from libc.stdint cimport uint64_t
from libc.string cimport memset

from eoslog.native.log_read cimport ReadRange, read_close, read_open
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader, batch_header_load,
)
from eoslog.native.segment cimport batch_end_offset
from eoslog.native.status cimport STATUS_NO_MEMORY, STATUS_OK, fault

cdef enum:
    RANGE_BYTES = 1 << 26
    CAPACITY_MIN = 64
    COUNT_MAX = 1 << 30


cdef Status cuts_init(TransactionCuts* cuts, int32_t log_count) noexcept nogil:
    memset(cuts, 0, sizeof(TransactionCuts))
    cuts.logs = <CutLog*>calloc(<size_t>log_count + 1, sizeof(CutLog))
    if cuts.logs == NULL:
        return STATUS_NO_MEMORY
    cuts.log_count = log_count
    return STATUS_OK


cdef void cuts_free(TransactionCuts* cuts) noexcept nogil:
    cdef int32_t number
    for number in range(cuts.log_count):
        free(cuts.logs[number].runs)
    free(cuts.logs)
    free(cuts.met)
    free(cuts.slots)
    free(cuts.places)
    memset(cuts, 0, sizeof(TransactionCuts))


cdef Status cuts_take_in(
    TransactionCuts* cuts, int32_t number, PartitionLog* log, int64_t* first, int64_t upper_bound,
    Fault* out
) noexcept nogil:
    """Walk the batches of a log in [first, upper_bound). Logs are taken in one after the other, the
    ranges of one from its beginning on. Only headers may be believed. `first` moves with the walk.
    """
    cdef ReadRange batches
    cdef BatchHeader header
    cdef int64_t position
    cdef Status status = STATUS_OK
    while first[0] < upper_bound:
        status = read_open(log, first[0], upper_bound, RANGE_BYTES, False, &batches, out)
        if status != STATUS_OK or batches.segment == NULL:
            break
        position = 0
        while position < batches.data_bytes and status == STATUS_OK:
            batch_header_load(batches.data + position, &header)
            if header.attributes & ATTRIBUTE_TRANSACTIONAL and not (
                    header.attributes & ATTRIBUTE_CONTROL):
                status = take_in_batch(cuts, number, &header, out)
            position += header.batch_bytes
        first[0] = batches.next_offset
        read_close(log, &batches)
        if status != STATUS_OK:
            break
    return status


cdef Status take_in_batch(
    TransactionCuts* cuts, int32_t number, const BatchHeader* header, Fault* out
) noexcept nogil:
    cdef CutLog* log = &cuts.logs[number]
    cdef int64_t last_offset = batch_end_offset(header) - 1
    cdef MetTransaction* met
    cdef TransactionRun* runs
    cdef int64_t index
    if log.count > 0:
        met = &cuts.met[log.runs[log.count - 1].transaction]
        if met.producer_id == header.producer_id and met.producer_epoch == header.producer_epoch:
            log.runs[log.count - 1].last_offset = last_offset
            return STATUS_OK
    index = met_index(cuts, header.producer_id, header.producer_epoch)
    if index < 0 or not has_place(cuts, index, number, header.base_offset):
        return fault(out, STATUS_NO_MEMORY, "no memory for the transactions of a snapshot", 0, 0)
    if log.count == log.capacity:
        runs = <TransactionRun*>grown(log.runs, &log.capacity, sizeof(TransactionRun))
        if runs == NULL:
            return fault(
                out, STATUS_NO_MEMORY, "no memory for the transactions of a snapshot", 0, 0)
        log.runs = runs
    log.runs[log.count].last_offset = last_offset
    log.runs[log.count].transaction = <uint32_t>index
    log.count += 1
    log.left = log.count
    return STATUS_OK


cdef void* grown(void* items, int64_t* capacity, size_t item_bytes) noexcept nogil:
    cdef int64_t wanted = 2 * capacity[0] if capacity[0] > 0 else CAPACITY_MIN
    cdef void* found = realloc(items, <size_t>wanted * item_bytes)
    if found != NULL:
        capacity[0] = wanted
    return found


cdef inline uint32_t hash_of(int64_t producer_id, int32_t producer_epoch) noexcept nogil:
    # The finalizer of splitmix64.
    cdef uint64_t mixed = (<uint64_t>producer_id << 16) ^ <uint64_t>(producer_epoch & 0xFFFF)
    mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9ULL
    mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EBULL
    return <uint32_t>(mixed ^ (mixed >> 31))


cdef uint32_t slot_of(
    const TransactionCuts* cuts, int64_t producer_id, int32_t producer_epoch
) noexcept nogil:
    """The slot that holds the transaction, or the empty slot where it would go."""
    cdef uint32_t mask = cuts.slot_count - 1
    cdef uint32_t slot = hash_of(producer_id, producer_epoch) & mask
    cdef const MetTransaction* met
    while cuts.slots[slot] != 0:
        met = &cuts.met[cuts.slots[slot] - 1]
        if met.producer_id == producer_id and met.producer_epoch == producer_epoch:
            return slot
        slot = (slot + 1) & mask
    return slot


cdef int64_t met_index(
    TransactionCuts* cuts, int64_t producer_id, int32_t producer_epoch
) noexcept nogil:
    """Index of a transaction, new or found; -1 if memory ran out."""
    cdef MetTransaction* met
    cdef uint32_t slot
    cdef int64_t capacity
    if 2 * cuts.met_count >= cuts.slot_count and not more_slots(cuts):
        return -1
    slot = slot_of(cuts, producer_id, producer_epoch)
    if cuts.slots[slot] != 0:
        return cuts.slots[slot] - 1
    if cuts.met_count == cuts.met_capacity:
        capacity = cuts.met_capacity
        met = <MetTransaction*>grown(cuts.met, &capacity, sizeof(MetTransaction))
        if met == NULL:
            return -1
        cuts.met = met
        cuts.met_capacity = <uint32_t>capacity
    met = &cuts.met[cuts.met_count]
    met.producer_id = producer_id
    met.producer_epoch = producer_epoch
    met.left_out = False
    met.place = -1
    cuts.met_count += 1
    cuts.slots[slot] = cuts.met_count
    return cuts.met_count - 1


cdef bint more_slots(TransactionCuts* cuts) noexcept nogil:
    cdef uint32_t slot_count = 2 * cuts.slot_count if cuts.slot_count > 0 else 2 * CAPACITY_MIN
    cdef uint32_t* slots
    cdef uint32_t index
    if slot_count > COUNT_MAX:
        return False
    slots = <uint32_t*>calloc(slot_count, sizeof(uint32_t))
    if slots == NULL:
        return False
    free(cuts.slots)
    cuts.slots = slots
    cuts.slot_count = slot_count
    for index in range(cuts.met_count):
        slots[slot_of(cuts, cuts.met[index].producer_id, cuts.met[index].producer_epoch)] = (
            index + 1)
    return True


cdef bint has_place(
    TransactionCuts* cuts, int64_t index, int32_t number, int64_t first_offset
) noexcept nogil:
    """Note where a transaction begins in the log that is taken in; False if memory ran out."""
    cdef MetTransaction* met = &cuts.met[index]
    cdef TransactionPlace* places
    if met.place >= 0 and cuts.places[met.place].log == number:
        return True
    if cuts.place_count == cuts.place_capacity:
        places = <TransactionPlace*>grown(
            cuts.places, &cuts.place_capacity, sizeof(TransactionPlace))
        if places == NULL:
            return False
        cuts.places = places
    cuts.places[cuts.place_count].first_offset = first_offset
    cuts.places[cuts.place_count].next = met.place
    cuts.places[cuts.place_count].log = number
    met.place = cuts.place_count
    cuts.place_count += 1
    return True


cdef bint cuts_met(
    const TransactionCuts* cuts, int64_t producer_id, int32_t producer_epoch
) noexcept nogil:
    """True if a transaction has batches in what was taken in."""
    return cuts.slot_count > 0 and (
        cuts.slots[slot_of(cuts, producer_id, producer_epoch)] != 0)


cdef void cuts_settle(TransactionCuts* cuts) noexcept nogil:
    """Move the cuts down until no transaction lies on both sides."""
    cdef bint moved = True
    cdef CutLog* log
    cdef int32_t number
    while moved:
        moved = False
        for number in range(cuts.log_count):
            log = &cuts.logs[number]
            while log.left > 0 and log.runs[log.left - 1].last_offset >= log.cut:
                log.left -= 1
                if leave_out(cuts, &cuts.met[log.runs[log.left].transaction]):
                    moved = True


cdef bint leave_out(TransactionCuts* cuts, MetTransaction* met) noexcept nogil:
    """Leave a transaction out of all logs; True if that moved a cut."""
    cdef TransactionPlace* place
    cdef int64_t index = met.place
    cdef bint moved = False
    if met.left_out:
        return False
    met.left_out = True
    while index >= 0:
        place = &cuts.places[index]
        if place.first_offset < cuts.logs[place.log].cut:
            cuts.logs[place.log].cut = place.first_offset
            moved = True
        index = place.next
    return moved
