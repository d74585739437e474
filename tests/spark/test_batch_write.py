"""`df.write.format("eoslog")` on a running Spark: columns, options, versions, mistakes."""

from datetime import UTC, datetime

import pytest
from exactly_once import wait_until_swept
from faults import Fault
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from read_back import numbers_in, records_in, staged_files, values_in
from short_form import short_form

import eoslog
from eoslog.bindings.partitioner import partition_for_key
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.open_stores import close_unused_stores
from eoslog.spark.sink.batch_writer import BatchWriter

pytestmark = pytest.mark.spark

ROWS = 300
NOON = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
NOON_MS = 1_767_268_800_123


def numbers(spark, count=ROWS, tasks=3):
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS value")


def save(frame, path, topic="orders", mode="append", **options):
    """Write a frame; `topic=None` leaves the option out."""
    writer = frame.write.format("eoslog").option("store", str(path)).options(**options)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.mode(mode).save()


def refused(frame, path, *, started=False, **options):
    """Why a write was refused; nothing is in the log then, nor staged if no task was `started`."""
    with pytest.raises(PySparkException) as caught:
        save(frame, path, **options)
    assert numbers_in(path) == []
    assert started or staged_files(path) == []
    return reason_of(caught.value)


def version_of(path, app_id):
    with eoslog.open(path, durability=None) as store:
        known = store.application(app_id)
    return None if known is None else known.version


# Rows and columns.


def test_rows_land_once_and_keys_go_where_kafkas_partitioner_puts_them(spark, store_path):
    frame = numbers(spark).selectExpr("concat('key-', CAST(value AS INT) % 50) AS key", "value")
    save(frame, store_path)
    records = records_in(store_path)
    assert sorted(int(record.value) for record in records) == list(range(ROWS))
    for record in records:
        assert record.key == b"key-%d" % (int(record.value) % 50)
        assert record.partition == partition_for_key(record.key, 4)
    assert staged_files(store_path) == []


def test_every_column_of_a_record(spark, store_path):
    schema = (
        "key binary, value binary, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>, offset long, timestampType int"
    )
    rows = [
        (b"k", b"first", "orders", 2, NOON, [("a", b"1"), ("a", None)], 7, 0),
        (None, b"second", "orders", 2, NOON, None, 8, 0),
        (b"k", None, "orders", 0, NOON, [], 9, 0),
    ]
    save(spark.createDataFrame(rows, schema).coalesce(1), store_path, topic=None)
    found = {(record.partition, record.offset): record for record in records_in(store_path)}
    assert sorted(found) == [(0, 0), (2, 0), (2, 1)]
    first, second, third = found[2, 0], found[2, 1], found[0, 0]
    assert (first.key, first.value, first.timestamp_ms) == (b"k", b"first", NOON_MS)
    assert first.headers == (("a", b"1"), ("a", None))
    assert (second.key, second.value, second.headers) == (None, b"second", ())
    assert (third.key, third.value) == (b"k", None)


def test_columns_of_other_types_that_mean_the_same(spark, store_path):
    frame = spark.range(1).selectExpr(
        "NULL AS key",
        "'v' AS value",
        "CAST(3 AS BIGINT) AS partition",
        f"CAST({NOON_MS} AS BIGINT) AS timestamp",
        "array(struct('h' AS key, 'x' AS value)) AS headers",
    )
    save(frame, store_path)
    (record,) = records_in(store_path)
    assert (record.key, record.value, record.partition) == (None, b"v", 3)
    assert (record.timestamp_ms, record.headers) == (NOON_MS, (("h", b"x"),))


def test_headers_are_left_out_if_the_option_says_so(spark, store_path):
    frame = spark.range(1).selectExpr(
        "'v' AS value", "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers"
    )
    save(frame, store_path, includeHeaders="false")
    assert [record.headers for record in records_in(store_path)] == [()]


def test_the_option_topic_wins_over_the_column(spark, store_path):
    with eoslog.open(store_path) as store:
        store.create_topic("odd", partitions=2)
    frame = numbers(spark).selectExpr(
        "value", "CASE WHEN CAST(value AS INT) % 2 = 1 THEN 'odd' ELSE 'orders' END AS topic"
    )
    save(frame, store_path, topic=None)
    assert numbers_in(store_path, "odd") == list(range(1, ROWS, 2))
    assert numbers_in(store_path) == list(range(0, ROWS, 2))
    save(frame, store_path, topic="odd")
    assert len(numbers_in(store_path, "odd")) == ROWS + ROWS // 2


def test_rows_name_their_topics_in_a_store_that_was_used(spark, store_path):
    """Topics that the store keeps for itself are no choice of theirs."""
    with eoslog.open(store_path) as store, store.consumer(group="readers") as consumer:
        consumer.assign([eoslog.TopicPartition("orders", 0)])
        consumer.commit()
    frame = numbers(spark).selectExpr("value", "'orders' AS topic")
    for version in range(2):
        save(frame, store_path, topic=None, txnAppId="a", txnVersion=str(version))
    assert len(numbers_in(store_path)) == 2 * ROWS


@pytest.mark.parametrize(
    ("topic", "reason"),
    short_form(
        [
            ("'nowhere'", "nowhere"),
            ("CAST(NULL AS STRING)", "no topic"),
            ("''", "topic ''"),
            ("'__transaction_state'", "__transaction_state"),
        ],
        ("'nowhere'", "nowhere"),
    ),
)
def test_rows_of_a_topic_that_is_not_there_fail_the_job(spark, store_path, topic, reason):
    frame = numbers(spark).selectExpr("value", f"{topic} AS topic")
    assert reason in refused(frame, store_path, started=True, topic=None)


def test_a_topic_is_made_with_as_many_partitions_as_wanted(spark, store_path):
    frame = numbers(spark).selectExpr("value AS key", "value")
    save(frame, store_path, topic="made", partitions="7")
    with eoslog.open(store_path) as store:
        assert store.topics()["made"].partitions == 7
    assert numbers_in(store_path, "made") == list(range(ROWS))


@pytest.mark.parametrize("way", ["path", "servers"])
def test_the_store_is_named_as_spark_and_kafka_do(spark, store_path, way):
    writer = numbers(spark, 10).write.format("eoslog").option("topic", "orders").mode("append")
    if way == "path":
        writer.save(str(store_path))
    else:
        writer.option("kafka.bootstrap.servers", f"eoslog:{store_path}").save()
    assert numbers_in(store_path) == list(range(10))


def test_a_store_that_somebody_has_open(spark, store_path):
    with eoslog.open(store_path, durability="process") as store:
        save(numbers(spark), store_path)
        counts = [store.partition("orders", number).log_end_offset for number in range(4)]
    assert sum(counts) == ROWS


# Versions.


def test_a_version_lands_once_whatever_its_partitioning(spark, store_path):
    for tasks in (3, 2):
        save(numbers(spark, tasks=tasks), store_path, txnAppId="nightly", txnVersion="4")
    save(numbers(spark, 5), store_path, txnAppId="nightly", txnVersion="3")
    assert numbers_in(store_path) == list(range(ROWS))
    save(numbers(spark, 1), store_path, txnAppId="nightly", txnVersion="5")
    assert numbers_in(store_path) == [0, *range(ROWS)]
    assert version_of(store_path, "nightly") == 5
    assert staged_files(store_path) == []


def test_jobs_without_a_name_land_each_time(spark, store_path):
    for _ in range(2):
        save(numbers(spark, 3), store_path)
    assert numbers_in(store_path) == [0, 0, 1, 1, 2, 2]


def test_a_job_without_rows_is_a_version_too(spark, store_path):
    save(numbers(spark).where("value < 0"), store_path, txnAppId="nightly", txnVersion="0")
    assert version_of(store_path, "nightly") == 0
    save(numbers(spark, 0, 1), store_path, txnAppId="nightly", txnVersion="1")
    assert version_of(store_path, "nightly") == 1
    assert numbers_in(store_path) == []


# Mistakes: before any task runs.


@pytest.mark.every_nth(7)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topik": "orders"}, "did you mean topic"),
        ({"txnAppId": "nightly"}, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "0"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion must be at least 0"),
        ({"allowBatchIdReset": "true"}, "allowBatchIdReset"),
        ({"durability": "never"}, "durability must be one of"),
        ({"partitions": "5"}, "has 4 partitions, not 5"),
        ({"topic": "nowhere"}, "no topic 'nowhere'"),
        ({"topic": None}, "no topic"),
        ({"mode": "overwrite"}, 'mode("append")'),
    ],
)
def test_options_that_are_wrong(spark, store_path, options, reason):
    assert reason in refused(numbers(spark), store_path, **options)


@pytest.mark.every_nth(5)
@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["value AS walue"], "no column 'value'"),
        (["value", "value AS kee"], "unknown columns kee"),
        (["CAST(value AS INT) AS value"], "column value must be binary or string"),
        (["value", "value AS partition"], "column partition must be"),
        (["value", "TIMESTAMP_NTZ'2026-01-01 12:00:00' AS timestamp"], "CAST"),
        (["value", "map('a', 'b') AS headers"], "column headers must be array"),
    ],
)
def test_columns_that_are_wrong(spark, store_path, columns, reason):
    assert reason in refused(numbers(spark).selectExpr(*columns), store_path)


def test_the_mode_has_to_be_append(spark, store_path):
    with pytest.raises(PySparkException, match="Append"):
        numbers(spark).write.format("eoslog").option("store", str(store_path)).option(
            "topic", "orders"
        ).save()


def test_there_has_to_be_a_store(spark, tmp_path):
    with pytest.raises(PySparkException) as caught:
        save(numbers(spark), tmp_path / "none")
    assert "no store at" in reason_of(caught.value)


# In tasks and after them.


def test_a_task_that_is_tried_again_lands_its_rows_once(spark, store_path):
    frame = numbers(spark).mapInArrow(Fault("raise", after=1), "value string")
    save(frame, store_path)
    assert numbers_in(store_path) == list(range(ROWS))
    assert staged_files(store_path) == []


def test_a_job_that_fails_leaves_nothing(spark, store_path):
    frame = numbers(spark).mapInArrow(Fault("raise", attempts=9), "value string")
    why = refused(frame, store_path, started=True, txnAppId="a", txnVersion="0")
    assert "goes wrong on purpose" in why
    assert version_of(store_path, "a") is None
    save(numbers(spark), store_path, txnAppId="a", txnVersion="0")
    assert numbers_in(store_path) == list(range(ROWS))
    # A task of the first job may have written on after its abort.
    wait_until_swept(store_path)


def test_a_row_that_fits_in_no_partition_fails_the_job(spark, store_path):
    frame = numbers(spark).selectExpr("value", "CAST(value AS INT) AS partition")
    assert "no partition" in refused(frame, store_path, started=True)


def test_an_abort_after_the_decision_changes_nothing(store_path):
    """Spark calls abort() when commit() raised, also after it did its work."""
    import pyarrow as pa

    schema = StructType().add("value", "string")
    options = {"store": str(store_path), "topic": "orders", "txnappid": "a", "txnversion": "0"}
    writer = BatchWriter(options, schema, overwrite=False)
    messages = [writer.write(iter([pa.record_batch({"value": ["0", "1"]})])) for _ in range(1)]
    writer.commit(messages)
    writer.abort([*messages, None])
    writer.commit(messages)
    close_unused_stores()
    assert sorted(values_in(store_path)) == [b"0", b"1"]
    again = BatchWriter(options, schema, overwrite=False)
    message = again.write(iter([pa.record_batch({"value": ["2"]})]))
    assert message.staged is None
    again.commit([message])
    close_unused_stores()
    assert sorted(values_in(store_path)) == [b"0", b"1"]
