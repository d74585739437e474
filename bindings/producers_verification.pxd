# A log's producers, followed batch by batch, beside what is remembered of them elsewhere.
from libc.stdint cimport int64_t, uint8_t

from eoslog.native.producer_table cimport ProducerTable
from eoslog.native.record_batch cimport BatchHeader
from eoslog.native.sequence_window cimport ProducerEntry


cdef class ProducersCheck:
    cdef ProducerTable _table
    cdef object _transactions        # Is called with what the log has of them; or None.
    cdef int64_t _log_first_offset
    cdef int64_t _expiration_ms
    cdef bint _lost
    cdef int64_t _hole_end           # After the last missing offsets; -1: none are missing.
    cdef bint _numbered
    cdef int64_t _log_start
    cdef int64_t record_count        # Of the sound batches, markers aside.

    cdef object follow(self, const uint8_t* batch, const BatchHeader* header)
    cdef int pass_hole(self, int64_t upper_bound) except -1
    cdef bint _may_lack(self, ProducerEntry* entry) noexcept
    cdef void _count(self, const BatchHeader* header) noexcept
    cdef void lose_track(self) noexcept
    cdef int _note_batch(self, const ProducerEntry* entry, const BatchHeader* header) except -1
    cdef object _wrong_marker(
        self, const ProducerEntry* entry, const BatchHeader* header, bint commit)
    cdef object _wrong_batch(self, ProducerEntry* entry, const BatchHeader* header)
    cdef object _wrong_memory(self, ProducerEntry* remembered, int64_t true_at)
