"""A batch read: offsets are fixed once, before any task runs, on one consistent snapshot.

Tasks read the given offsets, however often they are tried. Invariant: with
read_committed, a read up to "latest" has of every transaction and staged job all records or none.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from eoslog import Store, TopicPartition
from eoslog.spark.open_stores import lent_store
from eoslog.spark.source.data_loss import report_data_loss
from eoslog.spark.source.offset_bounds import ending_offsets, starting_offsets
from eoslog.spark.source.offset_ranges import (
    BYTES_PER_TASK,
    OffsetRange,
    SplitRule,
    bytes_in,
    ranges_between,
)
from eoslog.spark.source.pruning import Pruning
from eoslog.spark.source.read_options import ReadOptions
from eoslog.spark.source.read_schema import column_names, required_names
from eoslog.spark.staging import check_store_visible, mark_of_store
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Range that one task reads, and by what the task knows the driver's store, and the topic."""

    wanted: OffsetRange
    store_mark: str
    topic_id: str


class BatchReader(DataSourceReader):
    """Reads the records between two offsets of each partition; see docs/spark.md."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        """Raises ValueError for a wrong option or column."""
        self._options = ReadOptions.of_batch(options)
        self._names = column_names(schema)
        self._required = required_names(schema)
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        """Return the range that each task is to read.

        Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError, ValueError, StoreError.
        """
        options = self._options
        with lent_store(options.store) as store:
            engine = engine_of(store)
            partitions = [engine.partition(*where) for where in options.choice.partitions(store)]
            latest = latest_offsets(store, partitions, options)
            level, fail = options.isolation_level, options.fail_on_data_loss
            starts = starting_offsets(
                options.starting, partitions, latest, level, fail_on_data_loss=fail
            )
            ends = ending_offsets(options.ending, partitions, latest, level, fail_on_data_loss=fail)
            topic_ids = {one.topic: one.topic_id for one in partitions}
            logs = {one.topic_partition: one for one in partitions}
            ranges = self._pruning.ranges(ranges_between(starts, ends), logs, level)
            return split_ranges(store, options.split, ranges, topic_ids)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the records of one range, in the task."""
        return read_range(self._options, self._names, self._required, partition)


class PruningBatchReader(BatchReader):
    """A reader that leaves out what a query's filters rule out: option `pushDownPredicate`.

    A class of its own, since Spark refuses every read by one that takes filters while
    `spark.sql.python.filterPushdown.enabled` is false, which it is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Take the filters as bounds of what is read; Spark applies all of them."""
        for one in filters:
            self._pruning.add(one)
        return filters


def latest_offsets(
    store: Store, partitions: list[UnifiedLog], options: ReadOptions
) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition may be read; for committed reads it cuts no
    transaction.
    """
    if options.isolation_level == "read_uncommitted":
        return {
            partition.topic_partition: partition.readable_end("read_uncommitted")
            for partition in partitions
        }
    cuts = store.snapshot({partition.topic for partition in partitions})
    return {partition.topic_partition: cuts[partition.topic_partition] for partition in partitions}


def split_ranges(
    store: Store, rule: SplitRule, ranges: list[OffsetRange], topic_ids: Mapping[str, str]
) -> list[InputPartition]:
    """Input partitions for the ranges, the large ones divided; the ids are those of the topics that
    the offsets belong to.
    """
    mark = mark_of_store(store.path)

    def bytes_of(one: OffsetRange) -> int:
        partition = store.partition(*one.where)
        if partition.size_bytes <= (rule.max_bytes or BYTES_PER_TASK):
            return partition.size_bytes
        return bytes_in(partition, one.first, one.upper_bound)

    return [
        RangePartition(one, mark, topic_ids[one.where.topic])
        for one in rule.split(ranges, bytes_of)
    ]


def read_range(
    options: ReadOptions,
    names: tuple[str, ...],
    required: Collection[str],
    partition: InputPartition,
) -> "Iterator[pa.RecordBatch]":
    """The record batches of an input partition.

    Raises StoreNotVisibleError if this worker does not see the driver's store, and what
    `record_batches` raises; UnknownTopicOrPartitionError if the topic is gone, or
    OffsetOutOfRangeError if it is another one than was planned.
    """
    from eoslog.spark.source.record_columns import record_batches

    if not isinstance(partition, RangePartition):
        return  # Spark makes up a partition where there is none.
    check_store_visible(options.store, partition.store_mark)
    with lent_store(options.store) as store:
        log = engine_of(store).partition(*partition.wanted.where)
        if log.topic_id != partition.topic_id:
            report_data_loss(
                options.fail_on_data_loss,
                f"{log.topic_partition}: the topic was deleted and made again since the read was "
                "planned",
            )
            return
        # Of this very log: the topic may be made again now.
        yield from record_batches(
            log,
            partition.wanted,
            names,
            options.isolation_level,
            fail_on_data_loss=options.fail_on_data_loss,
            required=required,
        )
