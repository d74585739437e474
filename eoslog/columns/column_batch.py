"""Column batch: columns of records of one topic, and the partition of each record.

Records of a partition keep their order. A record with a key goes where Kafka's partitioner puts the
key; records without one fill one partition's batch after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eoslog.bindings.batch_filler import checked_records
from eoslog.bindings.columns import header_cells, header_pairs, timestamp_column
from eoslog.bindings.partitioner import partition_column
from eoslog.columns.bytes_columns import BytesColumn, Order, Sizes, bytes_column
from eoslog.common import clock
from eoslog.errors import InvalidTimestampError

# Bytes that a record may take besides key, value and headers, and a batch besides its records.
RECORD_OVERHEAD_BYTES_MAX = 36
BATCH_HEADER_BYTES = 61

NO_TIMESTAMP = -1

Headers = list[Any]
Timestamps = npt.NDArray[np.int64]
EncoderColumns = tuple[object, object, Timestamps, Headers | None]


class TopicLimits(NamedTuple):
    """Largest batch and timestamps that a topic takes."""

    message_bytes_max: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    def check_timestamps(self, oldest_ms: int, newest_ms: int) -> None:
        """Raise InvalidTimestampError unless the topic takes timestamps from one to the other."""
        now_ms = clock.now_ms()
        if (
            oldest_ms < 0
            or now_ms - oldest_ms > self.timestamp_before_max_ms
            or newest_ms - now_ms > self.timestamp_after_max_ms
        ):
            raise InvalidTimestampError(
                f"timestamps from {oldest_ms} to {newest_ms} are outside the topic's limits "
                f"[{max(0, now_ms - self.timestamp_before_max_ms)}, "
                f"{now_ms + self.timestamp_after_max_ms}]"
            )

    def check_timestamp_column(self, timestamps: Timestamps) -> None:
        """Raise InvalidTimestampError for a timestamp that the topic does not take; -1 is none."""
        known = timestamps[timestamps != NO_TIMESTAMP]
        if known.size:
            self.check_timestamps(int(known.min()), int(known.max()))


class ColumnBatch:
    """Columns of records; `sizes` bounds the bytes of each record when encoded."""

    def __init__(
        self,
        values: BytesColumn | None,
        keys: BytesColumn | None,
        timestamps: Timestamps,
        headers: Headers | None,
        sizes: Sizes,
    ) -> None:
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.headers = headers
        self.sizes = sizes

    @classmethod
    def of_columns(
        cls, values: object, keys: object, timestamps: object, headers: object
    ) -> "ColumnBatch":
        """Check the columns of a caller. Raises TypeError or ValueError."""
        value_column = None if values is None else bytes_column(values, "values")
        key_column = None if keys is None else bytes_column(keys, "keys")
        counted = value_column if value_column is not None else key_column
        if counted is None:
            raise TypeError("values: a column, not None")
        count = len(counted)
        if key_column is not None and len(key_column) != count:
            raise ValueError(f"keys: {len(key_column)} for {count} values")
        sizes = np.full(count, RECORD_OVERHEAD_BYTES_MAX, np.int64)
        for column in (value_column, key_column):
            if column is not None:
                sizes += column.sizes()
        pairs = header_list(headers)
        if pairs is not None:
            if len(pairs) != count:
                raise ValueError(f"headers: {len(pairs)} for {count} records")
            if any(pairs):
                sizes += np.fromiter(map(_header_bytes, pairs), np.int64, count)
            else:
                pairs = None
        return cls(value_column, key_column, _timestamps(timestamps, count), pairs, sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def slice(self, first: int, upper_bound: int) -> "ColumnBatch":
        if first == 0 and upper_bound == len(self):
            return self
        return ColumnBatch(
            None if self.values is None else self.values.slice(first, upper_bound),
            None if self.keys is None else self.keys.slice(first, upper_bound),
            self.timestamps[first:upper_bound],
            None if self.headers is None else self.headers[first:upper_bound],
            self.sizes[first:upper_bound],
        )

    def take(self, order: Order) -> "ColumnBatch":
        return ColumnBatch(
            None if self.values is None else self.values.take(order),
            None if self.keys is None else self.keys.take(order),
            self.timestamps[order],
            None if self.headers is None else [self.headers[index] for index in order.tolist()],
            self.sizes[order],
        )

    def joined(self, others: Sequence["ColumnBatch"]) -> "ColumnBatch":
        """Return these records, then those of other batches with the same columns."""
        if not others:
            return self
        headers: Headers | None = None
        if self.headers is not None:
            headers = [one for batch in (self, *others) for one in batch.headers or ()]
        return ColumnBatch(
            _joined_columns(self.values, [batch.values for batch in others]),
            _joined_columns(self.keys, [batch.keys for batch in others]),
            np.concatenate([self.timestamps, *(batch.timestamps for batch in others)]),
            headers,
            np.concatenate([self.sizes, *(batch.sizes for batch in others)]),
        )

    def for_encoder(self) -> EncoderColumns:
        """Return values, keys, timestamps and headers as the encoder takes them."""
        return (
            None if self.values is None else self.values.for_encoder(),
            None if self.keys is None else self.keys.for_encoder(),
            self.timestamps,
            self.headers,
        )

    def cut(self, bytes_max: int) -> Iterator["ColumnBatch"]:
        """Yield pieces of at most so many bytes when encoded, or of one record."""
        ends = np.cumsum(self.sizes)
        first, taken = 0, 0
        while first < len(ends):
            upper_bound = int(np.searchsorted(ends, taken + bytes_max, "right"))
            upper_bound = max(upper_bound, first + 1)
            yield self.slice(first, upper_bound)
            first, taken = upper_bound, int(ends[upper_bound - 1])

    def by_partition(
        self, partition_count: int, first_partition: int, batch_bytes: int
    ) -> Iterator[tuple[int, "ColumnBatch"]]:
        """Yield each partition that gets records, and these; keyless ones from `first_partition`
        on.
        """
        if partition_count == 1:
            yield 0, self
        elif self.keys is None:
            pieces: dict[int, list[ColumnBatch]] = {}
            for turn, piece in enumerate(self.cut(batch_bytes), first_partition):
                pieces.setdefault(turn % partition_count, []).append(piece)
            for partition, (first_piece, *others) in sorted(pieces.items()):
                yield partition, first_piece.joined(others)
        else:
            partitions = partition_column(self.keys.for_encoder(), partition_count)
            keyless = np.flatnonzero(partitions < 0)
            turns = first_partition + np.cumsum(self.sizes[keyless]) // batch_bytes
            partitions[keyless] = turns % partition_count
            # Sorting 16-bit numbers is ten times faster than 32-bit ones: it goes by digits.
            narrow = partitions.astype(np.uint16) if partition_count <= 1 << 16 else partitions
            sorted_batch = self.take(np.argsort(narrow, kind="stable"))
            first = 0
            ends = np.cumsum(np.bincount(partitions, minlength=partition_count))
            for partition, end in enumerate(ends.tolist()):
                if end > first:
                    yield partition, sorted_batch.slice(first, end)
                first = end


def columns_by_partition(
    partition_count: int,
    first_partition: int,
    config: Mapping[str, int],
    values: object,
    keys: object,
    timestamps: object,
    headers: object,
) -> Iterator[tuple[int, EncoderColumns]]:
    """Yield each partition of a topic that gets records, and their columns in the order given.

    Records without a key begin at `first_partition`, below `partition_count`. Everything is checked
    before the first partition: a wrong record in the middle leaves the log as it was.

    Raises TypeError, ValueError, InvalidTimestampError or RecordTooLargeError.
    """
    batch = ColumnBatch.of_columns(values, keys, timestamps, headers)
    if len(batch) == 0:
        raise ValueError("no records to append")
    bytes_max = config["max.message.bytes"]
    limits = TopicLimits(
        bytes_max,
        config["message.timestamp.before.max.ms"],
        config["message.timestamp.after.max.ms"],
    )
    limits.check_timestamp_column(batch.timestamps)
    if int(batch.sizes.max()) > bytes_max - BATCH_HEADER_BYTES:  # Else no record is too large.
        checked_records(*batch.for_encoder(), timestamp_ms=0, batch_bytes_max=bytes_max)
    for partition, part in batch.by_partition(partition_count, first_partition, bytes_max):
        yield partition, part.for_encoder()


def _joined_columns(
    first: BytesColumn | None, others: Sequence[BytesColumn | None]
) -> BytesColumn | None:
    if first is None:
        return None
    return first.joined([column for column in others if column is not None])


def _timestamps(timestamps: object, count: int) -> Timestamps:
    """Return the milliseconds of each record; those of now if none are given."""
    if timestamps is None:
        return np.full(count, clock.now_ms(), np.int64)
    array = np.array(timestamp_column(timestamps))  # What the caller handed in may change.
    if array.shape != (count,):
        raise ValueError(f"timestamps: {array.shape} for {count} records")
    return array


def header_list(headers: object) -> Headers | None:
    """Return each record's headers, checked and copied; None if there is no column of them."""
    if headers is None:
        return None
    return [header_pairs(one) for one in header_cells(headers) or ()]


def _header_bytes(pairs: list[tuple[str, bytes | None]]) -> int:
    return sum(10 + len(name.encode()) + len(value or b"") for name, value in pairs)
