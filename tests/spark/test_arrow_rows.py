"""Arrow record batches as records: buffers as they are, rows to the places they name."""

import pytest
from recording_writer import RecordingWriter

from eoslog.spark.arrow_rows import append_batches

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch_of(**columns):
    arrays = {
        name: column if isinstance(column, pa.Array) else pa.array(column)
        for name, column in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


def records_of(*batches, topic="orders"):
    writer = RecordingWriter()
    append_batches(writer, iter(batches), topic)
    return writer.records


def test_values_and_keys():
    found = records_of(batch_of(value=[b"a", None], key=["k", None]), batch_of(value=[b"c"]))
    assert [(record.key, record.value) for record in found] == [
        (b"k", b"a"),
        (None, None),
        (None, b"c"),
    ]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary(1)],
)
def test_every_type_of_bytes(kind):
    found = records_of(batch_of(value=pa.array([b"a", None, b"b"]).cast(kind)))
    assert [record.value for record in found] == [b"a", None, b"b"]


def test_a_dictionary_column_is_decoded():
    found = records_of(batch_of(value=pa.array(["a", "b", "a"]).dictionary_encode()))
    assert [record.value for record in found] == [b"a", b"b", b"a"]


def test_a_column_of_nulls_alone():
    found = records_of(batch_of(value=[b"a"], key=pa.nulls(1), headers=pa.nulls(1)))
    assert [(record.key, record.headers) for record in found] == [(None, [])]


def test_a_sliced_batch():
    whole = batch_of(value=[b"%d" % number for number in range(10)])
    assert [record.value for record in records_of(whole.slice(3, 4))] == [b"3", b"4", b"5", b"6"]


def test_a_batch_without_rows_adds_nothing():
    assert records_of(batch_of(value=pa.array([], pa.binary()))) == []


def test_rows_go_to_the_partitions_they_name_in_order():
    partitions = pa.array([1, None, 1, 0, None], pa.int32())
    found = records_of(batch_of(value=["a", "b", "c", "d", "e"], partition=partitions))
    places = {}
    for record in found:
        places.setdefault(record.partition, []).append(record.value)
    assert places == {0: [b"d"], 1: [b"a", b"c"], None: [b"b", b"e"]}


def test_rows_go_to_the_topics_they_name():
    batch = batch_of(
        value=["a", "b", "c"], topic=["x", "y", "x"], partition=pa.array([0, 0, 1], pa.int32())
    )
    found = records_of(batch, topic=None)
    assert {(record.topic, record.partition, record.value) for record in found} == {
        ("x", 0, b"a"),
        ("y", 0, b"b"),
        ("x", 1, b"c"),
    }


def test_a_partition_column_of_nulls_alone_beside_topics():
    batch = batch_of(value=["a", "b"], topic=["x", "y"], partition=pa.nulls(2))
    found = records_of(batch, topic=None)
    assert {(record.topic, record.partition) for record in found} == {("x", None), ("y", None)}


def test_the_topic_of_the_job_wins_over_the_column():
    (found,) = records_of(batch_of(value=["a"], topic=["x"]), topic="orders")
    assert found.topic == "orders"


def test_milliseconds_and_a_row_without_a_time():
    column = pa.array([5, None], pa.int64())
    first, second = records_of(batch_of(value=["a", "b"], timestamp=column))
    assert first.timestamp_ms == 5
    assert second.timestamp_ms > 1_600_000_000_000


def test_headers():
    column = pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None], HEADERS)
    first, second = records_of(batch_of(value=["a", "b"], headers=column))
    assert (first.headers, second.headers) == ([("a", b"1"), ("a", None)], [])


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"key": ["k"]}, ValueError, "no column 'value'"),
        ({"value": ["v"], "vlaue": ["w"]}, ValueError, "unknown columns vlaue"),
        ({"value": [1]}, TypeError, "column value must be binary or string"),
        ({"value": ["v"], "key": [1.5]}, TypeError, "column key must be binary or string"),
        ({"value": ["v"], "timestamp": ["noon"]}, TypeError, "column timestamp must be"),
        ({"value": ["v"], "timestamp": [2**62]}, ValueError, "no time that Spark can hold"),
        ({"value": ["v"], "headers": ["h"]}, TypeError, "column headers must be"),
        ({"value": ["v"], "headers": [["h"]]}, TypeError, "column headers must be"),
        (
            {"value": ["v"], "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)},
            TypeError,
            "a header must be a pair",
        ),
        ({"value": ["v"], "partition": [-1]}, ValueError, "partition -1 is negative"),
        ({"value": ["v"], "partition": ["0"]}, TypeError, "column partition must be"),
    ],
)
def test_wrong_columns_are_refused(columns, error, words):
    with pytest.raises(error, match=words):
        records_of(batch_of(**columns))


@pytest.mark.parametrize(
    ("topics", "error", "words"),
    [
        (None, ValueError, "no topic"),
        (["x", None], ValueError, "1 rows have no topic"),
        ([1, 2], TypeError, "column topic must be a string"),
    ],
)
def test_rows_without_a_topic_are_refused(topics, error, words):
    columns = {"value": ["a", "b"]} | ({} if topics is None else {"topic": topics})
    with pytest.raises(error, match=words):
        records_of(batch_of(**columns), topic=None)


def test_a_column_that_is_there_twice_is_refused():
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], ["value", "value"])
    with pytest.raises(ValueError, match="twice"):
        records_of(batch)
