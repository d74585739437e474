"""A range of the log as Arrow record batches with the very types that Spark expects.

Keys, values and offsets are handed on over the memory they were fetched into: one copy out of the
log, and no object for a record unless it has headers. What is the same in all records of a
partition is made once. Invariant: a range is given whole, or an error says what is missing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from eoslog import Store
from eoslog.columns import arrow
from eoslog.errors import OffsetOutOfRangeError
from eoslog.spark.columns import TIME_MAX_MS
from eoslog.spark.source.data_loss import report_data_loss
from eoslog.spark.source.offset_ranges import OffsetRange
from eoslog.storage.partition import Partition

if TYPE_CHECKING:
    Columns = Any  # What `Partition.fetch_columns` gives.

# About as much log as makes a record batch: larger ones are slower between Python and the JVM.
BATCH_BYTES = 1 << 20
# No record in an eoslog store carries the time of its append (Kafka's CreateTime).
CREATE_TIME = 0

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
# Milliseconds beyond which a time in microseconds leaves 64 bits.


def record_batches(
    store: Store,
    wanted: OffsetRange,
    names: Sequence[str],
    isolation_level: str,
    *,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in the order of their offsets, with these columns.

    Raises OffsetOutOfRangeError if some of the range is not in the log any more, or not yet; with
    `fail_on_data_loss` off what there is comes without. Raises UnknownTopicOrPartitionError,
    CorruptRecordError.
    """
    partition = store.partition(*wanted.where)
    make = _maker(wanted, names)
    offset = _first_there(partition, wanted, wanted.first, fail_on_data_loss)
    while offset < wanted.upper_bound:
        try:
            columns = partition.fetch_columns(
                offset, BATCH_BYTES, wanted.upper_bound - offset, isolation_level
            )
        except OffsetOutOfRangeError:
            # Retention was faster, or the check says what else it is.
            before, offset = offset, _first_there(partition, wanted, offset, fail_on_data_loss)
            if offset == before:
                raise
            continue
        if columns is None:
            report_data_loss(
                fail_on_data_loss,
                f"{wanted.where}: the offsets {offset} to {wanted.upper_bound} were to be read, "
                f"and {isolation_level} ends at {partition.readable_end(isolation_level)}",
            )
            return
        if columns.record_count:
            batch = make(columns)
            if columns.next_offset > wanted.upper_bound:
                batch = batch.slice(0, _count_below(columns.offsets, wanted.upper_bound))
            if batch.num_rows:
                yield batch
        offset = columns.next_offset


def _first_there(partition: Partition, wanted: OffsetRange, offset: int, fail: bool) -> int:
    """The first offset from `offset` on that retention has left."""
    start = partition.log_start_offset
    if offset >= start:
        return offset
    report_data_loss(
        fail,
        f"{wanted.where}: the offsets {offset} to {min(start, wanted.upper_bound)} were to be "
        f"read, and the log begins at {start}",
    )
    return start


def _count_below(offsets: Any, upper_bound: int) -> int:
    return int(offsets.searchsorted(upper_bound))


def _maker(wanted: OffsetRange, names: Sequence[str]) -> "Callable[[Columns], pa.RecordBatch]":
    """Return the function that makes a record batch of fetched columns."""
    schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in names])
    constants = {
        "topic": _Constant(pa.scalar(wanted.where.topic, pa.string())),
        "partition": _Constant(pa.scalar(wanted.where.partition, pa.int32())),
        "timestampType": _Constant(pa.scalar(CREATE_TIME, pa.int32())),
    }
    makers: dict[str, Callable[[Columns], pa.Array]] = {
        "key": arrow.key_array,
        "value": arrow.value_array,
        "offset": arrow.offset_array,
        "timestamp": _timestamps,
        "headers": _headers,
        **constants,
    }
    chosen = [makers[name] for name in names]

    def make(columns: "Columns") -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([one(columns) for one in chosen], schema=schema)

    return make


class _Constant:
    """A column that holds one value: parts of the longest that was needed."""

    def __init__(self, value: pa.Scalar) -> None:
        self._value = value
        self._cells = pa.repeat(value, 0)

    def __call__(self, columns: "Columns") -> pa.Array:
        if len(self._cells) < columns.record_count:
            self._cells = pa.repeat(self._value, columns.record_count)
        return self._cells.slice(0, columns.record_count)


def _timestamps(columns: "Columns") -> pa.Array:
    """Microseconds, as Spark keeps time; null for a time that it cannot hold."""
    found = columns.timestamps
    beyond = None
    if found.max() > TIME_MAX_MS or found.min() < -TIME_MAX_MS:
        beyond = (found > TIME_MAX_MS) | (found < -TIME_MAX_MS)
        found[beyond] = 0
    # The fetched memory is this batch's own.
    found *= 1000
    if beyond is not None:
        return pa.array(found, ARROW_TYPES["timestamp"], mask=beyond)
    buffers = [None, pa.py_buffer(found)]
    return pa.Array.from_buffers(ARROW_TYPES["timestamp"], columns.record_count, buffers)


def _headers(columns: "Columns") -> pa.Array:
    return arrow.header_array(columns, ARROW_TYPES["headers"], null_if_none=True)
