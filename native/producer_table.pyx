# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Producer id -> entry, for one partition.

Invariants: at most half of the slots are used, so a probe ends; entries [0, entry_count) hold
each producer once; a chunk never moves while the table grows, but a removal moves the last entry
into the hole, so an entry pointer is good only until the next insert or remove.
"""
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from eoslog.native.check cimport EOS_CHECK
from eoslog.native.sequence_window cimport (
    BatchMetadata, entry_clear, window_accept, window_at,
)

cdef enum:
    PRODUCER_CHUNK_ENTRIES = 64
    SLOTS_MIN = 16


cdef inline uint32_t hash_of(int64_t producer_id) noexcept nogil:
    # The finalizer of splitmix64: ids are consecutive, slots should not be.
    cdef uint64_t mixed = <uint64_t>producer_id
    mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9ULL
    mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EBULL
    return <uint32_t>(mixed ^ (mixed >> 31))


cdef void table_init(ProducerTable* table) noexcept nogil:
    memset(table, 0, sizeof(ProducerTable))


cdef void table_free(ProducerTable* table) noexcept nogil:
    cdef uint32_t index
    for index in range(table.chunk_count):
        free(table.chunks[index])
    free(table.chunks)
    free(table.slots)
    free(table.incomplete)
    memset(table, 0, sizeof(ProducerTable))


cdef ProducerEntry* table_at(const ProducerTable* table, uint32_t index) noexcept nogil:
    """Entry `index` in [0, entry_count)."""
    return &table.chunks[index // PRODUCER_CHUNK_ENTRIES][index % PRODUCER_CHUNK_ENTRIES]


cdef uint32_t slot_of(const ProducerTable* table, int64_t producer_id) noexcept nogil:
    """The slot that holds the id, or the empty slot where it would go."""
    cdef uint32_t mask = table.slot_count - 1
    cdef uint32_t slot = hash_of(producer_id) & mask
    while table.slots[slot] != 0:
        if table_at(table, table.slots[slot] - 1).producer_id == producer_id:
            return slot
        slot = (slot + 1) & mask
    return slot


cdef ProducerEntry* table_find(const ProducerTable* table, int64_t producer_id) noexcept nogil:
    """The producer's entry, or NULL."""
    cdef uint32_t slot
    if table.slot_count == 0:
        return NULL
    slot = slot_of(table, producer_id)
    if table.slots[slot] == 0:
        return NULL
    return table_at(table, table.slots[slot] - 1)


cdef ProducerEntry* table_find_whole(
    const ProducerTable* table, int64_t producer_id, bint* row_needed
) noexcept nogil:
    """The producer's entry, or NULL. `row_needed`: LMDB may know more of it than the table."""
    cdef ProducerEntry* entry = table_find(table, producer_id)
    row_needed[0] = entry == NULL and table.evicted_count > 0
    if table.incomplete_count > 0 and table_is_incomplete(table, producer_id):
        row_needed[0] = True
    return entry


cdef bint table_is_incomplete(const ProducerTable* table, int64_t producer_id) noexcept nogil:
    cdef uint32_t index
    for index in range(table.incomplete_count):
        if table.incomplete[index] == producer_id:
            return True
    return False


cdef bint table_note_incomplete(ProducerTable* table, int64_t producer_id) noexcept nogil:
    """The entry, which was just made, lacks what LMDB has of it; False when memory is out."""
    cdef uint32_t capacity = 2 * table.incomplete_capacity + 8
    cdef int64_t* grown
    if table.incomplete_count == table.incomplete_capacity:
        grown = <int64_t*>realloc(table.incomplete, capacity * sizeof(int64_t))
        if grown == NULL:
            return False
        table.incomplete = grown
        table.incomplete_capacity = capacity
    table.incomplete[table.incomplete_count] = producer_id
    table.incomplete_count += 1
    return True


cdef void table_note_whole(ProducerTable* table, int64_t producer_id) noexcept nogil:
    cdef uint32_t index
    for index in range(table.incomplete_count):
        if table.incomplete[index] == producer_id:
            table.incomplete_count -= 1
            table.incomplete[index] = table.incomplete[table.incomplete_count]
            return


cdef void table_complete(ProducerEntry* newer, const ProducerEntry* row) noexcept nogil:
    """Put what LMDB has of a producer before what was seen of it since."""
    cdef ProducerEntry whole = row[0]
    cdef BatchMetadata* batch
    cdef int64_t last_offset = -1
    cdef int index
    if whole.coordinator_epoch > newer.coordinator_epoch:
        newer.coordinator_epoch = whole.coordinator_epoch
    if whole.producer_epoch != newer.producer_epoch:
        return                       # The batches of another epoch no longer count.
    if whole.batch_count > 0:
        last_offset = window_at(&whole, whole.batch_count - 1).last_offset
    for index in range(newer.batch_count):
        batch = window_at(newer, index)
        if batch.last_offset > last_offset:
            window_accept(&whole, newer.producer_epoch, batch.last_sequence, batch.offset_delta,
                          batch.last_offset, batch.timestamp)
    newer.batch_count = whole.batch_count
    newer.batch_first = whole.batch_first
    memcpy(newer.batches, whole.batches, sizeof(whole.batches))


cdef bint slots_resize(ProducerTable* table, uint32_t slot_count) noexcept nogil:
    cdef uint32_t* slots = <uint32_t*>calloc(slot_count, sizeof(uint32_t))
    cdef uint32_t* old = table.slots
    cdef uint32_t index
    if slots == NULL:
        return False
    table.slots = slots
    table.slot_count = slot_count
    for index in range(table.entry_count):
        slots[slot_of(table, table_at(table, index).producer_id)] = index + 1
    free(old)
    return True


cdef ProducerEntry* table_insert(ProducerTable* table, int64_t producer_id) noexcept nogil:
    """The producer's entry, made empty if it was not there; NULL when memory is out."""
    cdef ProducerEntry* entry = table_find(table, producer_id)
    cdef ProducerEntry** chunks
    cdef uint32_t slot
    if entry != NULL:
        return entry
    if (table.entry_count + 1) * 2 > table.slot_count:
        if not slots_resize(table, table.slot_count * 2 if table.slot_count else SLOTS_MIN):
            return NULL
    if table.entry_count == table.chunk_count * PRODUCER_CHUNK_ENTRIES:
        chunks = <ProducerEntry**>realloc(
            table.chunks, (table.chunk_count + 1) * sizeof(ProducerEntry*))
        if chunks == NULL:
            return NULL
        table.chunks = chunks
        chunks[table.chunk_count] = <ProducerEntry*>malloc(
            PRODUCER_CHUNK_ENTRIES * sizeof(ProducerEntry))
        if chunks[table.chunk_count] == NULL:
            return NULL
        table.chunk_count += 1
    slot = slot_of(table, producer_id)
    entry = table_at(table, table.entry_count)
    entry_clear(entry, producer_id)
    table.entry_count += 1
    table.slots[slot] = table.entry_count
    return entry


cdef void slot_erase(ProducerTable* table, uint32_t slot) noexcept nogil:
    """Empty a slot and move back those that probed past it."""
    cdef uint32_t mask = table.slot_count - 1
    cdef uint32_t next_slot = slot
    cdef uint32_t home
    table.slots[slot] = 0
    while True:
        next_slot = (next_slot + 1) & mask
        if table.slots[next_slot] == 0:
            return
        home = hash_of(table_at(table, table.slots[next_slot] - 1).producer_id) & mask
        # Movable only if its home does not lie in (slot, next_slot], counted around the ring.
        if ((next_slot - home) & mask) >= ((next_slot - slot) & mask):
            table.slots[slot] = table.slots[next_slot]
            table.slots[next_slot] = 0
            slot = next_slot


cdef void table_remove(ProducerTable* table, int64_t producer_id) noexcept nogil:
    """Forget a producer, if it is there. The last entry takes its place."""
    cdef uint32_t slot, index, last, moved_slot
    if table_find(table, producer_id) == NULL:
        return
    slot = slot_of(table, producer_id)
    index = table.slots[slot] - 1
    last = table.entry_count - 1
    slot_erase(table, slot)
    if table.incomplete_count > 0:
        table_note_whole(table, producer_id)
    if index != last:
        moved_slot = slot_of(table, table_at(table, last).producer_id)
        EOS_CHECK(table.slots[moved_slot] == last + 1, "producer table: slot names its entry")
        memcpy(table_at(table, index), table_at(table, last), sizeof(ProducerEntry))
        table.slots[moved_slot] = index + 1
    table.entry_count -= 1
    # One spare chunk stays, so that a count going up and down by one does not churn.
    while table.chunk_count * PRODUCER_CHUNK_ENTRIES >= (
            table.entry_count + 2 * PRODUCER_CHUNK_ENTRIES):
        table.chunk_count -= 1
        free(table.chunks[table.chunk_count])


cdef uint32_t table_evict(ProducerTable* table, uint32_t keep_max) noexcept nogil:
    """Drop the longest unchanged entries that LMDB holds, until keep_max are left; how many went.

    Entries changed since the last checkpoint, and those with an open transaction, stay.
    """
    cdef uint32_t evicted = 0
    cdef uint32_t index, slot_count
    cdef int64_t threshold
    cdef ProducerEntry* entry
    if table.entry_count <= keep_max:
        return 0
    threshold = unchanged_threshold(table, table.entry_count - keep_max)
    index = table.entry_count
    while index > 0 and table.entry_count > keep_max:
        index -= 1
        entry = table_at(table, index)
        if entry.current_txn_first_offset < 0 and entry.changed_at_offset <= threshold and (
                entry.changed_at_offset <= table.persisted_offset):
            table_remove(table, entry.producer_id)
            evicted += 1
    table.evicted_count += evicted
    slot_count = table.slot_count
    while slot_count > SLOTS_MIN and table.entry_count * 4 < slot_count:
        slot_count //= 2
    if slot_count != table.slot_count:
        slots_resize(table, slot_count)
    return evicted


cdef int64_t unchanged_threshold(const ProducerTable* table, uint32_t wanted) noexcept nogil:
    """Offset at or below which about `wanted` entries last changed (by halving the range)."""
    cdef int64_t low = -1
    cdef int64_t high = table.persisted_offset
    cdef int64_t middle
    cdef uint32_t index, found
    while low < high:
        middle = low + (high - low) // 2
        found = 0
        for index in range(table.entry_count):
            if table_at(table, index).changed_at_offset <= middle:
                found += 1
        if found >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


cdef int64_t table_memory_bytes(const ProducerTable* table) noexcept nogil:
    """Bytes the table holds: chunks, chunk list and slots."""
    cdef size_t chunk_bytes = (
        PRODUCER_CHUNK_ENTRIES * sizeof(ProducerEntry) + sizeof(ProducerEntry*))
    return <int64_t>(table.chunk_count * chunk_bytes + table.slot_count * sizeof(uint32_t))
