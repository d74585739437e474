"""Records of `__consumer_offsets` that tell of a group's members, as Kafka writes them.

Key: the type 2 (16 bits), the group. Value: a version, then the generation and the members; of each
its subscription and its assignment in the layouts of Kafka's consumers. Versions 0 to 3 are read, 3
is written. No value is a tombstone: the group is gone. What eoslog adds, the process of a member
and the strategies it knows, is in the part of a subscription that Kafka leaves to its users.
"""

import json
import struct
from collections.abc import Iterable
from typing import Any

from eoslog.common.json_text import loads_json
from eoslog.common.record_fields import (
    FieldCursor,
    encode_bytes,
    encode_nullable_string,
    encode_string,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.groups.group_members import NO_GENERATION_YET, GroupMembers, Member

KEY_TYPE = 2
VALUE_VERSION_WRITTEN = 3
PROTOCOL_TYPE = "consumer"
# Of Kafka's consumers: with the partitions held, their generation and the rack.
SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 3

# Kafka's default of `session.timeout.ms`. Here a member's session ends with its process; a broker
# that loads the record waits so long for members that are gone.
SESSION_TIMEOUT_MS = 45_000

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_WITH_REBALANCE_TIMEOUT = 1
_WITH_STATE_TIMESTAMP = 2
_WITH_INSTANCE_ID = 3
_WITH_HELD = 1
_WITH_GENERATION = 2


def encode_members_key(group: str) -> bytes:
    """The key of a group's members; ValueError if the name does not fit."""
    return _INT16.pack(KEY_TYPE) + encode_string(group)


def decode_members_key(key: bytes) -> str | None:
    """The group whose members the record tells; None if the key is of another type.

    Raises CorruptRecordError.
    """
    cursor = FieldCursor(key, "the key")
    if cursor.int16("type") != KEY_TYPE:
        return None
    group = cursor.string("group")
    cursor.end()
    return group


def encode_members_value(group: GroupMembers) -> bytes:
    """The value for a group; ValueError if a text of it does not fit."""
    leader = group.members[0].member_id if group.members else None
    head = (
        _INT16.pack(VALUE_VERSION_WRITTEN),
        encode_string(PROTOCOL_TYPE),
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
    if not 0 <= version <= VALUE_VERSION_WRITTEN:
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
    if protocol_type not in (PROTOCOL_TYPE, ""):
        return None
    return GroupMembers(generation, strategy, members, timestamp_ms)


def _encode_member(member: Member) -> bytes:
    subscription = b"".join(
        (
            _INT16.pack(SUBSCRIPTION_VERSION),
            _INT32.pack(len(member.topics)),
            *map(encode_string, member.topics),
            encode_bytes(_own_part(member)),
            _encode_partitions(member.held),
            _INT32.pack(member.generation),
            encode_nullable_string(None),  # The rack.
        )
    )
    assignment = b"".join(
        (_INT16.pack(ASSIGNMENT_VERSION), _encode_partitions(member.assigned), encode_bytes(None))
    )
    return b"".join(
        (
            encode_string(member.member_id),
            encode_nullable_string(member.instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            _INT32.pack(member.max_poll_interval_ms),  # Kafka's rebalance timeout.
            _INT32.pack(min(SESSION_TIMEOUT_MS, member.max_poll_interval_ms)),
            encode_bytes(subscription),
            encode_bytes(assignment),
        )
    )


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
