"""The records of `__consumer_offsets`, byte by byte, and what is no such record."""

import struct

import pytest
from aiokafka.protocol.types import Int16, Int32, Int64, Schema, String
from hypothesis import given
from hypothesis import strategies as st

from eoslog import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.groups.records import (
    OffsetKey,
    OffsetValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)

# Kafka's classic layouts of keys 0 and 1 and of values 0 to 3, in another library's words.
KEY = Schema(("version", Int16), ("group", String()), ("topic", String()), ("partition", Int32))
HEAD = (("version", Int16), ("offset", Int64))
TAIL = (("metadata", String()), ("commit_timestamp", Int64))
VALUES = {
    0: Schema(*HEAD, *TAIL),
    1: Schema(*HEAD, *TAIL, ("expire_timestamp", Int64)),
    2: Schema(*HEAD, *TAIL),
    3: Schema(*HEAD, ("leader_epoch", Int32), *TAIL),
}

FOO_0 = TopicPartition("foo", 0)
KEY_BYTES = bytes.fromhex("0001 0001 67 0003 666f6f 00000000")
VALUE_BYTES = bytes.fromhex("0003 0000000000000064 ffffffff 0002 6d65 0000018bcfe56800")
VALUE = OffsetValue(100, -1, "me", 1_700_000_000_000)
# Version 4: a compact text (length + 1), then one tagged field: 0, the topic's id of 16 bytes.
FLEXIBLE_BYTES = bytes.fromhex(
    "0004 0000000000000064 00000007 03 6d65 0000018bcfe56800 01 00 10" + "ab" * 16
)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=50)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)


def test_worked_bytes_of_a_key():
    assert encode_offset_key("g", FOO_0) == KEY_BYTES
    assert decode_offset_key(KEY_BYTES) == OffsetKey("g", FOO_0)


def test_worked_bytes_of_a_value():
    assert encode_offset_value(VALUE) == VALUE_BYTES
    assert decode_offset_value(VALUE_BYTES) == VALUE


def test_version_4_with_a_topic_id_is_read():
    assert decode_offset_value(FLEXIBLE_BYTES) == VALUE._replace(leader_epoch=7)


def test_an_expiry_of_its_own_takes_version_1():
    value = VALUE._replace(expire_timestamp_ms=1_700_000_000_001)
    encoded = encode_offset_value(value)
    assert encoded[:2] == b"\0\1"
    assert decode_offset_value(encoded) == value


@given(
    group=texts, topic=texts, partition=st.integers(0, 2**31 - 1), version=st.sampled_from((0, 1))
)
def test_keys_are_those_of_another_library(group, topic, partition, version):
    theirs = KEY.encode((version, group, topic, partition))
    key = OffsetKey(group, TopicPartition(topic, partition))
    assert decode_offset_key(theirs) == key
    if version == 1:
        assert encode_offset_key(*key) == theirs


@pytest.mark.parametrize("version", VALUES)
@given(offset=int64s, metadata=texts, times=st.tuples(int64s, int64s), leader_epoch=int32s)
def test_values_are_those_of_another_library(version, offset, metadata, times, leader_epoch):
    committed, expires = times
    fields = [version, offset, metadata, committed]
    expected = OffsetValue(offset, -1, metadata, committed)
    if version == 1:
        fields.append(expires)
        expected = expected._replace(expire_timestamp_ms=expires)
    if version == 3:
        fields.insert(2, leader_epoch)
        expected = expected._replace(leader_epoch=leader_epoch)
    theirs = VALUES[version].encode(fields)
    assert decode_offset_value(theirs) == expected
    if version == 3:
        assert encode_offset_value(expected) == theirs


@pytest.mark.parametrize("key_type", [2, 3, 17, -1, 32767])
def test_keys_of_other_types_are_no_offsets(key_type):
    assert decode_offset_key(struct.pack(">h", key_type) + b"whatever") is None


@pytest.mark.parametrize(
    "decode_and_bytes",
    [
        (decode_offset_key, KEY_BYTES),
        (decode_offset_value, VALUE_BYTES),
        (decode_offset_value, FLEXIBLE_BYTES),
    ],
)
def test_what_is_cut_short_or_too_long_is_corrupt(decode_and_bytes):
    decode, whole = decode_and_bytes
    for cut in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decode(whole[:cut])
    with pytest.raises(CorruptRecordError, match="1 bytes follow"):
        decode(whole + b"\0")


@pytest.mark.parametrize(
    ("decode", "data", "words"),
    [
        (decode_offset_key, KEY_BYTES[:2] + b"\xff\xff" + KEY_BYTES[4:], "-1 bytes"),
        (decode_offset_key, KEY_BYTES.replace(b"foo", b"f\xffo"), "UTF-8"),
        (decode_offset_key, KEY_BYTES[:-4] + b"\xff\xff\xff\xff", "partition is -1"),
        (decode_offset_value, b"\0\5" + VALUE_BYTES[2:], "version 5"),
        (decode_offset_value, b"\xff\xff" + VALUE_BYTES[2:], "version -1"),
        (decode_offset_value, FLEXIBLE_BYTES[:14] + b"\0" + FLEXIBLE_BYTES[15:], "-1 bytes"),
        (decode_offset_value, FLEXIBLE_BYTES[:14] + b"\xff" * 20, "32 bits"),
    ],
)
def test_fields_that_cannot_be(decode, data, words):
    with pytest.raises(CorruptRecordError, match=words):
        decode(data)


@given(data=st.binary(max_size=80))
def test_any_bytes_are_read_or_named_corrupt(data):
    for decode, prefix in ((decode_offset_key, b"\0\1"), (decode_offset_value, b"\0\4")):
        for candidate in (data, prefix + data):
            try:
                decode(candidate)
            except CorruptRecordError as error:
                assert 0 <= error.position_bytes <= len(candidate)


@pytest.mark.parametrize("where", ["group", "topic", "metadata"])
def test_texts_longer_than_16_bits_are_refused(where):
    long = "x" * 32_768
    with pytest.raises(ValueError, match="got 32768"):
        if where == "metadata":
            encode_offset_value(VALUE._replace(metadata=long))
        elif where == "group":
            encode_offset_key(long, FOO_0)
        else:
            encode_offset_key("g", TopicPartition(long, 0))
