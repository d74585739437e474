"""`eoslog dump` reads files without a store: fields in Kafka's words, damage with its place."""

import json
import os
import struct

import pytest
from harness.fork import in_child

from eoslog.bindings.record_batch import BatchEncoder, crc32c
from eoslog.errors import CorruptRecordError
from eoslog.inspect.file_dump import dump_file
from eoslog.storage.partition_directory import base_offset_of

BATCH_FIELDS = (
    *("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence"),
    *("producerId", "producerEpoch", "partitionLeaderEpoch", "isTransactional", "isControl"),
    *(
        "deleteHorizonMs",
        "position",
        "CreateTime",
        "size",
        "magic",
        "compresscodec",
        "crc",
        "isvalid",
    ),
)
HEADER_BYTES, CRC_AT = 61, 17
LOG_NAME = "00000000000000000000.log"


def encoded(values, **fields):
    return bytes(BatchEncoder().encode_columns(values, timestamp_ms=1_000, **fields))


def written(folder, data, name=LOG_NAME):
    path = folder / name
    path.write_bytes(data)
    return path


def dumped(path, **options):
    return list(dump_file(path, **options))


def test_a_batch_has_the_fields_of_kafkas_dump_in_their_order(tmp_path):
    batch = encoded(
        [b"a", b"b", b"c"], producer_id=7, producer_epoch=2, base_sequence=5, base_offset=40
    )
    (fields,) = dumped(written(tmp_path, batch))
    assert tuple(fields) == BATCH_FIELDS
    assert (fields["baseOffset"], fields["lastOffset"], fields["count"]) == (40, 42, 3)
    assert (fields["baseSequence"], fields["lastSequence"]) == (5, 7)
    assert (fields["producerId"], fields["producerEpoch"]) == (7, 2)
    assert (fields["position"], fields["size"], fields["magic"]) == (0, len(batch), 2)
    assert (fields["CreateTime"], fields["compresscodec"]) == (1_000, "none")
    assert (fields["isTransactional"], fields["isControl"], fields["isvalid"]) == (
        False,
        False,
        True,
    )


def test_sequences_wrap_to_zero(tmp_path):
    batch = encoded([b"a"] * 4, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    (fields,) = dumped(written(tmp_path, batch))
    assert (fields["baseSequence"], fields["lastSequence"]) == (2**31 - 2, 1)


def test_a_batch_without_a_producer_has_no_sequences(tmp_path):
    (fields,) = dumped(written(tmp_path, encoded([b"a", b"b"])))
    assert (fields["producerId"], fields["baseSequence"], fields["lastSequence"]) == (-1, -1, -1)


def test_deep_shows_each_record_with_its_own_sequence(tmp_path):
    batch = encoded(
        [b"one", None],
        keys=[None, b"k"],
        headers=[[("h", b"1"), ("h", None)], []],
        producer_id=7,
        producer_epoch=0,
        base_sequence=3,
        base_offset=10,
    )
    _, first, second = dumped(written(tmp_path, batch), deep=True)
    assert first == {
        "offset": 10,
        "CreateTime": 1_000,
        "keySize": -1,
        "valueSize": 3,
        "sequence": 3,
        "headerKeys": ["h", "h"],
        "key": None,
        "payload": b"one",
    }
    assert (second["offset"], second["sequence"], second["valueSize"]) == (11, 4, -1)


def test_times_of_an_append_have_their_own_name(tmp_path):
    """Records too; each has the time of its batch."""
    batch = bytearray(encoded([b"a", b"b"]))
    batch[22] |= 0x08
    batch[35:43] = (5_000).to_bytes(8, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    header, *records = dumped(written(tmp_path, bytes(batch)), deep=True)
    assert [one["LogAppendTime"] for one in (header, *records)] == [5_000] * 3
    assert [list(one)[1] for one in records] == ["LogAppendTime"] * 2


def test_positions_follow_one_another(tmp_path):
    first, second = encoded([b"a"]), encoded([b"b"], base_offset=1)
    found = dumped(written(tmp_path, first + second))
    assert [fields["position"] for fields in found] == [0, len(first)]


def test_a_wrong_checksum_is_shown_and_the_walk_goes_on(tmp_path):
    first, second = bytearray(encoded([b"abcdef"])), encoded([b"b"], base_offset=1)
    first[-3] ^= 0x10
    found = dumped(written(tmp_path, bytes(first) + second), deep=True)
    assert [fields["isvalid"] for fields in found if "isvalid" in fields] == [False, True]
    # The records of the damaged batch are not shown.
    assert [fields["offset"] for fields in found if "payload" in fields] == [1]


@pytest.mark.parametrize("zeros", [1, 11, 60, 61, 4096, 3 << 20])
def test_zeros_behind_the_last_batch_are_no_damage(tmp_path, zeros):
    found = dumped(written(tmp_path, encoded([b"a"]) + bytes(zeros)))
    assert len(found) == 1


@pytest.mark.parametrize("cut_bytes", [8, 11, 12, 40, 60])
def test_a_torn_batch_is_named_with_its_place(tmp_path, cut_bytes):
    whole, torn = encoded([b"a"]), encoded([b"b" * 100], base_offset=1)
    path = written(tmp_path, whole + torn[:cut_bytes])
    with pytest.raises(CorruptRecordError) as caught:
        dumped(path)
    assert (caught.value.path, caught.value.position_bytes) == (str(path), len(whole))


@pytest.mark.parametrize("batch_length", [-1, 0, 48, 1 << 30])
def test_a_batch_of_an_impossible_size_is_named(tmp_path, batch_length):
    data = bytearray(encoded([b"a"]))
    struct.pack_into(">i", data, 8, batch_length)
    with pytest.raises(CorruptRecordError, match="batch of"):
        dumped(written(tmp_path, bytes(data)))


def test_bytes_that_are_no_log_are_named(tmp_path):
    with pytest.raises(CorruptRecordError):
        dumped(written(tmp_path, b"PAR1" * 100))


def test_an_empty_file_has_no_entries(tmp_path):
    assert dumped(written(tmp_path, b"")) == []


@pytest.mark.parametrize("name", ["a.txt", "00000000000000000000", "leader-epoch-checkpoint"])
def test_another_kind_of_file_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"not a \.log"):
        dumped(written(tmp_path, b"x", name))


def test_a_name_without_an_offset_is_refused(tmp_path):
    with pytest.raises(ValueError, match="offset"):
        base_offset_of(tmp_path / "orders.index")


def test_index_entries_are_absolute_offsets(tmp_path):
    data = struct.pack(">iiii", 3, 400, 9, 900)
    found = dumped(written(tmp_path, data, "00000000000000000100.index"))
    assert found == [{"offset": 103, "position": 400}, {"offset": 109, "position": 900}]


def test_time_index_entries(tmp_path):
    data = struct.pack(">qiqi", 5_000, 3, 6_000, 9)
    found = dumped(written(tmp_path, data, "00000000000000000100.timeindex"))
    assert found == [{"timestamp": 5_000, "offset": 103}, {"timestamp": 6_000, "offset": 109}]


def test_an_index_that_is_still_written_ends_in_zeros(tmp_path):
    data = struct.pack(">ii", 3, 400) + bytes(8 * 100)
    assert len(dumped(written(tmp_path, data, "00000000000000000100.index"))) == 1


def test_half_an_index_entry_is_named_with_its_place(tmp_path):
    data = struct.pack(">ii", 3, 400) + b"\x01\x02\x03"
    with pytest.raises(CorruptRecordError) as caught:
        dumped(written(tmp_path, data, "00000000000000000100.index"))
    assert caught.value.position_bytes == 8


def test_aborted_transactions(tmp_path):
    data = struct.pack(">hqqqq", 0, 7, 10, 20, 15)
    (found,) = dumped(written(tmp_path, data, "00000000000000000000.txnindex"))
    assert found == {
        "version": 0,
        "producerId": 7,
        "firstOffset": 10,
        "lastOffset": 20,
        "lastStableOffset": 15,
    }


def test_what_the_engine_wrote_is_read(make_partition):
    files = make_partition(segment_bytes=16 << 10, index_interval_bytes=64)
    log = files.open()
    for number in range(400):
        log.append_columns(
            [b"v" * 90],
            timestamp_ms=1_000 + number,
            producer_id=5,
            producer_epoch=1,
            base_sequence=number,
        )
    files.close()
    logs = sorted(files.directory.glob("*.log"))
    assert len(logs) > 1
    batches = [fields for path in logs for fields in dumped(path)]
    assert [fields["baseOffset"] for fields in batches] == list(range(400))
    positions = {fields["baseOffset"]: fields["position"] for fields in batches}
    for path in sorted(files.directory.glob("*.index")):
        for fields in dumped(path):
            assert positions[fields["offset"]] == fields["position"]
    assert any(dumped(path) for path in files.directory.glob("*.timeindex"))
    newest = max(files.directory.glob("*.snapshot"))
    (producer,) = dumped(newest)
    assert (producer["producerId"], producer["producerEpoch"], producer["lastSequence"]) == (
        5,
        1,
        399,
    )
    assert producer["lastOffset"] == 399


def test_a_flipped_bit_in_a_snapshot_is_named(make_partition):
    files = make_partition()
    log = files.open()
    log.append_columns([b"v"], timestamp_ms=1, producer_id=5, producer_epoch=1, base_sequence=0)
    files.close()
    path = max(files.directory.glob("*.snapshot"))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="checksum"):
        dumped(path)


@pytest.mark.parametrize("size_bytes", [1, 9, 10, 40])
def test_a_short_or_foreign_snapshot_is_named(tmp_path, size_bytes):
    with pytest.raises(CorruptRecordError):
        dumped(written(tmp_path, b"\x7f" * size_bytes, "00000000000000000001.snapshot"))


def test_a_dump_can_be_written_as_json(tmp_path):
    from eoslog.cli.options import json_value

    batch = encoded([b"\xff\x00", "é".encode()])
    text = json.dumps(dumped(written(tmp_path, batch), deep=True), default=json_value)
    payloads = [fields["payload"] for fields in json.loads(text) if "payload" in fields]
    assert payloads == [{"base64": "/wA="}, "é"]


def test_records_that_cannot_be_read_are_named_and_the_others_shown(tmp_path):
    """The checksum is right: whoever wrote the batch wrote it so."""
    wrong = bytearray(encoded([b"wrong"]))
    wrong[HEADER_BYTES] = 0x7E  # The record's length.
    struct.pack_into(">I", wrong, CRC_AT, crc32c(bytes(wrong[CRC_AT + 4 :])))
    sound = encoded([b"sound"])
    path = written(tmp_path, sound + bytes(wrong) + sound)
    assert [one["isvalid"] for one in dumped(path)] == [True] * 3
    found = []
    with pytest.raises(CorruptRecordError) as failed:
        for one in dump_file(path, deep=True):
            found.append(one)
    assert [one["payload"] for one in found if "payload" in one] == [b"sound"] * 2
    assert failed.value.path == str(path)
    assert len(sound) <= failed.value.position_bytes < len(sound) + len(wrong)


def test_a_segment_that_ends_while_it_is_dumped_ends_the_dump(make_partition):
    in_child(lambda: ends_while_it_is_dumped(make_partition))


def ends_while_it_is_dumped(make_partition):
    """The file is cut to its batches then."""
    files = make_partition(segment_bytes=1 << 20)
    log = files.open()
    for _ in range(3):
        log.append_columns([b"value"], timestamp_ms=1)
    reserved_bytes = files.path(0).stat().st_size
    entries = dump_file(files.path(0), deep=True)
    found = [next(entries)]
    log.roll()
    assert files.path(0).stat().st_size < reserved_bytes
    found += entries
    assert [one["baseOffset"] for one in found if "baseOffset" in one] == [0, 1, 2]


def test_a_segment_that_is_deleted_while_it_is_dumped_keeps_its_bytes(make_partition):
    files = make_partition(segment_bytes=1 << 20, eoslog_spare_segments=1)
    log = files.open()
    for _ in range(3):
        log.append_columns([b"value"], timestamp_ms=1)
    log.roll()
    entries = dump_file(files.path(0), deep=True)
    found = [next(entries)]
    log.delete_segments(3)
    log.prepare_spare()
    assert not files.path(0).exists()
    found += entries
    assert [one["payload"] for one in found if "offset" in one] == [b"value"] * 3


def test_a_file_that_is_cut_inside_a_batch_is_damaged(tmp_path):
    batch = encoded([b"value" * 100])
    path = written(tmp_path, batch * 2)
    entries = dump_file(path)
    next(entries)
    os.truncate(path, len(batch) + 100)
    assert next(entries) == {"invalidBytes": 100}
    with pytest.raises(CorruptRecordError):
        next(entries)
