"""Stream context: the micro-batch of a task, or of a thread of the driver, from Spark's JVM side.

The query id is the same as long as the checkpoint lives, the batch id counts from 0 in it and is
the same in a replay, and the run id is that of one start of the query.

Where the checkpoint is, Spark says to no task. A driver that has eoslog's format or session passes
it on from `foreachBatch`, as a local property of the jobs.
"""

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eoslog.errors import InvalidRequestError
from eoslog.spark.active_session import instantiated_session, java_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# A query's jobs are a group, which is named by the run id.
RUN_ID = "spark.jobGroup.id"
CHECKPOINT = "eoslog.checkpoint"
CONNECT_WORKER = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """One micro-batch of one start of a query.

    `run_id` is None where the user's own code, in `foreachBatch`, named its job group otherwise.
    `checkpoint` is the location as Spark says it, None if it is not known.
    """

    query_id: str
    batch_id: int
    run_id: str | None
    checkpoint: str | None = None

    @property
    def driver_id(self) -> str:
        """One start of the query, or all of them where Spark does not say which one it is."""
        return self.run_id or f"of query {self.query_id}"

    def check_version(self, version: int) -> None:
        """Raise InvalidRequestError unless a job of `foreachBatch` has the batch's number."""
        if version != self.batch_id:
            raise InvalidRequestError(
                f"version {version} in micro-batch {self.batch_id}: inside foreachBatch a job's "
                "version is the batch's number, which is the same when the batch is run again"
            )


def stream_batch_of_task() -> StreamBatch | None:
    """The micro-batch that the running task is of, None if it is of none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else _stream_batch(context.getLocalProperty)


def stream_batch_of_thread(spark_context: "SparkContext") -> StreamBatch | None:
    """The micro-batch whose `foreachBatch` this thread of the driver runs, None if it runs none.

    A thread that was begun there does not know it, unless `inheritable_thread_target` made it.
    """
    found = _stream_batch(spark_context.getLocalProperty)
    return None if found is None else replace(found, checkpoint=_checkpoint_of(found.query_id))


def pass_checkpoints_on() -> None:
    """Let the tasks of what a function of `foreachBatch` writes know where the checkpoint is."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    begin = DataStreamWriter.foreachBatch
    if getattr(begin, "__module__", None) == __name__:
        return

    @functools.wraps(begin, assigned=("__doc__", "__name__", "__qualname__"))
    def foreach_batch(self: Any, func: Any) -> Any:
        def run(batch: "DataFrame", batch_id: int) -> None:
            context = batch.sparkSession.sparkContext
            query_id = context.getLocalProperty(QUERY_ID)
            checkpoint = None if query_id is None else _checkpoint_of(query_id)
            context.setLocalProperty(CHECKPOINT, checkpoint or "")
            func(batch, batch_id)

        return begin(self, run)

    DataStreamWriter.foreachBatch = foreach_batch  # type: ignore[method-assign]


def _checkpoint_of(query_id: str) -> str | None:
    """Return the location of a running query's checkpoint, which Spark says to its Java alone."""
    from py4j.protocol import Py4JError

    spark = instantiated_session()
    if spark is None:
        return None
    java, classes = java_of(spark)
    try:
        queries = java.sharedState().activeStreamingQueries()
        query = queries.get(classes.java.util.UUID.fromString(query_id))
        return None if query is None else str(query.resolvedCheckpointRoot())
    except Py4JError:
        return None  # Another version of Spark: the rows of a batch are compared.


def in_foreach_batch_of_connect() -> bool:
    """Return True in the process in which Spark Connect runs the functions of `foreachBatch`.

    Spark says there neither to it nor to its tasks which query and batch they are of.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name == CONNECT_WORKER


def _stream_batch(property_of: Callable[[str], str | None]) -> StreamBatch | None:
    query_id, batch_id = property_of(QUERY_ID), property_of(BATCH_ID)
    if not query_id or not batch_id or not batch_id.isdecimal():
        return None
    run_id = property_of(RUN_ID)
    known = run_id is not None and _UUID.fullmatch(run_id) is not None
    checkpoint = property_of(CHECKPOINT) or None
    return StreamBatch(query_id, int(batch_id), run_id if known else None, checkpoint)
