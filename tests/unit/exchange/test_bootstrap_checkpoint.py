"""`bootstrap.checkpoint`, byte for byte; `tests/broker/` starts a broker on one."""

from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.exchange.bootstrap_checkpoint import ExportedTopic, encode_bootstrap

TOPIC = ExportedTopic("t", "Sh5zye8ITMGF33nq1vDMTA", 1, {"retention.ms": "-1"})
DIRECTORY_ID = "fe-Ix-GXSRa85uJuz2ztiw"
TIMESTAMP_MS = 1_700_000_000_000
TOPIC_ID = bytes.fromhex("4a1e73c9ef084cc185df79ead6f0cc4c")


def encoded(*topics: ExportedTopic) -> bytes:
    return encode_bootstrap(
        topics,
        node_id=1,
        directory_id=DIRECTORY_ID,
        leader_epoch=7,
        next_producer_id=2**40 + 1000,
        timestamp_ms=TIMESTAMP_MS,
    )


def test_the_control_batches_are_those_that_kafkas_format_writes():
    data = encoded(TOPIC)
    headers = iter_batches(data)
    assert [(one.base_offset, one.is_control) for one in headers] == [
        (0, True),
        (1, False),
        (8, True),
    ]
    # Of Kafka 4.4.0, but for the times and the checksums over them.
    first = data[: headers[1].position_bytes]
    assert first[:17].hex() == "0000000000000000000000470000000002"
    assert first[21:27].hex() == "002000000000"
    assert first[43:].hex() == (
        "ffffffffffffffffffffffffffff000000012a0000000800000003160000"
        + f"{TIMESTAMP_MS:016x}"
        + "0000"
    )
    last = data[headers[2].position_bytes :]
    assert last[57:].hex() == "000000011a000000080000000406000000" + "00"


def test_each_record_is_a_frame_and_its_message():
    data = encoded(TOPIC)
    header = iter_batches(data)[1]
    batch = data[header.position_bytes :][: header.batch_bytes]
    node = "02" + "00000001"
    assert [record.value.hex() for record in decode_records(batch)] == [
        "010c00" + "11" + b"metadata.version".hex() + "0019" + "00",
        "010c00" + "0e" + b"group.version".hex() + "0001" + "00",
        "010c00" + "14" + b"transaction.version".hex() + "0002" + "00",
        "010f00" + "00000001" + "ffffffffffffffff" + "00000100000003e8" + "00",
        "010200" + "02" + b"t".hex() + TOPIC_ID.hex() + "00",
        "010301"
        + "00000000"
        + TOPIC_ID.hex()
        + node
        + node
        + "01"
        + "01"
        + "ffffffff"
        + "00000007"
        + "00000000"
        + "02"
        + "7def88c7e1974916bce6e26ecf6ced8b"
        + "00",
        "010400"
        + "02"
        + "02"
        + b"t".hex()
        + "0d"
        + b"retention.ms".hex()
        + "03"
        + b"-1".hex()
        + "00",
    ]


def test_many_records_are_in_several_batches_without_a_gap():
    long_name = "n" * 249  # Its length takes two bytes.
    data = encoded(ExportedTopic(long_name, TOPIC.topic_id, 2500, {}))
    headers = iter_batches(data)
    assert [one.record_count for one in headers] == [1, 1000, 1000, 505, 1]
    assert [one.base_offset for one in headers] == [0, 1, 1001, 2001, 2506]
    batch = data[headers[1].position_bytes :][: headers[1].batch_bytes]
    assert decode_records(batch)[4].value[3:5] == bytes([0xFA, 0x01])
