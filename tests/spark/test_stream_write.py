"""`df.writeStream.format("eoslog")` on Spark: replays, drivers, deleted checkpoints, foreachBatch.

Each file that a query finds in its folder is one micro-batch.
"""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StructType
from read_back import numbers_in, records_in, staged_files
from short_form import short_form

import eoslog
from eoslog import TopicPartition
from eoslog.errors import InvalidRequestError, StagedReplayError
from eoslog.spark import write_partitions
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.open_stores import close_unused_stores
from eoslog.spark.sink.stream_writer import StreamMessage, StreamWriter
from eoslog.spark.stream_context import StreamBatch
from eoslog.staging.source import VersionSource, version_run_id

pytestmark = pytest.mark.spark

WAIT_S = 120
RUN = "86394d25-07be-4fcf-8d4d-29c641621bd9"


@pytest.fixture
def files(tmp_path):
    """The folder that queries read."""
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


def put(folder: Path, rows: range) -> None:
    """One more micro-batch."""
    hidden = folder / f".{rows.start:06d}"
    hidden.write_text("".join(f"{row}\n" for row in rows))
    hidden.rename(folder / f"{rows.start:06d}")


def lines(spark, folder, tasks=2):
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder)).repartition(tasks)


def write(frame, path, checkpoint, **options):
    given = {"store": path, "topic": "orders", "checkpointLocation": checkpoint, **options}
    return frame.writeStream.format("eoslog").options(**given)


def run(frame, path, checkpoint, **options):
    """Write all there is, and stop; the query's id."""
    query = write(frame, path, checkpoint, **options).trigger(availableNow=True).start()
    query.awaitTermination()
    return query.id


def refused(frame, path, checkpoint, **options):
    with pytest.raises(StreamingQueryException) as caught:
        run(frame, path, checkpoint, **options)
    return reason_of(caught.value)


def application(path, app_id):
    with eoslog.open(path, durability=None) as store:
        return store.application(app_id)


def until(condition):
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def forget_commit(checkpoint, batch_id):
    """As if the driver had died after the sink's decision: the batch is run again."""
    (checkpoint / "commits" / str(batch_id)).unlink()
    (checkpoint / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


def test_each_batch_lands_once_over_restarts_and_replays(spark, store_path, files, checkpoint):
    put(files, range(100))
    query_id = run(lines(spark, files), store_path, checkpoint)
    app_id = f"spark-{query_id}"
    assert numbers_in(store_path) == list(range(100))
    first = application(store_path, app_id)
    assert (first.version, first.source_id, first.generation) == (0, query_id, 1)
    # The same batch once more, under another run and with another number of tasks; and a new one.
    forget_commit(checkpoint, 0)
    put(files, range(100, 150))
    assert run(lines(spark, files, tasks=3), store_path, checkpoint) == query_id
    assert numbers_in(store_path) == list(range(150))
    second = application(store_path, app_id)
    assert (second.version, second.generation) == (1, 2)
    assert staged_files(store_path) == []
    with eoslog.open(store_path) as store:
        progress = store.groups()[app_id]
    assert progress[TopicPartition("eoslog-version", 0)].offset == 1


@pytest.mark.long
def test_a_deleted_checkpoint_is_noticed(spark, store_path, files, checkpoint):
    put(files, range(10))
    first_id = run(lines(spark, files), store_path, checkpoint)
    shutil.rmtree(checkpoint)
    reason = refused(lines(spark, files), store_path, f"file://{checkpoint}/")
    assert f"spark-{first_id}" in reason
    assert "allowBatchIdReset" in reason
    assert numbers_in(store_path) == list(range(10))
    # Allowed, the new query's batches are in beside the old one's.
    shutil.rmtree(checkpoint)
    options = {"allowBatchIdReset": "true"}
    run(lines(spark, files), store_path, checkpoint, **options)
    assert numbers_in(store_path) == sorted([*range(10), *range(10)])
    # Nothing more has to be allowed from here on.
    put(files, range(10, 20))
    run(lines(spark, files), store_path, checkpoint)
    assert numbers_in(store_path) == sorted([*range(10), *range(20)])


@pytest.mark.long
def test_a_deleted_checkpoint_under_a_fixed_name_skips_nothing(
    spark, store_path, files, checkpoint
):
    put(files, range(10))
    run(lines(spark, files), store_path, checkpoint, txnAppId="orders-in")
    shutil.rmtree(checkpoint)
    put(files, range(10, 20))
    reason = refused(lines(spark, files), store_path, checkpoint, txnAppId="orders-in")
    assert "at version 0" in reason
    assert "allowBatchIdReset" in reason
    options = {"txnAppId": "orders-in", "allowBatchIdReset": "true"}
    query_id = run(lines(spark, files), store_path, checkpoint, **options)
    assert numbers_in(store_path) == sorted([*range(10), *range(20)])
    known = application(store_path, "orders-in")
    assert (known.version, known.base, known.source_id) == (2, 1, query_id)


@pytest.mark.long
def test_an_older_copy_of_a_checkpoint_is_noticed(spark, store_path, files, checkpoint, tmp_path):
    """Its next batches have numbers that are in already, and may hold other rows."""
    put(files, range(10))
    run(lines(spark, files), store_path, checkpoint)
    shutil.copytree(checkpoint, tmp_path / "copy")
    for rows in (range(10, 20), range(20, 30)):
        put(files, rows)
    run(lines(spark, files), store_path, checkpoint)
    shutil.rmtree(checkpoint)
    (tmp_path / "copy").rename(checkpoint)
    put(files, range(30, 40))
    reason = refused(lines(spark, files), store_path, checkpoint)
    assert "counts 1, after 2" in reason
    assert "allowBatchIdReset" in reason
    assert numbers_in(store_path) == list(range(30))


def all_lines(spark, folder):
    """A batch takes whatever is new."""
    return spark.readStream.text(str(folder))


@pytest.mark.long
@pytest.mark.every_nth(2)
@pytest.mark.parametrize("new", [range(20, 40), range(20, 30)], ids=["more rows", "as many"])
def test_a_copy_of_a_checkpoint_from_one_batch_ago_is_noticed(
    spark, store_path, files, checkpoint, tmp_path, new
):
    """Its next batch has the newest one's number: a sink that goes by numbers would skip it."""
    put(files, range(10))
    run(all_lines(spark, files), store_path, checkpoint)
    shutil.copytree(checkpoint, tmp_path / "copy")
    put(files, range(10, 20))
    run(all_lines(spark, files), store_path, checkpoint)
    (files / "000010").unlink()
    shutil.rmtree(checkpoint)
    (tmp_path / "copy").rename(checkpoint)
    put(files, new)
    reason = refused(all_lines(spark, files), store_path, checkpoint)
    assert "counts 1, which is in, but this one has other input" in reason
    assert f"({len(new)} rows now, 10 then)" in reason
    assert "allowBatchIdReset" in reason
    assert "checkReplays" in reason
    # It is run again and again, as the checkpoint has it now.
    refused(all_lines(spark, files), store_path, checkpoint)
    assert numbers_in(store_path) == list(range(20))
    run(all_lines(spark, files), store_path, checkpoint, allowBatchIdReset="true")
    assert numbers_in(store_path) == [*range(20), *new]
    # Nothing more has to be allowed, and replays are replays.
    forget_commit(checkpoint, 1)
    run(all_lines(spark, files), store_path, checkpoint)
    assert numbers_in(store_path) == [*range(20), *new]


@pytest.mark.long
def test_a_batch_that_a_power_cut_took_from_the_checkpoint_is_noticed(
    spark, store_path, files, checkpoint
):
    """Spark does not sync its checkpoint: the newest entries may be gone, when the rows are in."""
    put(files, range(10))
    run(all_lines(spark, files), store_path, checkpoint)
    put(files, range(10, 20))
    run(all_lines(spark, files), store_path, checkpoint)
    for name in ("commits", "offsets", "sources/0"):
        (checkpoint / name / "1").unlink()
        (checkpoint / name / ".1.crc").unlink(missing_ok=True)
    put(files, range(20, 30))
    assert "counts 1, which is in" in refused(all_lines(spark, files), store_path, checkpoint)
    assert numbers_in(store_path) == list(range(20))


@pytest.mark.long
def test_replays_can_be_told_by_their_number_alone(spark, store_path, files, checkpoint):
    put(files, range(10))
    run(all_lines(spark, files), store_path, checkpoint)
    forget_commit(checkpoint, 0)
    offsets = checkpoint / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace('"batchTimestampMs":1', '"batchTimestampMs":'))
    (checkpoint / "offsets" / ".0.crc").unlink()
    refused(all_lines(spark, files), store_path, checkpoint)
    run(all_lines(spark, files), store_path, checkpoint, checkReplays="false")
    assert numbers_in(store_path) == list(range(10))


def test_a_replay_by_a_query_that_gives_other_rows_is_one(spark, store_path, files, checkpoint):
    """The checkpoint says that it is made of the same: a query need not be deterministic."""
    put(files, range(10))
    for upper in (5, 7):
        frame = all_lines(spark, files).where(f"CAST(value AS INT) < {upper}")
        run(frame, store_path, checkpoint)
        assert numbers_in(store_path) == list(range(5))
        forget_commit(checkpoint, 0)


@pytest.mark.long
def test_an_old_query_without_a_name_stays_out_once_another_has_its_place(
    spark, store_path, files, checkpoint, tmp_path
):
    put(files, range(10))
    run(lines(spark, files), store_path, checkpoint)
    checkpoint.rename(tmp_path / "old")
    run(lines(spark, files), store_path, checkpoint, allowBatchIdReset="true")
    checkpoint.rename(tmp_path / "newer")
    (tmp_path / "old").rename(checkpoint)
    put(files, range(10, 20))
    assert "was replaced by source" in refused(lines(spark, files), store_path, checkpoint)
    assert numbers_in(store_path) == sorted([*range(10), *range(10)])


@pytest.mark.long
def test_a_driver_that_another_one_overtook_is_stopped(spark, store_path, files, checkpoint):
    put(files, range(10))
    query = write(lines(spark, files), store_path, checkpoint, txnAppId="a").start()
    try:
        until(lambda: query.lastProgress is not None and numbers_in(store_path) == list(range(10)))
        run_id = version_run_id(1, query.id, "another driver")
        with eoslog.open(store_path, durability=None) as store:
            source = VersionSource(query.id, "another driver")
            assert store.commit_staged("a", 1, [], run_id=run_id, source=source).committed
        put(files, range(10, 20))
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert "was overtaken by driver 'another driver'" in reason_of(caught.value)
    assert numbers_in(store_path) == list(range(10))


def test_complete_mode_appends_the_whole_result(spark, store_path, files, checkpoint):
    for rows in (range(4), range(4, 6)):
        put(files, rows)
        counted = lines(spark, files).groupBy().count().selectExpr("CAST(count AS STRING) AS value")
        query = write(counted, store_path, checkpoint).outputMode("complete")
        query.trigger(availableNow=True).start().awaitTermination()
    assert numbers_in(store_path) == [4, 6]


def test_keys_and_topics_of_a_stream(spark, store_path, files, checkpoint):
    put(files, range(20))
    frame = lines(spark, files).selectExpr("value AS key", "value", "'made' AS topic")
    with eoslog.open(store_path) as store:
        store.create_topic("made", partitions=3)
    query = frame.writeStream.format("eoslog").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start(str(store_path)).awaitTermination()
    assert numbers_in(store_path, "made") == list(range(20))
    assert all(record.key == record.value for record in records_in(store_path, "made"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"txnVersion": "1"}, "a stream counts its batches"),
        ({"txnApId": "a"}, "did you mean txnAppId"),
        ({"topic": "nowhere"}, "no topic 'nowhere'"),
    ],
)
def test_options_that_are_wrong(spark, store_path, files, checkpoint, options, reason):
    put(files, range(3))
    with pytest.raises(PySparkException) as caught:
        run(lines(spark, files), store_path, checkpoint, **options)
    assert reason in reason_of(caught.value)
    assert numbers_in(store_path) == []


# foreachBatch.


def each_batch(path, **options):
    """What `foreachBatch` is given; it writes each batch with a batch write."""

    def land(frame, batch_id):
        known = {"store": path, "topic": "orders", **options}
        if "txnAppId" in known:
            known["txnVersion"] = str(batch_id)
        frame.write.format("eoslog").options(**known).mode("append").save()

    return land


def run_each_batch(frame, path, checkpoint, **options):
    query = frame.writeStream.foreachBatch(each_batch(str(path), **options))
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query.id


@pytest.mark.long
def test_foreach_batch_with_a_name_and_the_batch_id(spark, store_path, files, checkpoint):
    put(files, range(10))
    query_id = run_each_batch(lines(spark, files), store_path, checkpoint, txnAppId="a")
    forget_commit(checkpoint, 0)
    put(files, range(10, 20))
    run_each_batch(lines(spark, files, tasks=3), store_path, checkpoint, txnAppId="a")
    assert numbers_in(store_path) == list(range(20))
    known = application(store_path, "a")
    assert (known.version, known.source_id, known.generation) == (1, query_id, 2)
    # The trap of a fixed name: a new checkpoint counts from 0, and its batches look known.
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException) as caught:
        run_each_batch(lines(spark, files), store_path, checkpoint, txnAppId="a")
    assert "allowBatchIdReset" in str(caught.value)
    assert numbers_in(store_path) == list(range(20))
    options = {"txnAppId": "a", "allowBatchIdReset": "true"}
    shutil.rmtree(checkpoint)
    run_each_batch(lines(spark, files), store_path, checkpoint, **options)
    assert numbers_in(store_path) == sorted([*range(20), *range(20)])


@pytest.mark.parametrize("writes", short_form(["partitions", "format"], "format"))
def test_foreach_batch_from_a_checkpoint_of_one_batch_ago_is_noticed(
    spark, store_path, files, checkpoint, tmp_path, writes
):
    """Also if the next batch has as many rows: its plan in the checkpoint is another one."""

    def run():
        if writes == "partitions":
            run_partition_writer(lines(spark, files), store_path, checkpoint, app_id="a")
        else:
            run_each_batch(lines(spark, files), store_path, checkpoint, txnAppId="a")

    put(files, range(10))
    run()
    shutil.copytree(checkpoint, tmp_path / "copy")
    put(files, range(10, 20))
    run()
    # A repetition may have other rows: it has the same plan.
    forget_commit(checkpoint, 1)
    (files / "000010").write_text("10\n")
    run()
    (files / "000010").unlink()
    shutil.rmtree(checkpoint)
    (tmp_path / "copy").rename(checkpoint)
    put(files, range(20, 30))
    with pytest.raises(StreamingQueryException, match="10 rows now, 10 then"):
        run()
    assert numbers_in(store_path) == list(range(20))
    options = {"txnAppId": "a", "allowBatchIdReset": "true"}
    run_each_batch(lines(spark, files), store_path, checkpoint, **options)
    assert numbers_in(store_path) == list(range(30))


@pytest.mark.long
def test_foreach_batch_without_its_checkpoint_at_hand_goes_by_the_number_of_rows(
    spark, store_path, files, checkpoint, monkeypatch
):
    """As on HDFS."""
    monkeypatch.setattr("eoslog.spark.stream_context._checkpoint_of", lambda query_id: None)
    put(files, range(10))
    run_each_batch(lines(spark, files), store_path, checkpoint, txnAppId="a")
    forget_commit(checkpoint, 0)
    (files / "000000").write_text("0\n")
    with pytest.raises(StreamingQueryException, match="1 rows now, 10 then"):
        run_each_batch(lines(spark, files), store_path, checkpoint, txnAppId="a")


def test_foreach_batch_with_another_number_than_the_batchs_is_refused(
    spark, store_path, files, checkpoint
):
    """With one number for all of them, all batches but the first would be skipped."""
    put(files, range(10))

    def land(frame, batch_id):
        options = {"store": str(store_path), "topic": "orders", "txnAppId": "a"}
        frame.write.format("eoslog").options(**options, txnVersion="7").mode("append").save()

    query = all_lines(spark, files).writeStream.foreachBatch(land)
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="version 7 in micro-batch 0"):
        query.awaitTermination()
    assert numbers_in(store_path) == []


def run_partition_writer(frame, path, checkpoint, use_rdd=False, **names):
    """A query whose foreachBatch calls `write_partitions`; `names` None leaves the version out."""

    def land(batch, batch_id):
        rows = batch.rdd.map(lambda row: row.value) if use_rdd else batch
        version = {"version": batch_id} if names else {}
        write_partitions(rows, path, "orders", **names, **version)

    query = frame.writeStream.foreachBatch(land).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.long
@pytest.mark.parametrize("use_rdd", short_form([False, True], True))
def test_write_partitions_in_foreach_batch(spark, store_path, files, checkpoint, tmp_path, use_rdd):
    options = {"app_id": "a", "use_rdd": use_rdd}
    put(files, range(10))
    run_partition_writer(all_lines(spark, files), store_path, checkpoint, **options)
    shutil.copytree(checkpoint, tmp_path / "copy")
    forget_commit(checkpoint, 0)
    put(files, range(10, 20))
    run_partition_writer(all_lines(spark, files), store_path, checkpoint, **options)
    assert numbers_in(store_path) == list(range(20))
    # A copy from one batch ago, then a new checkpoint: neither skips what is new.
    put(files, range(20, 25))
    for older in (tmp_path / "copy", None):
        shutil.rmtree(checkpoint)
        if older is not None:
            older.rename(checkpoint)
        with pytest.raises(StreamingQueryException, match=r"Staged(Replay|Source)Error"):
            run_partition_writer(all_lines(spark, files), store_path, checkpoint, **options)
        assert numbers_in(store_path) == list(range(20))
    assert staged_files(store_path) == []


def test_write_partitions_without_a_name_in_foreach_batch_is_refused(
    spark, store_path, files, checkpoint
):
    put(files, range(10))
    with pytest.raises(StreamingQueryException, match="needs a name and the batch's number"):
        run_partition_writer(all_lines(spark, files), store_path, checkpoint)
    assert numbers_in(store_path) == []


@pytest.mark.long
def test_threads_of_foreach_batch_know_the_batch_if_they_inherit_it(
    spark, store_path, files, checkpoint
):
    """As the page says."""
    put(files, range(10))
    with eoslog.open(store_path) as store:
        store.create_topic("other", partitions=2)

    def land(batch, batch_id):
        def write(topic):
            batch.sparkSession.createDataFrame([], "value string")
            options = {"store": str(store_path), "topic": topic}
            options |= {"txnAppId": f"to {topic}", "txnVersion": batch_id}
            batch.write.format("eoslog").options(**options).mode("append").save()

        inheriting = inheritable_thread_target(batch.sparkSession)(write)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(inheriting, ("orders", "other")))

    def run():
        query = all_lines(spark, files).writeStream.foreachBatch(land)
        query = query.option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    for topic in ("orders", "other"):
        assert numbers_in(store_path, topic) == list(range(10))
        assert application(store_path, f"to {topic}").source_id is not None
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match="StagedSourceError"):
        run()


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("/data/ck", "/data/ck"),
        ("/data//x/../ck/", "/data/ck"),
        ("file:/data/ck", "/data/ck"),
        ("file:///data/ck/", "/data/ck"),
        ("file:///data/ck%20a", "/data/ck%20a"),
        ("file:/data/ck#1", "/data/ck#1"),
        ("file:/data/ck?1", "/data/ck?1"),
        ("/data/ck#1", "/data/ck#1"),
        ("/data/a:b/ck", "/data/a:b/ck"),
        ("hdfs://names:9000/ck/", "hdfs://names:9000/ck"),
        ("s3a://bucket/ck#1", "s3a://bucket/ck#1"),
    ],
)
def test_a_checkpoints_place_is_what_spark_makes_of_it(store_path, location, place):
    assert stream_writer(store_path, checkpointLocation=location).sink.place == place


def test_foreach_batch_without_a_name_is_refused(spark, store_path, files, checkpoint):
    put(files, range(10))
    with pytest.raises(StreamingQueryException) as caught:
        run_each_batch(lines(spark, files), store_path, checkpoint)
    assert '.option("txnVersion", batch_id)' in str(caught.value)
    assert numbers_in(store_path) == []


# The writer alone, in this process.


def landed(path):
    """What the writer's commits have landed."""
    close_unused_stores()
    return numbers_in(path)


def stream_writer(path, **options):
    known = {"store": str(path), "topic": "orders", **options}
    return StreamWriter(known, StructType().add("value", "string"), overwrite=False)


def message_of(writer, batch_id=0, query_id="query", run_id=RUN, values=("0", "1")):
    """What a task of a batch would have said."""
    app_id = f"spark-{query_id}"
    name = version_run_id(batch_id, query_id, run_id)
    staged = writer.sink.stage(iter([pa.record_batch({"value": list(values)})]), app_id, name)
    return StreamMessage(staged, StreamBatch(query_id, batch_id, run_id))


def test_an_abort_after_the_decision_changes_nothing(store_path):
    writer = stream_writer(store_path)
    messages = [message_of(writer), message_of(writer, values=["2"])]
    writer.commit(messages, 0)
    writer.abort([*messages, None], 0)
    writer.commit(messages, 0)
    assert landed(store_path) == [0, 1, 2]


def test_an_abort_before_the_decision_gives_the_files_up(store_path):
    writer = stream_writer(store_path)
    message = message_of(writer)
    writer.abort([None, message], 0)
    assert staged_files(store_path) == []
    assert landed(store_path) == []


def test_an_abort_that_knows_no_task_leaves_files_to_the_next_run(store_path):
    writer = stream_writer(store_path)
    message_of(writer)
    writer.abort([None], 0)
    assert len(staged_files(store_path)) == 1
    writer.commit([message_of(writer, run_id=RUN.replace("8", "9"))], 0)
    assert landed(store_path) == [0, 1]
    assert staged_files(store_path) == []


def test_without_the_checkpoint_at_hand_the_number_of_rows_tells(store_path):
    """As with one on a file system that the driver's host does not mount."""
    writer = stream_writer(store_path, checkpointLocation="hdfs://names/checkpoint")
    writer.commit([message_of(writer)], 0)
    again = stream_writer(store_path, checkpointLocation="hdfs://names/checkpoint")
    again.commit([message_of(again, values=("2", "3"))], 0)
    more = message_of(again, values=("4", "5", "6"))
    with pytest.raises(StagedReplayError, match=r"3 rows now, 2 then.*checkReplays"):
        again.commit([more], 0)
    stream_writer(store_path, checkReplays="false").commit([more], 0)
    assert landed(store_path) == [0, 1]


def test_messages_that_say_different_things_are_refused(store_path):
    writer = stream_writer(store_path)
    first = message_of(writer)
    for messages, batch_id in (
        ([], 0),
        ([first, None], 0),
        ([first], 1),
        ([first, message_of(writer, batch_id=1)], 0),
        ([first, message_of(writer, query_id="other")], 0),
    ):
        with pytest.raises(InvalidRequestError):
            writer.commit(messages, batch_id)
    assert landed(store_path) == []


def test_a_task_that_does_not_know_its_batch_writes_nothing(store_path):
    with pytest.raises(InvalidRequestError, match="which query"):
        stream_writer(store_path).write(iter([pa.record_batch({"value": ["0"]})]))
    assert staged_files(store_path) == []
