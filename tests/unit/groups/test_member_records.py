"""The records of a group's members, byte by byte, and in another library's words."""

import struct

import pytest
from aiokafka.protocol.types import Array, Bytes, Int16, Int32, Int64, Schema, String
from hypothesis import given
from hypothesis import strategies as st

from eoslog import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.groups.members import GroupMembers, Member
from eoslog.groups.records import (
    decode_members_key,
    decode_members_value,
    encode_members_key,
    encode_members_value,
)

# Kafka's GroupMetadataValue, versions 0 to 3, and what its consumers keep in it.
MEMBER = [
    ("member_id", String()),
    ("group_instance_id", String()),
    ("client_id", String()),
    ("client_host", String()),
    ("rebalance_timeout", Int32),
    ("session_timeout", Int32),
    ("subscription", Bytes),
    ("assignment", Bytes),
]
GROUP = [
    ("version", Int16),
    ("protocol_type", String()),
    ("generation", Int32),
    ("protocol", String()),
    ("leader", String()),
    ("current_state_timestamp", Int64),
]


def schema(version):
    left_out = {0: {"group_instance_id", "rebalance_timeout"}, 3: set()}
    left_out |= {1: {"group_instance_id"}, 2: {"group_instance_id"}}
    head = [one for one in GROUP if version >= 2 or one[0] != "current_state_timestamp"]
    member = [one for one in MEMBER if one[0] not in left_out[version]]
    return Schema(*head, ("members", Array(*member)))


PARTITIONS = Array(("topic", String()), ("partitions", Array(Int32)))
SUBSCRIPTION = Schema(
    ("version", Int16),
    ("topics", Array(String())),
    ("user_data", Bytes),
    ("owned_partitions", PARTITIONS),
    ("generation_id", Int32),
    ("rack_id", String()),
)
ASSIGNMENT = Schema(("version", Int16), ("partitions", PARTITIONS), ("user_data", Bytes))

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MEMBER_1 = Member(
    "eoslog-1",
    "eoslog",
    "host",
    300_000,
    ("t", "u"),
    ("range", "cooperative-sticky"),
    bytes(range(16)),
    4,
    frozenset({T0, U0}),
    frozenset({T0, T1, U0}),
)
MEMBER_2 = Member("eoslog-2", "eoslog", "host", 1000, ("t",), ("range",), bytes(16))
GROUP_1 = GroupMembers(5, "range", (MEMBER_1, MEMBER_2), 1_700_000_000_000)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
partitions = st.frozensets(st.builds(TopicPartition, texts, st.integers(0, 2**31 - 1)), max_size=5)


@st.composite
def members(draw):
    assigned = draw(partitions)
    return Member(
        draw(texts),
        draw(texts),
        draw(texts),
        draw(st.integers(0, 2**31 - 1)),
        tuple(draw(st.lists(texts, max_size=3))),
        tuple(draw(st.lists(texts, max_size=3))),
        draw(st.binary(max_size=20)),
        draw(st.integers(-1, 2**31 - 1)),
        assigned,
        assigned | draw(partitions),
        draw(st.none() | texts),
    )


def test_worked_bytes_of_a_key():
    assert encode_members_key("g") == bytes.fromhex("0002 0001 67")
    assert decode_members_key(bytes.fromhex("0002 0001 67")) == "g"
    assert decode_members_key(bytes.fromhex("0001 0001 67")) is None


def test_worked_bytes_of_a_group_without_members():
    value = encode_members_value(GroupMembers(3, None, (), 1_700_000_000_000))
    assert value == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000003 ffff ffff 0000018bcfe56800 00000000"
    )


def test_kafkas_readers_find_what_they_look_for():
    decoded = schema(3).decode(_stream(encode_members_value(GROUP_1)))
    version, kind, generation, protocol, leader, timestamp, found = decoded
    assert (version, kind, generation, protocol, leader) == (3, "consumer", 5, "range", "eoslog-1")
    assert timestamp == 1_700_000_000_000
    assert [one[0] for one in found] == ["eoslog-1", "eoslog-2"]
    _, instance, client, host, rebalance_timeout, session_timeout, subscription, assignment = found[
        0
    ]
    assert (instance, client, host) == (None, "eoslog", "host")
    assert (rebalance_timeout, session_timeout) == (300_000, 45_000), "a broker waits 45 s"
    assert found[1][4:6] == (1000, 1000)
    version, topics, _, owned, generation, rack = SUBSCRIPTION.decode(_stream(subscription))
    assert (version, topics, generation, rack) == (3, ["t", "u"], 4, None)
    assert owned == [("t", [0, 1]), ("u", [0])]
    version, assigned, user_data = ASSIGNMENT.decode(_stream(assignment))
    assert (version, assigned, user_data) == (3, [("t", [0]), ("u", [0])], None)


@given(
    st.builds(
        GroupMembers,
        st.integers(0, 2**31 - 1),
        st.none() | texts,
        st.lists(members(), max_size=3, unique_by=lambda one: one.member_id).map(tuple),
        st.integers(-1, 2**62),
    )
)
def test_what_is_written_is_read(group):
    assert decode_members_value(encode_members_value(group)) == group


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_kafkas_own_records_are_read(version):
    subscription = Schema(("version", Int16), ("topics", Array(String())), ("user_data", Bytes))
    member = {
        "member_id": "m",
        "group_instance_id": "i",
        "client_id": "c",
        "client_host": "/10.0.0.1",
        "rebalance_timeout": 60_000,
        "session_timeout": 10_000,
        "subscription": subscription.encode((0, ["t"], b"\x00\x01theirs")),
        "assignment": ASSIGNMENT.encode((0, [("t", [3])], b"")),
    }
    group = {
        "version": version,
        "protocol_type": "consumer",
        "generation": 9,
        "protocol": "range",
        "leader": "m",
        "current_state_timestamp": 77,
        "members": [[member[name] for name in schema(version).fields[-1].array_of.names]],
    }
    layout = schema(version)
    decoded = decode_members_value(layout.encode([group[name] for name in layout.names]))
    assert (decoded.generation, decoded.strategy) == (9, "range")
    assert decoded.state_timestamp_ms == (77 if version >= 2 else -1)
    (found,) = decoded.members
    assert (found.member_id, found.topics, found.slot) == ("m", ("t",), b"")
    assert found.assigned == found.held == {TopicPartition("t", 3)}
    assert found.max_poll_interval_ms == (60_000 if version >= 1 else 10_000)
    assert found.instance_id == ("i" if version >= 3 else None)


def test_groups_of_another_kind_are_passed_over():
    value = encode_members_value(GROUP_1)
    assert decode_members_value(value.replace(b"consumer", b"connects")) is None
    assert decode_members_value(b"\x00\x04" + value[2:]) is None


def test_a_subscription_that_is_no_consumers_means_nothing():
    layout = schema(3)
    member = ["m", None, "c", "h", 1, 1, b"\xff", b"\xfe"]
    value = layout.encode([3, "consumer", 1, "p", "m", 0, [member]])
    (found,) = decode_members_value(value).members
    assert (found.topics, found.assigned, found.held) == ((), frozenset(), frozenset())


@pytest.mark.parametrize("size_bytes", range(len(encode_members_value(GROUP_1))))
def test_a_value_that_is_cut_short_is_named(size_bytes):
    with pytest.raises(CorruptRecordError, match="value ends within its"):
        decode_members_value(encode_members_value(GROUP_1)[:size_bytes])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_named_corrupt(data):
    for decode in (decode_members_key, decode_members_value):
        try:
            decode(data)
        except CorruptRecordError:
            continue


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_is_read_or_named_corrupt(position, byte):
    value = bytearray(encode_members_value(GROUP_1))
    value[position % len(value)] = byte
    try:
        decode_members_value(bytes(value))
    except CorruptRecordError:
        return


def test_counts_that_cannot_be_are_named():
    head = struct.pack(">hh8sihhq", 3, 8, b"consumer", 1, -1, -1, 0)
    with pytest.raises(CorruptRecordError, match="-1 members"):
        decode_members_value(head + struct.pack(">i", -1))


def _stream(data):
    from io import BytesIO

    return BytesIO(data)
