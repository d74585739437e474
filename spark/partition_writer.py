"""A whole job: stage a DataFrame or RDD in Spark's tasks, then decide once on the driver.

The driver holds the store open from before the job until after its decision. Tasks only stage, so a
task that is retried, a second copy of it, and one that goes on writing after the job has failed
change nothing that a reader could see.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eoslog.common.arguments import check_synchronous
from eoslog.errors import (
    EoslogError,
    InvalidRequestError,
    MissingDependencyError,
    StagedReplayError,
    StagedSourceError,
    UnknownTopicOrPartitionError,
)
from eoslog.spark.active_session import is_connect
from eoslog.spark.columns import KAFKA_COLUMNS, check_column_types, check_columns
from eoslog.spark.decision import opened
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.sink.batch_plan import place_of, plan_of_batch
from eoslog.spark.sink.sink import is_reached
from eoslog.spark.staging import MESSAGE_SCHEMA, as_messages, attempt_number, mark_of_store, stage
from eoslog.spark.stream_context import (
    StreamBatch,
    in_foreach_batch_of_connect,
    stream_batch_of_thread,
)
from eoslog.staging.names import new_nameless_job

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

    from eoslog import Store, TopicPartition
    from eoslog.staging.message import StagedMessage
    from eoslog.staging.source import VersionSource

RECIPE = (
    "a write inside foreachBatch needs a name and the batch's number, or a replayed batch lands "
    'twice: write_partitions(batch, ..., app_id="a name of this write\'s own", version=batch_id)'
)

EachTask = Callable[[Iterator[Any]], Iterable[Any]]


class SparkJobFailedError(EoslogError):
    """The Spark job failed before the decision: nothing of it is in the log. Run it again."""

    retriable = True


@dataclass(frozen=True)
class WriteResult:
    """Result of one job.

    Attributes
    ----------
    committed : bool
        True if this call added the records; False if the version was there already.
    records : int
        Number of records added; 0 if not committed.
    offsets : mapping of TopicPartition to (int, int)
        First and last offset, both inclusive, of each partition that got records; empty if not
        committed.
    task_retries : int
        Number of tasks whose first attempt failed.
    """

    app_id: str
    version: int
    committed: bool
    records: int = 0
    offsets: "Mapping[TopicPartition, tuple[int, int]]" = field(default_factory=dict)
    task_retries: int = 0


def write_partitions(
    df_or_rdd: "DataFrame | RDD[Any]",
    store: "Store | str | os.PathLike[str]",
    topic: str | None = None,
    *,
    app_id: str | None = None,
    version: int | None = None,
    partitions: int | None = None,
    each_task: EachTask | None = None,
    check_replays: bool = True,
) -> WriteResult:
    """Land all rows of a DataFrame or RDD exactly once; readers see none before all are in.

    `app_id` and `version` name the job for ever: a job whose version, or a later one, is committed
    does nothing, also in a retry, by hand or from a new driver. Without them retries of tasks are
    safe, and running the job again adds the rows again. The rows of a version are those of the run
    that was committed: give a version to one set of rows only. On return the records are as durable
    as the store's durability says.

    Inside `foreachBatch` both are required, the version is the batch's number, and the query
    counts: a batch that its checkpoint counts again raises StagedSourceError; another `app_id`
    begins from scratch. With Spark Connect the number alone counts.

    Parameters
    ----------
    df_or_rdd : DataFrame or RDD
        A DataFrame has Kafka's columns: `value` (string or binary) and optional `key`, `partition`,
        `headers`, `timestamp`, `topic`. An RDD holds bytes, pairs (key, value), or dicts and Rows
        with these columns. A DataFrame is much faster than its own `df.rdd`.
    store : Store, str or PathLike
        An open store of this process, or its path.
    topic : str, optional
        Overrides a topic column.
    app_id : str, optional
        Delta's txnAppId; required with `version`.
    version : int, optional
        Delta's txnVersion; required with `app_id`.
    partitions : int, optional
        Partition count with which a missing topic is created.
    each_task : callable, optional
        Called in each task with its iterator (of rows or of record batches); returns the one to
        stage, or is a generator function. It must not be async, and Spark must be able to pickle or
        import it.
    check_replays : bool
        Inside `foreachBatch`, refuse a batch with the newest number and another plan in the query's
        checkpoint (or another number of rows, if the plan is not visible). False: the number alone
        makes it a repetition.

    Returns
    -------
    WriteResult
        Whether the call added the records, how many, and where.

    Raises
    ------
    SparkJobFailedError
        Spark gave up; nothing is in the log.
    StagedRunFencedError
        A newer run of the application has taken over.
    StagedSourceError, StagedReplayError, InvalidRequestError
        A batch inside `foreachBatch` is refused.
    UnknownTopicOrPartitionError, ValueError, TypeError
        An argument is wrong.
    """
    return write_run(
        df_or_rdd,
        store,
        topic,
        run_id=uuid.uuid4().hex,
        app_id=app_id,
        version=version,
        partitions=partitions,
        each_task=each_task,
        check_replays=check_replays,
    )


def write_run(
    df_or_rdd: "DataFrame | RDD[Any]",
    store: "Store | str | os.PathLike[str]",
    topic: str | None,
    *,
    run_id: str,
    app_id: str | None,
    version: int | None,
    partitions: int | None,
    each_task: EachTask | None,
    check_replays: bool = True,
) -> WriteResult:
    """Do what `write_partitions` does, in a run of this name, which no other has."""
    if each_task is not None:
        check_synchronous(each_task, "each_task", may_be_generator=True)
    job_id, job_version = _job_name(app_id, version)
    stream = _stream_batch(df_or_rdd)
    if app_id is None and (stream is not None or in_foreach_batch_of_connect()):
        raise InvalidRequestError(RECIPE)
    if stream is not None:
        stream.check_version(job_version)
    with opened(store) as log:
        done = log.application(job_id)
        # The commit says if a stream's batch is the one that is in.
        if stream is None and done is not None and is_reached(done, job_version):
            return WriteResult(job_id, job_version, committed=False)
        counts = _partition_counts(log, topic, partitions)
        task = _StageTask(
            store=str(log.path),
            store_mark=mark_of_store(log.path),
            topic=topic,
            partitions=counts,
            app_id=job_id,
            run_id=run_id,
            durability=log.durability,
            each_task=each_task,
        )
        messages = as_messages(_run(df_or_rdd, task, log))
        source = _source(stream, messages, check_replays)
        try:
            decided = log.commit_staged(job_id, job_version, messages, run_id=run_id, source=source)
        except StagedSourceError as error:
            log.sweep_run(job_id, run_id)
            if not isinstance(error, StagedReplayError):
                raise
            hint = "if it is the same batch all the same, check_replays=False adds nothing"
            raise StagedReplayError(f"{error}; {hint}") from error
    return WriteResult(
        job_id,
        job_version,
        committed=decided.committed,
        records=decided.records,
        offsets=decided.offsets,
        task_retries=sum(attempt_number(message.attempt) > 0 for message in messages),
    )


def _stream_batch(df_or_rdd: "DataFrame | RDD[Any]") -> StreamBatch | None:
    """The micro-batch whose `foreachBatch` this is called in; Spark Connect does not say it."""
    from pyspark import RDD
    from pyspark.sql import DataFrame

    if isinstance(df_or_rdd, RDD):
        return stream_batch_of_thread(df_or_rdd.context)
    if isinstance(df_or_rdd, DataFrame):
        spark = df_or_rdd.sparkSession
        return None if is_connect(spark) else stream_batch_of_thread(spark.sparkContext)
    raise TypeError(f"expected a DataFrame or an RDD, got {type(df_or_rdd).__name__}")


def _source(
    stream: StreamBatch | None, messages: "list[StagedMessage]", check_replays: bool
) -> "VersionSource | None":
    """The stream that counts the versions, for a job of `foreachBatch`."""
    from eoslog.staging.source import VersionSource

    if stream is None:
        return None
    if not check_replays:
        return VersionSource(stream.query_id, stream.driver_id)
    return VersionSource(
        stream.query_id,
        stream.driver_id,
        input_id=plan_of_batch(place_of(stream.checkpoint), stream.batch_id),
        rows=sum(message.records for message in messages),
    )


def _job_name(app_id: str | None, version: int | None) -> tuple[str, int]:
    if (app_id is None) != (version is None):
        raise ValueError("app_id and version belong together: give both or neither")
    if app_id is None or version is None:
        return new_nameless_job(), 0
    if isinstance(version, bool) or not isinstance(version, int):
        raise TypeError(f"version must be an int, got {type(version).__name__}")
    if version < 0:
        raise ValueError(f"version {version} is negative")
    return app_id, version


def _partition_counts(log: "Store", topic: str | None, partitions: int | None) -> dict[str, int]:
    """The number of partitions of each topic the job may write to."""
    counts = {name: found.partitions for name, found in log.topics().items()}
    if topic is None:
        if partitions is not None:
            raise ValueError("partitions is for one topic: name it")
        return counts
    if topic not in counts:
        if partitions is None:
            raise UnknownTopicOrPartitionError(
                f"no topic {topic!r} in {log.path}: create it, or say partitions=..."
            )
        log.create_topic(topic, partitions=partitions)
        counts[topic] = partitions
    if partitions is not None and counts[topic] != partitions:
        raise ValueError(f"topic {topic!r} has {counts[topic]} partitions, not {partitions}")
    return {topic: counts[topic]}


@dataclass(frozen=True)
class _StageTask:
    """Arguments of every task; they are pickled and sent to the workers."""

    store: str
    store_mark: str
    topic: str | None
    partitions: dict[str, int]
    app_id: str
    run_id: str
    durability: str
    each_task: EachTask | None

    def __call__(self, iterator: Iterable[Any]) -> Iterator[Any]:
        rows = iterator if self.each_task is None else self.each_task(iter(iterator))
        return stage(
            rows,
            store=self.store,
            topic=self.topic,
            partitions=self.partitions,
            app_id=self.app_id,
            run_id=self.run_id,
            durability=self.durability,
            store_mark=self.store_mark,
        )


def _run(df_or_rdd: "DataFrame | RDD[Any]", task: _StageTask, log: "Store") -> list[Any]:
    """Run the job and return its messages; a job that fails leaves nothing but its error."""
    from py4j.protocol import Py4JError
    from pyspark import RDD
    from pyspark.errors import PySparkException

    job: DataFrame | RDD[Any]
    if isinstance(df_or_rdd, RDD):
        job = df_or_rdd.mapPartitions(task)
    else:
        job = _arrow_job(df_or_rdd, task)
    try:
        return list(job.collect())
    except (PySparkException, Py4JError, ConnectionError) as error:
        log.sweep_run(task.app_id, task.run_id)
        raise SparkJobFailedError(
            f"the Spark job failed and nothing of it is in the log: {reason_of(error)}"
        ) from error
    except BaseException:
        log.sweep_run(task.app_id, task.run_id)
        raise


def _arrow_job(df: "DataFrame", task: _StageTask) -> "DataFrame":
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Spark's mapInArrow needs pyarrow and pandas: run `pip install 'eoslog[spark]'`"
        ) from error

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return task(batches)

    return kafka_columns(df, task.topic).mapInArrow(run, MESSAGE_SCHEMA)


def kafka_columns(df: "DataFrame", topic: str | None) -> "DataFrame":
    """Select Kafka's columns with the types that a task expects; raise ValueError for others."""
    check_columns(df.columns)
    types = dict(df.dtypes)
    # One without a time zone is cast below, in the session's.
    zoned = {name: kind.replace("timestamp_ntz", "timestamp") for name, kind in types.items()}
    check_column_types(zoned, topic)
    columns = []
    for name in KAFKA_COLUMNS:
        if name not in types or (name == "topic" and topic is not None):
            continue
        column = df[name]
        if name in ("key", "value"):
            column = column.cast("binary").alias(name)
        elif name == "timestamp" and types[name].startswith("timestamp"):
            column = column.cast("timestamp").alias(name)
        columns.append(column)
    return df.select(*columns)
