# The layout of a commit journal's file, and its writes.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "journal_file.h" nogil:
    enum:
        JOURNAL_BLOCK_BYTES
        JOURNAL_SUMMED_AT
    const uint64_t JOURNAL_HALF_MAGIC
    const uint64_t JOURNAL_RECORD_MAGIC
    ctypedef struct JournalHalfHeader:
        uint64_t magic
        uint32_t crc
        uint32_t half
        uint8_t journal_id[16]
        uint64_t half_bytes
        uint64_t epoch
    ctypedef struct JournalRecordHeader:
        uint64_t magic
        uint32_t crc
        uint32_t range_count
        uint8_t journal_id[16]
        uint64_t epoch
        uint64_t number
        uint64_t other_epoch
        uint64_t other_count
        uint64_t bytes
    ctypedef struct JournalRangeHeader:
        uint8_t topic_id[16]
        int64_t base_offset
        int64_t position_bytes
        int64_t bytes
        int64_t end_offset
        int32_t partition
        int32_t zero
    int64_t journal_blocks(int64_t bytes) noexcept
    uint8_t* journal_buffer(size_t bytes) noexcept
    int journal_write(
        int fd, bint synced, const uint8_t* blocks, size_t bytes, int64_t position_bytes) noexcept
