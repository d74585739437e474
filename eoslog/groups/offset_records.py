"""Records of `__consumer_offsets`: a group's committed offset of one partition, as Kafka writes it.

Key: a type (16 bits), group, topic, partition; types 0 and 1 are offsets, type 2 tells of a group's
members, and others are of newer kinds of groups. Value: a version (16 bits), then its fields;
versions 0 to 4 are read, 3 is written. All numbers are big-endian. No value is a tombstone: the
offset is gone. Every read asks for its bytes first, and nothing may be left over.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from eoslog.common.record_fields import FieldCursor, encode_string
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError

OFFSET_KEY_TYPES = (0, 1)
KEY_TYPE_WRITTEN = 1
VALUE_VERSION_WRITTEN = 3
VALUE_VERSION_MAX = 4
NO_LEADER_EPOCH = -1
NO_EXPIRY = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
# The same few keys come again and again.
_KEYS_REMEMBERED = 1024
_VERSION_WITH_EXPIRY = 1
_VERSION_WITH_LEADER_EPOCH = 3
_VERSION_FLEXIBLE = 4


class OffsetKey(NamedTuple):
    """Key of an offset: its group, and its partition."""

    group: str
    topic_partition: TopicPartition


class OffsetValue(NamedTuple):
    """Value of a committed offset; times are in milliseconds."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY


@lru_cache(_KEYS_REMEMBERED)
def encode_offset_key(group: str, where: TopicPartition) -> bytes:
    """The key of a committed offset; ValueError if a name does not fit."""
    return b"".join(
        (
            _INT16.pack(KEY_TYPE_WRITTEN),
            encode_string(group),
            encode_string(where.topic),
            _INT32.pack(where.partition),
        )
    )


def encode_offset_value(value: OffsetValue) -> bytes:
    """The value of a committed offset; one with an expiry of its own takes the version that has it.

    ValueError if the metadata does not fit.
    """
    metadata = encode_string(value.metadata)
    if value.expire_timestamp_ms != NO_EXPIRY:
        # The one version with an expiry has no leader epoch.
        head = _INT16.pack(_VERSION_WITH_EXPIRY) + _INT64.pack(value.offset)
        expiry = _INT64.pack(value.expire_timestamp_ms)
        return head + metadata + _INT64.pack(value.commit_timestamp_ms) + expiry
    head = _INT16.pack(VALUE_VERSION_WRITTEN) + _INT64.pack(value.offset)
    head += _INT32.pack(value.leader_epoch)
    return head + metadata + _INT64.pack(value.commit_timestamp_ms)


@lru_cache(_KEYS_REMEMBERED)
def decode_offset_key(key: bytes) -> OffsetKey | None:
    """Decode a key; None if it is of another type. Raises CorruptRecordError."""
    cursor = FieldCursor(key, "the key")
    if cursor.int16("type") not in OFFSET_KEY_TYPES:
        return None
    group = cursor.string("group")
    topic = cursor.string("topic")
    partition = cursor.int32("partition")
    cursor.end()
    if partition < 0:
        raise CorruptRecordError("", len(key) - _INT32.size, f"the key's partition is {partition}")
    return OffsetKey(group, TopicPartition(topic, partition))


def decode_offset_value(value: bytes) -> OffsetValue:
    """Decode a value. Raises CorruptRecordError, also for a version above 4."""
    cursor = FieldCursor(value, "the value")
    version = cursor.int16("version")
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise CorruptRecordError(
            "", 0, f"the value has version {version}; known are 0 to {VALUE_VERSION_MAX}"
        )
    offset = cursor.int64("offset")
    with_epoch = version >= _VERSION_WITH_LEADER_EPOCH
    leader_epoch = cursor.int32("leader epoch") if with_epoch else NO_LEADER_EPOCH
    flexible = version >= _VERSION_FLEXIBLE
    metadata = cursor.compact_string("metadata") if flexible else cursor.string("metadata")
    commit_timestamp_ms = cursor.int64("commit timestamp")
    with_expiry = version == _VERSION_WITH_EXPIRY
    expire_timestamp_ms = cursor.int64("expire timestamp") if with_expiry else NO_EXPIRY
    if flexible:
        cursor.skip_tagged_fields()
    cursor.end()
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)
