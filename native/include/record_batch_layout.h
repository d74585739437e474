/* Kafka's record batch v2. Big-endian and unaligned, so: named places, never a struct cast.
   The compiler proves that each field starts where the one before it ends. */
#ifndef EOSLOG_RECORD_BATCH_LAYOUT_H
#define EOSLOG_RECORD_BATCH_LAYOUT_H

enum {
    BATCH_BASE_OFFSET = 0,
    BATCH_LENGTH = 8,                /* Bytes after this field: the whole size less 12. */
    BATCH_LEADER_EPOCH = 12,
    BATCH_MAGIC = 16,
    BATCH_CRC = 17,
    BATCH_ATTRIBUTES = 21,           /* The checksum covers everything from here to the end. */
    BATCH_LAST_OFFSET_DELTA = 23,
    BATCH_BASE_TIMESTAMP = 27,
    BATCH_MAX_TIMESTAMP = 35,
    BATCH_PRODUCER_ID = 43,
    BATCH_PRODUCER_EPOCH = 51,
    BATCH_BASE_SEQUENCE = 53,
    BATCH_RECORD_COUNT = 57,
    BATCH_HEADER_BYTES = 61,
    BATCH_LENGTH_OVERHEAD = 12,      /* What the length field does not count. */
    BATCH_MAGIC_V2 = 2
};

enum {
    ATTRIBUTE_COMPRESSION_MASK = 0x07,
    ATTRIBUTE_LOG_APPEND_TIME = 0x08,
    ATTRIBUTE_TRANSACTIONAL = 0x10,
    ATTRIBUTE_CONTROL = 0x20,
    ATTRIBUTE_DELETE_HORIZON = 0x40
};

_Static_assert(BATCH_LENGTH == BATCH_BASE_OFFSET + 8, "record batch v2: 64-bit base offset");
_Static_assert(BATCH_LEADER_EPOCH == BATCH_LENGTH + 4, "record batch v2: 32-bit length");
_Static_assert(BATCH_MAGIC == BATCH_LEADER_EPOCH + 4, "record batch v2: 32-bit leader epoch");
_Static_assert(BATCH_CRC == BATCH_MAGIC + 1, "record batch v2: 8-bit magic");
_Static_assert(BATCH_ATTRIBUTES == BATCH_CRC + 4, "record batch v2: 32-bit checksum");
_Static_assert(BATCH_LAST_OFFSET_DELTA == BATCH_ATTRIBUTES + 2, "record batch v2: 16-bit attributes");
_Static_assert(BATCH_BASE_TIMESTAMP == BATCH_LAST_OFFSET_DELTA + 4, "record batch v2: 32-bit delta");
_Static_assert(BATCH_MAX_TIMESTAMP == BATCH_BASE_TIMESTAMP + 8, "record batch v2: 64-bit timestamp");
_Static_assert(BATCH_PRODUCER_ID == BATCH_MAX_TIMESTAMP + 8, "record batch v2: 64-bit timestamp");
_Static_assert(BATCH_PRODUCER_EPOCH == BATCH_PRODUCER_ID + 8, "record batch v2: 64-bit producer id");
_Static_assert(BATCH_BASE_SEQUENCE == BATCH_PRODUCER_EPOCH + 2, "record batch v2: 16-bit epoch");
_Static_assert(BATCH_RECORD_COUNT == BATCH_BASE_SEQUENCE + 4, "record batch v2: 32-bit sequence");
_Static_assert(BATCH_HEADER_BYTES == BATCH_RECORD_COUNT + 4, "record batch v2: 32-bit count");

#endif
