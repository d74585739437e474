"""A topic into files and back: every record once, whatever died, and only what is new again."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from read_back import numbers_in, records_in, values_in

import eoslog
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.spark import CopyError, Files, Topic, copy
from eoslog.spark.hadoop_files import spark_path

pytestmark = pytest.mark.spark

NOON_MS = 1_767_268_800_123


@pytest.fixture(scope="module", autouse=True)
def wants_pyarrow():
    pytest.importorskip("pyarrow")


def produce(store_path, first, upper_bound):
    """Records of all kinds: without a key or a value, with headers, in all four partitions."""
    with eoslog.open(store_path) as store, store.producer() as producer:
        for number in range(first, upper_bound):
            producer.send(
                "orders",
                value=b"%d" % number if number % 10 else None,
                key=b"k%d" % number if number % 3 else None,
                partition=number % 4,
                headers=[("h", b"%d" % number), ("h", None)] if number % 5 == 0 else None,
                timestamp_ms=NOON_MS + number,
            )


def empty_store(path, topic="orders", partitions=4):
    with eoslog.open(path, create=True) as store:
        store.create_topic(topic, partitions=partitions)
    return path


def contents(store_path, topic="orders"):
    """All of each record but its offset, partition by partition, in order."""
    return [
        (record.partition, record.key, record.value, record.headers, record.timestamp_ms)
        for record in records_in(store_path, topic)
    ]


def rows_of_files(folder):
    """The values that a reader finds who only lists files."""
    from pyarrow import parquet

    files = sorted(Path(folder).glob("part-*"))
    return sorted(
        int(value or b"0")
        for file in files
        for value in parquet.read_table(file)["value"].to_pylist()
    )


@pytest.fixture
def files_of_numbers(spark, tmp_path):
    """Three Parquet files of 10 rows each, of one column."""
    folder = tmp_path / "numbers"
    frame = spark.range(0, 30, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    frame.write.parquet(str(folder))
    return folder


@pytest.fixture
def killed_copy(tmp_path):
    """Run a copy that kills itself; its Java and its workers are killed with it."""

    def run(*arguments):
        printed = tmp_path / "printed by the copy"
        with open(printed, "w") as out:
            command = [sys.executable, Path(__file__).with_name("copy_child.py")]
            child = subprocess.Popen(
                [*command, *map(str, arguments)], stdout=out, stderr=out, start_new_session=True
            )
        try:
            assert child.wait(timeout=300) == -signal.SIGKILL, printed.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    return run


# There and back.


def test_a_topic_comes_back_as_it_was(spark, store_path, tmp_path):
    produce(store_path, 0, 199)
    with eoslog.open(store_path) as store:
        store.producer().append("orders", 3, [b"without a time"], timestamps=[-1])
    there = copy(Topic(store_path, "orders"), Files(tmp_path / "files"), spark=spark)
    assert there.records == 200
    other = tmp_path / "other"
    empty_store(other, "unused")
    back = copy(Files(tmp_path / "files"), Topic(other, "orders", partitions=4), spark=spark)
    assert back.records == 200
    assert contents(other) == contents(store_path)


@pytest.mark.long
def test_only_what_is_new_is_copied(spark, store_path, tmp_path):
    other = empty_store(tmp_path / "other")
    files = Files(tmp_path / "files", options={"compression": "zstd"})
    for first, upper_bound in ((0, 50), (50, 80)):
        produce(store_path, first, upper_bound)
        for expected in (upper_bound - first, 0):
            assert copy(Topic(store_path, "orders"), files, spark=spark).records == expected
            assert copy(files, Topic(other, "orders"), spark=spark).records == expected
    assert contents(other) == contents(store_path)
    assert len(list(Path(files.path).glob("part-*.zstd.parquet"))) > 0


@pytest.mark.soak
def test_orc(spark, store_path, tmp_path):
    produce(store_path, 0, 20)
    files = Files(tmp_path / "files", "orc")
    copy(Topic(store_path, "orders"), files, spark=spark)
    other = empty_store(tmp_path / "other")
    copy(files, Topic(other, "orders"), spark=spark)
    assert contents(other) == contents(store_path)


@pytest.mark.long
def test_an_aborted_transaction_is_not_copied(spark, store_path, tmp_path):
    with eoslog.open(store_path) as store, store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for number, ends in enumerate((producer.abort_transaction, producer.commit_transaction)):
            producer.begin_transaction()
            producer.send("orders", value=b"%d" % number, partition=0)
            ends()
    assert copy(Topic(store_path, "orders"), Files(tmp_path / "files"), spark=spark).records == 1
    assert rows_of_files(tmp_path / "files") == [1]


@pytest.mark.long
def test_an_empty_topic(spark, store_path, tmp_path):
    files = Files(tmp_path / "files")
    assert copy(Topic(store_path, "orders"), files, spark=spark).records == 0
    produce(store_path, 0, 4)
    assert copy(Topic(store_path, "orders"), files, spark=spark).records == 4


@pytest.mark.long
def test_a_copy_in_a_thread_of_its_own(spark, store_path, tmp_path):
    """Such a thread has no session of its own by which Spark would find the format."""
    produce(store_path, 0, 8)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(
            copy, Topic(store_path, "orders"), Files(tmp_path / "files"), spark=spark
        )
    assert done.result().records == 8


def test_files_of_a_value_alone_that_nobody_sorted(spark, store_path, files_of_numbers):
    result = copy(Files(files_of_numbers), Topic(store_path, "orders"), spark=spark)
    assert (result.records, result.batches) == (30, 1)
    assert numbers_in(store_path) == list(range(30))


def test_a_checkpoint_elsewhere_leaves_the_files_alone(
    spark, store_path, files_of_numbers, tmp_path
):
    before = sorted(files_of_numbers.rglob("*"))
    progress = tmp_path / "progress"
    for expected in (30, 0):
        result = copy(
            Files(files_of_numbers), Topic(store_path, "orders"), spark=spark, checkpoint=progress
        )
        assert result.records == expected
        assert Path(result.checkpoint.removeprefix("file:")).is_relative_to(progress)
    assert sorted(files_of_numbers.rglob("*")) == before


# Killed and run again.


@pytest.mark.crash
@pytest.mark.soak
def test_a_copy_into_files_that_is_killed_goes_on(spark, store_path, tmp_path, killed_copy):
    produce(store_path, 1, 200)
    killed_copy("into-files", store_path, tmp_path / "files", 1)
    # What a task that died with its driver leaves, too.
    listed = next((tmp_path / "files").glob("part-*.parquet"))
    stray = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    (tmp_path / "files" / stray).write_bytes(listed.read_bytes())
    (tmp_path / "files" / "notes.txt").write_text("somebody's own")
    result = copy(Topic(store_path, "orders"), Files(tmp_path / "files"), spark=spark)
    assert 0 < result.records < 199
    expected = sorted(number if number % 10 else 0 for number in range(1, 200))
    assert rows_of_files(tmp_path / "files") == expected
    assert spark.read.parquet(str(tmp_path / "files")).count() == 199
    assert (tmp_path / "files" / "notes.txt").exists()


@pytest.mark.crash
@pytest.mark.soak
def test_a_copy_into_a_topic_that_is_killed_goes_on(
    spark, store_path, files_of_numbers, killed_copy
):
    killed_copy("into-topic", store_path, files_of_numbers, 1)
    landed = len(values_in(store_path))
    assert landed == 20
    result = copy(Files(files_of_numbers), Topic(store_path, "orders"), spark=spark)
    assert result.records == 30 - landed
    assert numbers_in(store_path) == list(range(30))


# Refused.


@pytest.mark.long
def test_files_of_another_copy_are_refused(spark, store_path, tmp_path):
    produce(store_path, 0, 5)
    copy(Topic(store_path, "orders"), Files(tmp_path / "files"), spark=spark)
    other = empty_store(tmp_path / "other")
    with pytest.raises(CopyError, match="holds files"):
        copy(Topic(other, "orders"), Files(tmp_path / "files"), spark=spark)
    with pytest.raises(CopyError, match="holds files"):
        copy(
            Topic(store_path, "orders"),
            Files(tmp_path / "files"),
            spark=spark,
            checkpoint=tmp_path / "fresh",
        )


def test_a_lost_checkpoint_is_refused(spark, store_path, files_of_numbers, tmp_path):
    ends = Files(files_of_numbers), Topic(store_path, "orders")
    copy(*ends, spark=spark)
    with pytest.raises(CopyError, match="copied to topic 'orders' before"):
        copy(*ends, spark=spark, checkpoint=tmp_path / "fresh")
    assert numbers_in(store_path) == list(range(30))


def test_rows_that_do_not_fit_stop_the_copy_with_their_reason(spark, store_path, tmp_path):
    wrong = spark.range(3).selectExpr("CAST(id AS STRING) AS value", "9 AS partition")
    wrong.write.parquet(str(tmp_path / "files"))
    with pytest.raises(CopyError, match="no partition 9"):
        copy(Files(tmp_path / "files"), Topic(store_path, "orders"), spark=spark)
    assert values_in(store_path) == []


@pytest.mark.parametrize(
    ("source", "target", "error", "words"),
    [
        (Topic("s", "t"), Topic("s", "u"), TypeError, "from Topic to Topic"),
        (Files("a"), Files("b"), TypeError, "from Files to Files"),
        (Topic("s", "t"), Files("b", "json"), ValueError, "json cannot hold bytes"),
        (Files("a", "csv"), Topic("s", "t"), ValueError, "csv cannot hold bytes"),
        (Topic("s", "t", partitions=2), Files("b"), ValueError, "is the target"),
        (Files("a"), Topic("s", "t", options={"a": "b"}), ValueError, "it is the target"),
    ],
)
def test_ends_that_make_no_copy(source, target, error, words):
    with pytest.raises(error, match=words):
        copy(source, target)


def test_a_relative_path_is_that_of_the_driver(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert spark_path("files") == f"{tmp_path}/files"
    for path in ("/files", "file:/files", "s3a://bucket/files", "hdfs:///files"):
        assert spark_path(path) == path


def test_what_is_not_there(spark, store_path, tmp_path):
    with pytest.raises(CopyError, match="does not exist"):
        copy(Files(tmp_path / "gone"), Topic(store_path, "orders"), spark=spark)
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        copy(Topic(store_path, "nowhere"), Files(tmp_path / "files"), spark=spark)
    (tmp_path / "files").mkdir()
    with pytest.raises(CopyError, match="cannot read"):
        copy(Files(tmp_path / "files"), Topic(store_path, "orders"), spark=spark)
