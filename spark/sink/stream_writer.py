"""The streaming sink: `df.writeStream.format("eoslog")...start()`.

A micro-batch is known by the query's id and its number: a replay, by whatever driver and with
whatever number of tasks, is the same batch. Rules K1-K8 of `docs/staged-commit.md`.

Invariants: tasks stage and never open the store; a batch is in the log after `commit`, whole, or
never; it enters once; only the newest driver of a query, and only its own checkpoint, is let in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from eoslog.errors import InvalidRequestError, StagedSourceError
from eoslog.spark.open_stores import lent_store
from eoslog.spark.sink.sink import SINK_OPTIONS, Sink, explained
from eoslog.spark.source_options import check_options, find
from eoslog.spark.staging import as_messages
from eoslog.spark.stream_context import StreamBatch, stream_batch_of_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eoslog.staging.message import StagedMessage

Messages = Sequence[WriterCommitMessage | None]


@dataclass
class StreamMessage(WriterCommitMessage):
    """Message of a task to `commit`, which learns nothing else of the query."""

    staged: "StagedMessage"
    stream: StreamBatch


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch. Spark makes one for the tasks and another one to commit.

    In the output mode `complete` each batch appends the whole result, as Spark's Kafka sink does.

    Raises ValueError, TypeError, NotAStoreError, UnknownTopicOrPartitionError: no task ran.
    """

    def __init__(self, options: Mapping[str, str], schema: "StructType", overwrite: bool) -> None:
        if find(options, "txnVersion") is not None:
            raise ValueError("option txnVersion is for batch writes: a stream counts its batches")
        check_options(options, SINK_OPTIONS, "streaming write")
        self.sink = Sink.of(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> StreamMessage:
        """Stage all rows of its partition of the batch, in a task."""
        from eoslog.staging.source import version_run_id

        stream = stream_batch_of_task()
        if stream is None or stream.run_id is None:
            raise InvalidRequestError(
                "Spark does not say which query, run and batch this task is of: nothing is written"
            )
        if self.sink.reset_allowed:
            # The count may go back: files of a version that looks old must not be swept.
            run_id = f"{stream.run_id}-{stream.batch_id}"
        else:
            run_id = version_run_id(stream.batch_id, stream.query_id, stream.run_id)
        return StreamMessage(self.sink.stage(iterator, self._app_id(stream), run_id), stream)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Decide, on the driver's host. On return the batch is in, as durable as the store says.

        A batch that is in already is a no-op. Raises StagedReplayError for another one of the
        newest batch's number.
        """
        from eoslog.staging.source import VersionSource

        found = [message for message in messages if isinstance(message, StreamMessage)]
        streams = {message.stream for message in found}
        if len(streams) != 1 or len(found) < len(messages):
            raise InvalidRequestError(f"batch {batchId}: its tasks are of {len(streams)} batches")
        (stream,) = streams
        if stream.batch_id != batchId or stream.run_id is None:
            raise InvalidRequestError(f"batch {batchId}: its tasks are of batch {stream.batch_id}")
        staged = as_messages(message.staged for message in found)
        rows = sum(message.records for message in staged)
        source = VersionSource(
            stream.query_id,
            stream.run_id,
            self.sink.place,
            self.sink.reset_allowed,
            self.sink.plan_of(batchId),
            rows if self.sink.replays_checked else None,
        )
        with lent_store(self.sink.store, self.sink.durability) as log:
            try:
                log.commit_staged(
                    self._app_id(stream), batchId, staged, run_id=staged[0].run_id, source=source
                )
            except StagedSourceError as error:
                raise explained(error, reset_allowed=self.sink.reset_allowed) from error

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Give the batch's files up unless it is decided, on the driver's host after a failure.

        Where no task got as far as a message nothing is known of the query; the files of the batch
        go when a later run brings it in.
        """
        for message in messages:
            if isinstance(message, StreamMessage):
                self.sink.give_up(message.staged.app_id, message.staged.run_id)
                return

    def _app_id(self, stream: StreamBatch) -> str:
        return self.sink.app_id or f"spark-{stream.query_id}"
