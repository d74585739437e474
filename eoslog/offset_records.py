"""Records of `__consumer_offsets`: a group's committed offset of one partition, as Kafka writes it.

Key: a type (16 bits), group, topic, partition; types 0 and 1 are offsets, type 2 tells of a group's
members, and others are of newer kinds of groups. Value: a version (16 bits), then its fields;
versions 0 to 4 are read, 3 is written. All numbers are big-endian. No value is a tombstone: the
offset is gone. Every read asks for its bytes first, and nothing may be left over.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from eoslog.errors import CorruptRecordError
from eoslog.topic_partition import TopicPartition

OFFSET_KEY_TYPES = (0, 1)
GROUP_METADATA_KEY_TYPE = 2
KEY_TYPE_WRITTEN = 1
VALUE_VERSION_WRITTEN = 3
VALUE_VERSION_MAX = 4
STRING_BYTES_MAX = 32_767
NO_LEADER_EPOCH = -1
NO_EXPIRY = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VARINT_BYTES_MAX = 5
# The same few keys come again and again.
_KEYS_REMEMBERED = 1024
_VERSION_WITH_EXPIRY = 1
_VERSION_WITH_LEADER_EPOCH = 3
_VERSION_FLEXIBLE = 4


class OffsetKey(NamedTuple):
    """Whose offset, and of which partition."""

    group: str
    topic_partition: TopicPartition


class OffsetValue(NamedTuple):
    """What is kept of a committed offset; times are in milliseconds."""

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
            _string(group),
            _string(where.topic),
            _INT32.pack(where.partition),
        )
    )


def encode_offset_value(value: OffsetValue) -> bytes:
    """The value of a committed offset; one with an expiry of its own takes the version that has it.

    ValueError if the metadata does not fit.
    """
    metadata = _string(value.metadata)
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
    """What a key says; None if it is of another type. Raises CorruptRecordError."""
    cursor = _Cursor(key, "the key")
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
    """What a value says. Raises CorruptRecordError; a version above 4 is one too."""
    cursor = _Cursor(value, "the value")
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


def _string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise ValueError(f"a text of {len(encoded)} bytes; at most {STRING_BYTES_MAX} fit")
    return _INT16.pack(len(encoded)) + encoded


class _Cursor:
    """Reads fields one after the other, never beyond the end."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def int16(self, field: str) -> int:
        return int(_INT16.unpack(self._take(_INT16.size, field))[0])

    def int32(self, field: str) -> int:
        return int(_INT32.unpack(self._take(_INT32.size, field))[0])

    def int64(self, field: str) -> int:
        return int(_INT64.unpack(self._take(_INT64.size, field))[0])

    def string(self, field: str) -> str:
        return self._text(self.int16(f"{field} length"), field)

    def compact_string(self, field: str) -> str:
        # The length is written with one added: 0 would be no text at all.
        return self._text(self._unsigned_varint(f"{field} length") - 1, field)

    def skip_tagged_fields(self) -> None:
        """Pass over fields that are there or not, such as the topic's id."""
        for _ in range(self._unsigned_varint("count of tagged fields")):
            self._unsigned_varint("tag")
            self._take(self._unsigned_varint("size of a tagged field"), "tagged field")

    def end(self) -> None:
        """Nothing follows."""
        left = len(self._data) - self._at
        if left:
            raise self._corrupt(f"{left} bytes follow {self._what}")

    def _text(self, length_bytes: int, field: str) -> str:
        if length_bytes < 0:
            raise self._corrupt(f"{self._what}'s {field} has {length_bytes} bytes")
        try:
            return self._take(length_bytes, field).decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"{self._what}'s {field} is not UTF-8") from error

    def _unsigned_varint(self, field: str) -> int:
        number = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self._take(1, field)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise self._corrupt(f"{self._what}'s {field} is no number of 32 bits")

    def _take(self, size_bytes: int, field: str) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise self._corrupt(f"{self._what} ends within its {field}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _corrupt(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError("", self._at, reason)
