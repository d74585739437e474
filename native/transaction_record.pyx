# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""A transactional id's record in __transaction_state: Kafka's fields, and three tags of ours.

Invariants: what is encoded is decoded to the same state; decoding reads no byte outside the value
and believes no count before as many bytes are there. Fields at their default are not written when
they are tagged; tags that are not known here are stepped over.
"""
from libc.stdint cimport int16_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from eoslog.native.byte_order cimport (
    load_be16, load_be32, load_be64, store_be16, store_be32, store_be64,
)
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_OK, fault
from eoslog.native.transaction_state cimport (
    NO_PRODUCER_ID, OWNER_BYTES, TRANSACTION_EMPTY, TRANSACTION_PREPARE_COMMIT,
    TRANSACTION_STORED_COUNT, state_clear, state_has_owner,
)
from eoslog.native.varint cimport store_varuint

cdef enum:
    TAG_PREVIOUS_PRODUCER_ID = 0
    TAG_NEXT_PRODUCER_ID = 1
    TAG_CLIENT_VERSION = 2
    TAG_NEXT_PRODUCER_EPOCH = 3
    TAG_OURS = 1000                  # Last producer epoch, flags, and five bytes that are zero.
    TAG_OWNER = 1001                 # The slot of the process whose producer has the id.
    TAG_ENDS = 1002                  # For each partition in their order: topic id, end offset.
    OURS_BYTES = 8
    END_BYTES = 24
    FLAG_PREPARED = 1


# What is left of a value that is being read.
cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    const char* problem              # NULL while everything asked for was there.
    bint flexible


cdef int64_t transaction_value_bound(
    const TransactionPart* parts, int32_t part_count
) noexcept nogil:
    """Upper bound of an encoded value's size in bytes."""
    cdef int64_t total = TRANSACTION_VALUE_FIXED_BYTES
    cdef int32_t index
    for index in range(part_count):
        # Topic length 5, topic, count of its partitions 5, tags 1, partition 4; its end.
        total += parts[index].topic_bytes + 15 + END_BYTES
    return total


cdef bint same_topic(const TransactionPart* one, const TransactionPart* other) noexcept nogil:
    return (one.topic_bytes == other.topic_bytes
            and memcmp(one.topic, other.topic, <size_t>one.topic_bytes) == 0)


cdef int32_t same_topic_count(
    const TransactionPart* parts, int32_t first, int32_t part_count
) noexcept nogil:
    """Return how many parts from `first` on stand together with the same topic."""
    cdef int32_t index = first + 1
    while index < part_count and same_topic(&parts[first], &parts[index]):
        index += 1
    return index - first


cdef uint8_t* store_count(uint8_t* at, int32_t count, bint flexible) noexcept nogil:
    """An array's length: compact ones are one more, so that 0 can stand for null."""
    if flexible:
        return store_varuint(at, <uint64_t>(<int64_t>count + 1))
    store_be32(at, count)
    return at + 4


cdef uint8_t* store_partitions(
    uint8_t* at, const TransactionPart* parts, int32_t part_count, bint flexible
) noexcept nogil:
    cdef int32_t topic_count = 0
    cdef int32_t first = 0
    cdef int32_t count, index
    while first < part_count:
        first += same_topic_count(parts, first, part_count)
        topic_count += 1
    at = store_count(at, topic_count, flexible)
    first = 0
    while first < part_count:
        count = same_topic_count(parts, first, part_count)
        if flexible:
            at = store_varuint(at, <uint64_t>(<int64_t>parts[first].topic_bytes + 1))
        else:
            store_be16(at, <int16_t>parts[first].topic_bytes)
            at += 2
        memcpy(at, parts[first].topic, <size_t>parts[first].topic_bytes)
        at = store_count(at + parts[first].topic_bytes, count, flexible)
        for index in range(first, first + count):
            store_be32(at, parts[index].partition)
            at += 4
        if flexible:
            at[0] = 0                # No tagged fields of the topic.
            at += 1
        first += count
    return at


cdef uint8_t* store_tag_64(uint8_t* at, int32_t tag, int64_t value) noexcept nogil:
    at[0] = <uint8_t>tag
    at[1] = 8
    store_be64(at + 2, value)
    return at + 10


cdef uint8_t* store_tag_16(uint8_t* at, int32_t tag, int16_t value) noexcept nogil:
    at[0] = <uint8_t>tag
    at[1] = 2
    store_be16(at + 2, value)
    return at + 4


cdef uint8_t* store_tags(
    uint8_t* at, const TransactionState* state, const TransactionPart* parts
) noexcept nogil:
    cdef uint8_t* count_at = at
    cdef int32_t index
    at[0] = 0
    at += 1
    if state.previous_producer_id != NO_PRODUCER_ID:
        at = store_tag_64(at, TAG_PREVIOUS_PRODUCER_ID, state.previous_producer_id)
        count_at[0] += 1
    if state.next_producer_id != NO_PRODUCER_ID:
        at = store_tag_64(at, TAG_NEXT_PRODUCER_ID, state.next_producer_id)
        count_at[0] += 1
    if state.client_version != 0:
        at = store_tag_16(at, TAG_CLIENT_VERSION, state.client_version)
        count_at[0] += 1
    if state.next_producer_epoch != -1:
        at = store_tag_16(at, TAG_NEXT_PRODUCER_EPOCH, state.next_producer_epoch)
        count_at[0] += 1
    if state.last_producer_epoch != -1 or state.prepared:
        at = store_varuint(at, TAG_OURS)
        at[0] = OURS_BYTES
        memset(at + 1, 0, OURS_BYTES)
        store_be16(at + 1, state.last_producer_epoch)
        at[3] = FLAG_PREPARED if state.prepared else 0
        at += 1 + OURS_BYTES
        count_at[0] += 1
    if state_has_owner(state):
        at = store_varuint(at, TAG_OWNER)
        at[0] = OWNER_BYTES
        memcpy(at + 1, state.owner, OWNER_BYTES)
        at += 1 + OWNER_BYTES
        count_at[0] += 1
    if state.named:
        at = store_varuint(at, TAG_ENDS)
        at = store_varuint(at, <uint64_t>state.partition_count * END_BYTES)
        for index in range(state.partition_count):
            memcpy(at, parts[index].topic_id, 16)
            store_be64(at + 16, parts[index].end_offset)
            at += END_BYTES
        count_at[0] += 1
    return at


cdef int64_t transaction_value_encode(
    uint8_t* at, const TransactionState* state, const TransactionPart* parts, int32_t version
) noexcept nogil:
    """Write the value at `at`, where there is room for its bound; answers its size in bytes.

    Parts of one topic stand together. Version 0 has no place for the tagged fields.
    """
    cdef uint8_t* start = at
    cdef bint flexible = version == TRANSACTION_VALUE_FLEXIBLE
    store_be16(at, <int16_t>version)
    store_be64(at + 2, state.producer_id)
    store_be16(at + 10, state.producer_epoch)
    store_be32(at + 12, state.timeout_ms)
    at[16] = <uint8_t>state.status
    at += 17
    if state.status != TRANSACTION_EMPTY:
        at = store_partitions(at, parts, state.partition_count, flexible)
    elif flexible:
        at[0] = 0
        at += 1
    else:
        store_be32(at, -1)
        at += 4
    store_be64(at, state.last_update_ms)
    store_be64(at + 8, state.start_ms)
    at += 16
    if flexible:
        at = store_tags(at, state, parts)
    return at - start


cdef bint has(Cursor* cursor, int64_t wanted_bytes) noexcept nogil:
    """True if so many bytes are left; if not, the value is broken and is read no further."""
    if cursor.problem != NULL:
        return False
    if wanted_bytes > cursor.end - cursor.at:
        cursor.problem = "a transaction's record ends too early"
        return False
    return True


cdef int16_t take_16(Cursor* cursor) noexcept nogil:
    if not has(cursor, 2):
        return 0
    cursor.at += 2
    return load_be16(cursor.at - 2)


cdef int32_t take_32(Cursor* cursor) noexcept nogil:
    if not has(cursor, 4):
        return 0
    cursor.at += 4
    return load_be32(cursor.at - 4)


cdef int64_t take_64(Cursor* cursor) noexcept nogil:
    if not has(cursor, 8):
        return 0
    cursor.at += 8
    return load_be64(cursor.at - 8)


cdef int64_t take_varuint(Cursor* cursor) noexcept nogil:
    """A number of at most 32 bits, without a sign."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 35:
        if not has(cursor, 1):
            return 0
        byte = cursor.at[0]
        cursor.at += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if shift >= 35 or raw > 0xFFFFFFFFU:
        cursor.problem = "a number in a transaction's record has more than 32 bits"
        return 0
    return <int64_t>raw


cdef int64_t take_count(Cursor* cursor, int64_t entry_bytes_min) noexcept nogil:
    """An array's length, -1 for null; no more than the bytes left can hold."""
    cdef int64_t count
    if cursor.flexible:
        count = take_varuint(cursor) - 1
    else:
        count = take_32(cursor)
    if cursor.problem == NULL and count < -1:
        cursor.problem = "an array of a transaction's record has a negative length"
    if count > 0 and not has(cursor, count * entry_bytes_min):
        return 0
    return count


cdef const uint8_t* take_topic(Cursor* cursor, int32_t* topic_bytes) noexcept nogil:
    cdef int64_t length
    if cursor.flexible:
        length = take_varuint(cursor) - 1
    else:
        length = take_16(cursor)
    if cursor.problem == NULL and not 0 < length <= 0x7FFF:
        cursor.problem = "a topic's name in a transaction's record is empty or too long"
    topic_bytes[0] = 0
    if not has(cursor, length):
        return NULL
    topic_bytes[0] = <int32_t>length
    cursor.at += length
    return cursor.at - length


cdef void skip_tags(Cursor* cursor) noexcept nogil:
    cdef int64_t count = take_varuint(cursor)
    cdef int64_t data_bytes
    while count > 0 and cursor.problem == NULL:
        take_varuint(cursor)
        data_bytes = take_varuint(cursor)
        if has(cursor, data_bytes):
            cursor.at += data_bytes
        count -= 1


cdef int64_t take_partitions(
    Cursor* cursor, TransactionPart* parts, int32_t part_count_max
) noexcept nogil:
    """Fill `parts` as far as they go; answers how many there are, -1 for null."""
    cdef TransactionPart part
    cdef int64_t topic_count = take_count(cursor, 3)
    cdef int64_t total = 0
    cdef int64_t count
    if topic_count < 0:
        return -1
    memset(&part, 0, sizeof(TransactionPart))
    while topic_count > 0 and cursor.problem == NULL:
        part.topic = take_topic(cursor, &part.topic_bytes)
        count = take_count(cursor, 4)
        if count < 0 and cursor.problem == NULL:
            cursor.problem = "a topic in a transaction's record has no list of partitions"
        while count > 0 and cursor.problem == NULL:
            part.partition = take_32(cursor)
            if part.partition < 0:
                cursor.problem = "a partition in a transaction's record is negative"
            if total < part_count_max:
                parts[total] = part
            total += 1
            count -= 1
        if cursor.flexible:
            skip_tags(cursor)
        topic_count -= 1
    return total


cdef void take_ends(
    const uint8_t* data, TransactionPart* parts, int64_t part_count
) noexcept nogil:
    cdef int64_t index
    for index in range(part_count):
        memcpy(parts[index].topic_id, data + index * END_BYTES, 16)
        parts[index].end_offset = load_be64(data + index * END_BYTES + 16)


cdef void take_tags(
    Cursor* cursor, TransactionState* state, TransactionPart* parts, int64_t part_count,
    int32_t part_count_max,
) noexcept nogil:
    cdef int64_t count = take_varuint(cursor)
    cdef int64_t tag, data_bytes, wanted_bytes
    cdef const uint8_t* data
    while count > 0 and cursor.problem == NULL:
        tag = take_varuint(cursor)
        data_bytes = take_varuint(cursor)
        if not has(cursor, data_bytes):
            return
        data = cursor.at
        cursor.at += data_bytes
        count -= 1
        wanted_bytes = data_bytes
        if tag == TAG_PREVIOUS_PRODUCER_ID or tag == TAG_NEXT_PRODUCER_ID or tag == TAG_OURS:
            wanted_bytes = 8
        elif tag == TAG_CLIENT_VERSION or tag == TAG_NEXT_PRODUCER_EPOCH:
            wanted_bytes = 2
        elif tag == TAG_OWNER:
            wanted_bytes = OWNER_BYTES
        elif tag == TAG_ENDS:
            wanted_bytes = part_count * END_BYTES if part_count > 0 else 0
        if data_bytes != wanted_bytes:
            cursor.problem = "a tagged field of a transaction's record has a wrong size"
        elif tag == TAG_PREVIOUS_PRODUCER_ID:
            state.previous_producer_id = load_be64(data)
        elif tag == TAG_NEXT_PRODUCER_ID:
            state.next_producer_id = load_be64(data)
        elif tag == TAG_CLIENT_VERSION:
            state.client_version = load_be16(data)
        elif tag == TAG_NEXT_PRODUCER_EPOCH:
            state.next_producer_epoch = load_be16(data)
        elif tag == TAG_OURS:
            state.last_producer_epoch = load_be16(data)
            state.prepared = data[2] & FLAG_PREPARED
        elif tag == TAG_OWNER:
            memcpy(state.owner, data, OWNER_BYTES)
        elif tag == TAG_ENDS:
            state.named = True
            take_ends(data, parts, part_count if part_count < part_count_max else part_count_max)


cdef Status transaction_value_decode(
    const uint8_t* value, int64_t value_bytes, TransactionState* state, int32_t* version,
    TransactionPart* parts, int32_t part_count_max, Fault* out,
) noexcept nogil:
    """Read a value; topics of the parts are borrowed from it.

    state.partition_count counts all partitions, also those past part_count_max: make room and ask
    again.
    """
    cdef Cursor cursor
    cdef int64_t part_count
    cursor.at = value
    cursor.end = value + value_bytes
    cursor.problem = NULL
    cursor.flexible = False
    state_clear(state)
    version[0] = take_16(&cursor)
    if cursor.problem == NULL and not 0 <= version[0] <= TRANSACTION_VALUE_FLEXIBLE:
        return fault(out, STATUS_CORRUPT, "a transaction's record has an unknown version",
                     TRANSACTION_VALUE_FLEXIBLE, version[0])
    cursor.flexible = version[0] == TRANSACTION_VALUE_FLEXIBLE
    state.producer_id = take_64(&cursor)
    state.producer_epoch = take_16(&cursor)
    state.timeout_ms = take_32(&cursor)
    if has(&cursor, 1):
        state.status = cursor.at[0]
        cursor.at += 1
    part_count = take_partitions(&cursor, parts, part_count_max)
    state.last_update_ms = take_64(&cursor)
    state.start_ms = take_64(&cursor)
    if cursor.flexible:
        take_tags(&cursor, state, parts, part_count, part_count_max)
    if cursor.problem == NULL and cursor.at != cursor.end:
        cursor.problem = "a transaction's record goes on after its last field"
    if cursor.problem == NULL and state.status >= TRANSACTION_STORED_COUNT:
        cursor.problem = "a transaction's record has an unknown state"
    if cursor.problem == NULL and state.named and state.status != TRANSACTION_PREPARE_COMMIT:
        cursor.problem = "the record of a transaction that is not committed names ends of logs"
    if cursor.problem == NULL and state.status == TRANSACTION_EMPTY and part_count > 0:
        cursor.problem = "an Empty transaction's record lists partitions"
    if cursor.problem != NULL:
        out.position_bytes = cursor.at - value
        return fault(out, STATUS_CORRUPT, cursor.problem, value_bytes, cursor.at - value)
    state.partition_count = <int32_t>part_count if part_count > 0 else 0
    return STATUS_OK
