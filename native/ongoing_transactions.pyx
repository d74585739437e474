# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""The open transactions of one partition, in the order of their first offsets.

Invariants: first offsets rise; the item at `head` is open unless none is; an ended transaction
after an open one keeps its item until the items move. Adding and the look at the oldest cost the
same however many are open, ending one costs a bisection; items that have ended are cleared away
when they are the larger part, so each is moved a bounded number of times.
"""
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from eoslog.native.check cimport EOS_CHECK
from eoslog.native.status cimport STATUS_NO_MEMORY, STATUS_OK

cdef enum:
    CAPACITY_MIN = 16
    ENDED = -1


cdef void ongoing_init(OngoingTransactions* ongoing) noexcept nogil:
    memset(ongoing, 0, sizeof(OngoingTransactions))


cdef void ongoing_free(OngoingTransactions* ongoing) noexcept nogil:
    free(ongoing.items)
    memset(ongoing, 0, sizeof(OngoingTransactions))


cdef void ongoing_clear(OngoingTransactions* ongoing) noexcept nogil:
    ongoing.head = 0
    ongoing.upper = 0
    ongoing.open_count = 0


cdef void clear_away_ended(OngoingTransactions* ongoing) noexcept nogil:
    cdef int64_t kept = 0
    cdef int64_t index
    for index in range(ongoing.head, ongoing.upper):
        if ongoing.items[index].producer_id != ENDED:
            ongoing.items[kept] = ongoing.items[index]
            kept += 1
    ongoing.head = 0
    ongoing.upper = kept


cdef Status ongoing_reserve(OngoingTransactions* ongoing) noexcept nogil:
    """Have room for one more, so that the next ongoing_add cannot fail."""
    cdef OngoingTransaction* items
    cdef int64_t capacity
    if ongoing.upper < ongoing.capacity:
        return STATUS_OK
    if ongoing.open_count * 2 <= ongoing.capacity and ongoing.capacity > 0:
        if ongoing.head * 2 >= ongoing.capacity:
            memmove(ongoing.items, ongoing.items + ongoing.head,
                    <size_t>(ongoing.upper - ongoing.head) * sizeof(OngoingTransaction))
            ongoing.upper -= ongoing.head
            ongoing.head = 0
        else:
            clear_away_ended(ongoing)
        return STATUS_OK
    capacity = ongoing.capacity * 2
    if capacity < CAPACITY_MIN:
        capacity = CAPACITY_MIN
    items = <OngoingTransaction*>realloc(
        ongoing.items, <size_t>capacity * sizeof(OngoingTransaction))
    if items == NULL:
        return STATUS_NO_MEMORY
    ongoing.items = items
    ongoing.capacity = capacity
    return STATUS_OK


cdef Status ongoing_add(
    OngoingTransactions* ongoing, int64_t first_offset, int64_t producer_id
) noexcept nogil:
    """A transaction began at an offset above all others'."""
    cdef Status status = ongoing_reserve(ongoing)
    if status != STATUS_OK:
        return status
    EOS_CHECK(ongoing.upper == ongoing.head
              or ongoing.items[ongoing.upper - 1].first_offset < first_offset,
              "ongoing transactions: first offsets rise")
    ongoing.items[ongoing.upper].first_offset = first_offset
    ongoing.items[ongoing.upper].producer_id = producer_id
    ongoing.upper += 1
    ongoing.open_count += 1
    return STATUS_OK


cdef bint ongoing_end(OngoingTransactions* ongoing, int64_t first_offset) noexcept nogil:
    """The transaction that began there has ended; False if none is open that did."""
    cdef int64_t low = ongoing.head
    cdef int64_t high = ongoing.upper
    cdef int64_t middle
    while low < high:
        middle = low + (high - low) // 2
        if ongoing.items[middle].first_offset < first_offset:
            low = middle + 1
        else:
            high = middle
    if low == ongoing.upper or ongoing.items[low].first_offset != first_offset or (
            ongoing.items[low].producer_id == ENDED):
        return False
    ongoing.items[low].producer_id = ENDED
    ongoing.open_count -= 1
    while ongoing.head < ongoing.upper and ongoing.items[ongoing.head].producer_id == ENDED:
        ongoing.head += 1
    if ongoing.head == ongoing.upper:
        ongoing.head = 0
        ongoing.upper = 0
    return True
