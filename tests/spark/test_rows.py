"""Rows of an RDD as records: which kinds are taken, which are refused and with what words."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from recording_writer import RecordingWriter

from eoslog.spark.rows import append_rows

pyspark_sql = pytest.importorskip("pyspark.sql")


def records_of(rows, topic="orders"):
    writer = RecordingWriter()
    append_rows(writer, iter(rows), topic)
    return writer.records


def test_bytes_are_values():
    found = records_of([b"a", b"", b"c"])
    assert [(record.value, record.key) for record in found] == [
        (b"a", None),
        (b"", None),
        (b"c", None),
    ]
    assert {(record.topic, record.partition) for record in found} == {("orders", None)}


def test_pairs_are_key_and_value():
    found = records_of([(b"k", b"v"), (None, b"w"), (b"k", None)])
    assert [(record.key, record.value) for record in found] == [
        (b"k", b"v"),
        (None, b"w"),
        (b"k", None),
    ]


@pytest.mark.parametrize(
    "row",
    [
        ("k", "v"),
        [b"k", b"v"],
        (bytearray(b"k"), memoryview(b"v")),
        {"key": "k", "value": "v"},
        pyspark_sql.Row(key=b"k", value="v"),
    ],
)
def test_other_kinds_of_a_record(row):
    (found,) = records_of([row])
    assert (found.key, found.value) == (b"k", b"v")


@pytest.mark.parametrize("row", ["é", bytearray("é".encode()), memoryview("é".encode())])
def test_texts_and_buffers_are_values(row):
    (found,) = records_of([row])
    assert (found.key, found.value) == (None, "é".encode())


def test_none_is_a_record_without_a_value():
    (found,) = records_of([None])
    assert (found.key, found.value) == (None, None)


def test_rows_of_several_kinds_keep_their_order():
    rows = [b"0", "1", (b"k", b"2"), {"value": b"3"}, None]
    assert [record.value for record in records_of(rows)] == [b"0", b"1", b"2", b"3", None]


def test_every_row_of_many_chunks_arrives_once_and_in_order():
    rows = [b"%d" % number for number in range(50_000)]
    assert [record.value for record in records_of(rows)] == rows


def test_large_rows_are_taken_in_small_chunks():
    row_bytes = 300_000
    writer = RecordingWriter()
    append_rows(writer, (b"x" * row_bytes for _ in range(200)), "orders")
    assert len(writer.records) == 200
    # After the first chunk, which is taken unseen, none holds much more than a megabyte.
    assert max(writer.chunk_rows[1:]) * row_bytes < 2_000_000


def test_columns_of_a_record():
    row = {
        "topic": "other",
        "partition": 3,
        "key": b"k",
        "value": b"v",
        "timestamp": 1_234,
        "headers": [("a", b"1"), ("b", None), {"key": "c", "value": "2"}],
    }
    (found,) = records_of([row], topic=None)
    assert (found.topic, found.partition, found.timestamp_ms) == ("other", 3, 1_234)
    assert found.headers == [("a", b"1"), ("b", None), ("c", b"2")]


def test_the_topic_of_the_job_wins_over_the_column():
    (found,) = records_of([{"value": b"v", "topic": "other"}], topic="orders")
    assert found.topic == "orders"


def test_columns_that_a_source_adds_are_ignored():
    (found,) = records_of([{"value": b"v", "offset": 7, "timestampType": 0}])
    assert found.value == b"v"


@pytest.mark.parametrize(
    ("moment", "timestamp_ms"),
    [
        (datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC), 1_999),
        (datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 1_767_225_600_000),
    ],
)
def test_times_are_whole_milliseconds_rounded_down(moment, timestamp_ms):
    (found,) = records_of([{"value": b"v", "timestamp": moment}])
    assert found.timestamp_ms == timestamp_ms


def test_rows_go_to_the_partitions_they_name_in_order():
    rows = [{"value": b"%d" % number, "partition": number % 3} for number in range(30)]
    found = records_of(rows)
    for partition in range(3):
        values = [record.value for record in found if record.partition == partition]
        assert values == [b"%d" % number for number in range(partition, 30, 3)]


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        (3, TypeError, "int"),
        (1.5, TypeError, "float"),
        ((b"a", b"b", b"c"), TypeError, "tuple of 3"),
        ((b"k", 3), TypeError, "value must be bytes"),
        ((3, b"v"), TypeError, "key must be bytes"),
        ({"key": b"k"}, ValueError, "no column 'value'"),
        ({"value": b"v", "ky": b"k"}, ValueError, "unknown columns ky"),
        ({"value": b"v", "partition": "0"}, TypeError, "partition must be an int"),
        ({"value": b"v", "partition": True}, TypeError, "partition must be an int"),
        ({"value": b"v", "partition": -1}, ValueError, "partition -1 is negative"),
        ({"value": b"v", "timestamp": "noon"}, TypeError, "timestamp must be"),
        ({"value": b"v", "timestamp": 2**62}, ValueError, "row 100 .* no time that Spark can hold"),
        ({"value": b"v", "timestamp": 2**63}, ValueError, "row 100 .* no time that Spark can hold"),
        ({"value": b"v", "timestamp": -(2**63)}, ValueError, "no time that Spark can hold"),
        ({"value": b"v", "headers": "h"}, TypeError, "headers must be pairs"),
        ({"value": b"v", "headers": [("a",)]}, TypeError, "a header must be a pair"),
        ({"value": b"v", "headers": [(1, b"x")]}, TypeError, "a header must be a pair"),
        ({"value": b"v", "headers": [("a", 1)]}, TypeError, "a header's value"),
    ],
)
def test_what_is_no_record_is_refused_with_its_number(row, error, words):
    with pytest.raises(error, match=words) as caught:
        records_of([b"fine"] * 100 + [row])
    assert "row 100 of the Spark partition" in str(caught.value)


def test_a_row_without_a_topic_is_refused():
    with pytest.raises(TypeError, match="topic must be a str"):
        records_of([b"v"], topic=None)
