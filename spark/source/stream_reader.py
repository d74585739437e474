"""A streaming read: which offsets the next micro-batch ends at, and what its tasks read.

Spark keeps the end of each micro-batch in the query's checkpoint, as `{"topic": {"0": 123}}`. It
does not keep where the first one began: if that batch is run again, it asks for the initial offsets
again, and "latest" is another place by then. So the end of the first batch says where it began,
under the name "topic (start)". Each end also says which topic of the name it is of, under the name
"topic (id)": one that is made again counts from 0 once more. A query that begins at an offset which
could be another one next time pins it by a first batch that may be empty. Invariants:

- a micro-batch that is in the checkpoint has the same records whenever it is run, or fails;
- of a topic nothing is read again that is below its offset in the checkpoint, whatever its log has;
- with read_committed nothing undecided is in a micro-batch; one that `maxOffsetsPerTrigger` does
  not cut short has of every transaction and staged job all records or none.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from eoslog import Store, TopicPartition
from eoslog.errors import EoslogError
from eoslog.spark.open_stores import lent_store
from eoslog.spark.source.batch_reader import latest_offsets, read_range, split_ranges
from eoslog.spark.source.data_loss import report_data_loss
from eoslog.spark.source.offset_bounds import starting_offsets
from eoslog.spark.source.offset_json import BEGAN, ID, NestedOffsets, as_nested, from_nested, listed
from eoslog.spark.source.offset_ranges import ranges_between, within_limit
from eoslog.spark.source.read_options import ReadOptions
from eoslog.spark.source.read_schema import column_names, required_names
from eoslog.store.store import engine_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]
TopicIds = dict[str, str]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is appended, micro-batch by micro-batch; see docs/spark.md.

    One object plans a query from its start to its stop; others, re-created, read in the tasks.
    """

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        """Raises ValueError for a wrong option or column."""
        self._options = ReadOptions.of_stream(options)
        self._names = column_names(schema)
        self._required = required_names(schema)
        self._initial: NestedOffsets | None = None  # As Spark got it.
        self._initial_ids: TopicIds = {}
        self._target: Offsets | None = None  # The ends of a run with Trigger.AvailableNow.
        self._target_ids: TopicIds = {}
        self._ahead: set[TopicPartition] = set()  # Whose logs end before what was read: warned of.
        self._latest: Offsets | None = None
        # The first micro-batch does not wait for minOffsetsPerTrigger.
        self._last_batch_ms = -(10**18)

    # Which offsets.

    def initialOffset(self) -> NestedOffsets:  # noqa: N802 (Spark's name)
        """Return the offsets at which a new query begins.

        Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError, ValueError, StoreError.
        """
        options = self._options
        with lent_store(options.store) as store:
            self._initial_ids = _topic_ids(store)
            chosen = options.choice.partitions(store)
            if self._target is not None:  # What came since then is new, for another run.
                chosen = [where for where in chosen if where in self._target]
            partitions = [engine_of(store).partition(*where) for where in chosen]
            self._initial = as_nested(
                starting_offsets(
                    options.starting,
                    partitions,
                    latest_offsets(store, partitions, options),
                    options.isolation_level,
                    fail_on_data_loss=options.fail_on_data_loss,
                )
            )
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set for a micro-batch."""
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop reading at what is there now."""
        options = self._options
        with lent_store(options.store) as store:
            self._target_ids = _topic_ids(store)
            # Which topics were read before and are gone, the first micro-batch will tell.
            there = options.choice.partitions(store, None)
            partitions = [engine_of(store).partition(*where) for where in there]
            self._target = latest_offsets(store, partitions, options)

    def latestOffset(self, start: NestedOffsets, limit: ReadLimit) -> NestedOffsets:  # noqa: N802
        """Return the end of the micro-batch that begins at `start`; `start` itself if nothing is
        new.

        Raises OffsetOutOfRangeError for records that were to be read and are gone, and as
        `initialOffset` does.
        """
        starts, _, start_ids = _parted(start)
        first = start == self._initial
        if first:
            start_ids = self._initial_ids
        with lent_store(self._options.store) as store:
            # Before the ends: what one is of, if its topic is made again, shows then.
            known_ids = _topic_ids(store)
            starts = self._of_same_topics(store, starts, start_ids)
            ends = self._ends(store, starts)
            self._report_gone(store, starts, ends)
            begins = {
                where: self._begin(store, where, starts.get(where), None, start_ids)
                for where in ends
            }
            topic_ids = {
                where.topic: known_ids.get(where.topic) or store.partition(*where).topic_id
                for where in ends
            }
        ends = {where: max(end, begins[where]) for where, end in ends.items()}
        self._latest = ends
        ends = self._limited(begins, ends, limit)
        if not first:
            self._initial = None  # The same offsets may come again, and are no start then.
        pins = first and not self._options.starting.is_fixed
        if not pins and ends == starts:
            return start
        return _joined(ends, begins if first else None, topic_ids)

    def reportLatestOffset(self) -> NestedOffsets | None:  # noqa: N802
        """Return the newest offsets, which the query's progress shows."""
        return None if self._latest is None else as_nested(self._latest)

    def _ends(self, store: Store, starts: Offsets) -> Offsets:
        """The newest offsets of what is read now."""
        options = self._options
        if self._target is not None:
            kept = self._still_there(store, self._target)
            # What is in a topic that was made again since then, is for another run.
            same = self._of_same_topics(store, kept, self._target_ids)
            return {where: same.get(where, 0) for where in kept}
        there = options.choice.partitions(store, starts)
        partitions = [engine_of(store).partition(*where) for where in there]
        ends = {
            partition.topic_partition: partition.readable_end(options.isolation_level)
            for partition in partitions
        }
        if ends == starts:
            return ends  # No need for a snapshot.
        return latest_offsets(store, partitions, options)

    def _of_same_topics(self, store: Store, offsets: Offsets, topic_ids: TopicIds) -> Offsets:
        """The offsets without those of topics that were deleted and made again.

        Raises OffsetOutOfRangeError, or warns, if there are any. Topics that are gone stay.
        """
        topics = store.topics()
        remade = {
            name
            for name in {where.topic for where in offsets} & topics.keys() & topic_ids.keys()
            if topics[name].topic_id != topic_ids[name]
        }
        if remade:
            report_data_loss(
                self._options.fail_on_data_loss,
                f"{', '.join(sorted(remade))}: deleted and made again since it was read; what was "
                "not read by then is lost, and the new topic would be read from its beginning",
            )
        return {where: one for where, one in offsets.items() if where.topic not in remade}

    def _report_gone(self, store: Store, before: Offsets, now: Offsets) -> None:
        gone = before.keys() - now.keys()
        if gone:
            report_data_loss(
                self._options.fail_on_data_loss,
                f"{listed(gone)}: no longer in {store.path}, or not chosen any more",
            )

    def _begin(
        self,
        store: Store,
        where: TopicPartition,
        start: int | None,
        planned_end: int | None,
        start_ids: TopicIds,
    ) -> int:
        """Return where a partition is read from: at `start`, a new one from its beginning.

        Raises OffsetOutOfRangeError, or warns, if the log has less than Spark has in its
        checkpoint. The log of the same topic is not read again then: the store is an older copy.
        """
        fail = self._options.fail_on_data_loss
        partition = store.partition(*where)
        earliest = partition.log_start_offset
        end = partition.log_end_offset if planned_end is None else planned_end
        if start is None:
            if earliest > 0:
                report_data_loss(fail, f"{where} is new, and its log begins at {earliest}")
        elif start < earliest:
            report_data_loss(
                fail, f"{where} is to be read from {start} on, and its log begins at {earliest}"
            )
        elif start > end:
            if where not in self._ahead:
                report_data_loss(
                    fail,
                    f"{where} was read up to {start}, and its log ended at {end}: was the topic "
                    "deleted and made again, or the store restored?",
                )
                self._ahead.add(where)
            return start if where.topic in start_ids else earliest
        else:
            return start
        return earliest

    def _limited(self, begins: Offsets, ends: Offsets, limit: ReadLimit) -> Offsets:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return ends
        now_ms = time.monotonic_ns() // 1_000_000
        waited = now_ms - self._last_batch_ms >= options.max_trigger_delay_ms
        if options.min_offsets_per_trigger and self._target is None and not waited:
            there = sum(ends[where] - begins[where] for where in ends)
            if there < options.min_offsets_per_trigger:
                return begins
        self._last_batch_ms = now_ms
        if isinstance(limit, ReadMaxRows):
            return within_limit(begins, ends, limit.max_rows)
        return ends

    def commit(self, end: NestedOffsets) -> None:
        """Commit the end of a micro-batch that is done as offsets of the query's group, if the
        options name one.

        For people and tools that look at groups; the query goes by its checkpoint. Where the group
        refuses it, as one with members does, a warning says so.
        """
        ends, _, topic_ids = _parted(end)
        if not self._options.group or not ends:
            return
        try:
            with lent_store(self._options.store) as store:
                known = self._of_same_topics(store, self._still_there(store, ends), topic_ids)
                with store.consumer(group=self._options.group) as consumer:
                    consumer.commit(known)
        except EoslogError as error:
            _log.warning("group %s does not show the progress: %s", self._options.group, error)

    # Reading.

    def partitions(self, start: NestedOffsets, end: NestedOffsets) -> list[InputPartition]:
        """Return the range that each task of the micro-batch between two offsets is to read.

        Raises OffsetOutOfRangeError for records that are gone.
        """
        if start == end:
            return []  # It may be the end of the first micro-batch, and say where that began.
        starts, _, start_ids = _parted(start)
        planned_ends, began, topic_ids = _parted(end)
        options = self._options
        with lent_store(options.store) as store:
            ends = self._still_there(store, planned_ends)
            self._report_gone(store, planned_ends, ends)
            ends = self._of_same_topics(store, ends, topic_ids)
            if began is not None:
                starts = began
            else:
                # What the batch before this one read of an earlier topic says nothing of this one.
                starts = {
                    where: one
                    for where, one in starts.items()
                    if start_ids.get(where.topic) in (None, topic_ids.get(where.topic))
                }
            begins = {
                where: self._begin(store, where, starts.get(where), end, start_ids)
                for where, end in ends.items()
            }
            return split_ranges(
                store, options.split, ranges_between(begins, ends), topic_ids or _topic_ids(store)
            )

    @staticmethod
    def _still_there(store: Store, ends: Offsets) -> Offsets:
        counts = {name: topic.partitions for name, topic in store.topics().items()}
        return {
            where: end
            for where, end in ends.items()
            if where.partition < counts.get(where.topic, 0)
        }

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the records of one range, in the task."""
        return read_range(self._options, self._names, self._required, partition)


def _topic_ids(store: Store) -> TopicIds:
    return {name: topic.topic_id for name, topic in store.topics().items()}


def _parted(
    nested: Mapping[str, Mapping[str, int]],
) -> tuple[Offsets, Offsets | None, TopicIds]:
    """The offsets, where the first micro-batch began if these are its end, and the topics' ids."""
    ends, began, topic_ids = {}, {}, {}
    for name, found in nested.items():
        if name.endswith(BEGAN):
            began[name.removesuffix(BEGAN)] = found
        elif name.endswith(ID):
            (topic_ids[name.removesuffix(ID)],) = found
        else:
            ends[name] = found
    return from_nested(ends), from_nested(began) if began else None, topic_ids


def _joined(ends: Offsets, began: Offsets | None, topic_ids: TopicIds) -> NestedOffsets:
    nested = as_nested(ends)
    nested |= {name + ID: {topic_ids[name]: 0} for name in sorted(topic_ids)}
    if began is not None:
        # Also of a query that began without any topic.
        nested |= {name + BEGAN: found for name, found in as_nested(began).items()} or {BEGAN: {}}
    return nested
