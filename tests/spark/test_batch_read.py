"""`spark.read.format("eoslog")`: what is in the log, all of it once, and nothing undecided."""

import re
import threading
from collections import Counter

import pytest
from faults import Fault
from pyspark.errors import AnalysisException
from staged_jobs import load

import eoslog
from eoslog import TopicPartition
from eoslog.errors import LogClosedError
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.staging import StoreNotVisibleError
from eoslog.store.store import engine_of


@pytest.fixture
def store(store_path):
    with eoslog.open(store_path) as store:
        yield store


@pytest.fixture
def read(spark, store_path):
    """Reads topic `orders` with options; with a schema of columns if one is given."""
    from eoslog.spark.data_source import EoslogDataSource

    spark.dataSource.register(EoslogDataSource)

    def frame(schema=None, subscribe="orders", **options):
        reader = spark.read.format("eoslog").option("store", str(store_path))
        if subscribe is not None:
            reader = reader.option("subscribe", subscribe)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return frame


def fill(store, count, topic="orders", partition=0, first=0):
    values = [b"%d" % number for number in range(first, first + count)]
    store.producer().append(topic, partition, values)


def numbers(frame):
    return [int(row.value) for row in frame.select("value").collect()]


@pytest.mark.long
def test_a_time_that_spark_cannot_hold_is_null(store, read):
    """Other writers have other clocks: their topics must be readable."""
    config = {f"message.timestamp.{edge}.max.ms": 2**63 - 1 for edge in ("before", "after")}
    store.create_topic("dated", partitions=1, config=config)
    last_ms = (2**63 - 1) // 1000
    times_ms = [0, 2**62, 1_767_225_600_123, last_ms, last_ms + 1, -1]
    store.producer().append("dated", 0, [b"%d" % n for n in range(6)], timestamps=times_ms)
    frame = read(subscribe="dated").selectExpr("value", "unix_millis(timestamp) AS ms")
    found = {int(row.value): row.ms for row in frame.collect()}
    expected = [0, None, 1_767_225_600_123, last_ms, None]
    assert [found[number] for number in range(5)] == expected
    assert found[5] is not None, "a record without a time has the time of its append"


def test_all_columns_come_as_kafkas_source_gives_them(store, read):
    now_ms = 1_767_225_600_123
    config = {"message.timestamp.before.max.ms": 2**63 - 1}
    store.create_topic("dated", partitions=2, config=config)
    store.producer().append(
        "dated",
        1,
        [b"v", None, b""],
        keys=[None, b"k", b""],
        timestamps=[now_ms, now_ms + 1, 7],
        headers=[[("h", b"x"), ("h", None)], None, [("é", b"")]],
    )
    frame = read(subscribe="dated", includeHeaders="true")
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").drop("timestamp").collect()
    found = [row.asDict(recursive=True) for row in rows]
    where = {"topic": "dated", "partition": 1, "timestampType": 0}
    assert found == [
        where
        | {"offset": 0, "key": None, "value": b"v", "ms": now_ms}
        | {"headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]},
        where | {"offset": 1, "key": b"k", "value": None, "ms": now_ms + 1, "headers": None},
        where
        | {"offset": 2, "key": b"", "value": b"", "ms": 7}
        | {"headers": [{"key": "é", "value": b""}]},
    ]


def test_a_schema_of_fewer_columns_reads_only_those(store, read):
    fill(store, 5)
    frame = read("offset long NOT NULL, value binary")
    assert frame.columns == ["offset", "value"]
    assert frame.collect() == [(number, b"%d" % number) for number in range(5)]


def test_a_schema_of_not_null_is_refused_with_its_column(store, read):
    fill(store, 1)
    with pytest.raises(AnalysisException, match="column 'value' of the schema is NOT NULL"):
        read("offset long, value binary NOT NULL").collect()


def test_a_topic_without_records_has_no_rows(store, read):
    frame = read()
    assert frame.count() == 0
    assert frame.schema.simpleString().startswith("struct<key:binary,value:binary,topic:string,")
    # Spark makes a partition up where there is none.
    assert frame.collect() == []


def test_ranges_are_what_the_options_say(store, read):
    fill(store, 100)
    fill(store, 50, partition=1, first=1000)
    offsets = {"startingOffsets": '{"orders": {"0": 90, "1": 45, "2": -2, "3": 0}}'}
    found = numbers(read(**offsets))
    assert sorted(found) == [*range(90, 100), *range(1045, 1050)]
    ends = {"endingOffsets": '{"orders": {"0": 95, "1": -1, "2": -1, "3": -1}}'}
    found = numbers(read(**offsets, **ends))
    assert sorted(found) == [*range(90, 95), *range(1045, 1050)]
    assert numbers(read(subscribe=None, assign='{"orders": [1]}')) == list(range(1000, 1050))
    times = {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"}
    assert sorted(numbers(read(**times))) == [*range(100), *range(1000, 1050)]
    assert read(**times, endingTimestamp="1000").count() == 0


@pytest.mark.long
def test_large_ranges_are_read_by_several_tasks_and_each_row_once(store, read):
    for first in range(0, 2000, 100):
        fill(store, 100, first=first)
    assert read().rdd.getNumPartitions() == 1
    for options, least in (
        ({"minPartitions": "7"}, 7),
        ({"maxRecordsPerPartition": "300"}, 7),
        ({"maxBytesPerPartition": "4000"}, 3),
    ):
        frame = read(**options)
        assert frame.rdd.getNumPartitions() >= least
        # In the order of tasks, and so of the log.
        assert numbers(frame) == list(range(2000))


@pytest.mark.long
def test_a_task_that_is_tried_again_reads_the_same_rows(store, read):
    fill(store, 300)
    fill(store, 300, partition=1, first=300)
    frame = read("value binary", minPartitions="4")
    for kind in ("raise", "kill"):
        fault = Fault(kind, partition=2)
        landed = frame.mapInArrow(fault, "value binary")
        assert sorted(int(row.value) for row in landed.collect()) == list(range(600))


def test_only_committed_records_are_read_unless_told(store, read):
    fill(store, 10)
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.append("orders", 0, [b"10", b"11"])
        producer.begin_transaction()
        producer.append("orders", 0, [b"-1"])
        producer.abort_transaction()
        producer.begin_transaction()
        producer.append("orders", 0, [b"-2"])
        producer.flush()
        fill(store, 1, first=12)  # Behind the open transaction: not yet stable.
        assert numbers(read()) == list(range(12))
        dirty = read(**{"kafka.isolation.level": "read_uncommitted"})
        assert numbers(dirty) == [*range(12), -1, -2, 12]
        producer.commit_transaction()
    assert numbers(read()) == [*range(12), -2, 12]


@pytest.mark.parametrize("staged", [False, True])
def test_a_read_has_every_transaction_whole_while_others_write(store, read, staged):
    stop = threading.Event()
    committed = threading.Semaphore(0)

    def write():
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            number = 0
            # As many as a disk would sync: all that there is is read each time.
            while not stop.wait(0.005):
                records = {("orders", partition): [b"%d" % number] * 3 for partition in range(4)}
                if staged:
                    load(store, "t", records)
                else:
                    with producer.transaction():
                        for where, values in records.items():
                            producer.append(*where, values)
                committed.release()
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        for _ in range(4):
            counts = Counter(numbers(read("value binary")))
            assert set(counts.values()) <= {12}
            assert sorted(counts) == list(range(len(counts)))
            seen.append(len(counts))
            # One at least that this read may have missed is in before the next.
            while committed.acquire(blocking=False):
                pass
            assert committed.acquire(timeout=120)
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_a_frame_stays_on_its_snapshot_and_the_next_load_sees_more(store, read):
    fill(store, 10)
    frame = read()
    assert frame.count() == 10
    fill(store, 5, first=10)
    assert frame.count() == 10
    assert sorted(numbers(frame)) == list(range(10))
    assert read().count() == 15


def test_a_view_of_sql_reads_it_too(spark, store, read, store_path):
    fill(store, 10)
    read()  # Registers the source.
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW landed USING eoslog "
        f"OPTIONS (store '{store_path}', subscribePattern 'ord.*')"
    )
    found = spark.sql("SELECT sum(CAST(CAST(value AS STRING) AS INT)) AS total FROM landed")
    assert found.collect()[0].total == 45
    spark.sql("DROP VIEW landed")


def test_a_read_begins_in_the_batch_up_to_which_records_were_deleted(store, read):
    fill(store, 10)
    store.delete_records({TopicPartition("orders", 0): 4})
    assert numbers(read()) == list(range(4, 10))


def test_what_was_deleted_is_an_error_unless_told(store, read):
    fill(store, 10)
    partition = engine_of(store).partition("orders", 0)
    partition.roll()
    fill(store, 5, first=10)
    partition.delete_segments(10)
    options = {"startingOffsets": '{"orders": {"0": 3, "1": 0, "2": 0, "3": 0}}'}
    with pytest.raises(Exception, match="DataLoss") as failed:
        read(**options).collect()
    assert "startingOffsets of orders-0 is 3, and the log has 10 to 15" in reason_of(failed.value)
    assert numbers(read(**options, failOnDataLoss="false")) == list(range(10, 15))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscribe": "nothing"}, "UnknownTopicOrPartitionError: .* has no nothing"),
        ({"startingOffset": "earliest"}, "startingoffset is unknown .* did you mean startingOf"),
        ({"store": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"schema": "size int"}, "column 'size' of the schema is unknown"),
    ],
)
def test_a_wrong_read_fails_before_any_task_and_says_why(read, options, reason):
    with pytest.raises(Exception, match="ython") as failed:
        read(**options).collect()
    assert re.search(reason, reason_of(failed.value))


def test_a_task_that_sees_another_store_says_so(store, store_path):
    from eoslog.spark.source.batch_reader import RangePartition, read_range
    from eoslog.spark.source.offset_ranges import OffsetRange
    from eoslog.spark.source.read_options import ReadOptions

    options = ReadOptions.of_batch({"store": str(store_path), "subscribe": "orders"})
    wanted = OffsetRange(TopicPartition("orders", 0), 0, 1)
    with pytest.raises(StoreNotVisibleError, match="sees another store"):
        next(read_range(options, ("value",), (), RangePartition(wanted, "0" * 16, "")))
    nowhere = ReadOptions.of_batch({"store": "/nowhere/at/all", "subscribe": "orders"})
    with pytest.raises(StoreNotVisibleError, match="sees no store at /nowhere/at/all"):
        next(read_range(nowhere, ("value",), (), RangePartition(wanted, "0" * 16, "")))


def test_a_task_reads_the_very_topic_that_it_looked_at(store_path, monkeypatch):
    """It is made again after the look at its id."""
    from eoslog.spark.open_stores import lent_store
    from eoslog.spark.source.batch_reader import read_range, split_ranges
    from eoslog.spark.source.offset_ranges import OffsetRange
    from eoslog.spark.source.read_options import ReadOptions
    from eoslog.storage.engine import Engine

    options = ReadOptions.of_batch({"store": str(store_path), "subscribe": "made"})
    with lent_store(str(store_path)) as store:
        store.create_topic("made")
        fill(store, 3, topic="made")
        ids = {"made": store.topics()["made"].topic_id}
        wanted = OffsetRange(TopicPartition("made", 0), 0, 3)
        (planned,) = split_ranges(store, options.split, [wanted], ids)
        find = Engine.partition

        def make_again(self, *where):
            found = find(self, *where)
            monkeypatch.undo()
            store.delete_topic("made")
            store.create_topic("made")
            fill(store, 3, topic="made", first=10)
            return found

        monkeypatch.setattr(Engine, "partition", make_again)
        with pytest.raises(LogClosedError, match="made-0"):
            list(read_range(options, ("value",), (), planned))


def test_what_is_read_can_be_written_again(spark, store, read):
    from eoslog.spark import write_partitions

    fill(store, 100)
    store.create_topic("copy", partitions=2)
    frame = read(includeHeaders="true").drop("topic", "partition")
    result = write_partitions(frame, store, "copy")
    assert result.records == 100
    assert sorted(numbers(read(subscribe="copy"))) == list(range(100))


@pytest.mark.soak
def test_a_store_and_a_link_to_it_are_one_store(spark, store_path, tmp_path, read):
    link = tmp_path / "link"
    link.symlink_to(store_path)
    with eoslog.open(store_path) as store:
        fill(store, 3)

    def written(path, first):
        (
            spark.range(first, first + 2)
            .selectExpr("CAST(id AS STRING) AS value")
            .write.format("eoslog")
            .options(store=str(path), topic="orders")
            .mode("append")
            .save()
        )

    written(link, 10)
    written(store_path, 20)
    rows = read(store=str(link)).union(read(store=f"{store_path}/")).union(read(store=str(link)))
    assert Counter(numbers(rows)) == dict.fromkeys((0, 1, 2, 10, 11, 20, 21), 3)
    read(store=str(link)).selectExpr("value").write.format("eoslog").options(
        store=str(store_path), topic="orders"
    ).mode("append").save()
    query = (
        spark.readStream.format("eoslog")
        .options(store=str(link), subscribe="orders", startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("eoslog")
        .options(store=str(store_path), topic="copies", partitions=1)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(numbers(read(subscribe="copies", store=str(link)))) == 14


@pytest.fixture
def pushes_down(spark):
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


def test_filters_bound_what_is_read(store, read, pushes_down):
    for partition in range(3):
        fill(store, 20, partition=partition)
    frame = read(pushDownPredicate="true")
    few = frame.where("partition IN (1, 2) AND offset >= 15 AND timestamp >= '2020-01-01'")
    assert sorted(numbers(few)) == sorted([*range(15, 20)] * 2)
    assert few.rdd.getNumPartitions() == 2
    assert frame.where("partition = 7 AND value = 'x'").collect() == []
    assert numbers(frame.where("offset = 3 AND partition <> 2 AND value = '3'")) == [3, 3]
    assert frame.where("timestamp >= '2020-01-01' AND offset < 2").count() == 6


def test_filters_work_in_sparks_default_configuration(store, read):
    fill(store, 20)
    assert numbers(read().where("offset >= 15")) == [*range(15, 20)]
    with pytest.raises(Exception, match="filterPushdown"):
        read(pushDownPredicate="true").where("offset >= 15").collect()
