/* The layout of a commit journal's file, and its writes. Two halves of equal size; the first 4 KiB block of each is its header, and
   each record begins a new block: what one write adds is in no block that was written before. docs/commit-journal.md has the protocol.
   All numbers are little-endian. */
#ifndef EOSLOG_JOURNAL_FILE_H
#define EOSLOG_JOURNAL_FILE_H

#include "mapped_io.h" /* First: it says what the C library is to declare. */

#include <stdlib.h>

#define JOURNAL_BLOCK_BYTES 4096
#define JOURNAL_HALF_MAGIC UINT64_C(0x32304c4148534f45)   /* "EOSHAL02" */
#define JOURNAL_RECORD_MAGIC UINT64_C(0x3230434552534f45) /* "EOSREC02" */
/* A checksum covers what follows it in the structure, and the ranges and bytes of a record. */
#define JOURNAL_SUMMED_AT 12

typedef struct JournalHalfHeader {
    uint64_t magic;
    uint32_t crc;
    uint32_t half;                   /* 0 or 1 */
    uint8_t journal_id[16];
    uint64_t half_bytes;
    uint64_t epoch;                  /* Of the records that count; from 1 on. */
} JournalHalfHeader;

typedef struct JournalRecordHeader {
    uint64_t magic;
    uint32_t crc;
    uint32_t range_count;
    uint8_t journal_id[16];
    uint64_t epoch;
    uint64_t number;                 /* In its half, from 1 on. */
    uint64_t other_epoch;            /* Of the other half, when this was written, */
    uint64_t other_count;            /* ... and how many records of it that half had. */
    uint64_t bytes;                  /* With this header, without the zeros after it. */
} JournalRecordHeader;

typedef struct JournalRangeHeader {
    uint8_t topic_id[16];
    int64_t base_offset;             /* Of the segment. */
    int64_t position_bytes;          /* In its file. */
    int64_t bytes;
    int64_t end_offset;              /* Of the log, with this range. */
    int32_t partition;
    int32_t zero;
} JournalRangeHeader;

_Static_assert(sizeof(JournalHalfHeader) == 48 && sizeof(JournalRecordHeader) == 72 && sizeof(JournalRangeHeader) == 56,
               "journal: no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "journal: its numbers are stored as they are in memory");

static inline int64_t journal_blocks(int64_t bytes) { return (bytes + JOURNAL_BLOCK_BYTES - 1) / JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES; }

/* Memory that a write past the page cache may take; NULL if there is none. */
static inline uint8_t *journal_buffer(size_t bytes) {
    void *buffer = NULL;
    return posix_memalign(&buffer, JOURNAL_BLOCK_BYTES, bytes) == 0 ? (uint8_t *)buffer : NULL;
}

/* On the disk when it returns 0. A file opened with O_DSYNC needs no sync. */
static inline int journal_write(int fd, int synced, const uint8_t *blocks, size_t bytes, int64_t position_bytes) {
    int error = eos_pwrite_all(fd, blocks, bytes, position_bytes);
    return error == 0 && !synced ? eos_sync_data(fd) : error;
}

#endif
