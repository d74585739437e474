"""The batch sink: `df.write.format("eoslog")...mode("append").save()`.

Invariants: tasks stage and never open the store; the job's rows are in the log after `commit`, all
of them, or never; a version that was committed is never committed again.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from eoslog.errors import InvalidRequestError, StagedSourceError
from eoslog.spark.open_stores import lent_store
from eoslog.spark.sink.sink import SINK_OPTIONS, Sink, explained, is_reached
from eoslog.spark.source_options import check_options, find, whole
from eoslog.spark.staging import as_messages
from eoslog.spark.stream_context import StreamBatch, stream_batch_of_task
from eoslog.staging.names import new_nameless_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eoslog.staging.message import StagedMessage
    from eoslog.staging.source import VersionSource

BATCH_OPTIONS = SINK_OPTIONS | {"txnVersion"}
RECIPE = """\
a write inside foreachBatch needs a name and the batch's number, or a replayed batch lands twice:
    df.write.format("eoslog").mode("append").option("txnAppId", "a name of this write's own")
      .option("txnVersion", batch_id)..."""


@dataclass
class BatchMessage(WriterCommitMessage):
    """Message of a task to `commit`; `staged` is None if the version was in before the job began.

    `rows` is how many the task was given.
    """

    staged: "StagedMessage | None"
    stream: StreamBatch | None
    rows: int


class BatchWriter(DataSourceArrowWriter):
    """One job. It is made on the driver's host, and sent from there to the tasks and to `commit`.

    With the options `txnAppId` and `txnVersion` the job has a name for ever; without them it is
    safe against all that happens to its tasks, and running it again adds its rows again.

    Raises ValueError, TypeError, NotAStoreError, UnknownTopicOrPartitionError: no task ran.
    """

    def __init__(self, options: Mapping[str, str], schema: "StructType", overwrite: bool) -> None:
        if overwrite:
            raise ValueError('an eoslog topic is only appended to: say .mode("append")')
        check_options(options, BATCH_OPTIONS, "batch write")
        self._sink = Sink.of(options, schema)
        version = find(options, "txnVersion")
        if (self._sink.app_id is None) != (version is None):
            raise ValueError("options txnAppId and txnVersion belong together: give both or none")
        if self._sink.reset_allowed and version is None:
            raise ValueError("option allowBatchIdReset is for jobs with txnAppId and txnVersion")
        self._job_id = uuid.uuid4().hex
        self._app_id = self._sink.app_id or new_nameless_job()
        self._version = whole(options, "txnVersion", 0, 0)
        self._named = version is not None
        self._done = self._named and not self._sink.reset_allowed and self._is_in()

    def _is_in(self) -> bool:
        """True if the version is in; if a source began to count again, only `commit` can tell."""
        with lent_store(self._sink.store, self._sink.durability) as log:
            known = log.application(self._app_id)
        return known is not None and known.base == 0 and is_reached(known, self._version)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> BatchMessage:
        """Stage all rows, in a task. A version that is in stages nothing."""
        stream = stream_batch_of_task()
        if stream is not None:
            if not self._named:
                raise InvalidRequestError(RECIPE)
            stream.check_version(self._version)
        if self._done:
            # Spark's worker would not survive rows that are not taken.
            return BatchMessage(None, stream, sum(batch.num_rows for batch in iterator))
        message = self._sink.stage(iterator, self._app_id, self._run_of(stream))
        return BatchMessage(message, stream, message.records)

    def _run_of(self, stream: StreamBatch | None) -> str:
        """The run of this job: its name has the version, so that it is known when it is over."""
        from eoslog.staging.source import version_run_id

        if self._sink.reset_allowed:
            return self._job_id  # The count may go back: what looks old must not be swept.
        source_id = None if stream is None else stream.query_id
        return version_run_id(self._version, source_id, self._job_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Decide, on the driver's host. On return the job is in, as durable as the store says."""
        found = [message for message in messages if isinstance(message, BatchMessage)]
        staged = as_messages(one.staged for one in found if one.staged is not None)
        source = self._source(found)
        run_id = staged[0].run_id if staged else self._run_of(found[0].stream if found else None)
        with lent_store(self._sink.store, self._sink.durability) as log:
            try:
                log.commit_staged(self._app_id, self._version, staged, run_id=run_id, source=source)
            except StagedSourceError as error:
                raise explained(error, reset_allowed=self._sink.reset_allowed) from error

    def _source(self, messages: Sequence[BatchMessage]) -> "VersionSource | None":
        """The stream that counts the versions, for a job of `foreachBatch`."""
        from eoslog.staging.source import VersionSource

        streams = {message.stream for message in messages}
        stream = next(iter(streams), None)
        if len(streams) > 1:
            raise InvalidRequestError("the tasks of one job are of several micro-batches")
        if stream is None:
            return None
        return VersionSource(
            stream.query_id,
            stream.driver_id,
            new_allowed=self._sink.reset_allowed,
            input_id=self._sink.plan_of(stream.batch_id, stream.checkpoint),
            rows=sum(one.rows for one in messages) if self._sink.replays_checked else None,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the job's files up unless it is decided, on the driver's host after a failure."""
        streams = [one.stream for one in messages if isinstance(one, BatchMessage)]
        self._sink.give_up(self._app_id, self._run_of(streams[0] if streams else None))
