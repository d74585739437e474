"""`write_partitions` on a running Spark: every shape of rows, every column, versions, mistakes."""

import re
import threading
import time
from datetime import UTC, datetime

import pytest
from read_back import numbers_in, records_in, staged_files, values_in

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.partitioner import partition_for_key
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.spark import SparkJobFailedError, write_partitions

pytestmark = pytest.mark.spark

ROWS = 1_000
NOON = datetime(2026, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC)
NOON_MS = 1_767_268_800_123


def numbers(spark, count=ROWS, tasks=3):
    """A DataFrame with the numbers below `count` as texts in column `value`."""
    return spark.range(0, count, 1, tasks).selectExpr("CAST(id AS STRING) AS value")


# Shapes of rows.


def test_a_dataframe_of_values(spark, store_path):
    result = write_partitions(numbers(spark), store_path, "orders")
    assert numbers_in(store_path) == list(range(ROWS))
    assert (result.committed, result.records, result.task_retries) == (True, ROWS, 0)
    assert staged_files(store_path) == []


def test_the_result_says_where_the_records_are(spark, store_path):
    result = write_partitions(numbers(spark), store_path, "orders")
    records = records_in(store_path)
    places = {}
    for record in records:
        first, last = places.get(record.partition, (record.offset, record.offset))
        places[record.partition] = (min(first, record.offset), max(last, record.offset))
    assert result.offsets == {
        TopicPartition("orders", partition): place for partition, place in places.items()
    }


def test_keys_go_where_kafkas_partitioner_puts_them(spark, store_path):
    frame = numbers(spark).selectExpr("concat('key-', CAST(value AS INT) % 50) AS key", "value")
    write_partitions(frame, store_path, "orders")
    records = records_in(store_path)
    assert len(records) == ROWS
    for record in records:
        assert record.key == b"key-%d" % (int(record.value) % 50)
        assert record.partition == partition_for_key(record.key, 4)


def test_rows_of_a_task_keep_their_order_within_a_key(spark, store_path):
    frame = numbers(spark, tasks=1).selectExpr(
        "CAST(CAST(value AS INT) % 7 AS STRING) AS key", "value"
    )
    write_partitions(frame, store_path, "orders")
    by_key = {}
    for record in records_in(store_path):
        by_key.setdefault(record.key, []).append(int(record.value))
    assert len(by_key) == 7
    assert all(found == sorted(found) for found in by_key.values())


def test_every_column_of_a_record(spark, store_path):
    schema = (
        "key binary, value binary, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>, offset long, timestampType int"
    )
    rows = [
        (b"k", b"first", 2, NOON, [("a", b"1"), ("a", None)], 7, 0),
        (None, b"second", 2, NOON, None, 8, 0),
        (b"k", None, 0, NOON, [], 9, 0),
    ]
    write_partitions(spark.createDataFrame(rows, schema).coalesce(1), store_path, "orders")
    found = {(record.partition, record.offset): record for record in records_in(store_path)}
    assert sorted(found) == [(0, 0), (2, 0), (2, 1)]
    first, second, third = found[2, 0], found[2, 1], found[0, 0]
    assert (first.key, first.value, first.timestamp_ms) == (b"k", b"first", NOON_MS)
    assert first.headers == (("a", b"1"), ("a", None))
    assert (second.key, second.value, second.headers) == (None, b"second", ())
    assert (third.key, third.value) == (b"k", None)


@pytest.mark.parametrize(
    "timestamp",
    [
        f"CAST({NOON_MS} AS BIGINT)",
        f"timestamp_millis({NOON_MS})",
        "TIMESTAMP_NTZ'2026-01-01 12:00:00.123'",
    ],
)
def test_timestamps_of_every_type(spark, store_path, timestamp):
    frame = spark.range(1).selectExpr("'v' AS value", f"{timestamp} AS timestamp")
    write_partitions(frame, store_path, "orders")
    assert [record.timestamp_ms for record in records_in(store_path)] == [NOON_MS]


def test_rows_without_a_timestamp_have_that_of_the_task(spark, store_path):
    before_ms = datetime.now(UTC).timestamp() * 1000 - 1
    write_partitions(numbers(spark, 10), store_path, "orders")
    after_ms = datetime.now(UTC).timestamp() * 1000 + 1
    for record in records_in(store_path):
        assert before_ms <= record.timestamp_ms <= after_ms


def test_a_topic_column(spark, store_path):
    with eoslog.open(store_path) as store:
        store.create_topic("odd", partitions=2)
    frame = numbers(spark).selectExpr(
        "value", "CASE WHEN CAST(value AS INT) % 2 = 1 THEN 'odd' ELSE 'orders' END AS topic"
    )
    result = write_partitions(frame, store_path)
    assert result.records == ROWS
    assert numbers_in(store_path, "odd") == list(range(1, ROWS, 2))
    assert numbers_in(store_path, "orders") == list(range(0, ROWS, 2))


def test_the_topic_argument_wins_over_the_column(spark, store_path):
    frame = spark.range(1).selectExpr("'v' AS value", "'nowhere' AS topic")
    write_partitions(frame, store_path, "orders")
    assert values_in(store_path) == [b"v"]


def test_a_topic_is_made_if_its_partitions_are_said(spark, tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        write_partitions(numbers(spark, 10), store, "fresh", partitions=3)
        assert store.topics()["fresh"].partitions == 3
    assert numbers_in(tmp_path / "store", "fresh") == list(range(10))


@pytest.mark.parametrize(
    "rows",
    [
        [b"%d" % number for number in range(100)],
        [str(number) for number in range(100)],
        [(b"k%d" % number, b"%d" % number) for number in range(100)],
        [{"value": str(number), "partition": number % 4} for number in range(100)],
    ],
    ids=["bytes", "str", "pairs", "dicts"],
)
def test_an_rdd(spark, store_path, rows):
    result = write_partitions(spark.sparkContext.parallelize(rows, 3), store_path, "orders")
    assert result.records == 100
    assert numbers_in(store_path) == list(range(100))


def test_the_rdd_of_a_dataframe(spark, store_path):
    frame = numbers(spark, 100).selectExpr("value", "encode(value, 'utf-8') AS key")
    write_partitions(frame.rdd, store_path, "orders")
    records = records_in(store_path)
    assert sorted(int(record.value) for record in records) == list(range(100))
    assert all(record.key == record.value for record in records)


def test_a_dataframe_and_its_rdd_land_the_same(spark, store_path, tmp_path):
    other = tmp_path / "other"
    with eoslog.open(other, create=True) as store:
        store.create_topic("orders", partitions=4)
    frame = numbers(spark, 100).selectExpr(
        "value AS key", "value", "timestamp_millis(5) AS timestamp"
    )
    write_partitions(frame, store_path, "orders")
    write_partitions(frame.rdd, other, "orders")

    def rows(path):
        return sorted(
            (record.partition, record.key, record.value, record.timestamp_ms)
            for record in records_in(path)
        )

    assert rows(store_path) == rows(other)


def test_an_open_store_stays_open(spark, store_path):
    with eoslog.open(store_path) as store:
        write_partitions(numbers(spark, 10), store, "orders")
        ends = [store.partition("orders", number).log_end_offset for number in range(4)]
    assert sum(ends) == 10


def test_what_was_in_the_topic_stays(spark, store_path):
    with eoslog.open(store_path) as store, store.producer() as producer:
        producer.send("orders", value=b"5000", partition=0)
    write_partitions(numbers(spark, 10), store_path, "orders")
    assert numbers_in(store_path) == [*range(10), 5000]


# Nothing to write.


def test_a_dataframe_without_rows_decides_its_version(spark, store_path):
    empty = numbers(spark).where("false")
    first = write_partitions(empty, store_path, "orders", app_id="job", version=3)
    assert (first.committed, first.records, first.offsets) == (True, 0, {})
    again = write_partitions(numbers(spark), store_path, "orders", app_id="job", version=3)
    assert again.committed is False
    assert values_in(store_path) == []


def test_an_rdd_without_rows(spark, store_path):
    result = write_partitions(spark.sparkContext.emptyRDD(), store_path, "orders")
    assert (result.committed, result.records) == (True, 0)


def test_empty_partitions_among_full_ones(spark, store_path):
    frame = numbers(spark, 9, tasks=9).where("value IN ('2', '7')")
    assert frame.rdd.getNumPartitions() == 9
    result = write_partitions(frame, store_path, "orders")
    assert result.records == 2
    assert numbers_in(store_path) == [2, 7]


# Versions.


def test_without_a_name_a_second_run_adds_the_rows_again(spark, store_path):
    for _ in range(2):
        assert write_partitions(numbers(spark, 10), store_path, "orders").committed
    assert numbers_in(store_path) == sorted([*range(10), *range(10)])


def test_a_version_lands_once(spark, store_path):
    frame = numbers(spark, 100)
    first = write_partitions(frame, store_path, "orders", app_id="job", version=0)
    again = write_partitions(frame, store_path, "orders", app_id="job", version=0)
    assert (first.committed, first.records) == (True, 100)
    assert (again.committed, again.records, again.offsets) == (False, 0, {})
    assert numbers_in(store_path) == list(range(100))
    assert staged_files(store_path) == []


def test_a_replay_with_other_partitioning_is_a_no_op(spark, store_path):
    frame = numbers(spark, 100)
    write_partitions(frame, store_path, "orders", app_id="job", version=0)
    for replay in (frame.repartition(7), frame.coalesce(1)):
        assert not write_partitions(replay, store_path, "orders", app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(100))


def test_versions_follow_one_another_and_older_ones_are_in(spark, store_path, caplog):
    for version in (0, 1, 5, 4, 5, 0):
        frame = spark.range(version * 10, version * 10 + 10).selectExpr(
            "CAST(id AS STRING) AS value"
        )
        write_partitions(frame, store_path, "orders", app_id="job", version=version)
    assert numbers_in(store_path) == [*range(20), *range(50, 60)]
    warnings = [one.getMessage() for one in caplog.records if "versions rise" in one.getMessage()]
    assert [text.split(":")[1] for text in warnings] == [
        " version 4 adds nothing",
        " version 0 adds nothing",
    ]


def test_applications_do_not_know_of_each_other(spark, store_path):
    for app_id in ("a", "b", "a"):
        write_partitions(numbers(spark, 5), store_path, "orders", app_id=app_id, version=0)
    assert numbers_in(store_path) == sorted([*range(5), *range(5)])


def test_each_task_may_be_a_generator_function(spark, store_path):
    def twice(batches):
        for batch in batches:
            yield batch
            yield batch

    result = write_partitions(numbers(spark, 5), store_path, "orders", each_task=twice)
    assert result.records == 10
    assert numbers_in(store_path) == sorted([*range(5), *range(5)])


# Mistakes.


async def asynchronous(batches):
    return batches


async def asynchronous_generator(batches):
    for batch in batches:
        yield batch


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"app_id": "job"}, ValueError, "belong together"),
        ({"version": 1}, ValueError, "belong together"),
        ({"app_id": "job", "version": -1}, ValueError, "negative"),
        ({"app_id": "job", "version": "1"}, TypeError, "version must be an int"),
        ({"app_id": "job", "version": True}, TypeError, "version must be an int"),
        ({"app_id": "", "version": 1}, ValueError, "app_id"),
        ({"topic": "nowhere"}, UnknownTopicOrPartitionError, "nowhere"),
        ({"topic": "orders", "partitions": 5}, ValueError, "4 partitions, not 5"),
        ({"topic": "fresh", "partitions": 0}, eoslog.errors.EoslogError, "0"),
        ({"topic": None}, ValueError, "no topic"),
        ({"topic": None, "partitions": 3}, ValueError, "name it"),
        ({"each_task": asynchronous}, TypeError, "each_task must be a synchronous function"),
        ({"each_task": asynchronous_generator}, TypeError, "each_task must be a synchronous"),
        ({"each_task": 5}, TypeError, "each_task must be a function"),
    ],
)
def test_wrong_arguments(spark, store_path, options, error, words):
    options = {"topic": "orders"} | options
    with pytest.raises(error, match=words):
        write_partitions(numbers(spark, 10), store_path, **options)
    assert values_in(store_path) == []
    assert staged_files(store_path) == []


def test_a_path_that_is_no_store(spark, tmp_path):
    with pytest.raises(eoslog.errors.StoreError):
        write_partitions(numbers(spark, 10), tmp_path / "gone", "orders")


def test_what_is_neither_a_dataframe_nor_an_rdd(spark, store_path):
    with pytest.raises(TypeError, match="got list"):
        write_partitions([b"v"], store_path, "orders")


def test_what_the_error_says_of_a_frame_without_a_value_makes_one(spark, store_path):
    frame = spark.range(3).withColumnRenamed("id", "number")
    with pytest.raises(ValueError, match="no column 'value'") as refused:
        write_partitions(frame, store_path, "orders")
    (columns,) = re.findall(r'selectExpr\("(.*)"\)', str(refused.value))
    write_partitions(frame.selectExpr(columns), store_path, "orders")
    assert sorted(values_in(store_path)) == [b'{"number":%d}' % number for number in range(3)]


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        (["id"], ValueError, "no column 'value'.*to_json"),
        (["'v' AS value", "1 AS kye"], ValueError, "unknown columns kye"),
        (["id AS value"], TypeError, "column value must be binary or string.*bigint"),
        (["'v' AS value", "id AS key"], TypeError, "column key must be"),
        (["'v' AS value", "'0' AS partition"], TypeError, "column partition must be"),
        (["'v' AS value", "'noon' AS timestamp"], TypeError, "column timestamp must be"),
        (["'v' AS value", "'h' AS headers"], TypeError, "column headers must be"),
        (["'v' AS value", "'w' AS value"], ValueError, "value is there twice"),
    ],
)
def test_wrong_columns_of_a_dataframe_are_refused_before_spark_runs(
    spark, store_path, columns, error, words
):
    with pytest.raises(error, match=words):
        write_partitions(spark.range(3).selectExpr(*columns), store_path, "orders")
    assert values_in(store_path) == []


@pytest.mark.every_nth(3)
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (3, "TypeError: row 1 of the Spark partition: a record must be bytes"),
        ({"value": b"v", "partition": 4}, "UnknownTopicOrPartitionError.*no partition 4"),
        ({"value": b"v", "headers": 1}, "TypeError.*headers"),
        (b"x" * 2_000_000, "RecordTooLargeError"),
    ],
)
def test_a_wrong_row_of_an_rdd_fails_the_job_with_its_reason(spark, store_path, row, words):
    rows = spark.sparkContext.parallelize([b"fine", row], 1)
    with pytest.raises(SparkJobFailedError, match=words) as caught:
        write_partitions(rows, store_path, "orders")
    assert "nothing of it is in the log" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert values_in(store_path) == []
    assert staged_files(store_path) == []


@pytest.mark.every_nth(3)
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["'v' AS value", "CAST(id AS INT) + 3 AS partition"], "no partition 4"),
        (["'v' AS value", "CAST(-1 AS INT) AS partition"], "partition -1 is negative"),
        (["repeat('x', 2000000) AS value"], "RecordTooLargeError"),
        (["'v' AS value", "-5L AS timestamp"], "InvalidTimestampError"),
        (["CAST(raise_error('no') AS STRING) AS value"], "no"),
    ],
)
def test_a_wrong_row_of_a_dataframe_fails_the_job_with_its_reason(
    spark, store_path, columns, words
):
    with pytest.raises(SparkJobFailedError, match=words):
        write_partitions(spark.range(0, 3, 1, 1).selectExpr(*columns), store_path, "orders")
    assert values_in(store_path) == []
    assert staged_files(store_path) == []


def test_a_topic_that_a_row_names_must_exist(spark, store_path):
    frame = spark.range(1).selectExpr("'v' AS value", "'nowhere' AS topic")
    with pytest.raises(SparkJobFailedError, match="nowhere"):
        write_partitions(frame, store_path)


def test_after_a_failed_job_the_version_can_be_run_again(spark, store_path):
    name = {"app_id": "job", "version": 0}
    wrong = spark.sparkContext.parallelize([b"0", 1.5], 1)
    with pytest.raises(SparkJobFailedError):
        write_partitions(wrong, store_path, "orders", **name)
    assert write_partitions(numbers(spark, 10), store_path, "orders", **name).committed
    assert numbers_in(store_path) == list(range(10))


def test_readers_see_none_of_the_rows_before_all_are_in(spark, store_path):
    """A reader looks all the time while a job runs in another thread."""
    job_rows = 20_000
    frame = spark.range(0, job_rows, 1, 6).selectExpr("repeat(CAST(id AS STRING), 100) AS value")
    targets = [TopicPartition("orders", number) for number in range(4)]
    with eoslog.open(store_path) as store, store.consumer() as consumer:
        job = threading.Thread(target=write_partitions, args=(frame, store, "orders"))
        job.start()
        ends = {target: set() for target in targets}
        while job.is_alive():
            for target, end in consumer.end_offsets(targets).items():
                ends[target].add(end)
            time.sleep(0.0005)
        job.join()
        final = consumer.end_offsets(targets)
    assert sum(final.values()) == job_rows
    # Of each partition a reader saw the state before the job and the one after it, nothing between.
    assert all(seen <= {0, final[target]} for target, seen in ends.items())
    assert all(0 in seen for seen in ends.values())
