"""Options and columns of reads: every wrong one is refused by its name, before Spark plans."""

import logging
import pickle
from pathlib import Path

import pytest

from eoslog import TopicPartition
from eoslog.spark.source import read_options
from eoslog.spark.source.read_options import ReadOptions

STORE = {"store": "/data/s", "subscribe": "a"}


def test_a_batch_reads_everything_and_a_stream_what_is_new():
    batch, stream = ReadOptions.of_batch(STORE), ReadOptions.of_stream(STORE)
    assert batch.store == stream.store == Path("/data/s")
    assert (batch.starting.everywhere, batch.ending.everywhere) == (-2, -1)
    assert (stream.starting.everywhere, stream.ending.everywhere) == (-1, -1)
    for found in (batch, stream):
        assert found.isolation_level == "read_committed"
        assert found.fail_on_data_loss
        assert found.choice.topics == ("a",)
        assert (found.split.min_partitions, found.split.max_records) == (0, 0)
        assert found.split.max_bytes == 0


def test_all_options_are_taken_whatever_the_case_of_their_names():
    found = ReadOptions.of_stream(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "eoslog:/data/s",
            "subscribepattern": "a.*",
            "startingoffsets": "earliest",
            "minpartitions": "3",
            "MaxRecordsPerPartition": "1000",
            "maxbytesperpartition": "5000000",
            "maxoffsetspertrigger": "200",
            "minOffsetsPerTrigger": "100",
            "maxtriggerdelay": "90s",
            "failondataloss": "FALSE",
            "includeheaders": "true",
            "kafka.isolation.level": "read_uncommitted",
        }
    )
    assert found.store == Path("/data/s")
    assert found.choice.pattern == "a.*"
    split = found.split
    assert (split.min_partitions, split.max_records, split.max_bytes) == (3, 1000, 5_000_000)
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger) == (200, 100)
    assert found.max_trigger_delay_ms == 90_000
    assert not found.fail_on_data_loss
    assert found.isolation_level == "read_uncommitted"


def test_offsets_of_a_querys_progress_are_taken_as_they_are():
    """It says besides which topic of the name it was, and where its first batch began."""
    ends = '{"a": {"0": 7}, "a (id)": {"UWztq4PPRI-B7KWm7oNp4A": 0}, "a (start)": {"0": 3}}'
    found = ReadOptions.of_stream(STORE | {"startingOffsets": ends})
    assert found.starting.each == {TopicPartition("a", 0): 7}


def test_options_go_to_tasks():
    found = ReadOptions.of_batch({"path": "/s", "assign": '{"a": [0]}'})
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingofsets": "earliest"}, "startingofsets is unknown .* did you mean startingOffs"),
        ({"subscribe": None}, "one of the options subscribe, .* and has none"),
        ({"assign": '{"a": [0]}'}, "has subscribe and assign"),
        ({"subscribe": "a,,b"}, "subscribe has an empty name"),
        ({"subscribe": None, "subscribePattern": "a("}, "subscribePattern 'a\\('"),
        ({"subscribe": None, "assign": '{"a": 0}'}, "assign must be JSON like"),
        ({"subscribe": None, "assign": "{}"}, "assign must be JSON like"),
        ({"startingOffsets": "newest"}, "Offsets must be JSON like"),
        ({"startingOffsets": "[1]"}, "Offsets must be JSON like"),
        ({"startingOffsets": '{"a": 1}'}, "Offsets must be JSON like"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "Offsets must be JSON like"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "Offsets must be JSON like"),
        ({"startingOffsets": '{"a": {"0": 1, "0": 2}}'}, "startingOffsets .* each name once"),
        ({"startingOffsets": '{"a": {"0": 1, "00": 2}}'}, "startingOffsets .* each name once"),
        ({"startingOffsets": '{"a": {"0": 1}, "a": {"1": 2}}'}, "startingOffsets .* each name"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets: offsets must be 0 or more"),
        ({"startingTimestamp": "now"}, "startingTimestamp must be an integer"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "ByTimestamp: milliseconds must"),
        ({"startingOffsetsByTimestamp": f'{{"a": {{"0": {10**20}}}}}'}, "milliseconds must be"),
        ({"startingOffsets": f'{{"a": {{"{"9" * 5000}": 1}}}}'}, "Offsets must be JSON like"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "Strategy must be error or latest"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1, got 0"),
        ({"maxRecordsPerPartition": "1e6"}, "maxRecordsPerPartition must be an integer"),
        ({"maxBytesPerPartition": "-1"}, "maxBytesPerPartition must be at least 1"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"kafka.isolation.level": "committed"}, "read_committed or read_uncommitted"),
        ({"store": None}, "no store"),
    ],
)
def test_wrong_options_are_refused_by_name(given, says):
    options = {name: value for name, value in (STORE | given).items() if value is not None}
    for read in (ReadOptions.of_batch, ReadOptions.of_stream):
        with pytest.raises(ValueError, match=says):
            read(options)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: a batch read cannot begin at latest"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets: a batch read cannot begin"),
        ({"endingOffsets": "earliest"}, "endingOffsets: a read cannot end at earliest"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets: a read cannot end at earliest"),
        (
            {
                "startingOffsets": '{"a": {"0": 5, "1": 8}}',
                "endingOffsets": '{"a": {"0": 5, "1": 7}}',
            },
            "endingOffsets in a-1 is 7, and startingOffsets is 8",
        ),
        (
            {"startingTimestamp": "8", "endingTimestamp": "7"},
            "endingTimestamp is 7, and startingTimestamp is 8",
        ),
        (
            {"startingTimestamp": "8", "endingOffsetsByTimestamp": '{"a": {"0": 9, "1": 7}}'},
            "endingOffsetsByTimestamp in a-1 is 7, and startingTimestamp is 8",
        ),
    ],
)
def test_a_batch_has_a_beginning_and_an_end(given, says):
    with pytest.raises(ValueError, match=says):
        ReadOptions.of_batch(STORE | given)


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "8", "endingOffsets": '{"a": {"0": 7}}'},
        {"startingOffsets": '{"a": {"0": 7}}', "endingOffsets": '{"a": {"0": 7}}'},
        {"startingOffsets": '{"a": {"0": 7}}', "endingOffsets": '{"a": {"0": -1}}'},
        {"startingOffsets": "earliest", "endingOffsets": '{"a": {"0": 0}}'},
    ],
)
def test_a_beginning_that_may_be_before_the_end(given):
    ReadOptions.of_batch(STORE | given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a streaming read has no end"),
        ({"endingTimestamp": "5"}, "endingTimestamp: a streaming read has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "9 is above .* 8"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time like"),
    ],
)
def test_a_stream_has_no_end(given, says):
    with pytest.raises(ValueError, match=says):
        ReadOptions.of_stream(STORE | given)


def test_options_without_use_are_told_once(caplog, monkeypatch):
    monkeypatch.setattr(read_options, "_warned", set())
    options = STORE | {"maxOffsetsPerTrigger": "5", "groupIdPrefix": "x"}
    with caplog.at_level(logging.WARNING):
        assert ReadOptions.of_batch(options).max_offsets_per_trigger == 0
        ReadOptions.of_batch(options)
    assert [record.args[0] for record in caplog.records] == [
        "maxOffsetsPerTrigger",
        "groupIdPrefix",
    ]


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("7", 7), ("3s", 3000), ("2 min", 120_000), ("1h", 3_600_000)]
)
def test_delays_are_spark_times(text, ms):
    assert ReadOptions.of_stream(STORE | {"maxTriggerDelay": text}).max_trigger_delay_ms == ms


def test_the_schema_is_that_of_sparks_kafka_source():
    pytest.importorskip("pyspark")
    from eoslog.spark.source.read_schema import schema_of

    assert schema_of(STORE).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    headers = schema_of(STORE | {"includeheaders": "true"})["headers"].dataType.simpleString()
    assert headers == "array<struct<key:string,value:binary>>"


def test_the_arrow_types_are_those_that_spark_expects():
    pytest.importorskip("pyspark")
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from eoslog.spark.source.read_schema import schema_of
    from eoslog.spark.source.record_columns import ARROW_TYPES

    schema = schema_of(STORE | {"includeHeaders": "true"})
    ours = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in schema.fieldNames()])
    assert ours.equals(to_arrow_schema(schema, timezone="UTC"))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": "binary", "size": "integer"}, "column 'size' of the schema is unknown"),
        ({"value": "string"}, "column 'value' is binary, not string: cast it after the read"),
        ({"offset": "integer"}, "column 'offset' is bigint, not int"),
    ],
)
def test_a_schema_of_other_columns_is_refused(columns, says):
    types = pytest.importorskip("pyspark.sql.types")
    from eoslog.spark.source.read_schema import column_names

    fields = [
        {"name": name, "type": kind, "nullable": False, "metadata": {}}
        for name, kind in columns.items()
    ]
    with pytest.raises(ValueError, match=says):
        column_names(types.StructType.fromJson({"type": "struct", "fields": fields}))


@pytest.mark.parametrize("name", ["value", "key", "timestamp"])
def test_a_column_that_may_be_null_cannot_be_not_null(name):
    types = pytest.importorskip("pyspark.sql.types")
    from eoslog.spark.source.read_schema import column_names, schema_of

    kind = schema_of(STORE)[name].dataType
    with pytest.raises(ValueError, match=f"column '{name}' of the schema is NOT NULL"):
        column_names(types.StructType().add("offset", "long").add(name, kind, False))


def test_no_part_of_the_headers_can_be_not_null():
    types = pytest.importorskip("pyspark.sql.types")
    from eoslog.spark.source.read_schema import column_names

    sound = types.StructType().add("key", "string").add("value", "binary")
    other = types.StructType().add("key", "string", False).add("value", "binary")
    for kind in (types.ArrayType(other), types.ArrayType(sound, False)):
        with pytest.raises(ValueError, match="column 'headers' of the schema is NOT NULL, or a"):
            column_names(types.StructType().add("headers", kind))


def test_a_schema_may_leave_columns_out():
    types = pytest.importorskip("pyspark.sql.types")
    from eoslog.spark.source.read_schema import column_names, required_names

    schema = types.StructType().add("offset", "long", False).add("value", "binary")
    assert column_names(schema) == ("offset", "value")
    assert required_names(schema) == {"offset"}
    with pytest.raises(ValueError, match="has no columns: a record has key, value, topic"):
        column_names(types.StructType())
    with pytest.raises(ValueError, match="twice in the schema: value, value"):
        column_names(types.StructType().add("value", "binary").add("value", "binary"))
