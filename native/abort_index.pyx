# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The aborted transactions of one partition, and a filter made of those that a read meets.

Invariants: entries are in the order of their markers' offsets, and their last stable offsets never
fall, so a look-up bisects to its first entry and stops at the first one beyond its bound; an entry
is here before the last stable offset that lets readers past its transaction is published. A file
entry is Kafka's: version 0, producer id, first offset, offset of the marker, last stable offset.
"""
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memmove, memset

from eoslog.native.byte_order cimport load_be64, store_be16, store_be64
from eoslog.native.record_batch cimport ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from eoslog.native.status cimport STATUS_NO_MEMORY, STATUS_OK

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes) noexcept
    int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept

cdef enum:
    CAPACITY_MIN = 16
    FREE_SLOT = -1
    ENTRY_PRODUCER_ID = 2
    ENTRY_FIRST_OFFSET = 10
    ENTRY_LAST_OFFSET = 18
    ENTRY_LAST_STABLE_OFFSET = 26


cdef void abort_index_init(AbortIndex* index) noexcept nogil:
    memset(index, 0, sizeof(AbortIndex))
    pthread_mutex_init(&index.lock, NULL)


cdef void abort_index_free(AbortIndex* index) noexcept nogil:
    free(index.entries)
    index.entries = NULL
    index.count = 0
    index.capacity = 0
    pthread_mutex_destroy(&index.lock)


cdef Status abort_index_reserve(AbortIndex* index) noexcept nogil:
    """Have room for one more, so that the next abort_index_append cannot fail."""
    cdef AbortedTransaction* entries
    cdef int64_t capacity = index.capacity * 2
    cdef Status status = STATUS_OK
    if index.count < index.capacity:
        return STATUS_OK
    if capacity < CAPACITY_MIN:
        capacity = CAPACITY_MIN
    pthread_mutex_lock(&index.lock)
    entries = <AbortedTransaction*>realloc(
        index.entries, <size_t>capacity * sizeof(AbortedTransaction))
    if entries == NULL:
        status = STATUS_NO_MEMORY
    else:
        index.entries = entries
        index.capacity = capacity
    pthread_mutex_unlock(&index.lock)
    return status


cdef Status abort_index_append(
    AbortIndex* index, const AbortedTransaction* aborted
) noexcept nogil:
    """Enter a transaction whose marker is after all others'; one that is there already is left."""
    cdef Status status = abort_index_reserve(index)
    if status != STATUS_OK:
        return status
    pthread_mutex_lock(&index.lock)
    if index.count == 0 or index.entries[index.count - 1].last_offset < aborted.last_offset:
        index.entries[index.count] = aborted[0]
        index.count += 1
    pthread_mutex_unlock(&index.lock)
    return STATUS_OK


cdef int64_t lower_bound(const AbortIndex* index, int64_t last_offset) noexcept nogil:
    cdef int64_t low = 0
    cdef int64_t high = index.count
    cdef int64_t middle
    while low < high:
        middle = low + (high - low) // 2
        if index.entries[middle].last_offset < last_offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef int64_t abort_index_lower(AbortIndex* index, int64_t last_offset) noexcept nogil:
    """Return how many entries have a marker below an offset."""
    cdef int64_t found
    pthread_mutex_lock(&index.lock)
    found = lower_bound(index, last_offset)
    pthread_mutex_unlock(&index.lock)
    return found


cdef void abort_index_truncate(AbortIndex* index, int64_t offset) noexcept nogil:
    """Forget the entries whose markers are at or above an offset."""
    pthread_mutex_lock(&index.lock)
    index.count = lower_bound(index, offset)
    if index.stored_count > index.count:
        index.stored_count = index.count
    pthread_mutex_unlock(&index.lock)


cdef void abort_index_drop_below(AbortIndex* index, int64_t offset) noexcept nogil:
    """Forget the entries whose markers are below an offset: their segments are gone."""
    cdef int64_t gone
    pthread_mutex_lock(&index.lock)
    gone = lower_bound(index, offset)
    if gone > 0:
        memmove(index.entries, index.entries + gone,
                <size_t>(index.count - gone) * sizeof(AbortedTransaction))
        index.count -= gone
        index.stored_count = index.stored_count - gone if index.stored_count > gone else 0
    pthread_mutex_unlock(&index.lock)


cdef Status abort_index_collect(
    AbortIndex* index, int64_t offset, int64_t upper_bound, AbortedTransaction** found,
    int64_t* found_count,
) noexcept nogil:
    """Copy the transactions that have records in [offset, upper_bound), in the order of their
    markers; `found` is the caller's to free, NULL if there are none.
    """
    cdef int64_t first, index_at
    cdef int64_t past
    cdef int64_t count = 0
    cdef Status status = STATUS_OK
    found[0] = NULL
    found_count[0] = 0
    if index.count == 0:
        return STATUS_OK
    pthread_mutex_lock(&index.lock)
    first = lower_bound(index, offset)
    past = first
    while past < index.count:
        if index.entries[past].first_offset < upper_bound:
            count += 1
        past += 1
        if index.entries[past - 1].last_stable_offset >= upper_bound:
            break
    if count > 0:
        found[0] = <AbortedTransaction*>malloc(<size_t>count * sizeof(AbortedTransaction))
        if found[0] == NULL:
            status = STATUS_NO_MEMORY
        else:
            for index_at in range(first, past):
                if index.entries[index_at].first_offset < upper_bound:
                    found[0][found_count[0]] = index.entries[index_at]
                    found_count[0] += 1
    pthread_mutex_unlock(&index.lock)
    return status


cdef void abort_entry_store(uint8_t* at, const AbortedTransaction* aborted) noexcept nogil:
    """Write a file entry, ABORT_ENTRY_BYTES long."""
    store_be16(at, 0)
    store_be64(at + ENTRY_PRODUCER_ID, aborted.producer_id)
    store_be64(at + ENTRY_FIRST_OFFSET, aborted.first_offset)
    store_be64(at + ENTRY_LAST_OFFSET, aborted.last_offset)
    store_be64(at + ENTRY_LAST_STABLE_OFFSET, aborted.last_stable_offset)


cdef bint abort_entry_load(const uint8_t* at, AbortedTransaction* aborted) noexcept nogil:
    """Read a file entry; False if it cannot be one."""
    aborted.producer_id = load_be64(at + ENTRY_PRODUCER_ID)
    aborted.first_offset = load_be64(at + ENTRY_FIRST_OFFSET)
    aborted.last_offset = load_be64(at + ENTRY_LAST_OFFSET)
    aborted.last_stable_offset = load_be64(at + ENTRY_LAST_STABLE_OFFSET)
    return (at[0] == 0 and at[1] == 0 and aborted.producer_id >= 0
            and 0 <= aborted.first_offset < aborted.last_offset
            # Below the first offset where an older transaction is open.
            and 0 <= aborted.last_stable_offset <= aborted.last_offset + 1)


cdef int by_first_offset(const void* left, const void* right) noexcept nogil:
    cdef int64_t one = (<const AbortedTransaction*>left).first_offset
    cdef int64_t other = (<const AbortedTransaction*>right).first_offset
    return (one > other) - (one < other)


cdef void filter_init(AbortedFilter* filter) noexcept nogil:
    """Make a filter that lets everything through."""
    memset(filter, 0, sizeof(AbortedFilter))


cdef Status filter_open(
    AbortedFilter* filter, AbortIndex* index, int64_t offset, int64_t upper_bound
) noexcept nogil:
    """Make the filter of the batches in [offset, upper_bound); close it in any case."""
    cdef uint32_t slot_count = 4
    cdef Status status
    filter_init(filter)
    status = abort_index_collect(index, offset, upper_bound, &filter.found, &filter.count)
    if status != STATUS_OK or filter.count == 0:
        return status
    while slot_count < 2 * filter.count:
        slot_count *= 2
    filter.slots = <int64_t*>malloc(2 * slot_count * sizeof(int64_t))
    if filter.slots == NULL:
        return STATUS_NO_MEMORY
    filter.slot_mask = slot_count - 1
    # Markers of one producer come in the order of its transactions, not so those of several.
    qsort(filter.found, <size_t>filter.count, sizeof(AbortedTransaction), by_first_offset)
    filter_rewind(filter)
    return STATUS_OK


cdef void filter_rewind(AbortedFilter* filter) noexcept nogil:
    """Be ready for a walk from the first batch on."""
    cdef uint32_t slot
    filter.next = 0
    if filter.count > 0:
        for slot in range(filter.slot_mask + 1):
            filter.slots[2 * slot] = FREE_SLOT


cdef inline int64_t* slot_of(AbortedFilter* filter, int64_t producer_id) noexcept nogil:
    """The pair that holds the producer, or the free one where it would go; half are free."""
    cdef uint32_t slot = <uint32_t>(
        (<unsigned long long>producer_id * 0x9E3779B97F4A7C15ULL) >> 32) & filter.slot_mask
    while filter.slots[2 * slot] != FREE_SLOT and filter.slots[2 * slot] != producer_id:
        slot = (slot + 1) & filter.slot_mask
    return &filter.slots[2 * slot]


cdef bint filter_takes_out(AbortedFilter* filter, const BatchHeader* header) noexcept nogil:
    """True if the batch is of an aborted transaction; batches are asked for in their order."""
    cdef int64_t last_offset
    cdef int64_t* slot
    if filter.count == 0:
        return False
    last_offset = header.base_offset + header.last_offset_delta
    while filter.next < filter.count and filter.found[filter.next].first_offset <= last_offset:
        # The transactions of one producer do not overlap: the one met last is the one that counts.
        slot = slot_of(filter, filter.found[filter.next].producer_id)
        slot[0] = filter.found[filter.next].producer_id
        slot[1] = filter.found[filter.next].last_offset
        filter.next += 1
    if not header.attributes & ATTRIBUTE_TRANSACTIONAL or header.attributes & ATTRIBUTE_CONTROL:
        return False
    slot = slot_of(filter, header.producer_id)
    return slot[0] == header.producer_id and header.base_offset <= slot[1]


cdef void filter_close(AbortedFilter* filter) noexcept nogil:
    free(filter.found)
    free(filter.slots)
    filter_init(filter)
