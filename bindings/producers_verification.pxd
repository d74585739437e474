# A log's producers, followed batch by batch, beside what is remembered of them elsewhere.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.producer_table cimport ProducerTable
from eoslog.native.record_batch cimport BatchHeader
from eoslog.native.sequence_window cimport ProducerEntry


cdef class ProducersCheck:
    cdef ProducerTable _table
    cdef object _decisions           # (producer id, epoch of the marker): whether it is a commit.
    cdef int64_t _log_first_offset
    cdef int64_t _expiration_ms
    cdef bint _lost

    cdef object follow(self, const uint8_t* batch, const BatchHeader* header)
    cdef void lose_track(self) noexcept
    cdef object _wrong_marker(
        self, const ProducerEntry* entry, const BatchHeader* header, bint commit)
    cdef object _wrong_batch(self, ProducerEntry* entry, const BatchHeader* header)
    cdef object _wrong_memory(self, ProducerEntry* remembered, int64_t true_at)
