"""Sink of a query's rows, as its options name it: known before any task runs, and sent to all
tasks.

The store is not opened for it: the topics are read from their file. Only a topic that is to be made
needs the store.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eoslog.errors import (
    EoslogError,
    NotAStoreError,
    StagedReplayError,
    StagedSourceError,
    UnknownTopicOrPartitionError,
)
from eoslog.spark.columns import check_column_types
from eoslog.spark.open_stores import lent_store
from eoslog.spark.sink.batch_plan import place_of, plan_of_batch
from eoslog.spark.source_options import find, flag, store_path, text, whole
from eoslog.spark.staging import check_store_visible, mark_of_store, staged, task_attempt

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eoslog.staging.application import ApplicationState
    from eoslog.staging.message import StagedMessage

# What both sinks take, beside what names the store.
SINK_OPTIONS = frozenset(
    (
        "topic",
        "partitions",
        "includeHeaders",
        "txnAppId",
        "allowBatchIdReset",
        "checkReplays",
        "durability",
    )
)
_RESET_HINT = (
    "If the query's checkpoint was deleted or moved on purpose, "
    '.option("allowBatchIdReset", "true") lets the new one follow on the old; '
    "what it reads again is then written again"
)
_REPLAY_HINT = (
    "If it is the same batch all the same (its rows may differ if the query, or a table that it "
    'joins, was changed), start the query once with .option("checkReplays", "false"), which adds '
    "nothing"
)
_DURABILITIES = ("commit", "always", "process")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sink:
    """Settings of the sink that every task gets.

    `app_id` is the user's, None if there is none. `durability` None is the store's own: "commit",
    unless other processes have it open with another one. `place` is the checkpoint's location.
    """

    store: Path
    store_mark: str
    topic: str | None
    partitions: Mapping[str, int]
    headers: bool
    app_id: str | None
    reset_allowed: bool
    replays_checked: bool
    durability: str | None
    place: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], schema: "StructType") -> "Sink":
        """Build the sink from the options, for rows of this schema; the topic is made if they say
        so.

        Raises ValueError, TypeError, NotAStoreError, UnknownTopicOrPartitionError.
        """
        store = store_path(options)
        topic = text(options, "topic")
        _check_schema(schema, topic)
        durability = text(options, "durability")
        if durability is not None and durability not in _DURABILITIES:
            raise ValueError(f"option durability must be one of {', '.join(_DURABILITIES)}")
        try:
            mark = mark_of_store(store)
        except OSError as error:
            raise NotAStoreError(
                f"no store at {store} on the driver's host ({error.strerror}): "
                "eoslog.open(path, create=True) makes one"
            ) from error
        return cls(
            store=store,
            store_mark=mark,
            topic=topic,
            partitions=_partition_counts(store, topic, whole(options, "partitions", 0, 1)),
            headers=flag(options, "includeHeaders", True),
            app_id=text(options, "txnAppId"),
            reset_allowed=flag(options, "allowBatchIdReset", False),
            replays_checked=flag(options, "checkReplays", True),
            durability=durability,
            place=place_of(find(options, "checkpointLocation")),
        )

    def stage(
        self, batches: "Iterator[pa.RecordBatch]", app_id: str, run_id: str
    ) -> "StagedMessage":
        """Write all batches into staged files, in a task; a message without files for no rows.

        Raises as `staging.stage`.
        """
        from eoslog.spark.arrow_rows import append_batches
        from eoslog.staging.message import StagedMessage

        check_store_visible(self.store, self.store_mark)
        attempt = task_attempt()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return StagedMessage(app_id, run_id, attempt)
        return staged(
            self._used(first, batches),
            append_batches,
            store=self.store,
            topic=self.topic,
            partitions=self.partitions,
            app_id=app_id,
            run_id=run_id,
            attempt=attempt,
            durability=self.durability or "commit",
        )

    def plan_of(self, batch_id: int, checkpoint: str | None = None) -> str | None:
        """Return what the checkpoint says of a micro-batch, if it is compared; on the driver's
        host.

        `checkpoint` is its location as Spark says it, for a sink whose options do not.
        """
        place = self.place or place_of(checkpoint)
        return plan_of_batch(place, batch_id) if self.replays_checked else None

    def give_up(self, app_id: str, run_id: str) -> None:
        """Remove what a run staged, unless it is decided; on the driver's host.

        A failure is logged only: Spark has an error of its own to tell, and sweeps come by again.
        """
        try:
            with lent_store(self.store, self.durability) as log:
                log.sweep_run(app_id, run_id)
        except EoslogError as error:
            _log.warning("the files of %s, run %s, are left to be swept: %s", app_id, run_id, error)

    def _used(
        self, first: "pa.RecordBatch", rest: "Iterator[pa.RecordBatch]"
    ) -> "Iterator[pa.RecordBatch]":
        """The batches with the columns that are written."""
        unused = [
            index
            for index, name in enumerate(first.schema.names)
            if name == "headers" and not self.headers
        ]
        yield _without(first, unused)
        for batch in rest:
            yield _without(batch, unused)


def is_reached(known: "ApplicationState", version: int) -> bool:
    """Return True if a version adds nothing: it is in the log, or a later one is, which is logged:
    the version may never have been there.
    """
    if known.version > version:
        _log.warning(
            "application %r: version %d adds nothing: version %d is in the log, and versions rise",
            *(known.app_id, version, known.version),
        )
    return known.version >= version


def explained(error: StagedSourceError, *, reset_allowed: bool) -> StagedSourceError:
    """The error with what can be done about it, in the sinks' words."""
    hints = []
    if isinstance(error, StagedReplayError):
        hints.append(_REPLAY_HINT)
    if not reset_allowed:
        hints.append(_RESET_HINT)
    return type(error)(". ".join([str(error), *hints]))


def _without(batch: "pa.RecordBatch", unused: list[int]) -> "pa.RecordBatch":
    for index in unused:
        batch = batch.remove_column(index)
    return batch


def _check_schema(schema: "StructType", topic: str | None) -> None:
    names = [field.name for field in schema.fields]
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(types) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"column {', '.join(twice)} is there twice")
    if types.get("timestamp") == "timestamp_ntz":
        raise TypeError(
            "column timestamp has no time zone: CAST(timestamp AS TIMESTAMP) takes the session's"
        )
    check_column_types(types, topic)


def _partition_counts(store: Path, topic: str | None, wanted: int) -> dict[str, int]:
    """The partitions of each topic that rows may go to; `wanted` is 0 if no option says it."""
    from eoslog.staging.writer import partition_counts

    if topic is None:
        if wanted:
            raise ValueError("option partitions is for one topic: give the option topic as well")
        return partition_counts(store)
    count = partition_counts(store).get(topic, 0)
    if not count:
        count = _made_topic(store, topic, wanted)
    if wanted and count != wanted:
        raise ValueError(f"option partitions: topic {topic!r} has {count} partitions, not {wanted}")
    return {topic: count}


def _made_topic(store: Path, topic: str, wanted: int) -> int:
    with lent_store(store) as log:
        if wanted:
            log.create_topic(topic, partitions=wanted, exist_ok=True)
        found = log.topics().get(topic)
    if found is None:
        raise UnknownTopicOrPartitionError(
            f'no topic {topic!r} in {store}: create it, or say .option("partitions", ...)'
        )
    return found.partitions
