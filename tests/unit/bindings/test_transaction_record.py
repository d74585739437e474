"""The records of transactional ids: bytes, round trips, broken values; the states and their table.

The bytes are Kafka's; the fields of version 1 that Kafka has no place for are in one tagged field
of our own, which its readers step over.
"""

import random
import struct

import pytest

from eoslog.bindings.transaction_record import (
    STATE_NAMES,
    decode_transaction_value,
    encode_transaction_value,
    state_name,
    state_number,
    transaction_key,
    transactional_id_of,
    transition_allowed,
)
from eoslog.errors import CorruptRecordError

STORED = STATE_NAMES[:6]

# Kafka's own layout, written down by hand: version 0, then version 1 with every tagged field.
CLASSIC = bytes.fromhex(
    "0000"  # version
    "0000000000000007"  # producer id
    "0005"  # producer epoch
    "0000ea60"  # timeout: 60000 ms
    "01"  # Ongoing
    "00000002"  # two topics
    "0001 61"  # a
    "00000002 00000000 00000003"  # its partitions 0, 3
    "0002 6262"  # bb
    "00000001 00000001"  # its partition 1
    "000000000000044c"  # last update: 1100
    "00000000000003e8"  # start: 1000
)
FLEXIBLE = bytes.fromhex(
    "0001"
    "0000000000000007"
    "7fff"  # epoch 32767: used up
    "0000ea60"
    "02"  # PrepareCommit
    "03"  # two topics, one more
    "02 61"  # a: its length, one more
    "03 00000000 00000003 00"  # two partitions, no tagged fields
    "03 6262"
    "02 00000001 00"
    "000000000000044c"
    "00000000000003e8"
    "05"  # five tagged fields
    "00 08 0000000000000003"  # previous producer id
    "01 08 0000000000000008"  # next producer id
    "02 02 0002"  # client transaction version
    "03 02 0004"  # next producer epoch
    "e807 08 7ffe 01 0000000000"  # ours, 1000: last epoch 32766, prepared
)
FIELDS = {
    "producer_id": 7,
    "producer_epoch": 5,
    "timeout_ms": 60_000,
    "state": "Ongoing",
    "partitions": [("a", 0), ("a", 3), ("bb", 1)],
    "last_update_ms": 1100,
    "start_ms": 1000,
}
DEFAULTS = {
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "next_producer_epoch": -1,
    "client_transaction_version": 0,
    "last_producer_epoch": -1,
    "prepared": False,
    "owner": None,
    "ends": None,
}
TAGGED = {
    "previous_producer_id": 3,
    "next_producer_id": 8,
    "next_producer_epoch": 4,
    "client_transaction_version": 2,
    "last_producer_epoch": 32766,
    "prepared": True,
}


def fields_of(state: str, **others: object) -> dict[str, object]:
    partitions = None if state == "Empty" else FIELDS["partitions"]
    return FIELDS | DEFAULTS | {"state": state, "partitions": partitions} | others


def test_version_0_has_kafkas_bytes():
    assert encode_transaction_value(version=0, **FIELDS) == CLASSIC
    assert decode_transaction_value(CLASSIC) == {"version": 0} | FIELDS | DEFAULTS


def test_version_1_has_kafkas_bytes_and_one_tag_of_ours():
    fields = fields_of("PrepareCommit", producer_epoch=32767, **TAGGED)
    assert encode_transaction_value(version=1, **fields) == FLEXIBLE
    assert decode_transaction_value(FLEXIBLE) == {"version": 1} | fields


def test_the_owner_stands_in_a_tag_of_ours_where_there_is_one():
    owner = bytes(range(16))
    fields = fields_of("Ongoing", owner=owner)
    value = encode_transaction_value(**fields)
    plain = encode_transaction_value(**(fields | {"owner": None}))
    assert plain.endswith(b"\x00")  # No tags.
    assert value == plain[:-1] + bytes.fromhex("01 e907 10") + owner  # 1001, 16 bytes.
    assert decode_transaction_value(value) == {"version": 1} | fields
    with pytest.raises(ValueError, match="owner must have 16 bytes, got 3"):
        encode_transaction_value(**(fields | {"owner": b"abc"}))
    with pytest.raises(CorruptRecordError):
        decode_transaction_value(plain[:-1] + bytes.fromhex("01 e907 03") + b"abc")


def test_a_commit_may_name_where_its_logs_end():
    ends = [(bytes([number] * 16), 5 << number) for number in range(3)]
    fields = fields_of("PrepareCommit", ends=ends)
    value = encode_transaction_value(**fields)
    plain = encode_transaction_value(**(fields | {"ends": None}))
    assert plain.endswith(b"\x00")  # No tags.
    named = b"".join(topic_id + struct.pack(">q", offset) for topic_id, offset in ends)
    assert value == plain[:-1] + bytes.fromhex("01 ea07 48") + named  # 1002, 72 bytes.
    assert decode_transaction_value(value) == {"version": 1} | fields
    for broken in (value[:-1], plain[:-1] + bytes.fromhex("01 ea07 18") + named[:24]):
        with pytest.raises(CorruptRecordError):
            decode_transaction_value(broken)
    of_an_abort = value[:16] + b"\x03" + value[17:]
    with pytest.raises(CorruptRecordError, match="not committed names ends"):
        decode_transaction_value(of_an_abort)
    for wrong in (ends[:2], [*ends[:2], (b"short", 1)]):
        with pytest.raises(ValueError, match="topic id and offset of each"):
            encode_transaction_value(**(fields | {"ends": wrong}))
    for others in ({"state": "PrepareAbort"}, {"version": 0}):
        with pytest.raises(ValueError):
            encode_transaction_value(**(fields | others))


def test_a_commit_over_many_partitions_may_name_their_ends():
    partitions = [("t", number) for number in range(3000)]
    ends = [(bytes(16), number) for number in range(3000)]
    fields = fields_of("PrepareCommit", partitions=partitions, ends=ends)
    fields["partitions"] = partitions
    assert decode_transaction_value(encode_transaction_value(**fields)) == {"version": 1} | fields


def test_empty_has_null_partitions_and_no_tags_at_their_defaults():
    fields = fields_of("Empty", start_ms=-1)
    start = struct.pack(">qhib", 7, 5, 60_000, 0)
    ends = struct.pack(">qq", 1100, -1)
    assert encode_transaction_value(version=0, **fields) == (
        b"\0\0" + start + b"\xff\xff\xff\xff" + ends
    )
    assert encode_transaction_value(version=1, **fields) == b"\0\1" + start + b"\0" + ends + b"\0"


def test_a_complete_transaction_has_an_empty_list():
    fields = fields_of("CompleteCommit", partitions=[])
    value = encode_transaction_value(**fields)
    assert value[17:18] == b"\1"
    assert decode_transaction_value(value)["partitions"] == []


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", STORED)
def test_s25_every_state_makes_the_round_trip(version, state):
    fields = fields_of(state) | (TAGGED if version else {})
    value = encode_transaction_value(version=version, **fields)
    assert decode_transaction_value(value) == {"version": version} | fields


@pytest.mark.parametrize("left_out", list(TAGGED))
def test_each_tagged_field_stands_alone(left_out):
    for fields in (
        TAGGED | {left_out: DEFAULTS[left_out]},
        DEFAULTS | {left_out: TAGGED[left_out]},
    ):
        whole = fields_of("PrepareAbort") | fields
        assert decode_transaction_value(encode_transaction_value(**whole)) == (
            {"version": 1} | whole
        )


def test_numbers_at_the_ends_of_their_ranges_make_the_round_trip():
    for sign, edge in ((1, 0), (-1, 1)):
        fields = fields_of(
            "CompleteAbort",
            producer_id=sign * (2**63 - 1) - edge,
            producer_epoch=sign * 32767 - edge,
            timeout_ms=sign * (2**31 - 1) - edge,
            last_update_ms=sign * (2**63 - 1) - edge,
            start_ms=sign * (2**63 - 1) - edge,
            next_producer_id=sign * (2**63 - 1) - edge,
            last_producer_epoch=sign * 32767 - edge,
            partitions=[("t" * 249, 2**31 - 1)],
        )
        assert decode_transaction_value(encode_transaction_value(**fields)) == (
            {"version": 1} | fields
        )


@pytest.mark.parametrize("version", [0, 1])
def test_many_partitions_make_the_round_trip(version):
    """Past the counts that take one byte of a compact length."""
    partitions = [(f"topic-{topic:04d}", number) for topic in range(130) for number in range(130)]
    fields = fields_of("Ongoing", partitions=partitions)
    value = encode_transaction_value(version=version, **fields)
    assert decode_transaction_value(value)["partitions"] == partitions


def test_tags_that_are_not_known_are_stepped_over():
    at = FLEXIBLE.index(bytes.fromhex("05000800"))
    foreign = bytes.fromhex("06 0403616263".replace(" ", ""))
    value = FLEXIBLE[:at] + foreign + FLEXIBLE[at + 1 :]
    assert decode_transaction_value(value) == decode_transaction_value(FLEXIBLE)
    topic_tags = FLEXIBLE.replace(
        bytes.fromhex("020000000100"), bytes.fromhex("0200000001010502ffff")
    )
    assert decode_transaction_value(topic_tags) == decode_transaction_value(FLEXIBLE)


@pytest.mark.parametrize("value", [CLASSIC, FLEXIBLE], ids=["classic", "flexible"])
def test_a_value_that_ends_too_early_or_late_is_corrupt(value):
    for size in range(len(value)):
        with pytest.raises(CorruptRecordError):
            decode_transaction_value(value[:size])
    with pytest.raises(CorruptRecordError, match="after its last field"):
        decode_transaction_value(value + b"\0")


def replaced(value: bytes, at: int, by: str) -> bytes:
    new = bytes.fromhex(by)
    return value[:at] + new + value[at + len(new) :]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (replaced(CLASSIC, 0, "0002"), "unknown version"),
        (replaced(FLEXIBLE, 0, "ffff"), "unknown version"),
        (replaced(CLASSIC, 16, "06"), "unknown state"),
        (replaced(FLEXIBLE, 16, "07"), "unknown state"),
        (replaced(FLEXIBLE, 16, "80"), "unknown state"),
        (replaced(CLASSIC, 16, "00"), "Empty"),
        (replaced(CLASSIC, 17, "fffffffe"), "negative length"),
        (replaced(CLASSIC, 17, "7fffffff"), "ends too early"),
        (replaced(CLASSIC, 21, "0000"), "name"),
        (replaced(CLASSIC, 21, "ffff"), "name"),
        (replaced(CLASSIC, 24, "ffffffff"), "no list"),
        (replaced(CLASSIC, 24, "7fffffff"), "ends too early"),
        (replaced(CLASSIC, 28, "80000000"), "negative"),
        (replaced(FLEXIBLE, 18, "00"), "name"),
        (replaced(FLEXIBLE, 20, "00"), "no list"),
        (replaced(FLEXIBLE, 17, "ffffffffff"), "32 bits"),
        (replaced(FLEXIBLE, 17, "ffffffff0f"), "ends too early"),
        (replaced(FLEXIBLE, len(FLEXIBLE) - 9, "07"), "wrong size"),
        (replaced(CLASSIC, 23, "ff"), "UTF-8"),
        (b"", "ends too early"),
    ],
)
def test_a_broken_field_is_named(value, reason):
    with pytest.raises(CorruptRecordError, match=reason):
        decode_transaction_value(value)


def test_garbage_is_decoded_or_corrupt_and_never_more():
    """What is decoded from changed bytes can be written and read again."""
    chance = random.Random(20)
    decoded = 0
    for _ in range(20_000):
        value = bytearray(chance.choice([CLASSIC, FLEXIBLE]))
        for _ in range(chance.randint(1, 3)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        try:
            fields = decode_transaction_value(value)
        except CorruptRecordError:
            continue
        decoded += 1
        assert decode_transaction_value(encode_transaction_value(**fields)) == fields
    assert 0 < decoded < 20_000
    for size in range(200):
        with pytest.raises(CorruptRecordError):
            decode_transaction_value(b"\0\1" + chance.randbytes(size) + b"\xff" * 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"version": 0, "previous_producer_id": 1},
        {"version": 0, "prepared": True},
        {"version": 0, "owner": bytes(range(16))},
        {"state": "Dead"},
        {"state": "PrepareEpochFence"},
        {"state": "Done"},
        {"state": "Empty"},
        {"partitions": None},
        {"partitions": [("", 0)]},
        {"partitions": [("a", -1)]},
        {"partitions": [("a", 2**31)]},
        {"producer_epoch": 2**15},
        {"timeout_ms": -(2**31) - 1},
        {"partitions": [("t" * 32768, 0)]},
    ],
)
def test_what_a_record_cannot_hold_is_refused(wrong):
    with pytest.raises(ValueError, match=r"\w"):
        encode_transaction_value(**(FIELDS | wrong))


@pytest.mark.parametrize("name", ["producer_id", "producer_epoch", "timeout_ms", "start_ms"])
def test_what_is_no_whole_number_is_refused(name):
    with pytest.raises(TypeError):
        encode_transaction_value(**(FIELDS | {name: 1.5}))


# Keys.


def test_a_key_is_its_type_and_the_id():
    assert transaction_key("txn-1") == b"\0\0\0\5txn-1"
    assert transactional_id_of(b"\0\0\0\5txn-1") == "txn-1"
    for transactional_id in ("é", "日本", "😀", "a" * 32767):
        assert transactional_id_of(transaction_key(transactional_id)) == transactional_id


def test_a_key_of_another_type_is_none_of_ours():
    for number in (1, 2, 999, 1000, 1003):
        assert transactional_id_of(struct.pack(">h", number) + b"name") is None


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\0", b"\0\0\0", b"\0\0\0\2a", b"\0\0\0\0a"])
def test_a_broken_key_is_corrupt(key):
    with pytest.raises(CorruptRecordError):
        transactional_id_of(key)


def test_a_key_that_is_not_text_is_corrupt():
    with pytest.raises(CorruptRecordError, match="UTF-8"):
        transactional_id_of(b"\0\0\0\1\xff")


@pytest.mark.parametrize("transactional_id", ["", "a" * 32768, "é" * 16384])
def test_an_id_has_1_to_32767_bytes(transactional_id):
    with pytest.raises(ValueError, match="transactional id"):
        transaction_key(transactional_id)


# States.


SOURCES = {
    "Empty": {"Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    "PrepareAbort": {"Ongoing", "PrepareEpochFence", "Empty", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
    "Dead": {"Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareEpochFence": {"Ongoing"},
}


@pytest.mark.parametrize("target", STATE_NAMES)
def test_m01_the_table_of_moves(target):
    found = {source for source in STATE_NAMES if transition_allowed(target, source)}
    assert found == SOURCES[target]


def test_m10_numbers_and_names_of_states():
    assert [state_name(number) for number in range(8)] == list(STATE_NAMES)
    assert [state_number(name) for name in STATE_NAMES] == list(range(8))
    for number in (8, -1):
        with pytest.raises(ValueError, match="state"):
            state_name(number)
    for call in (state_number, lambda name: transition_allowed(name, "Empty")):
        with pytest.raises(ValueError, match="Foo"):
            call("Foo")
