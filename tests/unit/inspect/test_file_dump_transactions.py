"""`eoslog dump` of what transactions leave: markers, abort indexes, and both internal logs."""

import json
import re
import struct

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.record_batch import BatchEncoder
from eoslog.bindings.transaction_record import encode_transaction_value, transaction_key
from eoslog.errors import CorruptRecordError
from eoslog.groups.members import GroupMembers, Member
from eoslog.groups.records import (
    OffsetValue,
    encode_members_key,
    encode_members_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.inspect.file_dump import dump_file
from eoslog.inspect.record_decoders import (
    Decoded,
    decode_offset_record,
    decode_transaction_record,
    decoder_of,
)

LOG_NAME = "00000000000000000000.log"
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def store_path(tmp_path):
    """A committed and an aborted transaction, each with a group's offset, and a named producer."""
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders")
        with store.producer(name="loader") as named:
            named.send("orders", value=b"plain")
        with store.producer(transactional_id="till") as producer:
            producer.init_transactions()
            for offset, commit in ((1, True), (2, False)):
                producer.begin_transaction()
                producer.send("orders", value=b"paid %d" % offset)
                producer.send_offsets_to_transaction({ORDERS: offset}, "billing")
                if commit:
                    producer.commit_transaction()
                else:
                    producer.flush()
                    producer.abort_transaction()
    return path


def logs_of(store_path, topic):
    return sorted(store_path.glob(f"{topic}-*/*.log"))


def deep_lines(*arguments):
    answer = call("dump", "--deep", *arguments)
    assert answer.status == DONE, answer
    return [line for line in answer.stdout.splitlines() if line.startswith("| ")]


def log_of(folder, keys, values):
    folder.mkdir(exist_ok=True)
    path = folder / LOG_NAME
    path.write_bytes(bytes(BatchEncoder().encode_columns(values, keys, timestamp_ms=1_000)))
    return path


def test_a_marker_is_shown_as_kafka_shows_it(store_path):
    markers = [line for line in deep_lines(*logs_of(store_path, "orders")) if "Marker" in line]
    assert [line.partition("endTxnMarker: ")[2] for line in markers] == [
        "COMMIT coordinatorEpoch: 0",
        "ABORT coordinatorEpoch: 0",
    ]
    for line in markers:
        assert " keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: " in line


def test_the_batches_of_a_transaction_say_so(store_path):
    (path,) = logs_of(store_path, "orders")
    kinds = [(one["isTransactional"], one["isControl"]) for one in dump_file(path)]
    assert kinds == [(False, False), (True, False), (True, True), (True, False), (True, True)]


def test_the_abort_index(store_path):
    (path,) = store_path.glob("orders-0/*.txnindex")
    (found,) = call("dump", "--json", path).json_lines
    del found["file"]
    assert found.pop("producerId") >= 0
    assert found == {"version": 0, "firstOffset": 3, "lastOffset": 4, "lastStableOffset": 5}
    line = call("dump", path).stdout.splitlines()[1]
    assert line.endswith(" firstOffset: 3 lastOffset: 4 lastStableOffset: 5")


def test_a_snapshot_shows_where_a_transaction_is_open(make_partition):
    files = make_partition()
    log = files.open()
    stamp = {"timestamp_ms": 1_000, "producer_epoch": 0, "base_sequence": 0}
    log.append_columns([b"v"], producer_id=5, **stamp, transactional=True)
    log.append_columns([b"v", b"w"], producer_id=6, **stamp, transactional=True)
    log.append_marker(5, 1, 9, True, timestamp_ms=2_000)
    path = log.take_snapshot()
    first, second = call("dump", path).stdout.splitlines()[1:]
    assert first == (
        "producerId: 5 producerEpoch: 1 coordinatorEpoch: 9 "
        "currentTxnFirstOffset: OptionalLong.empty lastTimestamp: 2000"
    )
    assert second == (
        "producerId: 6 producerEpoch: 0 coordinatorEpoch: -1 "
        "currentTxnFirstOffset: OptionalLong[1] lastTimestamp: 1000 "
        "firstSequence: 0 lastSequence: 1 lastOffset: 2 offsetDelta: 1 timestamp: 1000"
    )
    found = call("dump", "--json", path).json_lines
    assert [fields["currentTxnFirstOffset"] for fields in found] == [None, 1]


@pytest.mark.parametrize(("records", "first"), [(1, 2147483647), (3, 2147483645)])
def test_a_snapshot_counts_back_from_no_sequence_as_kafka_does(make_partition, records, first):
    """Offsets of a transaction as version 0.1.0 wrote them."""
    log = make_partition().open()
    stamp = {"timestamp_ms": 1_000, "producer_epoch": 0, "base_sequence": -1}
    log.append_columns([b"v"] * records, producer_id=5, **stamp, transactional=True)
    (fields,) = call("dump", "--json", log.take_snapshot()).json_lines
    assert (fields["firstSequence"], fields["lastSequence"]) == (first, -1)


def test_a_delete_horizon(tmp_path):
    from eoslog.bindings.record_batch import crc32c

    data = bytearray(BatchEncoder().encode_columns([b"v"], timestamp_ms=1_000))
    data[22] |= 0x40
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    path = tmp_path / LOG_NAME
    path.write_bytes(data)
    (fields,) = dump_file(path)
    assert (fields["deleteHorizonMs"], fields["isvalid"]) == (1_000, True)
    assert " deleteHorizonMs: OptionalLong[1000] position: 0 " in call("dump", path).stdout


def test_names_of_headers_stand_in_brackets(tmp_path):
    path = tmp_path / LOG_NAME
    data = BatchEncoder().encode_columns(
        [b"v"], headers=[[("one", b"1"), ("two", None)]], timestamp_ms=1
    )
    path.write_bytes(data)
    (line,) = deep_lines(path)
    assert line.endswith(" headerKeys: [one,two] payload: v")


# __transaction_state


def test_the_transaction_log_is_known_by_its_directory(store_path):
    lines = deep_lines(*logs_of(store_path, "__transaction_state"))
    key = 'key: {"type":"0","data":{"transactionalId":"till"}} payload: '
    mine = [json.loads(line.partition(key)[2])["data"] for line in lines if key in line]
    states = [one["transactionStatus"] for one in mine]
    assert states[0] == "Empty"
    for kind in ("Commit", "Abort"):
        at = states.index(f"Prepare{kind}")
        assert states[at : at + 2] == [f"Prepare{kind}", f"Complete{kind}"]
        assert {"topic": "orders", "partitionIds": [0]} in mine[at]["transactionPartitions"]
    assert all(one["transactionTimeoutMs"] == 60_000 for one in mine)


def test_the_text_of_a_transaction(tmp_path):
    value = encode_transaction_value(
        producer_id=12,
        producer_epoch=3,
        timeout_ms=60_000,
        state="Ongoing",
        partitions=[("t", 0), ("t", 2), ("u-v", 1)],
        last_update_ms=1_700,
        start_ms=1_600,
        last_producer_epoch=2,
    )
    key, payload = decode_transaction_record(transaction_key("till"), value)
    assert key.text == '{"type":"0","data":{"transactionalId":"till"}}'
    assert payload.text == (
        '{"version":"1","data":{"producerId":12,"producerEpoch":3,"transactionTimeoutMs":60000,'
        '"transactionStatus":"Ongoing","transactionPartitions":[{"topic":"t","partitionIds":[0,2]},'
        '{"topic":"u-v","partitionIds":[1]}],"transactionLastUpdateTimestampMs":1700,'
        '"transactionStartTimestampMs":1600}}'
    )
    assert json.loads(payload.text) == payload


@pytest.mark.parametrize("version", [0, 1])
def test_an_empty_transaction_has_no_partitions(version):
    value = encode_transaction_value(
        version=version,
        producer_id=12,
        producer_epoch=0,
        timeout_ms=1,
        state="Empty",
        partitions=None,
        last_update_ms=5,
        start_ms=-1,
    )
    payload = decode_transaction_record(transaction_key("x"), value)[1]
    assert '"transactionStatus":"Empty","transactionPartitions":null,' in payload.text
    assert payload["version"] == str(version)


@pytest.mark.parametrize(
    ("option", "key", "text"),
    [
        (
            "--transaction-log-decoder",
            transaction_key("till"),
            '{"type":"0","data":{"transactionalId":"till"}}',
        ),
        (
            "--offsets-decoder",
            encode_offset_key("billing", ORDERS),
            '{"type":"1","data":{"group":"billing","topic":"orders","partition":0}}',
        ),
    ],
)
def test_a_decoder_by_name_prints_records_and_tombstones(tmp_path, option, key, text):
    path = log_of(tmp_path / "elsewhere", [key], [None])
    answer = call("dump", option, path)
    line = answer.stdout.splitlines()[-1]
    assert line.endswith(
        f" valueSize: -1 sequence: -1 headerKeys: [] key: {text} payload: <DELETE>"
    )
    record = call("dump", option, "--json", path).json_lines[-1]
    assert record["payload"] is None
    assert isinstance(record["key"], dict)


def test_without_a_decoder_the_bytes_are_shown(tmp_path):
    path = log_of(tmp_path / "elsewhere", [transaction_key("till")], [None])
    record = call("dump", "--deep", "--json", path).json_lines[-1]
    assert record["key"] == transaction_key("till").decode()


def test_both_decoders_are_wrong_use(tmp_path):
    path = log_of(tmp_path / "elsewhere", [b"k"], [b"v"])
    answer = call("dump", "--offsets-decoder", "--transaction-log-decoder", path)
    assert_mistake(answer, WRONG_USE, "exclude")


def test_the_stores_own_records_are_unknown_to_kafka_and_shown_in_json(store_path):
    lines = deep_lines(*logs_of(store_path, "__transaction_state"))
    own = [line.partition("headerKeys: [] ")[2] for line in lines if "Unknown" in line]
    assert own
    assert all(
        re.fullmatch(r"key: Unknown record type 100\d at offset \d+, skipping\.", line)
        for line in own
    )

    found = call("dump", "--deep", "--json", *logs_of(store_path, "__transaction_state"))
    records = [one for one in found.json_lines if isinstance(one.get("key"), dict)]
    mine = [one for one in records if one["key"] == {"type": 1001, "name": "loader"}]
    assert mine[0]["payload"]["version"] == 1


@pytest.mark.parametrize("value", [b"{", b"[1]", b"\xff", b""])
def test_a_record_that_cannot_be_read_is_shown_as_it_is(tmp_path, value):
    keys = [struct.pack(">h", 1002) + b"app", transaction_key("till")]
    path = log_of(tmp_path / "__transaction_state-4", keys, [value, value])
    records = call("dump", "--deep", "--json", path).json_lines[1:]
    assert [bool(record["undecodable"]) for record in records] == [True, True]
    assert records[1]["key"] == transaction_key("till").decode()
    with pytest.raises(CorruptRecordError):
        decode_transaction_record(keys[0], value)


def test_a_key_of_another_type_is_named():
    for decode in (decode_transaction_record, decode_offset_record):
        with pytest.raises(CorruptRecordError) as caught:
            decode(b"\x00\x63abc", b"v")
        assert caught.value.reason == "Unknown record type 99"


# __consumer_offsets


def test_the_offsets_log_is_known_by_its_directory(store_path):
    lines = deep_lines(*logs_of(store_path, "__consumer_offsets"))
    contents = [line.partition("headerKeys: [] ")[2] for line in lines]
    key = 'key: {"type":"1","data":{"group":"billing","topic":"orders","partition":0}}'
    value = '{"version":"3","data":{"offset":%d,"leaderEpoch":-1,"metadata":"",'
    for offset, at in ((1, 0), (2, 2)):
        assert contents[at].startswith(f"{key} payload: {value % offset}")
    assert contents[1::2] == [
        "endTxnMarker: COMMIT coordinatorEpoch: 0",
        "endTxnMarker: ABORT coordinatorEpoch: 0",
    ]


# A member of a `consumer` group, up to what it has only if it once was one of a classic group.
MEMBER_KEY = struct.pack(">h", 5) + b"\0\1g\0\1m"
MEMBER = bytes.fromhex("0000 00 00 0263 0268 02 0274 00 00000bb8 00")
MEMBER_TEXT = (
    '{"version":"0","data":{"instanceId":null,"rackId":null,"clientId":"c","clientHost":"h",'
    '"subscribedTopicNames":["t"],"subscribedTopicRegex":null,"rebalanceTimeoutMs":3000,'
    '"serverAssignor":null%s}}'
)


@pytest.mark.parametrize(
    ("tagged", "shown"),
    [
        ("00", ""),
        # Kafka writes this one for each member that never was one of a classic group.
        ("01 00 01 00", ',"classicMemberMetadata":null'),
        (
            "01 00 0c 01 00000bb8 02 0270 027800 00",
            ',"classicMemberMetadata":{"sessionTimeoutMs":3000,"supportedProtocols":'
            '[{"name":"p","metadata":"eA=="}]}',
        ),
        ("01 00 07 01 00000000 01 00", ""),
    ],
)
def test_a_member_of_a_consumer_group(tagged, shown):
    """Beside Kafka's own tool in tests/broker/test_dump.py."""
    _, payload = decode_offset_record(MEMBER_KEY, MEMBER + bytes.fromhex(tagged))
    assert payload.text == MEMBER_TEXT % shown


def test_the_text_of_an_offset():
    value = encode_offset_value(OffsetValue(7, 1, "here", 1_000))
    key, payload = decode_offset_record(encode_offset_key("g", TopicPartition("a-b", 3)), value)
    assert key == {"type": "1", "data": {"group": "g", "topic": "a-b", "partition": 3}}
    assert payload.text == (
        '{"version":"3","data":{"offset":7,"leaderEpoch":1,"metadata":"here",'
        '"commitTimestamp":1000}}'
    )


def test_members_of_a_group_are_told_in_kafkas_words():
    member = Member(
        "m-1", "c", "h", 1000, ("orders",), ("range",), bytes(16), 4, frozenset({ORDERS})
    )
    value = encode_members_value(GroupMembers(4, "range", (member,), 1_000))
    key, payload = decode_offset_record(encode_members_key("billing"), value)
    assert key.text == '{"type":"2","data":{"group":"billing"}}'
    (found,) = payload["data"]["members"]
    assert found["subscription"]["topics"] == ["orders"]
    assert found["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [0]}]
    assert decode_offset_record(encode_members_key("billing"), None)[1] is None


@pytest.mark.parametrize(
    ("folder", "decoder"),
    [
        ("__transaction_state-0", decode_transaction_record),
        ("__consumer_offsets-49", decode_offset_record),
        ("orders-0", None),
        ("__transaction_state", None),
    ],
)
def test_decoders_go_by_the_topic(tmp_path, folder, decoder):
    assert decoder_of(tmp_path / folder / LOG_NAME) is decoder


def test_a_decoder_goes_by_the_working_directory_too(tmp_path, monkeypatch):
    path = log_of(tmp_path / "__transaction_state-4", [transaction_key("a")], [None])
    monkeypatch.chdir(path.parent)
    (line,) = deep_lines(LOG_NAME)
    assert line.endswith("payload: <DELETE>")


def test_decoded_fields_may_have_any_name():
    assert Decoded(text=1, self=2) == {"text": 1, "self": 2}


# Damage


def test_bytes_behind_the_last_batch_are_counted(tmp_path):
    path = log_of(tmp_path / "orders-0", None, [b"v"])
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"x" * 17)
    answer = call("dump", path)
    assert_mistake(answer, FAILED, f"at byte {size}", "CorruptRecordError")
    assert answer.stdout.splitlines()[-1] == f"Found 17 invalid bytes at the end of {LOG_NAME}"
    assert call("dump", "--json", path).json_lines[-1] == {"file": str(path), "invalidBytes": 17}
