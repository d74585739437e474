"""Spark jobs that write to and read from a store, each beside a peer that does the least possible.

Peer and job take turns in each round, so that both see the same machine. A job's time is that of
the whole action, as a user waits for it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from measure import record
from page_cache import supply_pages
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType
from sizes import Sizes
from spark_peers import SOURCES

import eoslog
from eoslog.spark import session, write_partitions

TASKS = 4
CORES = 2
KB = 1024
# About 1 MB of values in a record batch of Spark's.
ROWS_PER_BATCH = {KB: 1000, 100: 10_000}
MICRO_BATCH_ROWS = 1000
PEERS = {"counting": "the counting sink", "parquet": "df.write.parquet"}
GCM_BYTES = 12 + 16  # What GCM adds to a text: its first vector and its tag.


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session whose workers can import the peers."""
    folder = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, before)))
    log_path = tmp_path_factory.mktemp("spark") / "spark.log"
    made = session("eoslog benches", f"local[{CORES}]", {"spark.driver.memory": "2g"}, log_path)
    for source in SOURCES:
        made.dataSource.register(source)
    yield made
    made.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def rows_of(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    """`count` different values of so many bytes, made by Spark itself."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_BATCH[value_bytes])
    number = functions.lpad(functions.col("id").cast("string"), 20, "0")
    value = functions.concat(number, functions.lit("x" * (value_bytes - 20))).cast("binary")
    return spark.range(0, count, 1, TASKS).select(value.alias("value"))


def noise_of(spark: SparkSession, count: int, path: Path) -> DataFrame:
    """`count` values of 1 KB that nobody can compress: ciphertext, with what belongs to it.

    From files: making them takes longer than anything else that is done with them.
    """
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_BATCH[KB])
    text = functions.lpad(functions.col("id").cast("string"), KB - GCM_BYTES, "0")
    value = functions.aes_encrypt(text, functions.lit("0123456789abcdef"), functions.lit("GCM"))
    spark.range(0, count, 1, TASKS).select(value.alias("value")).write.parquet(str(path))
    spark.conf.set("spark.sql.files.maxPartitionBytes", 2 * count * KB // TASKS)
    return spark.read.parquet(str(path))


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


class Rounds:
    """Stores with a topic for each round, and how long each action took in each of them.

    The store at `path` has durability `commit`, that at `process_path` durability `process`. Before
    each action the system is given the pages of memory that an action's files take: what a host
    needs to supply them is the machine's, and more than all the rest (`bench_spark_pages`).
    """

    def __init__(self, path: Path, sizes: Sizes, bytes_per_round: int) -> None:
        self.path = path / "store"
        self.process_path = path / "process-store"
        self.files_path = path / "files"  # Of a peer that has no topics: a folder for each round.
        self._bytes_per_round = bytes_per_round
        self._rounds = sizes.spark_rounds
        self._warmup_rounds = sizes.spark_warmup_rounds
        self._number = 0
        self.seconds: dict[str, list[float]] = {}
        for store_path in (self.path, self.process_path):
            with eoslog.open(store_path, create=True) as store:
                store.create_topic("first", partitions=TASKS)

    def run(self, **actions: Callable[[str], object]) -> None:
        """Each action with a topic of its own, in turns; first those rounds that warm up."""
        for round_number in range(self._warmup_rounds + self._rounds):
            for name, action in actions.items():
                topic = self._new_topic()
                supply_pages(self.path.parent, self._bytes_per_round)
                taken = seconds(lambda action=action, topic=topic: action(topic))
                self._remove(topic)
                if round_number >= self._warmup_rounds:
                    self.seconds.setdefault(name, []).append(taken)

    def ratios(self, of: str, to: str) -> list[float]:
        """Of each round, how many times faster `of` was than `to`."""
        return [other / own for own, other in zip(self.seconds[of], self.seconds[to], strict=True)]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def _new_topic(self) -> str:
        self._number += 1
        topic = f"round-{self._number}"
        for path in (self.path, self.process_path):
            with eoslog.open(path, durability=None) as store:
                begin_topic(store, topic)
        return topic

    def _remove(self, topic: str) -> None:
        for path in (self.path, self.process_path):
            with eoslog.open(path, durability=None) as store:
                store.delete_topic(topic)
        shutil.rmtree(self.files_path, ignore_errors=True)


def save(
    data: DataFrame, path: Path, topic: str, name: str = "eoslog", durability: str = "commit"
) -> None:
    writer = data.write.format(name).option("store", str(path)).option("topic", topic)
    writer.option("durability", durability).mode("append").save()


def begin_topic(store: eoslog.Store, topic: str) -> None:
    """Make a topic as one in use is: each of its partitions has a record."""
    store.create_topic(topic, partitions=TASKS)
    with store.producer() as producer:
        for partition in range(TASKS):
            producer.append(topic, partition, [b"first"])


def written(path: Path, topic: str) -> int:
    with eoslog.open(path, durability=None) as store, store.consumer() as consumer:
        where = store.topics()[topic].topic_partitions()
        return sum(consumer.end_offsets(where).values())


def bench_spark_write(benchmark: Any, bench_path: Path, sizes: Sizes, spark: SparkSession) -> None:
    """df.write of values of 1 KB and of 100 bytes, beside a sink that only counts bytes.

    Those of 1 KB beside df.write.parquet as well, and beside a sink that only writes them to files.
    """
    for value_bytes, count, name in (
        (KB, sizes.spark_rows, "spark_write_1kb"),
        (100, sizes.spark_small_rows, "spark_write_100b"),
    ):
        data = rows_of(spark, count, value_bytes)
        rounds = Rounds(bench_path / name, sizes, count * value_bytes)
        actions = {**to_stores(rounds, data), "counting": to_counter(data)}
        if value_bytes == KB:
            actions["parquet"] = to_parquet(data, bench_path / f"{name}.parquet")
            actions["plain"] = to_files(data, rounds.files_path, sync=False)
            actions["plain_synced"] = to_files(data, rounds.files_path, sync=True)
            benchmark.pedantic(lambda rounds=rounds, all=actions: rounds.run(**all), rounds=1)
        else:
            rounds.run(**actions)
        check_written(rounds, data, count)
        names = {"eoslog": name, "process": f"{name}_process"}
        if value_bytes == KB:
            names |= {"plain": "spark_write_plain", "plain_synced": "spark_write_plain_synced"}
        for own, figure in names.items():
            record_ratio(benchmark, figure, rounds, own, "counting", count)
        if value_bytes == KB:
            for own, suffix in (("eoslog", ""), ("process", "_process")):
                figure = f"spark_write_beside_parquet{suffix}"
                record_ratio(benchmark, figure, rounds, own, "parquet", count)
        # A process of Spark's may still be closing one of the stores.
        shutil.rmtree(bench_path / name, ignore_errors=True)


def bench_spark_noise(benchmark: Any, bench_path: Path, sizes: Sizes, spark: SparkSession) -> None:
    """df.write of values of 1 KB that do not compress, beside df.write.parquet."""
    data = noise_of(spark, sizes.spark_rows, bench_path / "values")
    rounds = Rounds(bench_path, sizes, sizes.spark_rows * KB)
    actions = {**to_stores(rounds, data), "parquet": to_parquet(data, bench_path / "parquet")}
    benchmark.pedantic(lambda: rounds.run(**actions), rounds=1)
    check_written(rounds, data, sizes.spark_rows)
    for own, suffix in (("eoslog", ""), ("process", "_process")):
        figure = f"spark_write_noise_beside_parquet{suffix}"
        record_ratio(benchmark, figure, rounds, own, "parquet", sizes.spark_rows)


def to_stores(rounds: Rounds, data: DataFrame) -> dict[str, Callable[[str], object]]:
    return {
        "eoslog": lambda topic: save(data, rounds.path, topic),
        "process": lambda topic: save(data, rounds.process_path, topic, durability="process"),
    }


def to_counter(data: DataFrame) -> Callable[[str], object]:
    return lambda _: data.write.format("counting").mode("append").save()


def to_parquet(data: DataFrame, path: Path) -> Callable[[str], object]:
    return lambda _: data.write.mode("overwrite").parquet(str(path))


def to_files(data: DataFrame, path: Path, *, sync: bool) -> Callable[[str], object]:
    def to_new_files(_: str) -> None:
        path.mkdir()
        writer = data.write.format("plain_files").option("folder", str(path))
        (writer.option("sync", "true") if sync else writer).mode("append").save()

    return to_new_files


def check_written(rounds: Rounds, data: DataFrame, count: int) -> None:
    """Nothing is missing, and nothing is there twice."""
    topic = "checked"
    for path, durability in ((rounds.path, "commit"), (rounds.process_path, "process")):
        with eoslog.open(path, durability=None) as store:
            begin_topic(store, topic)
        save(data, path, topic, durability=durability)
        assert written(path, topic) == count + TASKS


def record_ratio(
    benchmark: Any, figure: str, rounds: Rounds, own: str, peer: str, count: int
) -> None:
    """How many times as fast as its peer an action was, in rows."""
    ratios = rounds.ratios(own, peer)
    record(
        benchmark,
        figure,
        statistics.median(ratios),
        spread=ratios,
        beside=f"{count / rounds.median(own):,.0f} rows/s; {PEERS[peer]}: "
        f"{count / rounds.median(peer):,.0f}",
    )


def bench_spark_sync(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """What the disk takes at least: the bytes of a job in new files, and how long their sync is."""
    file_bytes = sizes.spark_rows * KB // TASKS
    piece = os.urandom(1 << 20)
    found: list[float] = []

    def sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def run() -> None:
        for _ in range(sizes.spark_rounds):
            paths = [bench_path / str(number) for number in range(TASKS)]
            for path in paths:
                with path.open("wb") as file:
                    for first in range(0, file_bytes, len(piece)):
                        file.write(piece[: file_bytes - first])
            with ThreadPoolExecutor(CORES) as threads:
                found.append(seconds(lambda paths=paths: list(threads.map(sync, paths))))
            for path in paths:
                path.unlink()

    benchmark.pedantic(run, rounds=1)
    taken = statistics.median(found)
    record(
        benchmark,
        "spark_sync_alone",
        taken,
        spread=found,
        beside=f"{file_bytes * TASKS / taken / 1e9:.2f} GB/s, {TASKS} files, {CORES} at a time",
    )


def bench_spark_decision(
    benchmark: Any, bench_path: Path, sizes: Sizes, spark: SparkSession
) -> None:
    """The same sink with and without the driver's decision."""
    data = rows_of(spark, sizes.spark_decided_rows, 100)
    rounds = Rounds(bench_path, sizes, sizes.spark_decided_rows * 100)

    def run() -> None:
        rounds.run(
            decided=lambda topic: save(data, rounds.path, topic),
            undecided=lambda topic: save(data, rounds.path, topic, "undecided"),
        )

    benchmark.pedantic(run, rounds=1)
    slower = [100 * (ratio - 1) for ratio in rounds.ratios("undecided", "decided")]
    record(
        benchmark,
        "spark_decision_cost",
        statistics.median(slower),
        spread=slower,
        beside=f"{rounds.median('decided'):.2f} s and {rounds.median('undecided'):.2f} s",
    )


def bench_spark_micro_batch(
    benchmark: Any, bench_path: Path, sizes: Sizes, spark: SparkSession
) -> None:
    """A streaming query of 1,000 rows a micro-batch, beside a Python sink that does nothing.

    The third is a sink that waits for the disk as often as it must to keep a batch as a whole.
    """
    store_path = bench_path / "store"
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("first", partitions=TASKS)
    plain_path = bench_path / "plain"
    plain_path.mkdir()
    options: dict[str, dict[str, Any]] = {
        "eoslog": {"store": store_path, "topic": "first"},
        "counting": {},
        "plain_files": {"folder": plain_path},
    }
    found: dict[str, list[float]] = {name: [] for name in options}

    def batches_of(name: str, number: int) -> list[float]:
        source = spark.readStream.format("rate-micro-batch")
        source = source.option("rowsPerBatch", MICRO_BATCH_ROWS).option("numPartitions", CORES)
        value = functions.col("value").cast("string").alias("value")
        query = (
            source.load()
            .select(value)
            .writeStream.format(name)
            .options(**options[name])
            .option("checkpointLocation", str(bench_path / f"{name}-{number}"))
            .start()
        )
        # The first ones start Python workers and fill caches.
        skipped = sizes.spark_micro_batches_skipped
        wanted = skipped + sizes.spark_micro_batches
        while len(query.recentProgress) < wanted and query.isActive:
            time.sleep(0.05)
        query.stop()
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        progress = query.recentProgress[skipped:wanted]
        return [float(one["durationMs"]["triggerExecution"]) for one in progress]

    def run() -> None:
        for number in range(sizes.spark_micro_rounds + 1):
            for name, medians_ms in found.items():
                median_ms = statistics.median(batches_of(name, number))
                # In the first round Spark compiles what all of them use.
                if number > 0:
                    medians_ms.append(median_ms)

    benchmark.pedantic(run, rounds=1)
    peers = found.pop("counting")
    for name, figure in (
        ("eoslog", "spark_micro_batch"),
        ("plain_files", "spark_micro_batch_plain"),
    ):
        over = [own - peer for own, peer in zip(found[name], peers, strict=True)]
        record(
            benchmark,
            figure,
            statistics.median(over),
            spread=over,
            beside=f"{statistics.median(found[name]):.0f} ms; "
            f"a sink that does nothing: {statistics.median(peers):.0f} ms (medians)",
        )


def bench_spark_read(benchmark: Any, bench_path: Path, sizes: Sizes, spark: SparkSession) -> None:
    """A batch read of values of 1 KB, beside a Python source that yields a batch from memory."""
    store_path = bench_path / "store"
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("rows", partitions=TASKS)
    count = sizes.spark_rows
    save(rows_of(spark, count, KB), store_path, "rows")
    batch_path = bench_path / "batch.arrow"
    source = spark.read.format("eoslog").option("store", str(store_path))
    stored = source.option("subscribe", "rows").load()
    with eoslog.open(store_path, durability=None) as store:
        write_batch(store, batch_path, stored.schema)
    memory = (
        spark.read.format("memory_batches")
        .option("batch", str(batch_path))
        .option("partitions", TASKS)
        .option("repeats", count // TASKS // ROWS_PER_BATCH[KB])
        .load()
    )
    assert stored.schema == memory.schema
    assert stored.count() == memory.count() == count
    found: dict[str, list[float]] = {}

    def run() -> None:
        for _ in range(sizes.spark_rounds):
            for name, data in (("memory", memory), ("eoslog", stored)):
                into_noop = data.write.format("noop").mode("append")
                found.setdefault(f"{name}_noop", []).append(seconds(into_noop.save))
                found.setdefault(f"{name}_count", []).append(seconds(data.count))

    benchmark.pedantic(run, rounds=1)
    for action in ("noop", "count"):
        own, peer = found[f"eoslog_{action}"], found[f"memory_{action}"]
        ratios = [other / mine for mine, other in zip(own, peer, strict=True)]
        record(
            benchmark,
            f"spark_read_{action}",
            statistics.median(ratios),
            spread=ratios,
            beside=f"{count / statistics.median(own):,.0f} rows/s; from memory: "
            f"{count / statistics.median(peer):,.0f}",
        )


def write_batch(store: Any, path: Path, spark_schema: StructType) -> None:
    """A record batch as the source yields it, into a file."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(spark_schema, timezone="UTC")
    with store.consumer() as consumer:
        consumer.assign([eoslog.TopicPartition("rows", 0)])
        read = consumer.poll_arrow(max_bytes=KB * ROWS_PER_BATCH[KB])
    rows = read.num_rows
    columns = {
        "key": read.column("key"),
        "value": read.column("value"),
        "topic": pyarrow.array(["rows"] * rows),
        "partition": pyarrow.array([0] * rows, pyarrow.int32()),
        "offset": read.column("offset"),
        "timestamp": read.column("timestamp"),
        "timestampType": pyarrow.array([0] * rows, pyarrow.int32()),
    }
    arrays = [columns[field.name].cast(field.type) for field in schema]
    whole = pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
    wanted = ROWS_PER_BATCH[KB]
    table = pyarrow.Table.from_batches([whole] * -(-wanted // rows)).slice(0, wanted)
    with pyarrow.ipc.new_file(path, schema) as file:
        file.write_batch(table.combine_chunks().to_batches()[0])


def bench_spark_rdd(benchmark: Any, bench_path: Path, sizes: Sizes, spark: SparkSession) -> None:
    """An RDD whose rows are born in Python, each a value of 1 KB, by write_partitions."""
    rounds = Rounds(bench_path, sizes, sizes.spark_rows * KB)
    per_task = sizes.spark_rows // TASKS

    def values(_: Iterator[int]) -> Iterator[bytes]:
        for index in range(per_task):
            yield b"%020d" % index + bytes(KB - 20)

    rdd = spark.sparkContext.parallelize(range(TASKS), TASKS).mapPartitions(values)

    def to_store(topic: str) -> None:
        assert write_partitions(rdd, rounds.path, topic).records == per_task * TASKS

    def to_process_store(topic: str) -> None:
        with eoslog.open(rounds.process_path, durability="process") as store:
            assert write_partitions(rdd, store, topic).records == per_task * TASKS

    def run() -> None:
        rounds.run(eoslog=to_store, process=to_process_store, counting=lambda _: rdd.count())

    benchmark.pedantic(run, rounds=1)
    for own, name in (("eoslog", "spark_rdd_write"), ("process", "spark_rdd_write_process")):
        rates = [per_task * TASKS / taken / CORES for taken in rounds.seconds[own]]
        record(
            benchmark,
            name,
            statistics.median(rates),
            spread=rates,
            beside=f"rdd.count(): {per_task * TASKS / rounds.median('counting') / CORES:,.0f}",
        )
