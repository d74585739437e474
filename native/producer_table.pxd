# Producer id -> entry, for one partition: open addressing over chunks that never move.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from eoslog.native.sequence_window cimport ProducerEntry
from eoslog.native.status cimport Status

cdef struct ProducerTable:
    uint32_t* slots                  # Entry index + 1; 0 = empty. Power of two.
    uint32_t slot_count
    ProducerEntry** chunks           # PRODUCER_CHUNK_ENTRIES each.
    uint32_t chunk_count
    uint32_t entry_count             # Entries [0, entry_count) are in use, without holes.
    int64_t evicted_count            # Producers that LMDB alone remembers.
    int64_t persisted_offset         # LMDB rows are true up to here.
    int64_t* incomplete              # Ids whose older part only LMDB has: another process wrote
    uint32_t incomplete_count        # under them after they were evicted here.
    uint32_t incomplete_capacity

cdef void table_init(ProducerTable* table) noexcept nogil
cdef void table_free(ProducerTable* table) noexcept nogil
cdef ProducerEntry* table_find(const ProducerTable* table, int64_t producer_id) noexcept nogil
cdef ProducerEntry* table_find_whole(
    const ProducerTable* table, int64_t producer_id, bint* row_needed) noexcept nogil
cdef bint table_is_incomplete(const ProducerTable* table, int64_t producer_id) noexcept nogil
cdef bint table_note_incomplete(ProducerTable* table, int64_t producer_id) noexcept nogil
cdef void table_note_whole(ProducerTable* table, int64_t producer_id) noexcept nogil
cdef void table_complete(ProducerEntry* newer, const ProducerEntry* row) noexcept nogil
cdef ProducerEntry* table_insert(ProducerTable* table, int64_t producer_id) noexcept nogil
cdef void table_remove(ProducerTable* table, int64_t producer_id) noexcept nogil
cdef ProducerEntry* table_at(const ProducerTable* table, uint32_t index) noexcept nogil
cdef uint32_t table_evict(ProducerTable* table, uint32_t keep_max) noexcept nogil
cdef int64_t table_memory_bytes(const ProducerTable* table) noexcept nogil
