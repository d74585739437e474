"""Which micro-batch a task is of, as Spark's JVM side tells tasks, and nobody else.

The query id is the same as long as the checkpoint lives, the batch id counts from 0 in it and is
the same in a replay, and the run id is that of one start of the query.
"""

import re
from dataclasses import dataclass

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# A query's jobs are a group, which is named by the run id.
RUN_ID = "spark.jobGroup.id"

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """One micro-batch of one start of a query.

    `run_id` is None where the user's own code, in `foreachBatch`, named its job group otherwise.
    """

    query_id: str
    batch_id: int
    run_id: str | None


def stream_batch_of_task() -> StreamBatch | None:
    """The micro-batch that the running task is of, None if it is of none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query_id or not batch_id or not batch_id.isdecimal():
        return None
    run_id = context.getLocalProperty(RUN_ID)
    known = run_id is not None and _UUID.fullmatch(run_id) is not None
    return StreamBatch(query_id, int(batch_id), run_id if known else None)
