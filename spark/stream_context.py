"""Stream context: the micro-batch of a task, or of a thread of the driver, from Spark's JVM side.

The query id is the same as long as the checkpoint lives, the batch id counts from 0 in it and is
the same in a replay, and the run id is that of one start of the query.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark import SparkContext

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# A query's jobs are a group, which is named by the run id.
RUN_ID = "spark.jobGroup.id"
_CONNECT_WORKER = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """One micro-batch of one start of a query.

    `run_id` is None where the user's own code, in `foreachBatch`, named its job group otherwise.
    """

    query_id: str
    batch_id: int
    run_id: str | None

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
    return _stream_batch(spark_context.getLocalProperty)


def in_foreach_batch_of_connect() -> bool:
    """Return True in the process in which Spark Connect runs the functions of `foreachBatch`.

    Spark says there neither to it nor to its tasks which query and batch they are of.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name == _CONNECT_WORKER


def _stream_batch(property_of: Callable[[str], str | None]) -> StreamBatch | None:
    query_id, batch_id = property_of(QUERY_ID), property_of(BATCH_ID)
    if not query_id or not batch_id or not batch_id.isdecimal():
        return None
    run_id = property_of(RUN_ID)
    known = run_id is not None and _UUID.fullmatch(run_id) is not None
    return StreamBatch(query_id, int(batch_id), run_id if known else None)
