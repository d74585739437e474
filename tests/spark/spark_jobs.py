"""Jobs that tests run in a session of their own process, or in a driver that they can kill."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates import LONGEST_WAIT_S

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# A task then has some batches, between which it can be stopped.
BATCH_ROWS = 100
FIRST_FILE_S = 1_700_000_000


def prepare(spark: "SparkSession") -> None:
    """Batches are small, and the gated source is known to this thread: a test before may have left
    it with another connection to Java, or none that has an active session.
    """
    from gated_source import GatedDataSource

    enter_thread(spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    spark.dataSource.register(GatedDataSource)


def enter_thread(spark: "SparkSession") -> None:
    """Once a thread: Spark looks formats up in the thread's active session, and else finds none.

    A new thread has no active session; making a DataFrame from rows gives it one.
    """
    spark.createDataFrame([], "value string")


def numbers(spark: "SparkSession", rows: range, tasks: int) -> "DataFrame":
    return spark.range(rows.start, rows.stop, 1, tasks).selectExpr("CAST(id AS STRING) AS value")


def write_numbers(
    spark: "SparkSession",
    store: str | Path,
    gates: str,
    first: int,
    upper_bound: int,
    tasks: int = 3,
    **options: Any,
) -> None:
    """Land the numbers of a range with `df.write`."""
    options = {"store": store, "topic": "orders", "gates": gates, **options}
    writer = numbers(spark, range(first, upper_bound), tasks).write.format("gated-eoslog")
    writer.options(**options).mode("append").save()


def write_hosts(
    spark: "SparkSession",
    store: str | Path,
    gates: str,
    rows: int,
    tasks: int,
    only_at: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Land numbers, each with the address of the host that its task ran on as its key.

    `only_at` has addresses of hosts for tasks, by their numbers: there alone these are done. An
    attempt elsewhere comes to nothing, until Spark, which may speculate, makes another one.
    """
    addresses = dict(only_at or {})

    def name_host(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyspark import TaskContext

        host = os.environ["SPARK_LOCAL_HOSTNAME"]
        if addresses.get(str(TaskContext.get().partitionId()), host) != host:
            time.sleep(LONGEST_WAIT_S)
            raise TimeoutError(f"no other attempt than that of {host}")
        for batch in batches:
            hosts = pa.array([host] * batch.num_rows)
            yield pa.RecordBatch.from_arrays([hosts, batch.column(0)], ["key", "value"])

    frame = numbers(spark, range(rows), tasks).mapInArrow(name_host, "key string, value string")
    options = {"store": store, "topic": "orders", "gates": gates, **options}
    frame.write.format("gated-eoslog").options(**options).mode("append").save()


def add_file(folder: Path, name: str, rows: range) -> None:
    """Give a query that reads the folder one more micro-batch. Its rows say which one it is."""
    folder.mkdir(exist_ok=True)
    new = folder / f".{name}"
    new.write_text("".join(f"{row}\n" for row in rows))
    # Spark takes the oldest files first.
    modified_s = FIRST_FILE_S + rows.start / 100
    os.utime(new, (modified_s, modified_s))
    new.rename(folder / name)


def start_files(
    spark: "SparkSession",
    folder: str | Path,
    store: str | Path,
    checkpoint: str | Path,
    gates: str,
    tasks: int = 3,
    available_now: bool = True,
    where: str = "true",
    **options: Any,
) -> "StreamingQuery":
    """Start a query that lands the lines of a folder's files, one file a micro-batch."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
    frame = lines.where(where).repartition(tasks)
    return start(frame, store, checkpoint, gates, available_now, **options)


def start(
    frame: "DataFrame",
    store: str | Path,
    checkpoint: str | Path,
    gates: str,
    available_now: bool = True,
    **options: Any,
) -> "StreamingQuery":
    options = {"store": store, "topic": "orders", "gates": gates, **options}
    writer = frame.writeStream.format("gated-eoslog").options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="50 milliseconds").start()


def stream_files(spark: "SparkSession", **arguments: Any) -> None:
    """Run such a query until it has nothing to do, or fails."""
    start_files(spark, **arguments).awaitTermination()
