"""Move a topic between a store and files of Spark's formats, both ways, each record once.

A copy is a Spark stream that takes what there is and ends. Its checkpoint says how far it came, so
a copy that died goes on, and one that is run again takes only what is new. Invariants:

- into files: Spark's file sink lists the files of each batch in one step; what a dead run left
  besides is removed before the copy returns, so that readers that only list files agree;
- into a topic: each batch is one job (`write_partitions`), whose version is the batch's number;
- records of a partition keep their order: a batch of files is sorted by partition and offset.

A checkpoint belongs to one topic, by its id, and one directory. Where it is missing although
something was copied before, it is unknown how far that came: the copy is refused.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eoslog.errors import EoslogError, UnknownTopicOrPartitionError
from eoslog.spark.active_session import is_connect, keep_active
from eoslog.spark.decision import opened
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.hadoop_files import HadoopFiles, spark_path
from eoslog.spark.partition_writer import write_partitions
from eoslog.spark.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from eoslog import Store

# Where checkpoints are, below the files: Spark's readers pass over names that begin with "_".
CHECKPOINTS = "_eoslog_copy"
# What Spark's file sink writes beside its files: the list of those that count.
_SINK_LIST = "_spark_metadata"
# These have no type for bytes: what comes back would not be what went in.
_FORMATS_OF_TEXT = ("csv", "json", "text", "xml")
# The names that Spark's file sink gives.
_PART = re.compile(r"part-\d{5,}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-c\d+\.")
_PROGRESS_S = 1


class CopyError(EoslogError):
    """The copy did not start, or Spark gave it up. What it had copied stays, each record once.

    Put right what the message names and run the same copy again: it goes on from there.
    """

    retriable = True


@dataclass(frozen=True)
class Topic:
    """A topic of a store, as one end of a copy.

    Parameters
    ----------
    store : Store, str or path-like
        A path, or a store that this process has open.
    name : str
        The topic.
    partitions : int, optional
        Of a target: creates a missing topic.
    options : mapping of str to str
        Of a source: those of a streaming read of `format("eoslog")`, as
        `{"maxOffsetsPerTrigger": "1000000"}`.
    """

    store: "Store | str | os.PathLike[str]"
    name: str
    partitions: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Files:
    """A directory of files that Spark reads and writes, as one end of a copy.

    Parameters
    ----------
    path : str or path-like
        May be a URL of any file system that the session knows.
    format : str
        `parquet`, `orc`, or another one that streams and has bytes, as Delta's if the session has
        it.
    options : mapping of str to str
        For Spark's reader or writer: `{"compression": "zstd"}`, `{"maxFilesPerTrigger": "100"}`.
    """

    path: str | os.PathLike[str]
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CopyResult:
    """Result of a copy: the `records` and `batches` that this run added, and its checkpoint."""

    records: int
    batches: int
    checkpoint: str


def copy(
    source: Topic | Files,
    target: Topic | Files,
    *,
    spark: "SparkSession | None" = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> CopyResult:
    """Copy every record of a topic into files, or of files into a topic, exactly once.

    A copy that died goes on where it was; one that ended takes new records or files when it is run
    again. Aborted and open transactions are not copied. A file that changes after it was copied is
    not read again.

    Files have the columns of Spark's Kafka source, with headers. From files the columns of Kafka's
    sink are taken: `value`, and optional `key`, `partition`, `headers`, `timestamp`. A partition
    that a row names must exist in the topic. Rows with `partition` and `offset` keep their order.

    Parameters
    ----------
    source, target : Topic or Files
        One is a `Topic`, the other one `Files`.
    spark : SparkSession, optional
        By default `session()`; a session of Spark Connect cannot copy.
    checkpoint : str or PathLike, optional
        Directory of any file system for the progress of copies; by default below the files.
        Required where these are read-only.

    Returns
    -------
    CopyResult
        The records and batches that this run added.

    Raises
    ------
    CopyError
        The copy did not start, or Spark gave it up.
    UnknownTopicOrPartitionError, ValueError, TypeError
        An argument is wrong.
    """
    if isinstance(source, Topic) and isinstance(target, Files):
        _check_format(target.format)
        if source.partitions is not None:
            raise ValueError("partitions is for a topic that is the target")
        return _into_files(source, target, _session(spark), checkpoint)
    if isinstance(source, Files) and isinstance(target, Topic):
        _check_format(source.format)
        if target.options:
            raise ValueError("options of a topic are for reading it, and it is the target")
        return _into_topic(source, target, _session(spark), checkpoint)
    raise TypeError(
        f"a copy is from Topic to Files or from Files to Topic, not from "
        f"{type(source).__name__} to {type(target).__name__}"
    )


def _session(spark: "SparkSession | None") -> "SparkSession":
    found = spark or session("eoslog copy")
    if is_connect(found):
        raise CopyError(
            "copy does not work over Spark Connect: call it in a process without SPARK_REMOTE, "
            "with a session of eoslog.spark.session(), or write the stream yourself, "
            'spark.readStream.format("eoslog") with writeStream.format("parquet") or the reverse'
        )
    return found


def _check_format(name: str) -> None:
    if name.lower() in _FORMATS_OF_TEXT:
        raise ValueError(f"format {name} cannot hold bytes: parquet, orc and delta can")


# From a topic into files.


def _into_files(
    topic: Topic,
    files: Files,
    spark: "SparkSession",
    checkpoint: str | os.PathLike[str] | None,
) -> CopyResult:
    with opened(topic.store) as log:
        store_path, topic_id = str(log.path), _topic_id(log, topic.name)
    directory = HadoopFiles(spark, spark_path(os.fspath(files.path)))
    progress = _Progress(spark, checkpoint, directory, topic.name, f"{topic_id} to {directory.url}")
    if progress.is_new and any(not name.startswith(("_", ".")) for name in directory.names()):
        raise CopyError(
            f"{directory.url} holds files, and {progress.path} has no progress of a copy of topic "
            f"{topic.name!r} to it: name an empty directory, or the checkpoint of that copy"
        )
    keep_active(spark)
    records = (
        spark.readStream.format("eoslog")
        .option("store", store_path)
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .options(**topic.options)
        .load()
    )
    query = (
        records.writeStream.format(files.format)
        .options(**files.options)
        .option("checkpointLocation", progress.path)
        .trigger(availableNow=True)
        .start(directory.url)
    )
    batch_records = _run(query)
    _remove_leftovers(files, spark, directory)
    return CopyResult(sum(batch_records.values()), len(batch_records), progress.path)


def _remove_leftovers(files: Files, spark: "SparkSession", directory: HadoopFiles) -> None:
    """Remove files that no batch lists, which attempts left that did not make it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not directory.exists(_SINK_LIST):
        return  # Another sink, with a list of its own.
    try:
        listed = spark.read.format(files.format).load(directory.url).inputFiles()
    except (PySparkException, Py4JError):
        return  # No batch has written a file yet.
    found = {name for name in directory.names() if _PART.match(name)}
    wanted = {url.rpartition("/")[2] for url in listed}
    if wanted and wanted <= found:
        for name in found - wanted:
            directory.remove(name)


# From files into a topic.


def _into_topic(
    files: Files,
    topic: Topic,
    spark: "SparkSession",
    checkpoint: str | os.PathLike[str] | None,
) -> CopyResult:
    directory = HadoopFiles(spark, spark_path(os.fspath(files.path)))
    if not directory.exists():
        raise CopyError(f"no files: {directory.url} does not exist")
    with opened(topic.store) as log:
        if topic.name not in log.topics() and topic.partitions is not None:
            log.create_topic(topic.name, partitions=topic.partitions)
        topic_id = _topic_id(log, topic.name)
        what = f"{directory.url} to {topic_id}"
        app_id = f"copy-{topic.name}-{_digest(what)}"
        progress = _Progress(spark, checkpoint, directory, topic.name, what)
        if progress.is_new and log.application(app_id) is not None:
            raise CopyError(
                f"files of {directory.url} were copied to topic {topic.name!r} before, and "
                f"{progress.path} has no progress of that: bring its checkpoint back"
            )
        batch_records: dict[int, int] = {}

        def land(rows: "DataFrame", batch: int) -> None:
            if {"partition", "offset"} <= set(rows.columns):
                rows = rows.orderBy("partition", "offset")
            result = write_partitions(
                _with_record_times(rows),
                log,
                topic.name,
                app_id=app_id,
                version=batch,
                partitions=topic.partitions,
            )
            batch_records[batch] = result.records

        query = (
            _stream_of(files, directory.url, spark)
            .writeStream.foreachBatch(land)
            .option("checkpointLocation", progress.path)
            .trigger(availableNow=True)
            .start()
        )
        _run(query)
    return CopyResult(sum(batch_records.values()), len(batch_records), progress.path)


def _with_record_times(rows: "DataFrame") -> "DataFrame":
    """The rows with the milliseconds of records: a record without a time was read as -1 ms."""
    from pyspark.sql import functions as f

    if dict(rows.dtypes).get("timestamp") != "timestamp":
        return rows
    micros = f.unix_micros("timestamp")
    times_ms = (
        f.when(micros == -1000, -1)
        .when(micros < 0, f.raise_error(f.concat(micros, f.lit(" us is before 1970"))))
        .otherwise(f.unix_millis("timestamp"))
    )
    return rows.withColumn("timestamp", times_ms)


def _stream_of(files: Files, url: str, spark: "SparkSession") -> "DataFrame":
    """New files of a directory, whatever their times say."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    reader: DataStreamReader = spark.readStream.format(files.format)
    if files.format.lower() != "delta":  # A table knows its columns.
        try:
            found = spark.read.format(files.format).options(**files.options).load(url)
        except (PySparkException, Py4JError) as error:
            raise CopyError(f"Spark cannot read {url}: {reason_of(error)}") from error
        # By default files that are a week older than the newest one are passed over.
        reader = reader.schema(found.schema).option("maxFileAge", "36500d")
    return reader.options(**files.options).load(url)


# Both ways.


def _topic_id(log: "Store", name: str) -> str:
    topics = log.topics()
    if name not in topics:
        raise UnknownTopicOrPartitionError(
            f"no topic {name!r} in {log.path}: create it, or say partitions=... of a target"
        )
    return topics[name].topic_id


def _digest(what: str) -> str:
    return hashlib.sha256(what.encode()).hexdigest()[:16]


class _Progress:
    """The checkpoint of one copy: of this topic, by its id, and this directory."""

    def __init__(
        self,
        spark: "SparkSession",
        checkpoint: str | os.PathLike[str] | None,
        directory: HadoopFiles,
        topic: str,
        what: str,
    ) -> None:
        if checkpoint is None:
            root = f"{directory.url}/{CHECKPOINTS}"
        else:
            root = HadoopFiles(spark, spark_path(os.fspath(checkpoint))).url
        self.path = f"{root}/{topic}-{_digest(what)}"
        self.is_new = not HadoopFiles(spark, self.path).names("offsets")


def _run(query: "StreamingQuery") -> dict[int, int]:
    """Wait until the copy has ended; the number of records of each batch it did."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    found: dict[int, int] = {}
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(_PROGRESS_S))
            for progress in query.recentProgress:
                rows: Any = progress["numInputRows"]
                if rows:
                    found[int(progress["batchId"])] = int(rows)
    except (PySparkException, Py4JError) as error:
        raise CopyError(f"the copy stopped and can be run again: {reason_of(error)}") from error
    except BaseException:
        query.stop()
        raise
    return found
