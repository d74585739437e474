"""Rows on their way to the partitions of one topic: collected, placed by key, cut into batches.

Rows of a partition keep the order in which they were appended. A row with a key goes where Kafka's
partitioner puts the key; rows without one fill one partition's batch after the other.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from eoslog.bindings.columns import header_cells, header_pairs, timestamp_column
from eoslog.bindings.partitioner import partition_column
from eoslog.columns.bytes_columns import BytesColumn, Order, Sizes, bytes_column
from eoslog.common import clock
from eoslog.errors import InvalidTimestampError, RecordTooLargeError

# Bytes that a record may take besides key, value and headers, and a batch besides its records.
RECORD_OVERHEAD_BYTES_MAX = 36
BATCH_HEADER_BYTES = 61

NO_TIMESTAMP = -1
INT32_MAX = 2**31 - 1

Headers = list[Any]
Timestamps = npt.NDArray[np.int64]


class TopicLimits(NamedTuple):
    """Limits of what a topic takes."""

    message_bytes_max: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    def check_timestamps(self, oldest: int, newest: int) -> None:
        """Raise InvalidTimestampError unless the topic takes timestamps from one to the other."""
        now_ms = clock.now_ms()
        if (
            oldest < 0
            or now_ms - oldest > self.timestamp_before_max_ms
            or newest - now_ms > self.timestamp_after_max_ms
        ):
            raise InvalidTimestampError(
                f"timestamps from {oldest} to {newest} ms, now {now_ms}: "
                "negative, or too far from now for the topic"
            )


class Rows:
    """Records as columns that belong together; `sizes` bounds the bytes of each when encoded."""

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
    ) -> "Rows":
        """Check what a caller handed in. Raises TypeError or ValueError."""
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

    @property
    def kind(self) -> tuple[object, object, bool]:
        """Rows of equal kind can be put together."""
        values, keys = self.values, self.keys
        return (
            None if values is None else values.kind,
            None if keys is None else keys.kind,
            self.headers is not None,
        )

    def slice(self, first: int, upper_bound: int) -> "Rows":
        if first == 0 and upper_bound == len(self):
            return self
        return Rows(
            None if self.values is None else self.values.slice(first, upper_bound),
            None if self.keys is None else self.keys.slice(first, upper_bound),
            self.timestamps[first:upper_bound],
            None if self.headers is None else self.headers[first:upper_bound],
            self.sizes[first:upper_bound],
        )

    def take(self, order: Order) -> "Rows":
        return Rows(
            None if self.values is None else self.values.take(order),
            None if self.keys is None else self.keys.take(order),
            self.timestamps[order],
            None if self.headers is None else [self.headers[index] for index in order.tolist()],
            self.sizes[order],
        )

    def joined(self, others: Sequence["Rows"]) -> "Rows":
        if not others:
            return self
        headers: Headers | None = None
        if self.headers is not None:
            headers = [one for rows in (self, *others) for one in rows.headers or ()]
        return Rows(
            _joined_columns(self.values, [rows.values for rows in others]),
            _joined_columns(self.keys, [rows.keys for rows in others]),
            np.concatenate([self.timestamps, *(rows.timestamps for rows in others)]),
            headers,
            np.concatenate([self.sizes, *(rows.sizes for rows in others)]),
        )

    def columns(self) -> tuple[object, object, Timestamps, Headers | None]:
        """Return what the encoder takes: values, keys, timestamps, headers."""
        return (
            None if self.values is None else self.values.for_encoder(),
            None if self.keys is None else self.keys.for_encoder(),
            self.timestamps,
            self.headers,
        )

    def check(self, limits: TopicLimits) -> None:
        """Raise InvalidTimestampError for a timestamp that the topic does not take."""
        check_timestamps(self.timestamps, limits)

    def cut(self, bytes_max: int) -> Iterator["Rows"]:
        """Pieces of at most so many bytes when encoded, or of one record."""
        ends = np.cumsum(self.sizes)
        first, taken = 0, 0
        while first < len(ends):
            upper_bound = int(np.searchsorted(ends, taken + bytes_max, "right"))
            upper_bound = max(upper_bound, first + 1)
            yield self.slice(first, upper_bound)
            first, taken = upper_bound, int(ends[upper_bound - 1])


def check_record_sizes(rows: Rows, bytes_max: int, encoded_bytes: Any) -> None:
    """Raise RecordTooLargeError for a record whose batch would exceed the limit all by itself.

    `encoded_bytes(rows)` measures one; it is asked only about those that come close to the limit.
    """
    close = np.flatnonzero(rows.sizes > bytes_max - BATCH_HEADER_BYTES)
    for index in close.tolist():
        batch_bytes = int(rows.sizes[index]) + BATCH_HEADER_BYTES
        if batch_bytes <= INT32_MAX:
            batch_bytes = encoded_bytes(rows.slice(index, index + 1))
        if batch_bytes > bytes_max:
            raise RecordTooLargeError(
                f"record {index} makes a batch of {batch_bytes} bytes; limit {bytes_max}"
            )


class RowPlacer:
    """Says which partition of a topic each row goes to."""

    def __init__(self, partition_count: int, first_partition: int, batch_bytes: int) -> None:
        self._partition_count = partition_count
        self._batch_bytes = batch_bytes
        self._next = first_partition % partition_count  # Of rows without a key.

    def place(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """The rows of each partition, in their order."""
        count = self._partition_count
        if count == 1:
            yield 0, rows
            return
        if rows.keys is None:
            for piece in rows.cut(self._batch_bytes):
                yield self._next, piece
                self._next = (self._next + 1) % count
            return
        placed = partition_column(rows.keys.for_encoder(), count)
        self._place_keyless(placed, rows.sizes)
        # Sorting 16-bit numbers is ten times faster than 32-bit ones: it goes by digits.
        narrow = placed.astype(np.uint16) if count <= 1 << 16 else placed
        order = np.argsort(narrow, kind="stable")
        ends = np.cumsum(np.bincount(placed, minlength=count))
        regrouped = rows.take(order)
        first = 0
        for partition, end in enumerate(ends.tolist()):
            if end > first:
                yield partition, regrouped.slice(first, end)
            first = end

    def _place_keyless(self, placed: npt.NDArray[np.int32], sizes: Sizes) -> None:
        keyless = np.flatnonzero(placed < 0)
        if len(keyless):
            batch = np.cumsum(sizes[keyless]) // self._batch_bytes
            placed[keyless] = (self._next + batch) % self._partition_count
            self._next = int((self._next + batch[-1] + 1) % self._partition_count)


def _joined_columns(
    first: BytesColumn | None, others: Sequence[BytesColumn | None]
) -> BytesColumn | None:
    if first is None:
        return None
    return first.joined([column for column in others if column is not None])


def _timestamps(timestamps: object, count: int) -> Timestamps:
    """Milliseconds of each record; where none are given, those of now."""
    if timestamps is None:
        return np.full(count, clock.now_ms(), np.int64)
    array = np.array(timestamp_column(timestamps))  # What the caller handed in may change.
    if array.shape != (count,):
        raise ValueError(f"timestamps: {array.shape} for {count} records")
    return array


def check_timestamps(timestamps: Timestamps, limits: TopicLimits) -> None:
    """Raise InvalidTimestampError for one that the topic does not take; -1 is none, and taken."""
    if not timestamps.size:
        return
    oldest, newest = int(timestamps.min()), int(timestamps.max())
    if oldest < 0:
        known = timestamps[timestamps != NO_TIMESTAMP]
        if len(known) == 0:
            return
        oldest = int(known.min())
    limits.check_timestamps(oldest, newest)


def header_list(headers: object) -> Headers | None:
    """Each record's headers, checked and copied; None if there is no column of them."""
    if headers is None:
        return None
    return [header_pairs(one) for one in header_cells(headers) or ()]


def _header_bytes(pairs: list[tuple[str, bytes | None]]) -> int:
    return sum(10 + len(name.encode()) + len(value or b"") for name, value in pairs)
