"""Sessions of Spark Connect: what works over them, and what says what to use instead."""

import os
import subprocess
import sys
from importlib import util
from types import SimpleNamespace

import pytest
from gates import LONGEST_WAIT_S
from read_back import numbers_in, values_in

from eoslog.errors import InvalidRequestError
from eoslog.spark import (
    CopyError,
    Files,
    JavaNotFoundError,
    Topic,
    copy,
    find_java,
    partition_writer,
    stream_context,
)
from eoslog.spark.active_session import is_connect, keep_active

pytest.importorskip("pyspark")

REMOTE = """
import sys
import eoslog
from pyspark.sql import SparkSession
from eoslog.spark import MESSAGE_SCHEMA, commit, session, stage, write_partitions
from eoslog.spark.commands.ingest import ingest

store, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert session() is spark


def rows(first):
    return spark.range(first, first + 2, 1, 1).selectExpr("CAST(id AS STRING) AS value")


rows(0).write.format("eoslog").option("topic", "orders").mode("append").save(store)
for _ in range(2):
    print(write_partitions(rows(10), store, "orders", app_id="a", version=1).records)
staged = rows(20).mapInArrow(
    lambda batches: stage(
        batches, store=store, topic="orders", partitions=4, app_id="b", run_id="1"
    ),
    MESSAGE_SCHEMA,
)
commit(staged.collect(), store=store, app_id="b", version=1)


def land(batch, number):
    try:
        write_partitions(batch, store, "orders")
        found = "a write without a name was not refused"
    except eoslog.errors.InvalidRequestError:
        found = write_partitions(
            batch.selectExpr("CAST(100 + CAST(CAST(value AS STRING) AS INT) AS STRING) AS value"),
            store, "orders", app_id="c", version=number,
        ).records
    with open(folder + "/found", "a") as file:
        print(found, file=file)


(
    spark.readStream.format("eoslog").option("store", store).option("subscribe", "orders")
    .option("startingOffsets", "earliest").load()
    .writeStream.foreachBatch(land).option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start().awaitTermination()
)
with open(folder + "/a.csv", "w") as file:
    file.write("ID,id\\n1,2\\n")
print(ingest([folder + "/a.csv"], topic="files", store=store, spark=spark).records)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.skipif(util.find_spec("grpc") is None, reason="pyspark[connect] is not installed")
def test_what_works_over_spark_connect(store_path, tmp_path):
    try:
        java = find_java()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    environment = {**os.environ, "JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [sys.executable, "-c", REMOTE, store_path, tmp_path],
        capture_output=True,
        text=True,
        env=environment,
        timeout=3 * LONGEST_WAIT_S,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["2", "0", "1"]
    assert (tmp_path / "found").read_text() == "6\n"
    landed = [0, 1, 10, 11, 20, 21]
    assert numbers_in(store_path) == [*landed, *(100 + number for number in landed)]
    assert values_in(store_path, "files") == [b'{"ID":"1","id":"2"}']


class RemoteSession:
    """A session as Spark Connect has it: no Java of its own."""

    def __getattr__(self, name):
        raise AttributeError(f"{name} is not supported in Spark Connect")


RemoteSession.__module__ = "pyspark.sql.connect.session"


def test_a_copy_over_spark_connect_says_what_to_use(store_path, tmp_path):
    for source, target in (
        (Topic(store_path, "orders"), Files(tmp_path / "files")),
        (Files(tmp_path / "files"), Topic(store_path, "orders")),
    ):
        with pytest.raises(CopyError, match=r"readStream.*or the reverse"):
            copy(source, target, spark=RemoteSession())


def test_a_session_of_spark_connect_is_left_alone():
    assert is_connect(RemoteSession())
    keep_active(RemoteSession())


def test_a_nameless_write_in_its_foreach_batch_is_refused(monkeypatch, store_path):
    main = SimpleNamespace(__spec__=SimpleNamespace(name=stream_context.CONNECT_WORKER))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(partition_writer, "_stream_batch", lambda _: None)
    with pytest.raises(InvalidRequestError, match="needs a name"):
        partition_writer.write_partitions(object(), store_path, "orders")
