# The open transactions of one partition, in the order of their first offsets.
from libc.stdint cimport int64_t

from eoslog.native.status cimport Status

cdef struct OngoingTransaction:
    int64_t first_offset
    int64_t producer_id              # -1: it has ended, and goes when all before it have.

cdef struct OngoingTransactions:
    OngoingTransaction* items        # [head, upper) are in use, first offsets rise.
    int64_t head
    int64_t upper
    int64_t capacity
    int64_t open_count

cdef void ongoing_init(OngoingTransactions* ongoing) noexcept nogil
cdef void ongoing_free(OngoingTransactions* ongoing) noexcept nogil
cdef void ongoing_clear(OngoingTransactions* ongoing) noexcept nogil
cdef Status ongoing_reserve(OngoingTransactions* ongoing) noexcept nogil
cdef Status ongoing_add(
    OngoingTransactions* ongoing, int64_t first_offset, int64_t producer_id) noexcept nogil
cdef bint ongoing_end(OngoingTransactions* ongoing, int64_t first_offset) noexcept nogil

cdef inline int64_t ongoing_first(const OngoingTransactions* ongoing) noexcept nogil:
    """First offset of the oldest open transaction, -1 if none is open."""
    if ongoing.open_count == 0:
        return -1
    return ongoing.items[ongoing.head].first_offset
