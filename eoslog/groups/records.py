"""Records of `__consumer_offsets`, as Kafka writes them: committed offsets, and members of groups.

- Key of an offset: a type (16 bits), group, topic, partition; types 0 and 1 are offsets. Value: a
  version (16 bits), then its fields; versions 0 to 4 are read, 3 is written.
- Key of a group's members: the type 2, the group. Value: a version, then the generation and the
  members; of each its subscription and its assignment in the layouts of Kafka's consumers. Versions
  0 to 3 are read, 3 is written. The process of a member and the strategies that it knows are in the
  part of a subscription that Kafka leaves to its users.

Other types are of newer kinds of groups. All numbers are big-endian. A record without a value is a
tombstone: the offset, or the group, is gone. Every read asks for its bytes first, and nothing may
be left over.
"""

import json
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from eoslog.common.config import INT64_MAX, SESSION_TIMEOUT_MS
from eoslog.common.json_text import loads_json
from eoslog.common.record_fields import (
    FieldCursor,
    encode_bytes,
    encode_nullable_string,
    encode_string,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.groups.members import NO_GENERATION_YET, GroupMembers, Member

NO_LEADER_EPOCH = -1
NO_EXPIRY = -1

_OFFSET_KEY_TYPES = (0, 1)
_OFFSET_KEY_TYPE_WRITTEN = 1
_MEMBERS_KEY_TYPE = 2
_VALUE_VERSION_WRITTEN = 3  # Of both.
_OFFSET_VALUE_VERSION_MAX = 4
_PROTOCOL_TYPE = "consumer"
# Of Kafka's consumers: with the partitions held, their generation and the rack.
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 3

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VALUE_HEAD = struct.Struct(">hqi")
_PLAIN_VALUE = struct.Struct(">hqihq")
_EMPTY_STRING = encode_string("")
# The same few keys come again and again.
_KEYS_REMEMBERED = 1024
# Versions of an offset's value, of a members' value, and of a subscription that have a field.
_WITH_EXPIRY = 1
_WITH_LEADER_EPOCH = 3
_FLEXIBLE = 4
_WITH_REBALANCE_TIMEOUT = 1
_WITH_STATE_TIMESTAMP = 2
_WITH_INSTANCE_ID = 3
_WITH_HELD = 1
_WITH_GENERATION = 2


class OffsetKey(NamedTuple):
    """Key of an offset: its group, and its partition."""

    group: str
    topic_partition: TopicPartition


class MembersKey(NamedTuple):
    """Key of the members of a group."""

    group: str


class OffsetValue(NamedTuple):
    """Value of a committed offset; times are in milliseconds."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY


def encode_key(key: OffsetKey | MembersKey) -> bytes:
    """The key of a record; ValueError if a name does not fit."""
    if isinstance(key, MembersKey):
        return encode_members_key(key.group)
    return encode_offset_key(*key)


def encode_value(value: OffsetValue | GroupMembers) -> bytes:
    """The value of a record; ValueError if a text does not fit."""
    if isinstance(value, GroupMembers):
        return encode_members_value(value)
    return encode_offset_value(value)


# Offsets.


@lru_cache(_KEYS_REMEMBERED)
def encode_offset_key(group: str, where: TopicPartition) -> bytes:
    """The key of a committed offset; ValueError if a name does not fit."""
    return b"".join(
        (
            _INT16.pack(_OFFSET_KEY_TYPE_WRITTEN),
            encode_string(group),
            encode_string(where.topic),
            _INT32.pack(where.partition),
        )
    )


def encode_offset_value(value: OffsetValue) -> bytes:
    """The value of a committed offset; one with an expiry of its own takes the version that has it.

    ValueError if the metadata does not fit.
    """
    metadata = encode_string(value.metadata) if value.metadata else _EMPTY_STRING
    if value.expire_timestamp_ms != NO_EXPIRY:
        # The one version with an expiry has no leader epoch.
        head = _INT16.pack(_WITH_EXPIRY) + _INT64.pack(value.offset)
        expiry = _INT64.pack(value.expire_timestamp_ms)
        return head + metadata + _INT64.pack(value.commit_timestamp_ms) + expiry
    head = _VALUE_HEAD.pack(_VALUE_VERSION_WRITTEN, value.offset, value.leader_epoch)
    return head + metadata + _INT64.pack(value.commit_timestamp_ms)


def encode_plain_values(offsets: Iterable[object], commit_timestamp_ms: int) -> list[bytes] | None:
    """The values of committed offsets that are numbers alone; None if one is more, or not valid."""
    values = []
    for offset in offsets:
        if type(offset) is not int or not 0 <= offset <= INT64_MAX:
            return None
        values.append(
            _PLAIN_VALUE.pack(
                _VALUE_VERSION_WRITTEN, offset, NO_LEADER_EPOCH, 0, commit_timestamp_ms
            )
        )
    return values


@lru_cache(_KEYS_REMEMBERED)
def decode_offset_key(key: bytes) -> OffsetKey | None:
    """Decode a key; None if it is of another type. Raises CorruptRecordError."""
    cursor = FieldCursor(key, "the key")
    if cursor.int16("type") not in _OFFSET_KEY_TYPES:
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
    if not 0 <= version <= _OFFSET_VALUE_VERSION_MAX:
        raise CorruptRecordError(
            "", 0, f"the value has version {version}; known are 0 to {_OFFSET_VALUE_VERSION_MAX}"
        )
    offset = cursor.int64("offset")
    with_epoch = version >= _WITH_LEADER_EPOCH
    leader_epoch = cursor.int32("leader epoch") if with_epoch else NO_LEADER_EPOCH
    flexible = version >= _FLEXIBLE
    metadata = cursor.compact_string("metadata") if flexible else cursor.string("metadata")
    commit_timestamp_ms = cursor.int64("commit timestamp")
    with_expiry = version == _WITH_EXPIRY
    expire_timestamp_ms = cursor.int64("expire timestamp") if with_expiry else NO_EXPIRY
    if flexible:
        cursor.skip_tagged_fields()
    cursor.end()
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


# Members.


def encode_members_key(group: str) -> bytes:
    """The key of a group's members; ValueError if the name does not fit."""
    return _INT16.pack(_MEMBERS_KEY_TYPE) + encode_string(group)


def decode_members_key(key: bytes) -> str | None:
    """The group whose members the record holds; None if the key is of another type.

    Raises CorruptRecordError.
    """
    cursor = FieldCursor(key, "the key")
    if cursor.int16("type") != _MEMBERS_KEY_TYPE:
        return None
    group = cursor.string("group")
    cursor.end()
    return group


def encode_members_value(group: GroupMembers) -> bytes:
    """The value for a group; ValueError if a text of it does not fit."""
    leader = group.members[0].member_id if group.members else None
    head = (
        _INT16.pack(_VALUE_VERSION_WRITTEN),
        encode_string(_PROTOCOL_TYPE),
        _INT32.pack(group.generation),
        encode_nullable_string(group.strategy),
        encode_nullable_string(leader),
        _INT64.pack(group.state_timestamp_ms),
        _INT32.pack(len(group.members)),
    )
    return b"".join(head) + b"".join(map(_encode_member, group.members))


def decode_members_value(value: bytes) -> GroupMembers | None:
    """Decode the members; None if the value is of a version, or of a kind of group, that is not
    known here.

    Raises CorruptRecordError.
    """
    cursor = FieldCursor(value, "the value")
    version = cursor.int16("version")
    if not 0 <= version <= _VALUE_VERSION_WRITTEN:
        return None
    protocol_type = cursor.string("protocol type")
    generation = cursor.int32("generation")
    strategy = cursor.nullable_string("protocol")
    cursor.nullable_string("leader")
    timestamp_ms = -1
    if version >= _WITH_STATE_TIMESTAMP:
        timestamp_ms = cursor.int64("state timestamp")
    members = tuple(_decode_member(cursor, version) for _ in range(cursor.count("members")))
    cursor.end()
    if protocol_type not in (_PROTOCOL_TYPE, ""):
        return None
    return GroupMembers(generation, strategy, members, timestamp_ms)


def _encode_member(member: Member) -> bytes:
    subscription = b"".join(
        (
            _INT16.pack(_SUBSCRIPTION_VERSION),
            _INT32.pack(len(member.topics)),
            *map(encode_string, member.topics),
            encode_bytes(_own_part(member)),
            _encode_partitions(member.held),
            _INT32.pack(member.generation),
            encode_nullable_string(None),  # The rack.
        )
    )
    assignment = b"".join(
        (_INT16.pack(_ASSIGNMENT_VERSION), _encode_partitions(member.assigned), encode_bytes(None))
    )
    return b"".join(
        (
            encode_string(member.member_id),
            encode_nullable_string(member.instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            _INT32.pack(member.max_poll_interval_ms),  # Kafka's rebalance timeout.
            _INT32.pack(_session_timeout_ms(member)),
            encode_bytes(subscription),
            encode_bytes(assignment),
        )
    )


def _session_timeout_ms(member: Member) -> int:
    """Return how long a broker that loads the record waits for a member that is gone. Here the
    session of one without an instance id ends with its process.
    """
    if member.instance_id is None:
        return min(SESSION_TIMEOUT_MS, member.max_poll_interval_ms)
    return member.session_timeout_ms


def _decode_member(cursor: FieldCursor, version: int) -> Member:
    member_id = cursor.string("member id")
    instance_id = None
    if version >= _WITH_INSTANCE_ID:
        instance_id = cursor.nullable_string("instance id")
    client_id = cursor.string("client id")
    client_host = cursor.string("client host")
    rebalance_timeout_ms = -1
    if version >= _WITH_REBALANCE_TIMEOUT:
        rebalance_timeout_ms = cursor.int32("rebalance timeout")
    session_timeout_ms = cursor.int32("session timeout")
    subscription = cursor.nullable_bytes("subscription") or b""
    assignment = cursor.nullable_bytes("assignment") or b""
    interval_ms = rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms
    try:
        topics, own_part, held, generation = _decode_subscription(subscription)
        assigned = _decode_assignment(assignment)
    except CorruptRecordError:
        # A client's own: to Kafka they are bytes without a meaning.
        topics, own_part, generation = (), {}, NO_GENERATION_YET
        held = assigned = frozenset()
    return Member(
        member_id,
        client_id,
        client_host,
        interval_ms,
        topics,
        tuple(own_part.get("strategies", ())),
        bytes.fromhex(own_part.get("process", "")),
        generation,
        assigned,
        held | assigned,
        instance_id,
        SESSION_TIMEOUT_MS if instance_id is None else session_timeout_ms,
    )


def _own_part(member: Member) -> bytes:
    part = {"process": member.slot.hex(), "strategies": member.strategies}
    return json.dumps(part, separators=(",", ":")).encode()


def _decode_subscription(
    data: bytes,
) -> tuple[tuple[str, ...], dict[str, Any], frozenset[TopicPartition], int]:
    cursor = FieldCursor(data, "the subscription")
    version = cursor.int16("version")
    topics = tuple(cursor.string("topic") for _ in range(cursor.count("topics")))
    user_data = cursor.nullable_bytes("user data")
    held: frozenset[TopicPartition] = frozenset()
    if version >= _WITH_HELD:
        held = _decode_partitions(cursor)
    generation = NO_GENERATION_YET
    if version >= _WITH_GENERATION:
        generation = cursor.int32("generation")
    return topics, _decode_own_part(user_data), held, generation


def _decode_own_part(user_data: bytes | None) -> dict[str, Any]:
    """Decode what eoslog wrote there; another client's is none of it."""
    try:
        part = loads_json(user_data or b"{}")
        bytes.fromhex(part.get("process", ""))
        if not all(isinstance(one, str) for one in part.get("strategies", ())):
            return {}
    except (ValueError, TypeError, AttributeError):
        return {}
    known: dict[str, Any] = part
    return known


def _decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    if not data:
        return frozenset()
    cursor = FieldCursor(data, "the assignment")
    cursor.int16("version")
    return _decode_partitions(cursor)


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    encoded = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        encoded += (encode_string(topic), _INT32.pack(len(numbers)), *map(_INT32.pack, numbers))
    return b"".join(encoded)


def _decode_partitions(cursor: FieldCursor) -> frozenset[TopicPartition]:
    found = set()
    for _ in range(cursor.count("topics")):
        topic = cursor.string("topic")
        for _ in range(cursor.count("partitions")):
            found.add(TopicPartition(topic, cursor.int32("partition")))
    return frozenset(found)
