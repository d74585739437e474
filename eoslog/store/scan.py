"""A scan: the records of a topic up to a snapshot, as a stream of Arrow record batches.

The offsets are fixed when the scan is made, and nothing is read then. Invariants: each stream of a
scan gives the same records, partition by partition, in the order of their offsets; it gives all of
them, or an error says what is missing; it holds one batch.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from eoslog.bindings.log_reader import PART_TIMESTAMPS, Columns
from eoslog.common.arguments import whole_number
from eoslog.common.config import INT64_MAX
from eoslog.common.durability import check_isolation_level
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from eoslog.storage.engine import Engine
from eoslog.storage.topic_registry import partition_of
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.consistent_snapshot import ConsistentSnapshots

if TYPE_CHECKING:
    import pyarrow

# About as much log as makes a record batch: it stays in the processor's cache until it is used.
SCAN_BYTES = 1 << 20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Bounds = tuple[int | None, int | None]
Offsets = Mapping[int | TopicPartition, Bounds]
TimeRange = tuple[datetime | int | None, datetime | int | None]


class _Range(NamedTuple):
    partition: UnifiedLog
    first: int
    upper_bound: int


class Scan:
    """The records of a topic as Arrow record batches; `Store.scan` makes it.

    Any library that takes Arrow streams reads it (`pyarrow.table(scan)`, `polars.DataFrame(scan)`,
    DuckDB by the variable's name), and so does a loop over it. Each stream, and each loop, begins
    at the first record again. Batches stay valid after the store is closed.
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        ranges: list[_Range],
        names: list[str],
        moments: tuple[int | None, int | None],
        isolation_level: str,
        max_bytes: int,
    ) -> None:
        from eoslog.columns import arrow

        self._engine = engine
        self._topic = topic
        self._ranges = ranges
        self._from_ms, self._to_ms = moments
        self._isolation_level = isolation_level
        self._max_bytes = max_bytes
        self._schema = arrow.schema_of(names)
        self._parts = arrow.parts_of(names)
        if moments != (None, None):
            self._parts |= PART_TIMESTAMPS

    def __repr__(self) -> str:
        columns = ", ".join(self._schema.names)
        return f"<eoslog.Scan of {self._topic!r}, partitions: {len(self._ranges)}, {columns}>"

    @property
    def schema(self) -> "pyarrow.Schema":
        """Names and types of the columns."""
        return self._schema

    def __iter__(self) -> "Iterator[pyarrow.RecordBatch]":
        """Return the record batches, none of which is empty; each is read when it is asked for.

        Raises
        ------
        OffsetOutOfRangeError
            Retention has deleted records that the scan has not read yet.
        UnknownTopicOrPartitionError
            The topic was deleted.
        LogClosedError, CorruptRecordError
        """
        for one in self._ranges:
            yield from self._batches(one)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of the batches, as the Arrow PyCapsule interface has it."""
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(self._schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self, one: _Range) -> "Iterator[pyarrow.RecordBatch]":
        from eoslog.columns import arrow

        make = arrow.batch_maker(one.partition.topic_partition, self._schema)
        offset = one.first
        if offset < one.upper_bound and self._from_ms is not None:
            offset = self._first_in_time(one, self._from_ms)
        while offset < one.upper_bound:
            columns = self._fetched(one, offset)
            if columns is None or columns.next_offset <= offset:
                return  # No record is between here and the bound.
            offset = columns.next_offset
            batch = self._in_time(make(columns), columns)
            if batch.num_rows:
                yield batch
            del batch, columns  # Before the next one is read.

    def _first_in_time(self, one: _Range, from_ms: int) -> int:
        """Return the first offset with a record of the time; the upper bound if there is none."""
        try:
            found = one.partition.offset_for_timestamp(from_ms, self._isolation_level)
        except LogClosedError as error:
            raise self._deleted(error) from error
        if one.partition.log_start_offset > one.first:
            raise _lost(one, one.first)
        return one.upper_bound if found is None else max(one.first, found[0])

    def _fetched(self, one: _Range, offset: int) -> Columns | None:
        partition = one.partition
        try:
            columns = partition.fetch_columns(
                offset,
                self._max_bytes,
                isolation_level=self._isolation_level,
                upper_bound=one.upper_bound,
                parts=self._parts,
            )
            if (columns is None or columns.next_offset <= offset) and (
                partition.readable_end(self._isolation_level) < one.upper_bound
            ):
                raise _lost(one, offset)
        except OffsetOutOfRangeError as error:
            raise _lost(one, offset) from error
        except LogClosedError as error:
            raise self._deleted(error) from error
        return columns

    def _deleted(self, error: LogClosedError) -> Exception:
        self._engine.check_open()
        return UnknownTopicOrPartitionError(f"topic {self._topic!r} was deleted: {error}")

    def _in_time(self, batch: "pyarrow.RecordBatch", columns: Columns) -> "pyarrow.RecordBatch":
        """Return the records of the time range: a slice where they are one after the other."""
        if self._from_ms is None and self._to_ms is None:
            return batch
        import numpy
        import pyarrow

        chosen = numpy.ones(columns.record_count, bool)
        if self._from_ms is not None:
            chosen &= columns.timestamps >= self._from_ms
        if self._to_ms is not None:
            chosen &= columns.timestamps < self._to_ms
        rows = numpy.flatnonzero(chosen)
        if rows.size == 0:
            return batch.slice(0, 0)
        if rows[-1] - rows[0] + 1 == rows.size:
            return batch.slice(int(rows[0]), rows.size)
        return batch.filter(pyarrow.array(chosen))


def _lost(one: _Range, offset: int) -> OffsetOutOfRangeError:
    partition = one.partition
    return OffsetOutOfRangeError(
        f"{partition.topic_partition}: the offsets {offset} to {one.upper_bound} were to be read, "
        f"and the log has those from {partition.log_start_offset} to {partition.log_end_offset}"
    )


def open_scan(
    engine: Engine,
    snapshots: ConsistentSnapshots,
    topic: str,
    offsets: Offsets | None,
    time: TimeRange | None,
    columns: Iterable[str] | None,
    isolation_level: str,
    max_bytes: int,
) -> Scan:
    """See `Store.scan`."""
    from eoslog.columns import arrow  # Raises if pyarrow is not there.

    level = check_isolation_level(isolation_level)
    batch_bytes = whole_number(max_bytes, "max_bytes")
    if batch_bytes < 1:
        raise ValueError(f"max_bytes must be 1 or more, got {batch_bytes}")
    names = list(arrow.SCHEMA.names) if columns is None else _checked_names(columns)
    moments = _moments(time)
    description = engine.topic(topic)
    if level == "read_committed":
        cuts = snapshots.of_topics([topic])
    else:
        cuts = {
            where: engine.partition(*where).readable_end(level)
            for where in description.topic_partitions()
        }
    logs = {where: engine.partition(*where) for where in sorted(cuts)}
    if any(log.topic_id != description.topic_id for log in logs.values()):
        raise UnknownTopicOrPartitionError(f"topic {topic!r} was deleted in the call")
    ranges = _ranges(engine, topic, offsets, logs, cuts)
    return Scan(engine, topic, ranges, names, moments, level, min(batch_bytes, INT64_MAX))


def _checked_names(columns: Iterable[str]) -> list[str]:
    from eoslog.columns import arrow

    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise TypeError(f"columns must be a list of names, got {type(columns).__name__}")
    names = list(columns)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"columns must be names, got {type(name).__name__}")
        if name not in arrow.SCHEMA.names:
            known = ", ".join(arrow.SCHEMA.names)
            raise ValueError(f"columns must be of {known}; got {name!r:.80}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns must be one or more, each once; got {names!r:.200}")
    return names


def _ranges(
    engine: Engine,
    topic: str,
    offsets: Offsets | None,
    logs: Mapping[TopicPartition, UnifiedLog],
    cuts: Mapping[TopicPartition, int],
) -> list[_Range]:
    """Return what is to be read of each partition. Raises OffsetOutOfRangeError for offsets that it
    does not have.
    """
    if offsets is None:
        return [_range_of(logs[where], None, None, cuts[where]) for where in logs]
    if not isinstance(offsets, Mapping):
        raise TypeError(
            "offsets must be a mapping of partitions to (first, upper_bound), got "
            f"{type(offsets).__name__}"
        )
    asked: dict[TopicPartition, Bounds] = {}
    for key, bounds in offsets.items():
        if isinstance(key, tuple):
            if len(key) != 2 or key[0] != topic:
                raise ValueError(f"offsets must be of partitions of {topic!r}, got {key!r:.80}")
            key = key[1]
        where = partition_of(engine.topic(topic), key)
        if where in asked:
            raise ValueError(f"offsets must have each partition once, got {where} twice")
        if where not in logs:
            raise UnknownTopicOrPartitionError(f"{where} was created in the call")
        asked[where] = _pair(bounds, f"offsets of {where}", "(first, upper_bound)")
    return [_range_of(logs[where], *asked[where], cuts[where]) for where in sorted(asked)]


def _range_of(log: UnifiedLog, first: Any, upper_bound: Any, cut: int) -> _Range:
    where = log.topic_partition
    start = log.log_start_offset
    first = min(start, cut) if first is None else whole_number(first, f"an offset of {where}")
    if upper_bound is None:
        upper_bound = max(first, cut)
    upper_bound = whole_number(upper_bound, f"an offset of {where}")
    if first > upper_bound:
        raise ValueError(f"offsets of {where} must rise, got {first} to {upper_bound}")
    one = _Range(log, first, upper_bound)
    if first < min(start, cut) or upper_bound > cut:
        raise OffsetOutOfRangeError(
            f"{where}: the offsets {first} to {upper_bound} were asked for, and those from {start} "
            f"to {cut} can be read"
        )
    return one


def _pair(given: object, name: str, form: str) -> tuple[Any, Any]:
    if not isinstance(given, (tuple, list)):
        raise TypeError(f"{name} must be a pair {form}, got {type(given).__name__}")
    if len(given) != 2:
        raise ValueError(f"{name} must be a pair {form}, got {len(given)} items")
    return given[0], given[1]


def _moments(time: TimeRange | None) -> tuple[int | None, int | None]:
    """Return a range of time in milliseconds, each end rounded up: a record's time has no fraction
    of one.
    """
    if time is None:
        return None, None
    first, upper_bound = map(_moment_ms, _pair(time, "time", "(from, to)"))
    if first is not None and upper_bound is not None and first > upper_bound:
        raise ValueError(f"time must be a pair (from, to), got {first} ms to {upper_bound} ms")
    return first, upper_bound


def _moment_ms(moment: object) -> int | None:
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"time must have a time zone, got {moment}")
        found = -((_EPOCH - moment) // _MILLISECOND)
    else:
        found = whole_number(moment, "a time in milliseconds")
    if not 0 <= found <= INT64_MAX:
        raise ValueError(f"time must be from 1970 on, within 64 bits of milliseconds, got {found}")
    return found
