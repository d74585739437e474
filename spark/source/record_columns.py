"""A range of the log as Arrow record batches with the very types that Spark expects.

Keys, values and offsets are handed on over the memory they were fetched into: one copy out of the
log, and no object for a record unless it has headers. What is the same in all records of a
partition is made once. Invariant: a range is given whole, or an error says what is missing.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from eoslog.columns import arrow
from eoslog.errors import OffsetOutOfRangeError
from eoslog.spark.source.data_loss import report_data_loss
from eoslog.spark.source.offset_ranges import OffsetRange
from eoslog.spark.timestamps import spark_times
from eoslog.storage.unified_log import UnifiedLog

if TYPE_CHECKING:
    Columns = Any  # What `UnifiedLog.fetch_columns` gives.

# About as much log as makes a record batch: larger ones are slower between Python and the JVM.
BATCH_BYTES = 1 << 20
# Kafka's CreateTime. Batches with the time of their append come by an import.
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


def record_batches(
    partition: UnifiedLog,
    wanted: OffsetRange,
    names: Sequence[str],
    isolation_level: str,
    *,
    fail_on_data_loss: bool,
    required: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in the order of their offsets, with these columns.

    Those that are `required` have a type without null, which is how Spark takes NOT NULL.

    Raises OffsetOutOfRangeError if some of the range is not in the log any more, or not yet; with
    `fail_on_data_loss` off what there is comes without. Raises LogClosedError, CorruptRecordError.
    """
    make = _maker(wanted, names, required)
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
                if offset <= partition.log_end_offset:
                    raise
                columns = None
            else:
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


def _first_there(partition: UnifiedLog, wanted: OffsetRange, offset: int, fail: bool) -> int:
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


def _maker(
    wanted: OffsetRange, names: Sequence[str], required: Collection[str]
) -> "Callable[[Columns], pa.RecordBatch]":
    """Return the function that makes a record batch of fetched columns."""
    fields = [pa.field(name, ARROW_TYPES[name], name not in required) for name in names]
    schema = pa.schema(fields)
    constants = {
        "topic": arrow.ConstantColumn(pa.scalar(wanted.where.topic, pa.string())),
        "partition": arrow.ConstantColumn(pa.scalar(wanted.where.partition, pa.int32())),
    }
    create_time = arrow.ConstantColumn(pa.scalar(CREATE_TIME, pa.int32()))

    def timestamp_types(columns: "Columns") -> pa.Array:
        found = columns.timestamp_types
        return create_time(columns) if found is None else pa.array(found)

    makers: dict[str, Callable[[Columns], pa.Array]] = {
        "key": arrow.key_array,
        "value": arrow.value_array,
        "offset": arrow.offset_array,
        "timestamp": _timestamps,
        "timestampType": timestamp_types,
        "headers": _headers,
        **constants,
    }
    chosen = [makers[name] for name in names]

    def make(columns: "Columns") -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([one(columns) for one in chosen], schema=schema)

    return make


def _timestamps(columns: "Columns") -> pa.Array:
    """Microseconds, as Spark keeps time; null for a time that it cannot hold."""
    # The fetched memory is this batch's own.
    found, beyond = spark_times(columns.timestamps)
    if beyond is not None:
        return pa.array(found, ARROW_TYPES["timestamp"], mask=beyond)
    buffers = [None, pa.py_buffer(found)]
    return pa.Array.from_buffers(ARROW_TYPES["timestamp"], columns.record_count, buffers)


def _headers(columns: "Columns") -> pa.Array:
    return arrow.header_array(columns, ARROW_TYPES["headers"], null_if_none=True)
